"""Compare what an origin sent with the digest that it names, before the cache keeps it for good.

TLS protects bytes in transit. A plain connection, a proxy's memory or an origin's disk may corrupt them, and corrupt
bytes would stay in the cache. A small file is compared before anybody reads it, a large one when its last block is
here.

No origin says whether its ETag is a digest of the bytes, so a digest that does not match proves nothing. Two reads with
the same bytes do: random corruption does not happen twice alike, except of a few bytes. So bytes that don't match are
read again until two reads agree. Then either the digest matches them, or the ETag is no digest of the bytes. Where that
happens again and again, and no digest ever matches, nothing is compared any more (`Digests`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from headrace.base.clock import monotonic_s
from headrace.base.errors import CorruptOriginError, EvictedError, StoreError
from headrace.base.model import BLOCK_SIZE_BYTES, Arrived, Version, block_range
from headrace.dataplane.intent import BACKGROUND
from headrace.dataplane.source import OriginSource
from headrace.origin.digest import Digest, digest_of, part_sizes, value_of_body, value_of_file
from headrace.store.checksum import block_checksum
from headrace.store.writer import CacheWriter

log = logging.getLogger(__name__)

READS_MAX = 16
"""Most reads of one small file, or of one block. Over a connection that corrupts every third body, one file in 40
million is still wrong after that many."""
SHORT_BYTES = 64
SHORT_ALIKE = 5
"""Reads of so few bytes may be corrupted twice alike: of one byte there are eight flipped bits. So more must agree."""
REREAD_BYTES = 8 * BLOCK_SIZE_BYTES
THREADS_MIN = 2
"""Comparisons have threads of their own: they read whole files, and would keep fills out of the disk pool."""
NICENESS = 10
WARN_S = 60.0
DIRECTORIES_MAX = 10_000
OTHERS_MAX = 3
"""ETags of a directory that are no digest of the bytes, without one that is. After that many its files are no longer
compared."""
ORIGIN_OTHERS_MAX = 16
"""The same for an origin."""

Result = TypeVar("Result")


@dataclass(slots=True)
class _Count:
    """Counts digests that match their bytes, and those that are of something else."""

    right: int = 0
    other: int = 0

    def is_useless(self, other_max: int) -> bool:
        return self.other >= other_max and not self.right


@dataclass(slots=True)
class _OriginDigests:
    """Counts the digests of one origin, of objects put in parts or of the others. part_bytes: the size of the parts of
    the last object whose digest matched."""

    total: _Count = field(default_factory=_Count)
    directories: OrderedDict[str, _Count] = field(default_factory=OrderedDict)
    part_bytes: int = 0
    warned_s: float = float("-inf")

    def directory(self, key: str) -> _Count:
        name = key.rpartition("/")[0]
        count = self.directories.setdefault(name, _Count())
        self.directories.move_to_end(name)
        if len(self.directories) > DIRECTORIES_MAX:
            self.directories.popitem(last=False)
        return count


class Digests:
    """Learns which digests of origins can be compared, and counts the comparisons. url: of an origin."""

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self._origins: dict[tuple[str, bool], _OriginDigests] = {}
        self.files_compared = self.files_other = self.files_wrong = self.files_corrupt = self.reads_again = 0

    def of(self, url: str, key: str, version: Version) -> Digest | None:
        """Return the digest to compare with; None when there is none, or it is useless."""
        digest = digest_of(version) if self._wanted else None
        if digest is None:
            return None
        counts = self._counts(url, digest)
        if counts.total.is_useless(ORIGIN_OTHERS_MAX) or counts.directory(key).is_useless(OTHERS_MAX):
            return None
        return digest

    def part_sizes(self, url: str, digest: Digest, size_bytes: int) -> list[int]:
        """Return the sizes that the parts of an object may have had, the most likely one first."""
        return part_sizes(size_bytes, digest.parts, first=self._counts(url, digest).part_bytes)

    def record_match(
        self, url: str, key: str, digest: Digest, *, was_wrong: bool, part_bytes: int = 0
    ) -> None:
        """Record that the bytes match. was_wrong: they did not at first. That is logged once a minute, as a bad link
        corrupts many files."""
        counts = self._counts(url, digest)
        counts.total.right += 1
        counts.directory(key).right += 1
        counts.part_bytes = part_bytes
        self.files_compared += 1
        if not was_wrong:
            return
        self.files_wrong += 1
        if monotonic_s() >= counts.warned_s + WARN_S:
            counts.warned_s = monotonic_s()
            log.warning(
                "the origin sent wrong bytes, a second read returned the right ones url=%s key=%s files=%d",
                url,
                ascii(key),
                self.files_wrong,
            )

    def record_other(self, url: str, key: str, digest: Digest) -> None:
        """Record that two reads agreed, and that the digest is of something else."""
        counts = self._counts(url, digest)
        counts.total.other += 1
        counts.directory(key).other += 1
        self.files_other += 1
        log.info(
            "an ETag is not a checksum, two reads returned the same bytes url=%s key=%s", url, ascii(key)
        )

    def _counts(self, url: str, digest: Digest) -> _OriginDigests:
        return self._origins.setdefault((url, digest.parts > 0), _OriginDigests())

    def statistics(self) -> dict[str, int]:
        return {
            "files_compared": self.files_compared,
            "files_wrong": self.files_wrong,
            "files_other": self.files_other,
            "files_corrupt": self.files_corrupt,
            "reads_again": self.reads_again,
        }


class WrongBytesError(Exception):
    """Report that bytes don't match their digest. value: the digest of the bytes."""

    def __init__(self, value: str) -> None:
        super().__init__(value)
        self.value = value


