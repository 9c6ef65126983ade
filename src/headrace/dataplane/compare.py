"""Compares what an origin sent with the digest that it names, before it is kept for good.

TLS guards bytes on the way; a plain connection, a proxy's memory or an origin's disk may spoil them, and what is in the
cache stays there. A digest is compared when all bytes of a version are here: of a small file before anybody has one of
them, of a large one when its last block came.

No origin says whether its ETag is a digest of the bytes, so one that does not match is no proof. Two reads that bring
the same bytes are: what spoils bytes on their way does not spoil them twice alike. So what does not match is read
again until two reads agree. Then either the digest matches, or it is none of these bytes; where that happens again
and again and none ever matches, nothing is compared any more (`Digests`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from headrace.base.errors import CorruptOriginError, EvictedError, StoreError
from headrace.base.model import BLOCK_SIZE_BYTES, Arrived, Version, block_range
from headrace.dataplane.source import OriginSource
from headrace.origin.digest import Digest, digest_of, part_sizes, value_of_body, value_of_file
from headrace.store.checksum import block_checksum
from headrace.store.writer import CacheWriter

log = logging.getLogger(__name__)

READS_MAX = 16
"""Of one small file, or one block. Of a connection that spoils every third body, one file in 40 million has not
come right by then."""
REREAD_BYTES = 8 * BLOCK_SIZE_BYTES
THREADS_MIN = 2
"""They read whole files, and would keep all of the disk pool from fills."""
NICENESS = 10
WARN_S = 60.0
FOLDERS_MAX = 10_000
OTHERS_MAX = 3
"""Digests of a folder that are of other bytes than its files' before none of it is compared, if none was right."""
ORIGIN_OTHERS_MAX = 16
"""The same of an origin."""

Result = TypeVar("Result")


@dataclass(slots=True)
class _Count:
    right: int = 0
    other: int = 0

    def is_useless(self, other_max: int) -> bool:
        return self.other >= other_max and not self.right


@dataclass(slots=True)
class _Known:
    """Of one origin, and of its objects that were put in one way: in parts or not. part_bytes: of parts, how large they
    were of the last object whose digest was right."""

    whole: _Count = field(default_factory=_Count)
    folders: OrderedDict[str, _Count] = field(default_factory=OrderedDict)
    part_bytes: int = 0
    warned_s: float = float("-inf")

    def folder(self, key: str) -> _Count:
        name = key.rpartition("/")[0]
        count = self.folders.setdefault(name, _Count())
        self.folders.move_to_end(name)
        if len(self.folders) > FOLDERS_MAX:
            self.folders.popitem(last=False)
        return count


class Digests:
    """What is known of the digests that origins name, and how the comparisons went. url: of an origin."""

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self._origins: dict[tuple[str, bool], _Known] = {}
        self.files_compared = self.files_other = self.files_wrong = self.files_corrupt = self.reads_again = 0

    def of(self, url: str, key: str, version: Version) -> Digest | None:
        """What to compare; None where there is nothing, or it is no use."""
        digest = digest_of(version) if self._wanted else None
        if digest is None:
            return None
        known = self._known(url, digest)
        if known.whole.is_useless(ORIGIN_OTHERS_MAX) or known.folder(key).is_useless(OTHERS_MAX):
            return None
        return digest

    def part_sizes(self, url: str, digest: Digest, size_bytes: int) -> list[int]:
        return part_sizes(size_bytes, digest.parts, first=self._known(url, digest).part_bytes)

    def was_right(self, url: str, key: str, digest: Digest, *, came_wrong: bool, part_bytes: int = 0) -> None:
        """came_wrong: at first; told in a line a minute, as a bad link spoils many."""
        known = self._known(url, digest)
        known.whole.right += 1
        known.folder(key).right += 1
        known.part_bytes = part_bytes
        self.files_compared += 1
        if not came_wrong:
            return
        self.files_wrong += 1
        if time.monotonic() >= known.warned_s + WARN_S:
            known.warned_s = time.monotonic()
            log.warning(
                "origin sent wrong bytes, they are right after reading again url=%s key=%s files=%d",
                url,
                ascii(key),
                self.files_wrong,
            )

    def was_other(self, url: str, key: str, digest: Digest) -> None:
        """Two reads brought the same bytes, and the digest is not theirs."""
        known = self._known(url, digest)
        known.whole.other += 1
        known.folder(key).other += 1
        self.files_other += 1
        log.info("checksum is none of the bytes, which came twice alike url=%s key=%s", url, ascii(key))

    def _known(self, url: str, digest: Digest) -> _Known:
        return self._origins.setdefault((url, digest.parts > 0), _Known())

    def statistics(self) -> dict[str, int]:
        return {
            "files_compared": self.files_compared,
            "files_wrong": self.files_wrong,
            "files_other": self.files_other,
            "files_corrupt": self.files_corrupt,
            "reads_again": self.reads_again,
        }


class WrongBytesError(Exception):
    """What came does not match its digest. value: what it does match."""

    def __init__(self, value: str) -> None:
        super().__init__(value)
        self.value = value


