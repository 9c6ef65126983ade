"""Say for whom bytes are read. One value goes down the whole read path: from the call to the range read at its
source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReadIntent:
    """Tells why a file is read. The defaults: a reader of this host waits, at any position of the file.

    background: nobody waits for the next bytes, so the reads of others go first. for_peer: another node requested the
    bytes, so no third node is asked for them. in_batch: a small file may wait until others are committed with it.
    is_sequential: the reader goes through the file in order, so bytes ahead of it are fetched too. into_spill: the
    disks have no room, and the bytes go to the spill.
    """

    background: bool = False
    for_peer: bool = False
    in_batch: bool = False
    is_sequential: bool = False
    into_spill: bool = False

    @property
    def may_spill(self) -> bool:
        """Return whether a reader of this host waits. Only for such a reader bytes may go to the spill."""
        return not (self.background or self.for_peer)


FOREGROUND = ReadIntent()
SEQUENTIAL = ReadIntent(is_sequential=True)
BATCH = ReadIntent(in_batch=True)
BACKGROUND = ReadIntent(background=True, in_batch=True)
FOR_PEER = ReadIntent(for_peer=True)
