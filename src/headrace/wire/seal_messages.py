"""Define the messages about seals, as `messages.py` defines all others."""

from __future__ import annotations

import msgspec

from headrace.wire.message import Message


class SealList(Message, frozen=True):
    """List the seals of the node, or those at the origin of the mount that answers for a path. from_origin: at the
    origins; path "" for those of all mounts. → SealRows."""

    from_origin: bool = False
    path: str = ""


class SealOpen(Message, frozen=True):
    """Find a seal of the node, or else at the origins, as NAME@VERSION. known_id: of the list that the client has
    mapped; the node need not unpack that one again. → SealOpened; Failure where there is none."""

    seal: str
    known_id: str = ""


class SealRow(msgspec.Struct, frozen=True):
    """A seal. path: of the namespace. id: a hash of the content list."""

    seal: str
    id: str
    path: str
    files: int
    size_bytes: int
    created_s: float


class SealRows(Message, frozen=True):
    """Seals, by name and version."""

    rows: list[SealRow]


class SealOpened(Message, frozen=True):
    """A seal. path: of the namespace, of the directory that was sealed. list_path: of its content list on this host,
    unpacked (`seal/unpacked_list.py`); it is there unless the client knows the id. ids_path: of the ids of its cache
    files; "" where this node has not sealed it."""

    path: str
    id: str
    list_path: str
    ids_path: str
