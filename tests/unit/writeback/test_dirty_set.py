"""The set of dirty paths: when each is due, and how many bytes they have."""

from __future__ import annotations

import pytest

from headrace.base.clock import monotonic_s
from headrace.writeback.dirty_set import BACKOFF_S_MAX, DirtySet


def test_a_path_that_is_written_again_keeps_its_age() -> None:
    dirty = DirtySet()
    first = dirty.add(b"/a", 10.0, 5, delay_s=1.0)
    assert dirty.add(b"/a", 20.0, 9) is first
    assert (first.since_s, first.due_s, first.noted) == (10.0, 11.0, 2)
    assert dirty.due(10.9, 9) == [] and dirty.due(11.0, 9) == [b"/a"] and dirty.next_due_s() == 11.0


def test_bytes_are_those_of_all_sizes() -> None:
    dirty = DirtySet()
    for path, size_bytes in ((b"/a", 5), (b"/d/b", 7), (b"/d/c", 11), (b"/dd", 13)):
        dirty.resize(dirty.add(path, 0.0), size_bytes)
    assert dirty.waiting(b"/") == (4, 36) and dirty.waiting(b"/d") == (2, 18)
    dirty.resize(dirty[b"/d/b"], 1)
    dirty.drop(b"/a")
    assert dirty.waiting(b"/") == (3, 25) and b"/a" not in dirty and dirty.get(b"/a") is None
    dirty.drop(b"/a")
    assert dirty.waiting(b"/") == (3, 25)


def test_a_path_that_became_dirty_anew_is_not_dropped() -> None:
    dirty = DirtySet()
    before = dirty.add(b"/a", 0.0)
    dirty.drop(b"/a")
    dirty.add(b"/a", 1.0)
    dirty.drop(b"/a", only=before)
    assert b"/a" in dirty


def test_paths_below() -> None:
    dirty = DirtySet()
    for number, path in enumerate((b"/d", b"/d/a", b"/d/s/b", b"/da", b"/e")):
        dirty.add(path, float(number))
    assert dirty.below(b"/d") == [b"/d", b"/d/a", b"/d/s/b"]
    assert dirty.below(b"/d", since_s=1.0) == [b"/d", b"/d/a"]
    assert len(dirty.below(b"/")) == 5


async def test_each_failure_puts_off_the_next_try() -> None:
    dirty = DirtySet()
    entry = dirty.add(b"/a", monotonic_s())
    waits_s = []
    for _ in range(10):
        entry.failed("no origin")
        waits_s.append(entry.due_s - monotonic_s())
    assert waits_s[:4] == pytest.approx([1, 2, 4, 8]) and waits_s[-1] == pytest.approx(BACKOFF_S_MAX)
    assert dirty.failing(b"/") == [("/a", "no origin")] and dirty.status()["errors"] == [["/a", "no origin"]]
    dirty.expedite(b"/")
    assert dirty.due(monotonic_s(), 9) == [b"/a"]
    dirty.defer([b"/a", b"/not dirty"], 3.0)
    assert dirty.due(monotonic_s() + 2.9, 9) == [] and dirty.due(monotonic_s() + 3.0, 9) == [b"/a"]


def test_a_round_has_a_limit() -> None:
    dirty = DirtySet()
    for number in range(5):
        dirty.add(b"/%d" % number, 0.0)
    assert len(dirty.due(1.0, 3)) == 3


def test_failed_names_that_are_not_utf8_are_shown_by_their_bytes() -> None:
    dirty = DirtySet()
    dirty.add(b"/d/a\xff", 0.0).error = "key a\udcff: denied"
    assert dirty.failing(b"/d") == [(r"/d/a\xff", r"key a\xff: denied")]
    assert dirty.status()["errors"] == [[r"/d/a\xff", r"key a\xff: denied"]]
