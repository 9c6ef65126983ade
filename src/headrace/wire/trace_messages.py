"""Define the message by which clusters notice a mount that leads back to itself, as `messages.py` defines others."""

from __future__ import annotations

from typing import Annotated

import msgspec

from headrace.base.namespace_path import PATH_BYTES_MAX, check_path
from headrace.wire.message import Message

HOPS_MAX = 8
"""Clusters that may lie behind each other."""
INSTANCE_PATTERN = "^[A-Za-z0-9_.-]{1,64}$"
Instance = Annotated[str, msgspec.Meta(pattern=INSTANCE_PATTERN)]


class TraceMount(Message, frozen=True):
    """Say whether the origins of a path lead back to a mount that is being added. instance: of the node that adds it.
    mount: the path of that mount. hops: clusters that passed the question on. → MountTraced."""

    path: Annotated[bytes, msgspec.Meta(max_length=PATH_BYTES_MAX)]
    instance: Instance
    mount: Annotated[bytes, msgspec.Meta(max_length=PATH_BYTES_MAX)]
    hops: Annotated[int, msgspec.Meta(ge=0, le=HOPS_MAX)] = 0

    def __post_init__(self) -> None:
        check_path(self.path)
        check_path(self.mount)


class MountTraced(Message, frozen=True):
    """Answers TraceMount. leads_back: False also if a cluster behind did not answer."""

    leads_back: bool
