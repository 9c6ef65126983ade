from __future__ import annotations

import pytest

from headrace.base import deadline
from headrace.origin import measure, retry, throttle
from tests.unit.origin.clock import FakeClock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    clock.rule(monkeypatch, deadline, measure, retry, throttle)
    return clock
