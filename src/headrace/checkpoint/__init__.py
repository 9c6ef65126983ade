"""Save and load the state of a training: `save`, `load`, and `Saver` for saves in the background. docs/checkpoint.md is
the guide."""

from headrace.base.missing_extras import needs_extra

with needs_extra(__name__):
    from headrace.checkpoint.folder import pin, steps, unpin
    from headrace.checkpoint.posix_storage import PosixStorage
    from headrace.checkpoint.restore import load, verify
    from headrace.checkpoint.retention import Retention
    from headrace.checkpoint.save import Saver, save
    from headrace.checkpoint.saving import SaveHandle, SaveOptions, SaveResult

__all__ = [
    "PosixStorage",
    "Retention",
    "SaveHandle",
    "SaveOptions",
    "SaveResult",
    "Saver",
    "load",
    "pin",
    "save",
    "steps",
    "unpin",
    "verify",
]
