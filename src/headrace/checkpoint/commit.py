"""One attempt to save one step, seen from one rank: claim, part, gathering, the commit. Steps and what a crash at each
of them leaves: docs/format.md.

Ranks meet in the folder only. Rank 0 commits when all parts are there. Whoever fails says so in a file, so that the
others need not wait for their time to be up.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field

import msgspec

from headrace.base import failpoint
from headrace.base.deadline import Deadline
from headrace.base.errors import (
    CheckpointFailedError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    HeadraceError,
    PathNotFoundError,
)
from headrace.checkpoint import folder, layout
from headrace.checkpoint.layout import SaveId
from headrace.checkpoint.manifest import Manifest, RankPart, decode_part, encode, encode_part
from headrace.checkpoint.manifest_check import check_part
from headrace.checkpoint.storage import CheckpointStorage, SaveClaim

POLL_S_MIN, POLL_S_MAX = 0.002, 0.25
CLAIM_TRIES = 10


@dataclass
class Attempt:
    place: CheckpointStorage
    save: SaveId
    step: int
    rank: int = 0
    ranks: int = 1
    timeout_s: float = 600.0
    promised: bool = False
    """Somebody may refer to this rank's pack from now on: it must not be deleted when something fails later."""
    _claim: SaveClaim | None = field(default=None, repr=False)

    def begin(self, packs: Collection[str]) -> None:
        """packs: older ones that this save may refer to. None of them is deleted from now on; who wants to rely on
        one looks after this whether its manifest is still there."""
        data = msgspec.json.encode(sorted(packs))
        for left in reversed(range(CLAIM_TRIES)):
            for one in (layout.MANIFESTS, layout.PACKS, layout.save_folder(self.save)):
                self.place.make_folder(one)
            try:
                self._claim = self.place.claim(layout.claim_name(self.save, self.rank), data)
                break
            except PathNotFoundError:  # somebody who prunes took the empty folder for that of a dead save
                if not left:
                    raise
        failpoint.hit("save.claimed")

    def deliver(self, part: RankPart) -> None:
        """What this rank has written; durable on return, like the packs that it names."""
        name = layout.part_name(self.save, self.rank)
        write_file(self.place, f"{name}{layout.NEW}", encode_part(part))
        self.promised = True
        self.place.rename(f"{name}{layout.NEW}", name)
        self.place.sync_folder(layout.save_folder(self.save))
        failpoint.hit("save.delivered")

    def gather(self) -> list[RankPart]:
        """The parts of all ranks, in order. Blocks until they are there. CheckpointFailedError when a rank fails, or
        takes longer than timeout_s."""
        deadline = Deadline.after(self.timeout_s)
        parts: dict[int, RankPart] = {}
        pause_s = POLL_S_MIN
        while len(parts) < self.ranks:
            self._raise_if_failed()
            for rank in range(self.ranks):
                if rank not in parts and (found := self._part(rank)) is not None:
                    parts[rank] = found
                    pause_s = POLL_S_MIN
            if len(parts) < self.ranks:
                missing = [rank for rank in range(self.ranks) if rank not in parts]
                self._pause(deadline, pause_s, f"nothing came from ranks {missing[:8]}")
                pause_s = min(2 * pause_s, POLL_S_MAX)
        return [parts[rank] for rank in range(self.ranks)]

    def _part(self, rank: int) -> RankPart | None:
        name = layout.part_name(self.save, rank)
        try:
            return check_part(decode_part(self.place.read(name), name), name)
        except PathNotFoundError:
            return None

    def publish(self, manifest: Manifest) -> None:
        """The commit: on return the checkpoint is there, and survives a power loss. Before, there is nothing of it."""
        for name, size_bytes in zip(manifest.head.packs, manifest.head.pack_bytes, strict=True):
            self._check_pack(f"{layout.PACKS}/{name}", size_bytes)
        new = layout.new_manifest_name(self.step, self.save)
        write_file(self.place, new, encode(manifest))
        failpoint.hit("save.manifest")
        self.promised = True
        self.place.rename(new, layout.manifest_name(self.step))
        failpoint.hit("save.renamed")
        self.place.sync_folder(layout.MANIFESTS)
        failpoint.hit("save.committed")

    def _check_pack(self, name: str, size_bytes: int) -> None:
        """Somebody may have deleted what this save refers to, by hand or as that of a dead save."""
        try:
            found = self.place.size_bytes(name)
        except PathNotFoundError:
            found = -1
        if found < size_bytes:
            raise CheckpointFailedError(
                f"checkpoint of step {self.step}",
                why=f"{name} is gone or short: {found} of {size_bytes} bytes",
            )

    def await_commit(self) -> None:
        """Blocks until rank 0 has committed. CheckpointFailedError as for `gather`."""
        deadline = Deadline.after(self.timeout_s)
        pause_s = POLL_S_MIN
        while not self.is_committed():
            self._raise_if_failed()
            self._pause(deadline, pause_s, "rank 0 did not commit")
            pause_s = min(2 * pause_s, POLL_S_MAX)

    def is_committed(self) -> bool:
        try:
            return folder.head(self.place, self.step).save == self.save
        except (CheckpointNotFoundError, CorruptCheckpointError):
            return False

    def _pause(self, deadline: Deadline, pause_s: float, why: str) -> None:
        if deadline.left_s() <= 0:
            raise CheckpointFailedError(
                f"checkpoint of step {self.step}", why=f"{why} in {self.timeout_s:.0f} s"
            )
        time.sleep(pause_s)

    def _raise_if_failed(self) -> None:
        try:
            why = self.place.read(layout.failed_name(self.save)).decode(errors="replace")
        except PathNotFoundError:
            return
        raise CheckpointFailedError(f"checkpoint of step {self.step}", why=why)

    def fail(self, error: BaseException) -> None:
        """Tells the other ranks, as far as that is possible."""
        if self.ranks == 1:
            return
        text = f"rank {self.rank} failed: {error}"
        own = f"{layout.failed_name(self.save)}-{self.rank}"
        try:
            write_file(self.place, own, text.encode())
            self.place.rename(own, layout.failed_name(self.save))
        except HeadraceError:  # the disk is full, perhaps: they find out when their time is up
            pass

    def end(self) -> None:
        """The files of this attempt go, those of this rank at least; what others leave is pruned later."""
        if self._claim is not None:
            self._claim.release()
            self._claim = None
        self.place.remove(layout.claim_name(self.save, self.rank))
        self.place.remove(layout.part_name(self.save, self.rank))
        self.place.remove(layout.new_manifest_name(self.step, self.save))
        self.place.remove_folder(layout.save_folder(self.save))


def write_file(place: CheckpointStorage, name: str, data: bytes) -> None:
    """A new file, its bytes durable on return. Nothing is left of it when that fails."""
    sink = place.create(name)
    try:
        try:
            sink.write(memoryview(data), 0)
            sink.sync()
        finally:
            sink.close()
    except BaseException:
        place.remove(name)
        raise
