"""This holds for unit tests: time is virtual, but for those with the mark `real_time`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from headrace.testing.virtual_loop import VirtualLoop


@pytest.fixture
def loop_factory(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    return asyncio.new_event_loop if request.node.get_closest_marker("real_time") else VirtualLoop
