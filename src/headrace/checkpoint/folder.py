"""Read the contents of a checkpoint directory: steps, heads, manifests, pins."""

from __future__ import annotations

from headrace.base.errors import CheckpointNotFoundError, PathNotFoundError
from headrace.checkpoint import layout
from headrace.checkpoint.manifest import HEAD_BYTES_FIRST, Head, Manifest, decode, decode_head
from headrace.checkpoint.manifest_check import check_head, check_manifest
from headrace.checkpoint.storage import CheckpointStorage


def steps(storage: CheckpointStorage) -> list[int]:
    """Return the steps of all checkpoints, ascending."""
    return layout.steps_of(storage.names(layout.MANIFESTS))


def newest(storage: CheckpointStorage) -> int:
    """Return the newest step. Raises CheckpointNotFoundError if the directory has no checkpoint."""
    all_steps = steps(storage)
    if not all_steps:
        raise CheckpointNotFoundError(storage.name, why="there is no checkpoint in this directory")
    return all_steps[-1]


def head(storage: CheckpointStorage, step: int) -> Head:
    """Return the head of a step's manifest. Raises CheckpointNotFoundError or CorruptCheckpointError."""
    name = layout.manifest_name(step)
    try:
        first_head = decode_head(storage.read(name, bytes_max=HEAD_BYTES_FIRST), f"{storage.name}/{name}")
        return (
            manifest(storage, step).head
            if first_head is None
            else check_head(first_head, f"{storage.name}/{name}")
        )
    except PathNotFoundError:
        raise _not_found(storage, step) from None


def manifest(storage: CheckpointStorage, step: int) -> Manifest:
    """Return the manifest of a step. Raises CheckpointNotFoundError or CorruptCheckpointError."""
    name = layout.manifest_name(step)
    try:
        full_name = f"{storage.name}/{name}"
        return check_manifest(decode(storage.read(name), full_name), full_name)
    except PathNotFoundError:
        raise _not_found(storage, step) from None


def pinned(storage: CheckpointStorage) -> set[int]:
    """Return the steps that retention must keep; some may have no checkpoint."""
    return set(layout.steps_of(storage.names(layout.PINS)))


def pin(storage: CheckpointStorage, step: int) -> None:
    """Protect a step from retention; durable on return."""
    storage.make_folder(layout.PINS)
    name = layout.pin_name(step)
    if name.rpartition("/")[2] not in storage.names(layout.PINS):
        storage.create(name).close()
    storage.sync_folder(layout.PINS)


def unpin(storage: CheckpointStorage, step: int) -> None:
    """Remove a step's pin."""
    storage.remove(layout.pin_name(step))


def _not_found(storage: CheckpointStorage, step: int) -> CheckpointNotFoundError:
    all_steps = steps(storage)
    why = (
        f"there are {len(all_steps)}, from {all_steps[0]} to {all_steps[-1]}"
        if all_steps
        else "there is none"
    )
    return CheckpointNotFoundError(f"{storage.name}: no checkpoint of step {step}", why=why)
