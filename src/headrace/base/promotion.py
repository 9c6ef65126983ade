"""Let a background read be promoted: from then on a reader waits for it, so it precedes other background reads."""

from __future__ import annotations

from collections.abc import Callable


class Promotion:
    """Tells a gate or a peer, where a background read waits, that a reader waits for the read now: priority
    inheritance. For one loop."""

    __slots__ = ("_on_promoted", "is_promoted")

    def __init__(self) -> None:
        self.is_promoted = False
        self._on_promoted: Callable[[], None] | None = None

    def promote(self) -> None:
        """Let the read precede background reads from now on."""
        if not self.is_promoted:
            self.is_promoted = True
            if self._on_promoted is not None:
                self._on_promoted()

    def notify(self, on_promoted: Callable[[], None] | None) -> None:
        """Set what is called when the read is promoted; None: nothing holds it up."""
        self._on_promoted = on_promoted
