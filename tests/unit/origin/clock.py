"""Time that passes only when somebody sleeps."""

from __future__ import annotations

import asyncio
from types import ModuleType

import pytest

from headrace.base.clock import CLOCK


class FakeClock:
    """Replaces time.monotonic and asyncio.sleep in modules of ours. slept: each sleep, in seconds."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds
        await asyncio.tasks.sleep(0)

    def rule(self, patch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
        CLOCK.set(self.monotonic)
        for module in modules:
            if hasattr(module, "asyncio"):
                patch.setattr(module, "asyncio", _Stand(asyncio, {"sleep": self.sleep}))


class _Stand:
    """A module with some of its functions replaced."""

    def __init__(self, real: ModuleType, fakes: dict[str, object]) -> None:
        self._real = real
        self.__dict__.update(fakes)

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)
