"""Define the base class of messages."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base class of all messages; the tag on the wire is the class name."""
