"""Define the message about changes that origins report, as `messages.py` defines all others."""

from __future__ import annotations

from typing import Annotated

import msgspec

from headrace.events.changes import CHANGES_MAX, OriginChange
from headrace.wire.message import Message


class ReportChanges(Message, frozen=True):
    """Hand over what an origin reported to this host by HTTP. → Done, once the node remembers it; all nodes of the
    cluster then list the directories again. refused: changes of the same post that have no name in the namespace; None
    of them are in the list."""

    changes: Annotated[list[OriginChange], msgspec.Meta(max_length=CHANGES_MAX)]
    refused: int = 0
