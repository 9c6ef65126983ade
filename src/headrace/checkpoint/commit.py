"""Run one attempt to save one step, as one rank sees it: claim, part, gathering, commit.

docs/format/checkpoint-commits.md lists the steps, and the files that a crash after each of them leaves. Ranks
communicate only by files of the checkpoint directory. Rank 0 commits when all parts exist. A rank that fails writes the
reason to a file, so that the others don't wait until their timeout.
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
from headrace.checkpoint.manifest import (
    HEAD_BYTES_MAX,
    MANIFEST_BYTES_MAX,
    Manifest,
    RankPart,
    decode_part,
    encode,
    encode_part,
    head_bytes_of,
)
from headrace.checkpoint.manifest_check import check_part
from headrace.checkpoint.storage import CheckpointStorage, SaveClaim, read_whole

POLL_S_MIN, POLL_S_MAX = 0.002, 0.25
"""Shortest and longest pause between two checks of the other ranks' files, in seconds."""
CLAIM_ATTEMPTS_MAX = 10
"""Most attempts to claim while a concurrent prune removes the directory of the save."""
_FAILED_BYTES_MAX = 4096
"""Most bytes that are read of the failure of another rank."""


@dataclass
class Attempt:
    """Perform one rank's part of one attempt to save a step."""

    storage: CheckpointStorage
    save: SaveId
    step: int
    rank: int = 0
    ranks: int = 1
    timeout_s: float = 600.0
    promised: bool = False
    """Other saves may refer to this rank's pack from now on, so a later failure must not delete it."""
    _claim: SaveClaim | None = field(default=None, repr=False)

    def begin(self, packs: Collection[str]) -> None:
        """Claim the packs that this save may refer to. From now on no prune deletes them.

        packs: older packs. A claim does not prove that they still exist, so the caller then checks for the manifest of
        the save that it relies on. Raises PathNotFoundError if the directory of the save disappears again and again.
        """
        data = msgspec.json.encode(sorted(packs))
        for attempts_left in reversed(range(CLAIM_ATTEMPTS_MAX)):
            for directory in (layout.MANIFESTS, layout.PACKS, layout.save_folder(self.save)):
                self.storage.make_folder(directory)
            try:
                self._claim = self.storage.claim(layout.claim_name(self.save, self.rank), data)
                break
            except PathNotFoundError:  # a concurrent prune removed the empty directory as one of a dead save
                if not attempts_left:
                    raise
        failpoint.hit("save.claimed")

    def deliver(self, part: RankPart) -> None:
        """Publish this rank's part to rank 0. The part is durable on return, as are the packs that it names."""
        name = layout.part_name(self.save, self.rank)
        data = encode_part(part)
        self._check_bytes("the part of this rank", len(data), MANIFEST_BYTES_MAX)
        write_file(self.storage, f"{name}{layout.NEW}", data)
        self.promised = True
        self.storage.rename(f"{name}{layout.NEW}", name)
        self.storage.sync_folder(layout.save_folder(self.save))
        failpoint.hit("save.delivered")

    def gather(self) -> list[RankPart]:
        """Return the parts of all ranks, in order. Blocks until all exist.

        Raises CheckpointFailedError if a rank fails or takes longer than timeout_s.
        """
        deadline = Deadline.after(self.timeout_s)
        parts: dict[int, RankPart] = {}
        pause_s = POLL_S_MIN
        while len(parts) < self.ranks:
            self._raise_if_failed()
            for rank in range(self.ranks):
                if rank not in parts and (part := self._part(rank)) is not None:
                    parts[rank] = part
                    pause_s = POLL_S_MIN
            if len(parts) < self.ranks:
                missing = [rank for rank in range(self.ranks) if rank not in parts]
                self._pause(deadline, pause_s, f"no part arrived from ranks {missing[:8]}")
                pause_s = min(2 * pause_s, POLL_S_MAX)
        return [parts[rank] for rank in range(self.ranks)]

    def _part(self, rank: int) -> RankPart | None:
        """Return the part of a rank; None if it does not exist yet."""
        name = layout.part_name(self.save, rank)
        try:
            data = read_whole(self.storage, name, bytes_max=MANIFEST_BYTES_MAX)
            return check_part(decode_part(data, name), name)
        except PathNotFoundError:
            return None

    def publish(self, manifest: Manifest) -> None:
        """Commit the checkpoint: on return it exists and survives a power loss. Before, no trace of it is visible.

        Raises CheckpointFailedError if a pack is missing or short, or if no reader would accept such a long manifest.
        """
        for name, size_bytes in zip(manifest.head.packs, manifest.head.pack_bytes, strict=True):
            self._check_pack(f"{layout.PACKS}/{name}", size_bytes)
        data = encode(manifest)
        self._check_bytes("the head, with the user's metadata,", head_bytes_of(data), HEAD_BYTES_MAX - 1)
        self._check_bytes("the manifest", len(data), MANIFEST_BYTES_MAX)
        new = layout.new_manifest_name(self.step, self.save)
        write_file(self.storage, new, data)
        failpoint.hit("save.manifest")
        self.promised = True
        self.storage.rename(new, layout.manifest_name(self.step))
        failpoint.hit("save.renamed")
        self.storage.sync_folder(layout.MANIFESTS)
        failpoint.hit("save.committed")

    def _check_bytes(self, subject: str, size_bytes: int, bytes_max: int) -> None:
        """Raise CheckpointFailedError for more bytes than a reader accepts."""
        if size_bytes > bytes_max:
            why = f"{subject} has {size_bytes} bytes, more than the {bytes_max} that a load accepts"
            raise CheckpointFailedError(f"checkpoint of step {self.step}", why=why)

    def _check_pack(self, name: str, size_bytes: int) -> None:
        """Raise CheckpointFailedError if a user or a prune has deleted a pack that this save refers to."""
        try:
            actual_bytes = self.storage.size_bytes(name)
        except PathNotFoundError:
            actual_bytes = -1
        if actual_bytes < size_bytes:
            raise CheckpointFailedError(
                f"checkpoint of step {self.step}",
                why=f"{name} is missing or short: {max(actual_bytes, 0)} of {size_bytes} bytes",
            )

    def await_commit(self) -> None:
        """Block until rank 0 has committed. Raises CheckpointFailedError as `gather` does."""
        deadline = Deadline.after(self.timeout_s)
        pause_s = POLL_S_MIN
        while not self.is_committed():
            self._raise_if_failed()
            self._pause(deadline, pause_s, "rank 0 did not commit")
            pause_s = min(2 * pause_s, POLL_S_MAX)

    def is_committed(self) -> bool:
        """Return whether the manifest of this step is from this save."""
        try:
            return folder.head(self.storage, self.step).save == self.save
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
            data = self.storage.read(layout.failed_name(self.save), bytes_max=_FAILED_BYTES_MAX)
        except PathNotFoundError:
            return
        raise CheckpointFailedError(f"checkpoint of step {self.step}", why=data.decode(errors="replace"))

    def fail(self, error: BaseException) -> None:
        """Report the failure to the other ranks, as far as that is possible."""
        if self.ranks == 1:
            return
        text = f"rank {self.rank} failed: {error}"
        own = f"{layout.failed_name(self.save)}-{self.rank}"
        try:
            write_file(self.storage, own, text.encode())
            self.storage.rename(own, layout.failed_name(self.save))
        except HeadraceError:  # the disk may be full: the other ranks notice by their timeout
            pass

    def end(self) -> None:
        """Delete this rank's files of the attempt. A prune deletes the files of ranks that did not end."""
        if self._claim is not None:
            self._claim.release()
            self._claim = None
        self.storage.remove(layout.claim_name(self.save, self.rank))
        self.storage.remove(layout.part_name(self.save, self.rank))
        self.storage.remove(layout.new_manifest_name(self.step, self.save))
        self.storage.remove_folder(layout.save_folder(self.save))


def write_file(storage: CheckpointStorage, name: str, data: bytes) -> None:
    """Write a new file. Its bytes are durable on return. On failure the file is deleted."""
    writer = storage.create(name)
    try:
        try:
            writer.write(memoryview(data), 0)
            writer.sync()
        finally:
            writer.close()
    except BaseException:
        storage.remove(name)
        raise
