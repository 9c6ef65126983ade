"""Refuse the writes to an origin that can only be read."""

from __future__ import annotations

from headrace.base.deadline import Deadline
from headrace.base.errors import OriginReadOnlyError
from headrace.base.model import Attributes, ObjectInfo
from headrace.origin.origin import Condition, PutSource


class ReadOnlyCalls:
    """Implements the writing half of Origin for a kind of origin that supports no writes."""

    url: str
    writable = False

    async def put(
        self, key: str, source: PutSource, *, condition: Condition, attributes: Attributes, deadline: Deadline
    ) -> ObjectInfo:
        raise self._refusal(key)

    async def remove(self, key: str, *, condition: Condition, deadline: Deadline) -> None:
        raise self._refusal(key)

    async def make_directory(self, key: str, *, deadline: Deadline) -> None:
        raise self._refusal(key)

    async def remove_directory(self, key: str, *, deadline: Deadline) -> None:
        raise self._refusal(key)

    def _refusal(self, key: str) -> OriginReadOnlyError:
        scheme = self.url.partition("://")[0]
        return OriginReadOnlyError(f"{self.url}/{key}", why=f"a {scheme} origin can only be read")
