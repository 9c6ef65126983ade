"""Choose, as a pure function, which checkpoints to keep. prune.py deletes the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from headrace.base.errors import UsageError


@dataclass(frozen=True, slots=True)
class Retention:
    """Define which checkpoints are kept. last: the newest N, at least 1; None for all. every: also the steps that are
    multiples of it."""

    last: int | None = None
    every: int | None = None

    def __post_init__(self) -> None:
        if self.last is not None and self.last < 1:
            raise UsageError(f"last={self.last}", why="at least the newest checkpoint must be kept")
        if self.every is not None and self.every < 1:
            raise UsageError(f"every={self.every}", why="it must be a positive number of steps")

    def dropped(
        self, steps: Iterable[int], pinned: Collection[int] = (), *, saved: int | None = None
    ) -> list[int]:
        """Return the steps to drop, ascending. The newest is never dropped.

        saved: the step that was just saved. A training that continues from an earlier checkpoint saves lower steps than
        exist. Higher steps than `saved` do not count, and are not dropped.
        """
        if self.last is None:
            return []
        ordered = sorted(step for step in steps if saved is None or step <= saved)
        newest = set(ordered[-self.last :])
        return [
            step for step in ordered if step not in newest and step not in pinned and not self._is_kept(step)
        ]

    def _is_kept(self, step: int) -> bool:
        return self.every is not None and step % self.every == 0


def unreferenced(packs: Iterable[str], references: Iterable[Collection[str]]) -> list[str]:
    """Return the packs that neither a kept manifest nor a running save refers to."""
    needed: set[str] = set()
    for pack_names in references:
        needed.update(pack_names)
    return [name for name in packs if name not in needed]
