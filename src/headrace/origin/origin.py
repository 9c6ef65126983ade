"""What the node asks of a place where data lives.

One implementation a file; retry, throttle and measure each wrap an Origin in an Origin; `locate.py` builds the
right one from a URL. All calls are async and cancel-safe: a cancelled call leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from headrace.base.deadline import Deadline
from headrace.base.errors import OriginError
from headrace.base.model import ObjectInfo, Version

Body = bytes | bytearray | memoryview
"""What a range read returns: bytes that os.pwrite and a checksum take without a copy."""


@dataclass(frozen=True, slots=True)
class ListPage:
    """Some of a directory's children. objects: files directly below; directories: names (one path component each,
    no slash) of folders directly below. Within one listing a name comes once in each."""

    objects: tuple[ObjectInfo, ...]
    directories: tuple[str, ...]


class Origin(Protocol):
    """Errors of every call: OriginDeniedError, BucketNotFoundError, OriginUnavailableError (retryable),
    DeadlineExceededError, OriginError for the rest; no foreign exception comes out."""

    @property
    def url(self) -> str:
        """Where, for people and messages; never holds a credential."""
        ...

    async def head(self, key: str, *, deadline: Deadline) -> ObjectInfo:
        """One object. PathNotFoundError when there is none of exactly that key (a folder is none)."""
        ...

    def list_directory(self, key: str, *, deadline: Deadline) -> AsyncIterator[ListPage]:
        """The direct children of the folder `key` ("" is the origin's root), in pages of at most some thousands,
        names in no promised order. A folder that doesn't exist yields no names: object stores can't tell. Folder
        marker objects (a key that ends in "/", empty) are not listed. Bounded memory, also for a million children."""
        ...

    async def read_range(
        self, key: str, start: int, end: int, *, version: Version, deadline: Deadline
    ) -> Body:
        """Bytes start..end (end exclusive, end <= version.size_bytes, start < end), exactly end - start of them,
        or an error: VersionChangedError when the object is not that version any more (or gone), decided by the
        origin (If-Match) where it can, else by comparing before and after. A short body is OriginUnavailableError;
        a range that is not within the version's size is OriginError, and nothing is asked."""
        ...

    async def close(self) -> None:
        """Lets go of what it holds. May be called twice."""
        ...


def check_range(what: str, start: int, end: int, version: Version) -> None:
    """OriginError when a range read asks for what the version doesn't have."""
    if not 0 <= start < end <= version.size_bytes:
        raise OriginError(what, why=f"bytes {start} to {end} of {version.size_bytes} were asked for")


def is_path(key: str) -> bool:
    """Whether a key is made of names that a file system can have. "" is the root, and is one."""
    return "\0" not in key and (not key or not any(part in ("", ".", "..") for part in key.split("/")))
