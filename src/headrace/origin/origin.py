"""What the node asks of a place where data lives.

One implementation a file; hedge, retry, throttle and measure each wrap an Origin in an Origin; `locate.py` builds the
right one from a URL. All calls are async and cancel-safe: a cancelled call leaves nothing behind.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from headrace.base.deadline import Deadline
from headrace.base.errors import ConflictError, NotSupportedError, OriginError
from headrace.base.key_length import key_room
from headrace.base.model import Arrived, ObjectInfo, Version
from headrace.base.model import Attributes as Attributes

HIDDEN = ".headrace-put-"
"""What names begin with that putting needs for a moment: no listing tells them."""

Body = bytes | bytearray | memoryview
"""Of what is read and put: os.pwrite and a checksum take it without a copy."""


@dataclass(frozen=True, slots=True)
class Absent:
    """The condition that there is no such object yet."""


Condition = Version | Absent | None
"""What must be at the origin for a change of ours to take place; None: whatever is there."""


class PutSource(Protocol):
    """What is put: bytes that are read in parts, when they are needed. Must not change until the put is over."""

    @property
    def size_bytes(self) -> int: ...

    def pread(self, start: int, end: int) -> Body:
        """Exactly the bytes start..end (end exclusive), or a HeadraceError, which comes out of the put as it is.
        Blocks; called in threads, several at one time."""
        ...


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

    @property
    def writable(self) -> bool:
        """Whether this kind of origin can be written to at all; else put, remove and the calls of directories are
        OriginReadOnlyError. What the credentials allow, only a call tells."""
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
    ) -> Arrived:
        """Bytes start..end (end exclusive, end <= version.size_bytes, start < end), exactly end - start of them,
        with the object's extras where the same answer tells them, or an error: VersionChangedError when the object is
        not that version any more (or gone), decided by the origin (If-Match) where it can, else by comparing before
        and after. A short body is OriginUnavailableError; a range that is not within the version's size is
        OriginError, and nothing is asked."""
        ...

    async def put(
        self, key: str, source: PutSource, *, condition: Condition, attributes: Attributes, deadline: Deadline
    ) -> ObjectInfo:
        """A whole new object, durable at the origin on return; head() then tells the version returned. Readers see
        the old object or the new one, never part. Folders above come into being where there are any.
        ConflictError, and nothing changed, when the condition does not hold: decided by the origin where it can
        (docs/semantics.md names the windows). IsADirectoryPathError, NotADirectoryPathError where a folder or a
        file stands in the way; NotSupportedError for a name that the origin can't hold.
        A put that failed otherwise, or was cancelled, has happened whole or not at all; head() tells. It does not
        happen later, but for a request that was under way to an object store in its last moment."""
        ...

    async def remove(self, key: str, *, condition: Condition, deadline: Deadline) -> None:
        """PathNotFoundError when there is no such object; ConflictError when it is not that version."""
        ...

    async def make_directory(self, key: str, *, deadline: Deadline) -> None:
        """An empty folder, and those above it, where the origin has folders; nothing where they are only prefixes
        of keys. One that exists is none the worse. PathExistsError when a file has the name."""
        ...

    async def remove_directory(self, key: str, *, deadline: Deadline) -> None:
        """An empty folder; of a folder that is only a prefix its marker object, if it has one. DirectoryNotEmptyError
        when something is in it; none of that name is no error. "" is the root, which stays."""
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


def check_new_key(what: str, key: str) -> None:
    """NotSupportedError when nothing can be put under such a key."""
    if not key or not is_path(key):
        raise NotSupportedError(what, why="no name for a file (an empty, . or .. part, or a zero byte)")
    if any(part.startswith(HIDDEN) for part in key.split("/")):
        raise NotSupportedError(what, why=f"names that begin with {HIDDEN} are kept for puts under way")


def check_key_length(url: str, key: str) -> None:
    """NotSupportedError when the store takes no key that is so long. url: of the origin."""
    room, length = key_room(url), len(os.fsencode(key))
    if room is not None and length > room:
        raise NotSupportedError(
            f"{url}/{key}",
            why=f"a key of {length} bytes, and the store takes {room} there",
            hint="give the file, or a folder above it, a shorter name",
        )


def check_condition(what: str, condition: Condition, found: Version | None) -> None:
    """ConflictError when what was found (None: nothing) is not what the condition asks for."""
    if condition is None:
        return
    if isinstance(condition, Absent):
        if found is not None:
            raise ConflictError(what, why="there is such an object already")
    elif found is None:
        raise ConflictError(what, why="it was removed at the origin")
    elif found != condition:
        raise ConflictError(what, why="it was changed at the origin")
