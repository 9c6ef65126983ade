"""Deletes: checkpoints that retention drops, packs that nobody refers to, what dead saves left.

Saves may run meanwhile, in any process. The order keeps their packs: packs are listed first; then what is to go loses
its manifest; then claims are read, and manifests before and after them. A save makes its claim before its pack and
before it looks whether its base is there, and ends it after its commit: so a pack that was listed and is needed is
named by a claim that is still there, or else by a manifest that is there by then.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, field

import msgspec

from headrace.base import failpoint
from headrace.base.decoding import decode_json
from headrace.base.errors import CheckpointNotFoundError, CorruptCheckpointError, PathNotFoundError
from headrace.checkpoint import folder, layout
from headrace.checkpoint.layout import SaveId
from headrace.checkpoint.manifest import Head
from headrace.checkpoint.retention import Retention, unreferenced
from headrace.checkpoint.storage import CheckpointStorage

log = logging.getLogger(__name__)


@dataclass
class Pruned:
    """steps: whose manifests went. packs, bytes: files that went. corrupt: steps whose manifest can't be read; as long
    as there is one, no pack is deleted, since it may need any of them."""

    steps: list[int] = field(default_factory=list)
    packs: list[str] = field(default_factory=list)
    bytes: int = 0
    saves: list[str] = field(default_factory=list)
    corrupt: list[int] = field(default_factory=list)


def prune(
    place: CheckpointStorage, retention: Retention, *, also: Collection[int] = (), dry: bool = False
) -> Pruned:
    """also: steps to drop whatever retention says; CheckpointNotFoundError when one is not there. dry: nothing is
    changed, the answer is what would be."""
    done = Pruned()
    packs = place.names(layout.PACKS)
    steps = folder.steps(place)
    missing = sorted(set(also) - set(steps))
    if missing:
        raise CheckpointNotFoundError(f"{place.name}: no checkpoint of step {missing[0]}")
    done.steps = sorted({*retention.dropped(steps, folder.pinned(place)), *also})
    if not dry:
        _drop_manifests(place, done.steps)
    heads = _heads(place, done)
    claimed, live = _claims(place, done, {head.save for head in heads}, dry=dry)
    heads += _heads(place, done)
    if not done.corrupt:
        needed = [set(head.packs) for head in heads]
        found = unreferenced(packs, [*needed, claimed])
        done.packs = [name for name in found if layout.save_of_pack(name) not in live]
        _drop_packs(place, done, dry=dry)
    if not dry:
        _drop_new_manifests(place, live)
    return done


def _drop_manifests(place: CheckpointStorage, steps: list[int]) -> None:
    """A dropped one is gone for good before the first of its packs goes."""
    for step in steps:
        place.remove(layout.manifest_name(step))
        failpoint.hit("prune.manifest")
        folder.unpin(place, step)
    if steps:
        place.sync_folder(layout.MANIFESTS)


def _claims(
    place: CheckpointStorage, done: Pruned, committed: Collection[str], *, dry: bool
) -> tuple[set[str], set[SaveId]]:
    """Packs that saves under way may refer to, and those saves. What dead and committed ones left goes."""
    claimed: set[str] = set()
    live: set[SaveId] = set()
    for save in place.names(layout.SAVES):
        inside = place.names(f"{layout.SAVES}/{save}")
        names = [f"{layout.SAVES}/{save}/{name}" for name in inside]
        claims = [name for name in names if name.endswith((".claim", ".claim~"))]
        if save not in committed and any(place.is_claimed(name) for name in claims):
            live.add(SaveId(save))
            for name in claims:
                claimed.update(_claimed_packs(place, name))
            continue
        done.saves.append(save)
        if not dry:
            for name in names:
                place.remove(name)
            place.remove_folder(f"{layout.SAVES}/{save}")
    return claimed, live


def _claimed_packs(place: CheckpointStorage, name: str) -> list[str]:
    try:
        _, _, data = place.read(name).partition(b"\n")
        return decode_json(data, list[str])
    except (
        PathNotFoundError,
        msgspec.MsgspecError,
    ):  # ended meanwhile; or not written yet, then it relies on none
        return []


def _heads(place: CheckpointStorage, done: Pruned) -> list[Head]:
    heads = []
    for step in folder.steps(place):
        if step in done.steps:
            continue  # dry: it is there still
        try:
            heads.append(folder.head(place, step))
        except CheckpointNotFoundError:
            continue
        except CorruptCheckpointError as error:
            if step not in done.corrupt:
                log.warning("packs are kept: a manifest can't be read step=%d error=%s", step, error)
                done.corrupt.append(step)
    return heads


def _drop_packs(place: CheckpointStorage, done: Pruned, *, dry: bool) -> None:
    for name in done.packs:
        try:
            done.bytes += place.size_bytes(f"{layout.PACKS}/{name}")
        except PathNotFoundError:  # another one prunes too
            continue
        if not dry:
            place.remove(f"{layout.PACKS}/{name}")
            failpoint.hit("prune.pack")


def _drop_new_manifests(place: CheckpointStorage, live: set[SaveId]) -> None:
    for name in place.names(layout.MANIFESTS):
        save = layout.save_of_new_manifest(name)
        if save is not None and save not in live:
            place.remove(f"{layout.MANIFESTS}/{name}")
