"""Define the records that the nodes of a cluster share: small, by key; every node reads, writes and follows them.

Keys are words with slashes between; values are bytes, mostly JSON. A leased record is deleted when the node that
wrote it leaves. Every call but `follow` raises ClusterUnavailableError, within some seconds, while the store is
unavailable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from headrace.identity.seals import Mark

OnRecord = Callable[[str, bytes | None], None]
"""Receives a key and its new value; None: it was deleted. Called on the loop; must not raise."""


class Records(Protocol):
    """Stores the shared records of a cluster."""

    async def get(self, key: str) -> bytes | None: ...

    async def list(self, prefix: str) -> dict[str, bytes]: ...

    async def put(self, key: str, value: bytes, leased: bool = False) -> None: ...  # noqa: FBT001, FBT002

    async def create(self, key: str, value: bytes, leased: bool = False) -> bool:  # noqa: FBT001, FBT002
        """Create a record. Return False, and write nothing, when it exists."""
        ...

    async def replace(self, key: str, old: bytes, new: bytes, *, leased: bool = False) -> bool:
        """Replace a record. Return False, and write nothing, when its value is not `old`. leased: it becomes this
        node's."""
        ...

    async def delete(self, key: str, *, unless: str = "", only: bytes | None = None) -> None:
        """Delete a record, if it exists. unless: delete nothing when this other record exists. only: delete nothing
        when the record has another value. All in one transaction."""
        ...

    async def follow(self, prefix: str, callback: OnRecord) -> None:
        """Call back with each existing record, then with each change, in order. After the store was unavailable,
        call back with the differences. Continues until the records are closed."""
        ...


class RecordSeals(Protocol):
    """Seal records, so that no other node can forge them. See identity/seals.py."""

    def may_close(self, key: str) -> bool: ...

    def close(self, key: str, record: bytes) -> bytes: ...

    def open(self, key: str, raw: bytes, *, newest: bool = True) -> bytes:
        """Return the record without its seal. newest: accept no older one from now on. Raise StrangerError."""
        ...

    def body(self, key: str, raw: bytes) -> bytes:
        """Return the record without its seal, whichever node sealed it. Raises StrangerError."""
        ...

    def gone(self, key: str) -> None: ...

    def marks(self) -> dict[str, Mark]: ...

    def remember(self, marks: Mapping[str, Mark]) -> None: ...

    def forget_old(self) -> None: ...

    def is_aging(self, raw: bytes) -> bool: ...


class LeasedRecords(Records, Protocol):
    """Stores records of which some have this node's lease. lease_until_s: until when, at least, other nodes see this
    node's leased records, by CLOCK_BOOTTIME. leases_lost: number of times that the lease was lost."""

    @property
    def lease_until_s(self) -> float: ...

    @property
    def leases_lost(self) -> int: ...

    def disown(self, key: str) -> None:
        """Stop writing this leased record again when the lease was lost."""
        ...


class Followers:
    """Holds the callbacks of followers, and the values that they received last."""

    def __init__(self) -> None:
        self._callbacks: list[tuple[str, OnRecord]] = []
        self.mirror: dict[str, bytes] = {}

    def add(self, prefix: str, callback: OnRecord) -> None:
        self._callbacks.append((prefix, callback))
        for key, value in sorted(self.mirror.items()):
            if key.startswith(prefix):
                callback(key, value)

    def publish(self, key: str, value: bytes | None) -> None:
        """Report a value to its followers, unless it is unchanged."""
        if self.mirror.get(key) == value:
            return
        if value is None:
            del self.mirror[key]
        else:
            self.mirror[key] = value
        for prefix, callback in list(self._callbacks):
            if key.startswith(prefix):
                callback(key, value)

    def publish_all(self, records: dict[str, bytes]) -> None:
        """Report the differences to the complete set of records."""
        for key in [key for key in self.mirror if key not in records]:
            self.publish(key, None)
        for key, value in sorted(records.items()):
            self.publish(key, value)
