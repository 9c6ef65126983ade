"""Keep records in memory, in one process, for tests. They are always available."""

from __future__ import annotations

import builtins

from headrace.cluster.records import Followers, OnRecord


class EmbeddedRecords:
    """Implements LeasedRecords; `close` deletes the leased records. Several objects may share one store, each with
    its own lease."""

    def __init__(self, shared: Followers | None = None) -> None:
        self.shared = shared or Followers()
        self._leased: set[str] = set()
        self.lease_until_s = float("inf")
        self.leases_lost = 0

    async def get(self, key: str) -> bytes | None:
        return self.shared.mirror.get(key)

    async def list(self, prefix: str) -> builtins.dict[str, bytes]:
        return {key: value for key, value in self.shared.mirror.items() if key.startswith(prefix)}

    async def put(self, key: str, value: bytes, leased: bool = False) -> None:  # noqa: FBT001, FBT002
        (self._leased.add if leased else self._leased.discard)(key)
        self.shared.publish(key, value)

    async def create(self, key: str, value: bytes, leased: bool = False) -> bool:  # noqa: FBT001, FBT002
        if key in self.shared.mirror:
            return False
        await self.put(key, value, leased)
        return True

    async def replace(self, key: str, old: bytes, new: bytes, *, leased: bool = False) -> bool:
        if self.shared.mirror.get(key) != old:
            return False
        if leased:
            self._leased.add(key)
        self.shared.publish(key, new)
        return True

    async def delete(self, key: str, *, unless: str = "", only: bytes | None = None) -> None:
        if unless in self.shared.mirror:
            return
        self._leased.discard(key)
        if only in (None, self.shared.mirror.get(key)):
            self.shared.publish(key, None)

    async def follow(self, prefix: str, callback: OnRecord) -> None:
        self.shared.add(prefix, callback)

    def disown(self, key: str) -> None:
        self._leased.discard(key)

    async def close(self) -> None:
        for key in builtins.list(self._leased):
            await self.delete(key)
