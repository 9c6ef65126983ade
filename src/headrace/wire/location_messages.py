"""Define the messages that say why a file is where it is, as `messages.py` defines all others."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from headrace.base.namespace_path import PATH_BYTES_MAX
from headrace.wire.message import Message

Role = Literal["", "primary owner", "owner", "holder", "borrower"]


class LocationAsk(Message, frozen=True):
    """Say which nodes own a file, and why. The file need not exist. → LocationShown."""

    path: Annotated[bytes, msgspec.Meta(max_length=PATH_BYTES_MAX)]


class FileLocation(msgspec.Struct, frozen=True):
    """Says why a file is where it is, for its first segment. segments: parts of a large file, which have owners of
    their own. copies: how many the policy, the configuration or a pin wants. copies_by: what decided that. owners: the
    nodes that the ring gives, the primary owner first; none without a cluster. holders: nodes that keep a copy because
    the file is hot. role: of this node for what it has in its cache; "" if it has nothing. waiting: this node will
    offer its copy to other owners."""

    segments: int
    copies: int
    copies_by: str
    owners: list[str]
    holders: list[str]
    role: Role
    pinned: bool
    sealed: bool
    waiting: bool


class LocationShown(Message, frozen=True):
    """Answers LocationAsk."""

    location: FileLocation
