"""This holds for unit tests: time is virtual, but for those with the mark `real_time`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from headrace.base import boot_clock
from headrace.base.clock import monotonic_s
from headrace.testing.virtual_loop import VirtualLoop


@pytest.fixture
def loop_factory(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    return asyncio.new_event_loop if request.node.get_closest_marker("real_time") else VirtualLoop


@pytest.fixture
def virtual_boot_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the ages of listings pass as fast as the virtual time of the loop."""
    monkeypatch.setattr(boot_clock, "now_s", monotonic_s)
    monkeypatch.setattr(boot_clock, "now_ns", lambda: int(monotonic_s() * 1e9))
