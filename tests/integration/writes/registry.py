"""The scripts: name → what is run, and over which files of the origin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.integration.writes.place import LOWER, Place


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    run: Callable[[Place], None]
    lower: dict[str, bytes]
    left_out: tuple[str, ...]
    """Names that are not compared in the end: their bytes hold times, or random names."""
    needs: str
    """A program that is perhaps not installed."""


SCRIPTS: dict[str, Script] = {}


def script(
    *, lower: dict[str, bytes] = LOWER, left_out: tuple[str, ...] = (), needs: str = ""
) -> Callable[[Callable[[Place], None]], Callable[[Place], None]]:
    """Registers the function by its name."""

    def register(run: Callable[[Place], None]) -> Callable[[Place], None]:
        name = run.__name__
        assert name not in SCRIPTS, name
        SCRIPTS[name] = Script(name, run, lower, left_out, needs)
        return run

    return register
