"""The lock of a claim belongs to the process that saves, not to children that it forks meanwhile."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.checkpoint.posix_storage import PosixStorage

LIMIT_S = 60.0
NAME = "saves/1/0.claim"
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def storage(tmp_path: Path) -> PosixStorage:
    storage = PosixStorage(str(tmp_path / "checkpoints"))
    storage.make_folder("saves/1")
    return storage


def forked(work: Callable[[], object]) -> int:
    """Run work in a child, and return its pid."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def status_of(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_child_does_not_keep_the_claim_of_a_process_that_died(storage: PosixStorage) -> None:
    """A worker that outlives the training would keep its packs for ever."""
    hold, release = os.pipe()
    began, begin = os.pipe()

    def work() -> None:
        os.close(release)
        os.write(begin, b"x")
        os.read(hold, 1)

    def save() -> None:
        claim = storage.claim(NAME, b"[]")
        forked(work)
        os.read(began, 1)
        assert storage.is_claimed(NAME), f"{claim} is held"

    try:
        assert status_of(forked(save)) == 0
        os.close(begin)
        begin = -1
        assert not storage.is_claimed(NAME), "the worker lives, the saver does not"
    finally:
        os.close(release)  # the worker ends
        for fd in (hold, began, begin):
            if fd >= 0:
                os.close(fd)


def test_a_child_does_not_release_the_claim_of_its_parent(storage: PosixStorage) -> None:
    claim = storage.claim(NAME, b"[]")
    assert status_of(forked(claim.release)) == 0
    assert storage.is_claimed(NAME)
    claim.release()
    assert not storage.is_claimed(NAME)


def test_a_claim_of_a_child_is_its_own(storage: PosixStorage) -> None:
    """It closes those of its parent, and no others."""
    claim = storage.claim(NAME, b"[]")
    other = "saves/1/1.claim"
    ready, say = os.pipe()
    hold, release = os.pipe()

    def save() -> None:
        os.close(release)
        own = storage.claim(other, b"[]")
        assert own is not claim
        os.write(say, b"x")
        os.read(hold, 1)

    child = forked(save)
    try:
        assert select.select([ready], [], [], LIMIT_S)[0]
        assert storage.is_claimed(NAME)
        assert storage.is_claimed(other)
    finally:
        os.close(release)
        assert status_of(child) == 0
        for fd in (ready, say, hold):
            os.close(fd)
    assert not storage.is_claimed(other)
    claim.release()
