"""A process shares one namespace for each node, and a node that hangs delays no other one."""

from __future__ import annotations

import os
import threading
from typing import Any, cast

import pytest

from headrace.base.errors import NodeUnavailableError
from headrace.vfs.vfs import Vfs
from headrace.vfs.vfs_registry import VfsRegistry

JOIN_S = 60.0
pytestmark = pytest.mark.timeout(300)


class FakeVfs:
    closed = False

    def close(self) -> None:
        self.closed = True


def fake() -> Vfs:
    return cast(Vfs, FakeVfs())


class Hanging:
    """Makes a namespace when `release` is set, and says that it began."""

    def __init__(self) -> None:
        self.began, self.release = threading.Event(), threading.Event()
        self.count = 0

    def __call__(self) -> Vfs:
        self.count += 1
        self.began.set()
        self.release.wait(JOIN_S)
        return fake()


def reach_in_thread(registry: VfsRegistry[Vfs], key: str, make: Any) -> tuple[threading.Thread, list[Vfs]]:
    reached: list[Vfs] = []
    thread = threading.Thread(target=lambda: reached.append(registry.reach(key, make)), daemon=True)
    thread.start()
    return thread, reached


def test_a_key_has_one_namespace_until_it_is_closed() -> None:
    registry = VfsRegistry[Vfs]()
    first = registry.reach("a", fake)
    assert registry.reach("a", fake) is first
    assert registry.reach("b", fake) is not first
    first.close()
    second = registry.reach("a", fake)
    assert second is not first
    registry.close()
    assert second.closed
    assert registry.reach("a", fake) is not second


def test_a_node_that_hangs_delays_no_other_one() -> None:
    registry = VfsRegistry[Vfs]()
    hanging = Hanging()
    known = registry.reach("known", fake)
    waiting, reached = reach_in_thread(registry, "hangs", hanging)
    assert hanging.began.wait(JOIN_S)
    for key in ("known", "new"):
        thread, others = reach_in_thread(registry, key, fake)
        thread.join(JOIN_S)
        assert len(others) == 1
    assert registry.reach("known", fake) is known
    thread = threading.Thread(target=registry.close, daemon=True)
    thread.start()
    thread.join(JOIN_S)
    assert known.closed, "a close waits for no node"
    assert waiting.is_alive()
    hanging.release.set()
    waiting.join(JOIN_S)
    assert registry.reach("hangs", fake) is reached[0]


def test_threads_that_reach_one_node_share_it() -> None:
    """A process may open the index of a node only once."""
    registry = VfsRegistry[Vfs]()
    hanging = Hanging()
    threads = [reach_in_thread(registry, "a", hanging) for _ in range(3)]
    assert hanging.began.wait(JOIN_S)
    hanging.release.set()
    for thread, _ in threads:
        thread.join(JOIN_S)
    assert hanging.count == 1
    assert len({id(reached[0]) for _, reached in threads}) == 1


def test_a_failure_is_not_kept() -> None:
    registry = VfsRegistry[Vfs]()

    def fail() -> Vfs:
        raise NodeUnavailableError("node")

    with pytest.raises(NodeUnavailableError):
        registry.reach("a", fail)
    assert registry.reach("a", fake)


def test_a_forked_child_does_not_wait_for_threads_of_its_parent() -> None:
    registry = VfsRegistry[Vfs]()
    hanging = Hanging()
    waiting, _ = reach_in_thread(registry, "a", hanging)
    assert hanging.began.wait(JOIN_S)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if registry.reach("a", fake) else 2
        finally:
            os._exit(code)
    hanging.release.set()
    waiting.join(JOIN_S)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
