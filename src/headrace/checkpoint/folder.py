"""What a checkpoint folder holds, read: steps, heads, manifests, pins."""

from __future__ import annotations

from headrace.base.errors import CheckpointNotFoundError, PathNotFoundError
from headrace.checkpoint import layout
from headrace.checkpoint.manifest import HEAD_BYTES_FIRST, Head, Manifest, decode, decode_head
from headrace.checkpoint.manifest_check import check_head, check_manifest
from headrace.checkpoint.storage import CheckpointStorage


def steps(place: CheckpointStorage) -> list[int]:
    """Of all checkpoints there are, ascending."""
    return layout.steps_of(place.names(layout.MANIFESTS))


def newest(place: CheckpointStorage) -> int:
    """CheckpointNotFoundError when there is none."""
    found = steps(place)
    if not found:
        raise CheckpointNotFoundError(place.name, why="there is no checkpoint in this folder")
    return found[-1]


def head(place: CheckpointStorage, step: int) -> Head:
    """CheckpointNotFoundError, CorruptCheckpointError."""
    name = layout.manifest_name(step)
    try:
        found = decode_head(place.read(name, bytes_max=HEAD_BYTES_FIRST), f"{place.name}/{name}")
        return manifest(place, step).head if found is None else check_head(found, f"{place.name}/{name}")
    except PathNotFoundError:
        raise _not_found(place, step) from None


def manifest(place: CheckpointStorage, step: int) -> Manifest:
    """CheckpointNotFoundError, CorruptCheckpointError."""
    name = layout.manifest_name(step)
    try:
        whole_name = f"{place.name}/{name}"
        return check_manifest(decode(place.read(name), whole_name), whole_name)
    except PathNotFoundError:
        raise _not_found(place, step) from None


def pinned(place: CheckpointStorage) -> set[int]:
    """Steps that retention passes by; some may have no checkpoint."""
    return set(layout.steps_of(place.names(layout.PINS)))


def pin(place: CheckpointStorage, step: int) -> None:
    """Durable on return."""
    place.make_folder(layout.PINS)
    name = layout.pin_name(step)
    if name.rpartition("/")[2] not in place.names(layout.PINS):
        place.create(name).close()
    place.sync_folder(layout.PINS)


def unpin(place: CheckpointStorage, step: int) -> None:
    place.remove(layout.pin_name(step))


def _not_found(place: CheckpointStorage, step: int) -> CheckpointNotFoundError:
    known = steps(place)
    there = f"there are {len(known)}, from {known[0]} to {known[-1]}" if known else "there is none"
    return CheckpointNotFoundError(f"{place.name}: no checkpoint of step {step}", why=there)
