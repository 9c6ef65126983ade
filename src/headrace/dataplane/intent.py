"""Define the purpose of a read. One value is passed down the whole read path: from the call to the range read at its
source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

PROGRAMS = "programs"
PEERS = "peers"
LOADS = "loads"


class Promotion:
    """Tells the gate where a background read waits that a reader waits for it now, so that it does not wait for other
    background reads: priority inheritance. For one loop."""

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
        """Set what is called when the read is promoted; None: it waits at no gate."""
        self._on_promoted = on_promoted


@dataclass(frozen=True, slots=True)
class ReadIntent:
    """Describe why a file is read. By default a reader of this host waits, at any position of the file.

    background: no reader waits for the next bytes, so other reads precede this one. for_peer: another node requested
    the bytes, so no third node is asked for them. in_batch: a small file may wait until others are committed with it.
    is_sequential: the reader reads the file in order, so bytes ahead of it are fetched, too. into_spill: the disks have
    no space or the policy does not admit the file, and the bytes are written to the spill. is_admitted: the policy is
    not asked, because the spill has no space for what it does not admit. job: in the account of costs, the name of what
    fetches the bytes. giver: the id of a node that offers them, and is asked first. promotion: of this one background
    read, if a reader may come that waits for it.
    """

    background: bool = False
    for_peer: bool = False
    in_batch: bool = False
    is_sequential: bool = False
    into_spill: bool = False
    is_admitted: bool = False
    job: str = PROGRAMS
    giver: str = ""
    promotion: Promotion | None = field(default=None, compare=False)

    @property
    def may_spill(self) -> bool:
        """Return whether a reader of this host waits. Only for such a reader may bytes be written to the spill."""
        return not (self.background or self.for_peer)


FOREGROUND = ReadIntent()
SEQUENTIAL = ReadIntent(is_sequential=True)
BATCH = ReadIntent(in_batch=True)
BACKGROUND = ReadIntent(background=True, in_batch=True)
FOR_PEER = ReadIntent(for_peer=True, job=PEERS)
