"""Checkpoints: `save` and `load` a training state, `Saver` in the background. docs/checkpoint.md shows how."""

from headrace.base.missing_extras import needs_extra

with needs_extra(__name__):
    from headrace.checkpoint.folder import pin, steps, unpin
    from headrace.checkpoint.place import PosixPlace
    from headrace.checkpoint.restore import load, verify
    from headrace.checkpoint.retention import Retention
    from headrace.checkpoint.save import Saver, save
    from headrace.checkpoint.saving import Saved, SaveOptions, Saving

__all__ = [
    "PosixPlace",
    "Retention",
    "SaveOptions",
    "Saved",
    "Saver",
    "Saving",
    "load",
    "pin",
    "save",
    "steps",
    "unpin",
    "verify",
]
