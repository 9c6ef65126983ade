from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from headrace.base import deadline
from headrace.base.clock import CLOCK
from headrace.origin import measure, retry, throttle
from tests.unit.origin.clock import FakeClock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeClock]:
    clock = FakeClock()
    clock.rule(monkeypatch, deadline, measure, retry, throttle)
    yield clock
    CLOCK.set(time.monotonic)
