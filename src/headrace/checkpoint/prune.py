"""Delete checkpoints that retention drops, packs that no save refers to, and the remains of dead saves.

Other processes may save meanwhile. The order of steps protects their packs:

* First list the packs.
* Then delete the manifests of the dropped checkpoints.
* Then read the claims, and the manifests before and after them.

A save makes its claim before its pack, and before it checks that its base exists. It ends the claim after its commit. A
listed pack that is needed is therefore named by a claim that still exists, or by a manifest that exists by then.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, field

import msgspec

from headrace.base import failpoint
from headrace.base.decoding import decode_json
from headrace.base.errors import (
    CheckpointFailedError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    NotADirectoryPathError,
    PathNotFoundError,
)
from headrace.checkpoint import folder, layout
from headrace.checkpoint.layout import SaveId
from headrace.checkpoint.manifest import HEAD_BYTES_MAX, Head
from headrace.checkpoint.retention import Retention, unreferenced
from headrace.checkpoint.storage import CheckpointStorage, read_whole

log = logging.getLogger(__name__)


@dataclass
class Pruned:
    """Report what a prune deleted.

    steps: those whose manifests were deleted. packs, bytes: deleted files. corrupt: steps with an unreadable manifest.
    While there is one, no pack is deleted, because the manifest may need any of them.
    """

    steps: list[int] = field(default_factory=list)
    packs: list[str] = field(default_factory=list)
    bytes: int = 0
    saves: list[str] = field(default_factory=list)
    corrupt: list[int] = field(default_factory=list)


def prune(
    storage: CheckpointStorage,
    retention: Retention,
    *,
    also: Collection[int] = (),
    saved: int | None = None,
    dry: bool = False,
) -> Pruned:
    """Delete the checkpoints that `retention` and `also` drop, and all files that nothing refers to.

    also: steps to drop in addition; raises CheckpointNotFoundError if one does not exist. saved: the step that the
    caller has just saved, as in `Retention.dropped`. dry: change nothing, and return the files that a prune would
    delete.
    """
    pruned = Pruned()
    packs = storage.names(layout.PACKS)
    steps = folder.steps(storage)
    missing = sorted(set(also) - set(steps))
    if missing:
        raise CheckpointNotFoundError(f"{storage.name}: no checkpoint of step {missing[0]}")
    pruned.steps = sorted({*retention.dropped(steps, folder.pinned(storage), saved=saved), *also})
    if not dry:
        _drop_manifests(storage, pruned.steps)
    heads = _heads(storage, pruned)
    claimed, live_saves = _claims(storage, pruned, {head.save for head in heads}, dry=dry)
    heads += _heads(storage, pruned)
    if not pruned.corrupt:
        needed = [set(head.packs) for head in heads]
        unneeded = unreferenced(packs, [*needed, claimed])
        pruned.packs = [name for name in unneeded if layout.save_of_pack(name) not in live_saves]
        _drop_packs(storage, pruned, dry=dry)
    if not dry:
        _drop_new_manifests(storage, live_saves)
    return pruned


def _drop_manifests(storage: CheckpointStorage, steps: list[int]) -> None:
    """Delete the manifests, durably before the first of their packs is deleted."""
    for step in steps:
        storage.remove(layout.manifest_name(step))
        failpoint.hit("prune.manifest")
        folder.unpin(storage, step)
    if steps:
        storage.sync_folder(layout.MANIFESTS)


def _claims(
    storage: CheckpointStorage, pruned: Pruned, committed: Collection[str], *, dry: bool
) -> tuple[set[str], set[SaveId]]:
    """Return the packs that running saves may refer to, and those saves. Delete the remains of other saves."""
    claimed: set[str] = set()
    live_saves: set[SaveId] = set()
    for save in storage.names(layout.SAVES):
        try:
            file_names = storage.names(f"{layout.SAVES}/{save}")
        except NotADirectoryPathError:  # another user put a file or a link there
            continue
        names = [f"{layout.SAVES}/{save}/{name}" for name in file_names]
        claims = [name for name in names if name.endswith((".claim", ".claim~"))]
        if save not in committed and any(storage.is_claimed(name) for name in claims):
            live_saves.add(SaveId(save))
            for name in claims:
                claimed.update(_claimed_packs(storage, name))
            continue
        if dry or _remove_save(storage, save, names):
            pruned.saves.append(save)
    return claimed, live_saves


def _remove_save(storage: CheckpointStorage, save: str, names: list[str]) -> bool:
    """Delete the remains of a save, and return whether that was possible: another user may own some of them."""
    try:
        for name in names:
            storage.remove(name)
        storage.remove_folder(f"{layout.SAVES}/{save}")
    except CheckpointFailedError as error:
        log.warning("the remains of a save can't be deleted save=%s error=%s", save, error)
        return False
    return True


def _claimed_packs(storage: CheckpointStorage, name: str) -> list[str]:
    """Return the packs that a claim names."""
    try:
        _, _, data = read_whole(storage, name, bytes_max=HEAD_BYTES_MAX).partition(b"\n")
        return decode_json(data, list[str])
    except (PathNotFoundError, CorruptCheckpointError, msgspec.MsgspecError):
        return []  # the save ended meanwhile, or its claim is not written yet: it then relies on no pack


def _heads(storage: CheckpointStorage, pruned: Pruned) -> list[Head]:
    """Return the heads of all remaining checkpoints, and note unreadable ones."""
    heads = []
    for step in folder.steps(storage):
        if step in pruned.steps:
            continue  # a dry run has not deleted it
        try:
            heads.append(folder.head(storage, step))
        except CheckpointNotFoundError:
            continue
        except CorruptCheckpointError as error:
            if step not in pruned.corrupt:
                log.warning("a manifest can't be read, so no pack is deleted step=%d error=%s", step, error)
                pruned.corrupt.append(step)
    return heads


def _drop_packs(storage: CheckpointStorage, pruned: Pruned, *, dry: bool) -> None:
    for name in pruned.packs:
        try:
            pruned.bytes += storage.size_bytes(f"{layout.PACKS}/{name}")
        except PathNotFoundError:  # another process prunes too
            continue
        if not dry:
            storage.remove(f"{layout.PACKS}/{name}")
            failpoint.hit("prune.pack")


def _drop_new_manifests(storage: CheckpointStorage, live: set[SaveId]) -> None:
    """Delete incomplete manifests of saves that do not run."""
    for name in storage.names(layout.MANIFESTS):
        save = layout.save_of_new_manifest(name)
        if save is not None and save not in live:
            try:
                storage.remove(f"{layout.MANIFESTS}/{name}")
            except CheckpointFailedError as error:  # another user owns it, or it is a directory
                log.warning("an incomplete manifest can't be deleted error=%s", error)
