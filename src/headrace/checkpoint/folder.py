"""Read the contents of a checkpoint directory: steps, heads, manifests, pins."""

from __future__ import annotations

from headrace.base.errors import CheckpointNotFoundError, CorruptCheckpointError, PathNotFoundError
from headrace.checkpoint import layout
from headrace.checkpoint.manifest import (
    HEAD_BYTES_FIRST,
    HEAD_BYTES_MAX,
    MANIFEST_BYTES_MAX,
    Head,
    Manifest,
    decode,
    decode_head,
)
from headrace.checkpoint.manifest_check import check_head, check_manifest
from headrace.checkpoint.storage import CheckpointStorage, read_whole


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
    full_name = f"{storage.name}/{name}"
    try:
        for bytes_max in (HEAD_BYTES_FIRST, HEAD_BYTES_MAX):
            step_head = decode_head(storage.read(name, bytes_max=bytes_max), full_name)
            if step_head is not None:
                return check_head(step_head, full_name)
    except PathNotFoundError:
        raise _not_found(storage, step) from None
    why = f"its head is incomplete, or longer than {HEAD_BYTES_MAX} bytes"
    raise CorruptCheckpointError(full_name, why=why, hint="load another step")


def manifest(storage: CheckpointStorage, step: int) -> Manifest:
    """Return the manifest of a step. Raises CheckpointNotFoundError or CorruptCheckpointError."""
    name = layout.manifest_name(step)
    try:
        full_name = f"{storage.name}/{name}"
        data = read_whole(storage, name, bytes_max=MANIFEST_BYTES_MAX)
        return check_manifest(decode(data, full_name), full_name)
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
