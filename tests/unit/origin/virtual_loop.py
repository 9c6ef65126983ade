"""An event loop whose time passes at once when nothing else is to be done."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from headrace.base import deadline
from headrace.origin import circuit, hedge, retry

Result = TypeVar("Result")


class _Selector(selectors.SelectSelector):
    """Waits for nobody: the time that it would have waited has passed."""

    now_s = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout:
            self.now_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._selector_of_time = _Selector()
        super().__init__(self._selector_of_time)

    def time(self) -> float:
        return self._selector_of_time.now_s


def run_virtual(work: Coroutine[Any, Any, Result], patch: pytest.MonkeyPatch) -> Result:
    """time.monotonic of what waits for origins goes by the loop, too."""

    class _Time:
        @staticmethod
        def monotonic() -> float:
            return loop.time()

    loop = VirtualLoop()
    for module in (deadline, circuit, hedge, retry):
        patch.setattr(module, "time", _Time)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(work)
