"""Define the purpose of a read. One value is passed down the whole read path: from the call to the range read at its
source."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.base.promotion import Promotion

PROGRAMS = "programs"
PEERS = "peers"
LOADS = "loads"


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
    def is_for_reader(self) -> bool:
        """Return whether a reader of this host waits, or is about to: what is read ahead of one, too."""
        return not self.background or self.job == PROGRAMS

    @property
    def needs_commit(self) -> bool:
        """Return whether a complete file must be committed before the read ends, as for a load. Others need the
        bytes."""
        return self.background and not self.for_peer

    @property
    def may_spill(self) -> bool:
        """Return whether a reader of this host waits. Only for such a reader may bytes be written to the spill."""
        return not (self.background or self.for_peer)


FOREGROUND = ReadIntent()
SEQUENTIAL = ReadIntent(is_sequential=True)
BATCH = ReadIntent(in_batch=True)
BACKGROUND = ReadIntent(background=True, in_batch=True)
FOR_PEER = ReadIntent(for_peer=True, job=PEERS)
BACKGROUND_FOR_PEER = ReadIntent(for_peer=True, background=True, job=PEERS)
