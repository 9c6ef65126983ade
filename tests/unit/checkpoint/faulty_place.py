"""Places around a real one: one that fails at a chosen call, one whose writes wait for a word."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from headrace.checkpoint.posix_storage import PosixStorage


class FaultyPlace:
    """Every call that changes something is counted, the ones of its sinks too; the `fail_at`th raises `error`, and so
    does every later one while `stays` says so."""

    CHANGES = ("create", "rename", "make_folder", "sync_folder", "claim")

    def __init__(self, folder: str, error: Exception, *, fail_at: int = 0, stays: bool = False) -> None:
        self._real = PosixStorage(folder)
        self._error = error
        self.fail_at = fail_at
        self.stays = stays
        self.calls = 0
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._real, name)
        return self._counted(attribute, name) if name in self.CHANGES else attribute

    def _counted(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def counted(*words: Any) -> Any:
            self.count()
            done = call(*words)
            return FaultySink(done, self) if name == "create" else done

        return counted

    def count(self) -> None:
        with self._lock:
            self.calls += 1
            failing = self.calls == self.fail_at or (self.stays and 0 < self.fail_at <= self.calls)
        if failing:
            raise self._error


class FaultySink:
    def __init__(self, real: Any, place: FaultyPlace) -> None:
        self._real, self._place = real, place

    def write(self, data: memoryview, offset: int) -> None:
        self._place.count()
        self._real.write(data, offset)

    def sync(self) -> None:
        self._place.count()
        self._real.sync()

    def close(self) -> None:
        self._real.close()


class GatedPlace:
    """Files can be made at once, but not written before `open_gate`."""

    def __init__(self, folder: str) -> None:
        self._real = PosixStorage(folder)
        self._gate = threading.Event()
        self.waiting = threading.Event()

    def open_gate(self) -> None:
        self._gate.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def create(self, name: str) -> Any:
        self.waiting.set()
        self._gate.wait()
        return self._real.create(name)
