"""An event of an object that is built before those that follow it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

Arguments = ParamSpec("Arguments")


class Listeners(Generic[Arguments]):
    """Call all that were added, in that order, in the thread of the event. They are added while a process starts."""

    def __init__(self) -> None:
        self._receivers: list[Callable[Arguments, None]] = []

    def add(self, receiver: Callable[Arguments, None]) -> None:
        """Call this one, too, from now on."""
        self._receivers.append(receiver)

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        for receiver in self._receivers:
            receiver(*args, **kwargs)
