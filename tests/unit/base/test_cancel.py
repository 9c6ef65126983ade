from __future__ import annotations

import fcntl
import os
import resource
import threading
from collections.abc import Iterator

import pytest

from headrace.base.cancel import Cancel

HIGH_FD = 1500
"""Beyond what select(2) takes."""


@pytest.fixture
def _high_descriptors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard <= HIGH_FD:
        pytest.skip("this process may not have so many open files")
    create = os.eventfd

    def create_high(initial: int, flags: int) -> int:
        low = create(initial, flags)
        try:
            return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, HIGH_FD)
        finally:
            os.close(low)

    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, HIGH_FD + 100)), hard))
    monkeypatch.setattr("headrace.base.cancel.os.eventfd", create_high)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("_high_descriptors")
def test_a_call_waits_in_a_process_with_many_open_files() -> None:
    cancel = Cancel()
    try:
        assert not cancel.wait(0.0)
        assert not cancel.wait(0.001)
        other = threading.Thread(target=cancel.set)
        other.start()
        assert cancel.wait(60.0)
        other.join()
    finally:
        cancel.close()
