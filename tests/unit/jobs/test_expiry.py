"""Times to live are those of the wall clock, which an operator may set back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.base.errors import StoreError
from headrace.base.model import FileId
from headrace.jobs.expiry import CachedLives, Expiry
from headrace.policy.current import CurrentPolicy
from headrace.policy.record import PolicyRecord, PolicyVersion
from headrace.testing.waiting import until

YEAR_S = 365 * 86400.0
NOW_S = 1_800_000_000.0
POLICY = '[[rule]]\nmatch = ["/d/**"]\nttl = "1h"\n'
ID = FileId(7)


class OneFile:
    """A store with at most one cached file, as far as times to live go."""

    def __init__(self) -> None:
        self.files: dict[FileId, Any] = {}
        self.index = self
        self.sealed: set[FileId] = set()
        self.volumes = {0: SimpleNamespace(data_path=lambda id: "/nowhere")}

    def put(self) -> None:
        self.files[ID] = SimpleNamespace(id=ID, volume=0, complete=True, pinned=False, mtime_ns=0)

    def cached(self, id: FileId) -> Any:
        return self.files.get(id)

    def cached_batch(self, after: FileId) -> list[Any]:
        return [file for id, file in self.files.items() if id > after]

    def path_of(self, id: FileId) -> bytes:
        return b"/d/f"

    def free(self, id: FileId) -> int:
        return 1 if self.files.pop(id, None) is not None else 0


@pytest.fixture
def disk() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as disk:
        yield disk


@pytest.mark.parametrize("is_cached_before", [True, False])
async def test_files_expire_after_the_clock_was_set_back(
    monkeypatch: pytest.MonkeyPatch, disk: ThreadPoolExecutor, *, is_cached_before: bool
) -> None:
    """It was a year ahead. is_cached_before: the file was cached, and used, while it was."""
    clock = SimpleNamespace(now_s=NOW_S + YEAR_S)
    monkeypatch.setattr(time, "time", lambda: clock.now_s)
    policy, store = CurrentPolicy(), OneFile()
    lives = CachedLives(policy)
    expiry = Expiry(cast(Any, store), policy, lives, disk, forget=lambda ids: None)
    policy.adopt(PolicyRecord([PolicyVersion(1, POLICY)]))

    async def pass_seconds(seconds: float) -> None:
        clock.now_s += seconds
        while await expiry._turn():
            pass

    def cache() -> None:
        store.put()
        lives.note_cached(ID)

    if is_cached_before:
        cache()
    await pass_seconds(1)
    lives.note_used([ID])
    await pass_seconds(-YEAR_S)
    if not is_cached_before:
        cache()
        await pass_seconds(0)
    await pass_seconds(3590)
    assert store.files
    await pass_seconds(15)
    assert not store.files


@pytest.mark.expected_warnings("expired files can't be removed")
@pytest.mark.parametrize("error", [ValueError("by plan"), StoreError("the disk", why="it failed by plan")])
async def test_files_expire_after_a_failure(
    monkeypatch: pytest.MonkeyPatch, disk: ThreadPoolExecutor, error: Exception
) -> None:
    policy, store, has_failed = CurrentPolicy(), OneFile(), False
    lives = CachedLives(policy)

    def forget(ids: list[FileId]) -> None:
        nonlocal has_failed
        if not has_failed:
            has_failed = True
            raise error

    monkeypatch.setattr("headrace.jobs.expiry.TICK_S", 0.01)
    monkeypatch.setattr("headrace.jobs.expiry.FAILED_PAUSE_S", 0.01)
    clock = SimpleNamespace(now_s=NOW_S)
    monkeypatch.setattr(time, "time", lambda: clock.now_s)
    expiry = Expiry(cast(Any, store), policy, lives, disk, forget=forget)
    policy.adopt(PolicyRecord([PolicyVersion(1, POLICY)]))
    store.put()
    expiry.start()
    try:
        await until(lambda: expiry.statistics()["files_watched"] == 1)
        clock.now_s += 7200
        await until(lambda: has_failed and expiry.statistics()["files_watched"] == 1)
        clock.now_s += 7200
        await until(lambda: not store.files)
    finally:
        await expiry.stop()