class SmallComparison:
    """Compares one small file, from its first read to the read that is kept."""

    def __init__(self, digests: Digests, origin: OriginSource) -> None:
        self._digests = digests
        self._url, self._key = origin.mount.origin.url, origin.key
        self._digest = digests.of(self._url, self._key, origin.version)
        self._wrong_values: Counter[str] = Counter()
        self._value = ""

    def check(self, arrived: Arrived) -> None:
        """Raise WrongBytesError for bytes that don't match. Bytes from a peer were compared there. Any thread may call
        it."""
        self._value = ""
        if self._digest is None or not arrived.from_origin:
            return
        self._value = value_of_body(arrived.body, self._digest)
        is_alike = self._wrong_values[self._value] + 1 >= _alike_least(len(arrived.body))
        if self._value != self._digest.value and not is_alike:
            raise WrongBytesError(self._value)

    def keep(self) -> None:
        """Record that the bytes that were checked last are in the cache."""
        if self._digest is None or not self._value:
            return
        if self._value == self._digest.value:
            self._digests.record_match(self._url, self._key, self._digest, was_wrong=bool(self._wrong_values))
        else:
            self._digests.record_other(self._url, self._key, self._digest)

    def refuse(self, error: WrongBytesError) -> None:
        """Record a read that did not match. Raise CorruptOriginError when no further read is worth it."""
        self._wrong_values[error.value] += 1
        if self._wrong_values.total() == READS_MAX:
            self._digests.files_corrupt += 1
            raise _corrupt(self._url, self._key)
        self._digests.reads_again += 1


