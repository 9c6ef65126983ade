"""Records whose first answer arrives after a change that it does not show yet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from headrace.cluster.embedded import EmbeddedRecords


class LateAnswer:
    """Makes a change while the records answer `get` for the first time, from now on. reads: calls of `get`."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        records: EmbeddedRecords,
        change: Callable[[], Awaitable[object]],
    ) -> None:
        self.reads = 0
        self._get, self._change = records.get, change
        monkeypatch.setattr(records, "get", self._late_get)

    async def _late_get(self, key: str) -> bytes | None:
        self.reads += 1
        is_first = self.reads == 1
        value = await self._get(key)
        if is_first:
            await self._change()
        return value
