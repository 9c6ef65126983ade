"""What the nodes of a cluster know together: small records by name, which any of them reads, writes and follows.

Keys are words with slashes between; values are bytes, JSON by custom. A leased record goes with the node that wrote it.
Every call but `follow` raises ClusterUnavailableError, after some seconds at most, while the cluster's store is away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from headrace.identity.seals import Mark

Heard = Callable[[str, bytes | None], None]
"""Told a key and what it is now; None: it is gone. On the loop; must not raise."""


class Records(Protocol):
    async def get(self, key: str) -> bytes | None: ...

    async def list(self, prefix: str) -> dict[str, bytes]: ...

    async def put(self, key: str, value: bytes, leased: bool = False) -> None: ...  # noqa: FBT001, FBT002

    async def create(self, key: str, value: bytes, leased: bool = False) -> bool:  # noqa: FBT001, FBT002
        """False, and nothing is written, where the record exists."""
        ...

    async def replace(self, key: str, old: bytes, new: bytes, *, leased: bool = False) -> bool:
        """False, and nothing is written, where it is not `old` any more. leased: it is this node's from now on."""
        ...

    async def delete(self, key: str, *, unless: str = "") -> None:
        """No error where there is none. unless: nothing is deleted where this record exists, in one step."""
        ...

    async def follow(self, prefix: str, callback: Heard) -> None:
        """Tells each record that is there, then each change, in order; after a time without the store the
        differences. Goes on until the records are closed."""
        ...


class RecordSeals(Protocol):
    """What makes records that nobody else can make. See identity/seals.py."""

    def may_close(self, key: str) -> bool: ...

    def close(self, key: str, record: bytes) -> bytes: ...

    def open(self, key: str, raw: bytes, *, newest: bool = True) -> bytes:
        """StrangerError. newest: none that is older will do from now on."""
        ...

    def body(self, key: str, raw: bytes) -> bytes:
        """Whoever sealed it. StrangerError."""
        ...

    def gone(self, key: str) -> None: ...

    def marks(self) -> dict[str, Mark]: ...

    def remember(self, marks: Mapping[str, Mark]) -> None: ...

    def forget_old(self) -> None: ...

    def is_aging(self, raw: bytes) -> bool: ...


class LeasedRecords(Records, Protocol):
    """lease_until_s: until when, at least, the others let this node's leased records stand, of CLOCK_BOOTTIME.
    leases_lost: how often they did not."""

    @property
    def lease_until_s(self) -> float: ...

    @property
    def leases_lost(self) -> int: ...

    def disown(self, key: str) -> None:
        """A leased record is not written again when the lease was lost."""
        ...


class Followers:
    """Who follows what, and what they were told last."""

    def __init__(self) -> None:
        self._followers: list[tuple[str, Heard]] = []
        self.mirror: dict[str, bytes] = {}

    def add(self, prefix: str, callback: Heard) -> None:
        self._followers.append((prefix, callback))
        for key, value in sorted(self.mirror.items()):
            if key.startswith(prefix):
                callback(key, value)

    def tell(self, key: str, value: bytes | None) -> None:
        """Nothing where it is known."""
        if self.mirror.get(key) == value:
            return
        if value is None:
            del self.mirror[key]
        else:
            self.mirror[key] = value
        for prefix, callback in list(self._followers):
            if key.startswith(prefix):
                callback(key, value)

    def tell_all(self, now: dict[str, bytes]) -> None:
        """The whole of it, as it is now."""
        for key in [key for key in self.mirror if key not in now]:
            self.tell(key, None)
        for key, value in sorted(now.items()):
            self.tell(key, value)
