"""Which checkpoints stay, pure. Deleting is prune.py's."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from headrace.base.errors import UsageError


@dataclass(frozen=True, slots=True)
class Retention:
    """last: how many of the newest stay, at least 1; None: all. every: steps that are multiples of it stay too."""

    last: int | None = None
    every: int | None = None

    def __post_init__(self) -> None:
        if self.last is not None and self.last < 1:
            raise UsageError(f"last={self.last}", why="at least the newest checkpoint stays")
        if self.every is not None and self.every < 1:
            raise UsageError(f"every={self.every}", why="not a positive number of steps")

    def dropped(self, steps: Iterable[int], pinned: Collection[int] = ()) -> list[int]:
        """Those that go, ascending. The newest never does."""
        if self.last is None:
            return []
        ordered = sorted(steps)
        newest = set(ordered[-self.last :])
        return [
            step for step in ordered if step not in newest and step not in pinned and not self._stays(step)
        ]

    def _stays(self, step: int) -> bool:
        return self.every is not None and step % self.every == 0


def unreferenced(packs: Iterable[str], kept: Iterable[Collection[str]]) -> list[str]:
    """Packs that no kept manifest and no save under way refers to."""
    needed: set[str] = set()
    for names in kept:
        needed.update(names)
    return [name for name in packs if name not in needed]
