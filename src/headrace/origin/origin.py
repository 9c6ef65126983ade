"""Define the interface of an origin, the store of record behind a mount.

Each implementation has its own module. Hedging, retry, throttle and measurement each wrap an Origin in an Origin;
`factory.py` builds the right one from a URL. All calls are async and safe to cancel: a cancelled call leaves nothing
behind.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from headrace.base.deadline import Deadline
from headrace.base.errors import ConflictError, NotSupportedError, OriginError
from headrace.base.key_length import key_room
from headrace.base.model import Arrived, ObjectInfo, Version
from headrace.base.model import Attributes as Attributes
from headrace.base.origin_names import HIDDEN as HIDDEN

NO_CREDENTIALS = "no credentials found"
"""Cause of an OriginDeniedError: the service that gives a host its credentials does not answer."""

Body = bytes | bytearray | memoryview
"""Type of bytes that are read and put: os.pwrite and a checksum take it without a copy."""


@dataclass(frozen=True, slots=True)
class Absent:
    """Requires that the object does not exist yet."""


Condition = Version | Absent | None
"""State that the object must have before a change; None accepts any."""


class PutSource(Protocol):
    """Provides the bytes of a put, in parts as they are needed. They must not change until the put is over."""

    @property
    def size_bytes(self) -> int: ...

    def pread(self, start: int, end: int) -> Body:
        """Return exactly the bytes start to end (exclusive). A HeadraceError raised here comes out of the put
        unchanged. Blocks; threads call it, several at a time."""
        ...


@dataclass(frozen=True, slots=True)
class ListPage:
    """Holds a page of a directory's children. `objects` are the files directly below; `directories` are the names (one
    path component, no slash) of the directories directly below. A listing has each name at most once in each."""

    objects: tuple[ObjectInfo, ...]
    directories: tuple[str, ...]


class Origin(Protocol):
    """Is a store of record. Every call may raise OriginDeniedError, BucketNotFoundError, OriginUnavailableError
    (retryable), DeadlineExceededError, or OriginError for other failures. No call raises a foreign exception."""

    @property
    def url(self) -> str:
        """Return the URL for messages; it never has a credential."""
        ...

    @property
    def writable(self) -> bool:
        """Return whether this kind of origin supports writes at all. If not, put, remove and the directory calls
        raise OriginReadOnlyError. Only a call shows what the credentials allow."""
        ...

    async def head(self, key: str, *, deadline: Deadline) -> ObjectInfo:
        """Return one object. Raise PathNotFoundError if no object has exactly that key (a directory is no object)."""
        ...

    def list_directory(self, key: str, *, deadline: Deadline) -> AsyncIterator[ListPage]:
        """Yield the direct children of the directory `key` ("" is the origin's root), in pages of at most some
        thousands, in no particular order. A missing directory yields no names, because object stores can't
        distinguish it. Directory markers (empty objects whose key ends in "/") are not listed. Memory stays bounded,
        also for a million children."""
        ...

    async def read_range(
        self, key: str, start: int, end: int, *, version: Version, deadline: Deadline
    ) -> Arrived:
        """Return exactly the bytes start to end (exclusive; start < end <= version.size_bytes), with the object's
        extra metadata if the same response has it.

        Raise VersionChangedError if the object no longer has that version or was removed. The origin decides that
        (If-Match) where it can; otherwise the version is compared before and after. A short body raises
        OriginUnavailableError. A range outside the version's size raises OriginError, without a request.
        """
        ...

    async def put(
        self, key: str, source: PutSource, *, condition: Condition, attributes: Attributes, deadline: Deadline
    ) -> ObjectInfo:
        """Write a whole new object, durable at the origin on return; head() then returns the same version. Readers
        see the old object or the new one, never a mixture. Missing parent directories are created where the origin
        has directories.

        Raise ConflictError, with nothing changed, if the condition does not hold: the origin decides it where it can
        (docs/origin-storage.md names the windows). Raise IsADirectoryPathError or NotADirectoryPathError if a directory
        or a file is in the way, NotSupportedError for a name that the origin can't hold.

        A put that failed otherwise, or was cancelled, took place completely or not at all; head() shows which. It
        does not take place later, except for a request that was in flight to an object store at that moment.
        """
        ...

    async def remove(self, key: str, *, condition: Condition, deadline: Deadline) -> None:
        """Remove an object. Raise PathNotFoundError if it does not exist, ConflictError if it has another version."""
        ...

    async def make_directory(self, key: str, *, deadline: Deadline) -> None:
        """Create an empty directory and its parents if the origin has directories; do nothing if they are only
        prefixes of keys. An existing directory is no error. Raise PathExistsError if a file has the name."""
        ...

    async def remove_directory(self, key: str, *, deadline: Deadline) -> None:
        """Remove an empty directory; where directories are only prefixes, remove its marker object if there is one.
        Raise DirectoryNotEmptyError if it is not empty. A missing directory is no error. "" is the root, which is
        never removed."""
        ...

    async def close(self) -> None:
        """Release all resources. May be called twice."""
        ...


def check_range(target: str, start: int, end: int, version: Version) -> None:
    """Raise OriginError if a range lies outside the version."""
    if not 0 <= start < end <= version.size_bytes:
        raise OriginError(target, why=f"the range {start} to {end} is outside its {version.size_bytes} bytes")


def is_path(key: str) -> bool:
    """Return whether a key consists of names that a file system can have. "" is the root and counts as a path."""
    return "\0" not in key and (not key or not any(part in ("", ".", "..") for part in key.split("/")))


def check_new_key(target: str, key: str) -> None:
    """Raise NotSupportedError if no object can be put under this key."""
    if not key or not is_path(key):
        raise NotSupportedError(
            target, why="not a valid file name (an empty, . or .. component, or a NUL byte)"
        )
    if any(part.startswith(HIDDEN) for part in key.split("/")):
        raise NotSupportedError(
            target, why=f"names that begin with {HIDDEN} are reserved for puts in progress"
        )


def hidden_name() -> str:
    """Return a temporary name. No object has it, and no other call returns it."""
    return f"{HIDDEN}{secrets.token_hex(8)}"


def check_key_length(url: str, key: str) -> None:
    """Raise NotSupportedError if the key is too long for the store. `url` is the origin's."""
    room, length = key_room(url), len(os.fsencode(key))
    if room is not None and length > room:
        raise NotSupportedError(
            f"{url}/{key}",
            why=f"the key has {length} bytes, and the store allows {room}",
            hint="give the file, or a directory above it, a shorter name",
        )


def check_condition(target: str, condition: Condition, current: Version | None) -> None:
    """Raise ConflictError if the current version (None: no object) does not satisfy the condition."""
    if condition is None:
        return
    if isinstance(condition, Absent):
        if current is not None:
            raise ConflictError(target, why="the object exists already")
    elif current is None:
        raise ConflictError(target, why="the object was removed at the origin")
    elif current != condition:
        raise ConflictError(target, why="the object was changed at the origin")
