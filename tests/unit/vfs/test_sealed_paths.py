"""Names at the top that are seals, and the cost of asking for them. A test tells the node what to answer."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.base.errors import NodeUnavailableError, PathNotFoundError
from headrace.overlay.merged_tree import Owner
from headrace.seal.snapshot import SnapshotEntry
from headrace.testing.waiting import wait_for
from headrace.vfs import sealed_paths
from headrace.vfs.local_vfs import LocalVfs
from headrace.wire.message import Message
from headrace.wire.messages import Answer, Done, Failure
from headrace.wire.seal_messages import SealOpen, SealOpened
from tests.unit.client.scripted_node import ScriptedNode
from tests.unit.seal.snapshots import FILE, TOP, unpack_into

ENTRIES = [TOP, SnapshotEntry(b"empty", FILE), SnapshotEntry(b"x", FILE, 5, 7, token="t", checksum=12)]


@pytest.fixture
def opened(tmp_path: Path) -> SealOpened:
    id = unpack_into(tmp_path / "list", ENTRIES)
    return SealOpened("/nowhere", id, str(tmp_path / "list"), "")


def answering(opened: SealOpened) -> Callable[[Message], list[Answer]]:
    """Return the answers of a node that has data@1 alone."""
    none = Failure(PathNotFoundError.code, "a seal", "the node has no such seal", "")

    def answer(request: Message) -> list[Answer]:
        if not isinstance(request, SealOpen):
            return [Done()]
        return [opened if request.seal == "data@1" else none]

    return answer


@pytest.mark.parametrize("write", ["back", "local"])
def test_a_directory_that_only_the_upper_layer_has_comes_before_a_seal(
    open_vfs: Callable[..., LocalVfs],
    nodes: list[ScriptedNode],
    opened: SealOpened,
    monkeypatch: pytest.MonkeyPatch,
    write: str,
) -> None:
    monkeypatch.setattr(sealed_paths, "KNOWN_S", -1.0)
    vfs, (node,) = open_vfs(write), nodes
    node.answer = answering(opened)
    assert [name for name, _ in vfs.children(b"/data@1")] == [b"empty", b"x"]
    vfs.tree.make_directory(b"/data@1", 0o755, Owner(os.geteuid(), os.getegid()))  # as a mount does
    with vfs.create(b"/data@1/x", replace=False) as stream:
        stream.write(b"of a user")
    assert [name for name, _ in vfs.children(b"/data@1")] == [b"x"]
    assert vfs.read(b"/data@1/x", 0, None) == b"of a user"
    vfs.remove_all(b"/data@1")
    assert vfs.exists(b"/data@1/empty")


def test_threads_that_open_a_seal_together_unpack_its_list_once(
    open_vfs: Callable[..., LocalVfs], nodes: list[ScriptedNode], opened: SealOpened
) -> None:
    vfs, (node,) = open_vfs(), nodes
    node.answer = answering(opened)
    begin = threading.Barrier(8)

    def read(_: int) -> bool:
        begin.wait(30)
        return vfs.exists(b"/data@1/empty")

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(read, range(8)))
    assert len(node.asked(SealOpen)) == 1


def test_a_name_whose_origin_does_not_answer_delays_no_other(
    open_vfs: Callable[..., LocalVfs], nodes: list[ScriptedNode], opened: SealOpened
) -> None:
    vfs, (node,) = open_vfs(), nodes
    asked, answered, has = threading.Event(), threading.Event(), answering(opened)

    def answer(request: Message) -> list[Answer]:
        if isinstance(request, SealOpen) and request.seal == "slow@1":
            asked.set()
            answered.wait(30)
        return has(request)

    node.answer = answer
    with ThreadPoolExecutor(2) as threads:
        slow = threads.submit(vfs.exists, b"/slow@1")
        assert asked.wait(30)
        try:
            assert threads.submit(vfs.exists, b"/data@1/x").result(60)
        finally:
            answered.set()
        assert not slow.result(30)


def test_threads_that_wait_for_a_name_fail_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other would wait as long as the first."""
    looks_at_clock: list[None] = []

    def monotonic() -> float:
        looks_at_clock.append(None)
        return float(len(looks_at_clock))

    monkeypatch.setattr(sealed_paths, "time", SimpleNamespace(monotonic=monotonic))
    known, failing = sealed_paths._Known(), threading.Event()
    asked: list[None] = []

    def open_now(_: object) -> None:
        asked.append(None)
        failing.wait(60)
        raise NodeUnavailableError("node", why="it is silent")

    def look(_: int) -> str:
        with pytest.raises(NodeUnavailableError) as raised:
            known.look(open_now)
        return raised.value.why

    with ThreadPoolExecutor(4) as threads:
        try:
            results = threads.map(look, range(4))
            wait_for(lambda: len(looks_at_clock) == 5)  # each at its begin, and the first before it asks
        finally:
            failing.set()
        assert list(results) == ["it is silent"] * 4
    assert len(asked) == 1
    look(4)
    assert len(asked) == 2, "a later call asks again"
    assert known.look(lambda _: None) is None
    assert known.failure is None


def test_names_that_are_no_seals_take_no_room_for_ever(
    open_vfs: Callable[..., LocalVfs],
    nodes: list[ScriptedNode],
    opened: SealOpened,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sealed_paths, "KNOWN_MAX", 10)
    vfs, (node,) = open_vfs(), nodes
    node.answer = answering(opened)
    assert vfs.exists(b"/data@1/x")
    first = vfs.sealed._known[b"data@1"]
    for number in range(1, 50):
        assert not vfs.exists(b"/other@%d" % number)
    assert len(vfs.sealed._known) == 10
    assert vfs.sealed._known[b"data@1"] is first, "what was unpacked stays"
