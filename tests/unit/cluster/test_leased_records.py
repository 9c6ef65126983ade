"""Leased records are written again after a loss of the lease, and only then."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from aetcd import EventKind

from headrace.base.errors import ClusterUnavailableError
from headrace.cluster.etcd import EtcdRecords


class FakeClient:
    """Reports that a record was deleted, and has a value of it by now."""

    def __init__(self, key: bytes, value: bytes | None) -> None:
        self._key = key
        self._value = value

    async def watch_prefix(self, prefix: bytes, *, start_revision: int) -> AsyncIterator[Any]:
        return self._events()

    async def _events(self) -> AsyncIterator[Any]:
        deleted = SimpleNamespace(mod_revision=5, key=self._key, value=b"")
        yield SimpleNamespace(kind=EventKind.DELETE, kv=deleted)

    async def get(self, key: bytes) -> Any:
        assert key == self._key
        return None if self._value is None else SimpleNamespace(value=self._value)


@pytest.mark.expected_warnings("this node's record was deleted")
@pytest.mark.parametrize(("value", "lost"), [(b"mine", 0), (b"of another node", 1), (None, 1)])
async def test_a_record_that_was_written_again_is_no_loss_of_the_lease(
    monkeypatch: pytest.MonkeyPatch, value: bytes | None, lost: int
) -> None:
    """The watch reports its deletion after that."""
    records = EtcdRecords(["127.0.0.1:1"], prefix="/", lease_s=10)
    written: list[str] = []

    async def write_again() -> None:
        written.append("again")

    monkeypatch.setattr(records, "_rewrite_leased", write_again)
    records._leased["rights/f"] = b"mine"
    records._followers.mirror["rights/f"] = b"mine"
    await records._watch(FakeClient(b"/rights/f", value), 1)
    assert (records.leases_lost, len(written)) == (lost, lost)


async def test_a_record_that_could_not_be_written_is_not_written_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its caller was told that it failed: such as a drain."""
    records = EtcdRecords(["127.0.0.1:1"], prefix="/", lease_s=10)

    async def acquire() -> int:
        return 7

    async def fail(_: Any) -> None:
        raise ClusterUnavailableError("etcd", why="it does not answer")

    monkeypatch.setattr(records._lease, "acquire", acquire)
    monkeypatch.setattr(records._connection, "call", fail)
    records._leased["nodes/a"] = b"as it was"
    with pytest.raises(ClusterUnavailableError):
        await records.put("nodes/a", b"drained", leased=True)
    with pytest.raises(ClusterUnavailableError):
        await records.put("nodes/b", b"new", leased=True)
    assert records._leased == {"nodes/a": b"as it was"}
