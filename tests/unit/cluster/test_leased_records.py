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


async def test_a_record_that_is_deleted_meanwhile_is_not_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as the lease of a directory that another node requests after an outage of etcd."""
    records = EtcdRecords(["127.0.0.1:1"], prefix="/", lease_s=10)
    written: list[str] = []

    async def acquire() -> int:
        return 7

    async def exchange(key: str, raw: bytes | None, new: bytes, lease: int | None = None) -> bool:
        written.append(key)
        await records.delete("rights/b")
        await records.put("rights/c", b"new")
        return True

    async def answer(_: Any) -> None:
        return None

    monkeypatch.setattr(records._lease, "acquire", acquire)
    monkeypatch.setattr(records._connection, "call", answer)
    monkeypatch.setattr(records, "_exchange_raw", exchange)
    records._leased |= {"rights/a": b"mine", "rights/b": b"mine", "rights/c": b"mine", "rights/d": b"mine"}
    await records._rewrite_leased()
    assert written == ["rights/a", "rights/d"]
    assert records._leased == {"rights/a": b"mine", "rights/d": b"mine"}


async def test_a_record_that_is_deleted_while_it_is_written_again_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The watch reports that it was deleted, and the node must not write it once more."""
    records = EtcdRecords(["127.0.0.1:1"], prefix="/", lease_s=10)

    async def acquire() -> int:
        return 7

    async def exchange(key: str, raw: bytes | None, new: bytes, lease: int | None = None) -> bool:
        await records.delete(key)
        return True

    async def answer(_: Any) -> None:
        return None

    monkeypatch.setattr(records._lease, "acquire", acquire)
    monkeypatch.setattr(records._connection, "call", answer)
    monkeypatch.setattr(records, "_exchange_raw", exchange)
    records._leased["rights/a"] = b"mine"
    await records._rewrite_leased()
    assert not records._leased


@pytest.mark.expected_warnings("etcd is unavailable")
@pytest.mark.parametrize(
    ("error", "reason"),
    [(TimeoutError(), "no answer within 3 s"), (OSError(), "OSError"), (OSError("no route"), "no route")],
)
async def test_the_warning_that_etcd_is_unavailable_says_why(
    caplog: pytest.LogCaptureFixture, error: Exception, reason: str
) -> None:
    records = EtcdRecords(["127.0.0.1:1"], prefix="/", lease_s=10)
    records._report_failure(error)
    assert [record.getMessage().partition("error=")[2] for record in caplog.records] == [reason]