class SmallComparison:
    """One small file, from its first read to the one that is kept."""

    def __init__(self, digests: Digests, url: str, key: str, version: Version) -> None:
        self._digests = digests
        self._url, self._key = url, key
        self._digest = digests.of(url, key, version)
        self._before: set[str] = set()
        self._value = ""

    def check(self, arrived: Arrived) -> None:
        """WrongBytesError. In any thread. What a peer sent is not looked at: that one has compared it."""
        self._value = ""
        if self._digest is None or not arrived.from_origin:
            return
        self._value = value_of_body(arrived.body, self._digest)
        if self._value != self._digest.value and self._value not in self._before:
            raise WrongBytesError(self._value)

    def kept(self) -> None:
        """What was checked last is in the cache."""
        if self._digest is None or not self._value:
            return
        if self._value == self._digest.value:
            self._digests.was_right(self._url, self._key, self._digest, came_wrong=bool(self._before))
        else:
            self._digests.was_other(self._url, self._key, self._digest)

    def refused(self, error: WrongBytesError) -> None:
        """CorruptOriginError when it was read often enough."""
        self._before.add(error.value)
        if len(self._before) == READS_MAX:
            self._digests.files_corrupt += 1
            raise _corrupt(self._url, self._key)
        self._digests.reads_again += 1


class WholeComparison:
    """One file of several blocks whose last block came. writer: it has all of them, and is not committed. origin: of
    that version; peers are not asked, as they may have the same wrong bytes."""

    def __init__(
        self,
        digests: Digests,
        digest: Digest,
        url: str,
        writer: CacheWriter,
        origin: OriginSource,
        pool: Executor,
    ) -> None:
        self._digests = digests
        self._digest = digest
        self._url, self._key = url, origin.key
        self._writer = writer
        self._origin = origin
        self._pool = pool
        self._size_bytes = writer.version.size_bytes

    async def settle(self) -> bool:
        """The file has the origin's bytes on return, as far as can be known; whether some had to be replaced. A
        block is read READS_MAX times at most. CorruptOriginError; EvictedError; what reading from the origin raises."""
        if await self._matches(came_wrong=False) or not self._part_sizes():
            return False
        log.info(
            "a file does not match its checksum, it is read again url=%s key=%s", self._url, ascii(self._key)
        )
        kept, replaced = await self._in_pool(self._writer.checksums), 0
        for start in range(0, self._size_bytes, REREAD_BYTES):
            replaced += await self._reread(start, min(self._size_bytes, start + REREAD_BYTES), kept)
        if not await self._matches(came_wrong=True):
            self._digests.was_other(self._url, self._key, self._digest)
        return replaced > 0

    async def _matches(self, *, came_wrong: bool) -> bool:
        for part_bytes in self._part_sizes():
            if await self._in_pool(partial(self._value, part_bytes)) == self._digest.value:
                self._digests.was_right(
                    self._url, self._key, self._digest, came_wrong=came_wrong, part_bytes=part_bytes
                )
                return True
        return False

    def _part_sizes(self) -> list[int]:
        return self._digests.part_sizes(self._url, self._digest, self._size_bytes)

    def _value(self, part_bytes: int) -> str:
        """By a descriptor of its own: the writer's is closed when the file is evicted; its number is another's then."""
        try:
            fd = os.open(self._writer.volume.part_path(self._writer.id), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise EvictedError(
                f"cache file {self._writer.id:x}", why="it went while it was compared"
            ) from None
        except OSError as error:
            raise StoreError("cache file can't be read", why=error.strerror or str(error)) from error
        try:
            return value_of_file(fd, self._size_bytes, self._digest, part_bytes, self._check)
        finally:
            os.close(fd)

    def _check(self) -> None:
        if self._writer.closed:
            raise EvictedError(f"cache file {self._writer.id:x}", why="it went while it was compared")

    async def _reread(self, start: int, end: int, kept: dict[int, int]) -> int:
        """Until of each block two reads were alike, the one that filled it among them; how many were replaced. kept:
        checksums of the blocks that are here."""
        before = {block: {kept[block]} for block in block_range(start, end)}
        replaced = 0
        for _ in range(READS_MAX):
            low, high = min(before) * BLOCK_SIZE_BYTES, min((max(before) + 1) * BLOCK_SIZE_BYTES, end)
            self._digests.reads_again += 1
            async with self._origin.read(low, high, background=True, for_peer=False) as arrived:
                replaced += await self._in_pool(partial(self._agree, low, arrived.body, before, kept))
            if not before:
                return replaced
        self._digests.files_corrupt += 1
        raise _corrupt(self._url, self._key)

    def _agree(
        self,
        start: int,
        body: bytes | bytearray | memoryview,
        before: dict[int, set[int]],
        kept: dict[int, int],
    ) -> int:
        """Takes the blocks out of before that came as once before, and replaces those that are kept otherwise."""
        self._check()
        view, replaced = memoryview(body), 0
        for at in range(0, len(view), BLOCK_SIZE_BYTES):
            block, content = (start + at) // BLOCK_SIZE_BYTES, view[at : at + BLOCK_SIZE_BYTES]
            if block not in before:
                continue
            checksum = block_checksum(content)
            if checksum not in before[block]:
                before[block].add(checksum)
                continue
            del before[block]
            if checksum != kept[block]:
                self._writer.replace(block, content)
                replaced += 1
        return replaced

    async def _in_pool(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


def comparing_pool() -> ThreadPoolExecutor:
    """Behind everybody else who wants the processor: nobody waits for it but loads."""
    return ThreadPoolExecutor(
        max(THREADS_MIN, (os.cpu_count() or 1) // 4),
        thread_name_prefix="compare",
        initializer=lambda: os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS),
    )


def _corrupt(url: str, key: str) -> CorruptOriginError:
    return CorruptOriginError(
        f"{url}/{key}",
        why=f"its bytes don't match the checksum that the origin names, and no two of {READS_MAX} reads were alike",
        hint="look at the network and proxies on the way to it; https guards the bytes there",
    )