class WholeComparison:
    """Compares one large file. writer: of the file, which has all blocks and is not committed. origin: has that
    version; peers are not asked, as they may have the same wrong bytes."""

    def __init__(
        self,
        digests: Digests,
        digest: Digest,
        writer: CacheWriter,
        origin: OriginSource,
        pool: Executor,
    ) -> None:
        self._digests = digests
        self._digest = digest
        self._url, self._key = origin.mount.origin.url, origin.key
        self._writer = writer
        self._origin = origin
        self._pool = pool
        self._size_bytes = writer.version.size_bytes

    async def run(self) -> bool:
        """Return when the file has the origin's bytes, as far as can be known: True when some were replaced. A block
        is read at most READS_MAX times. Raise CorruptOriginError, EvictedError and the errors of the origin."""
        if await self._matches(was_wrong=False) or not self._part_sizes():
            return False
        log.info(
            "a file does not match its checksum, it is read again url=%s key=%s", self._url, ascii(self._key)
        )
        kept, replaced = await self._in_pool(self._writer.checksums), 0
        for start in range(0, self._size_bytes, REREAD_BYTES):
            replaced += await self._reread(start, min(self._size_bytes, start + REREAD_BYTES), kept)
        if not await self._matches(was_wrong=True):
            self._digests.record_other(self._url, self._key, self._digest)
        return replaced > 0

    async def _matches(self, *, was_wrong: bool) -> bool:
        for part_bytes in self._part_sizes():
            if await self._in_pool(partial(self._value, part_bytes)) == self._digest.value:
                self._digests.record_match(
                    self._url, self._key, self._digest, was_wrong=was_wrong, part_bytes=part_bytes
                )
                return True
        return False

    def _part_sizes(self) -> list[int]:
        return self._digests.part_sizes(self._url, self._digest, self._size_bytes)

    def _value(self, part_bytes: int) -> str:
        """Return the digest of the file, read by a descriptor of its own: the writer's may be closed by an eviction,
        and its number reused."""
        try:
            fd = os.open(self._writer.volume.part_path(self._writer.id), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise EvictedError(
                f"cache file {self._writer.id:x}", why="it was evicted while it was compared"
            ) from None
        except OSError as error:
            raise StoreError("cache file can't be read", why=error.strerror or str(error)) from error
        try:
            return value_of_file(fd, self._size_bytes, self._digest, part_bytes, self._check_open)
        finally:
            os.close(fd)

    def _check_open(self) -> None:
        if self._writer.closed:
            raise EvictedError(f"cache file {self._writer.id:x}", why="it was evicted while it was compared")

    async def _reread(self, start: int, end: int, kept: dict[int, int]) -> int:
        """Read until two reads of each block agree, and more of a short one; the read that filled it counts. Return how
        many blocks were replaced. kept: the checksums of the blocks that are here."""
        checksums = {block: Counter([kept[block]]) for block in block_range(start, end)}
        replaced = 0
        for _ in range(READS_MAX):
            low = min(checksums) * BLOCK_SIZE_BYTES
            high = min((max(checksums) + 1) * BLOCK_SIZE_BYTES, end)
            self._digests.reads_again += 1
            async with self._origin.read(low, high, BACKGROUND) as arrived:
                replaced += await self._in_pool(partial(self._agree, low, arrived.body, checksums, kept))
            if not checksums:
                return replaced
        self._digests.files_corrupt += 1
        raise _corrupt(self._url, self._key)

    def _agree(
        self,
        start: int,
        body: bytes | bytearray | memoryview,
        checksums: dict[int, Counter[int]],
        kept: dict[int, int],
    ) -> int:
        """Remove from `checksums` the blocks that are as in earlier reads. Replace the kept ones that differ."""
        self._check_open()
        view, replaced = memoryview(body), 0
        for offset in range(0, len(view), BLOCK_SIZE_BYTES):
            block, content = (start + offset) // BLOCK_SIZE_BYTES, view[offset : offset + BLOCK_SIZE_BYTES]
            if block not in checksums:
                continue
            checksum = block_checksum(content)
            checksums[block][checksum] += 1
            if checksums[block][checksum] < _alike_least(len(content)):
                continue
            del checksums[block]
            if checksum != kept[block]:
                self._writer.replace(block, content)
                replaced += 1
        return replaced

    async def _in_pool(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


def comparing_pool() -> ThreadPoolExecutor:
    """Return the threads of comparisons. They run at a low priority: only loads wait for them."""
    return ThreadPoolExecutor(
        max(THREADS_MIN, (os.cpu_count() or 1) // 4),
        thread_name_prefix="compare",
        initializer=lambda: os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS),
    )


def _alike_least(size_bytes: int) -> int:
    """Return how many reads of so many bytes must be alike to be right."""
    return SHORT_ALIKE if size_bytes < SHORT_BYTES else 2


def _corrupt(url: str, key: str) -> CorruptOriginError:
    return CorruptOriginError(
        f"{url}/{key}",
        why=f"its bytes don't match the checksum that the origin names, and no two of {READS_MAX} reads were alike",
        hint="look at the network and proxies on the way to it; https guards the bytes there",
    )
