"""Which folders a node says to have written in: its record in the cluster. Values only.

A record names folders, not files, and is bounded: of very many it says what they have in common, "ask me about all
below this".
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote_to_bytes

import msgspec

from headrace.base.decoding import decode_json
from headrace.base.errors import ClusterUnavailableError
from headrace.overlay.upper import split

PREFIX = "written"
NAMES_MAX = 256
BYTES_MAX = 64 << 10


class _Record(msgspec.Struct, frozen=True):
    """Paths percent-encoded: any bytes are names. folders: each alone; below: with all below them."""

    folders: list[str] = []
    below: list[str] = []


@dataclass(frozen=True, slots=True)
class DirtyScope:
    folders: frozenset[bytes] = frozenset()
    below: frozenset[bytes] = frozenset()

    @classmethod
    def of(cls, folders: set[bytes], below: set[bytes]) -> DirtyScope:
        """The least that covers all of them and is within the bounds."""
        found = cls(frozenset(folders), frozenset(below))._least()
        while not found._is_small:
            found = found._coarser()._least()
        return found

    @classmethod
    def decode(cls, raw: bytes) -> DirtyScope:
        """ClusterUnavailableError for nonsense."""
        try:
            record = decode_json(raw, _Record)
        except msgspec.MsgspecError as error:
            raise ClusterUnavailableError(f"record {PREFIX}", why=str(error)) from error
        return cls(
            frozenset(map(unquote_to_bytes, record.folders)), frozenset(map(unquote_to_bytes, record.below))
        )

    def encode(self) -> bytes:
        return msgspec.json.encode(_Record(sorted(map(quote, self.folders)), sorted(map(quote, self.below))))

    def covers(self, folder: bytes) -> bool:
        return folder in self.folders or self.covers_below(folder)

    def __bool__(self) -> bool:
        return bool(self.folders or self.below)

    def covers_below(self, folder: bytes) -> bool:
        """And whatever may be below it."""
        return bool(self.below) and any(one in self.below for one in _way_up(folder))

    def _least(self) -> DirtyScope:
        below = frozenset(one for one in self.below if one == b"/" or not self.covers_below(split(one)[0]))
        least = DirtyScope(frozenset(), below)
        return DirtyScope(frozenset(one for one in self.folders if not least.covers(one)), below)

    @property
    def _is_small(self) -> bool:
        names = [*self.folders, *self.below]
        return len(names) <= NAMES_MAX and sum(len(one) + 4 for one in names) <= BYTES_MAX

    def _coarser(self) -> DirtyScope:
        """The deepest ones go into what they lie in."""
        depth = max(_depth(one) for one in (*self.folders, *self.below))
        deepest = {one for one in (*self.folders, *self.below) if _depth(one) == depth}
        return DirtyScope(self.folders - deepest, (self.below - deepest) | {split(one)[0] for one in deepest})


def _depth(path: bytes) -> int:
    return 0 if path == b"/" else path.count(b"/")


def _way_up(path: bytes) -> list[bytes]:
    way = [path]
    while path != b"/":
        path = split(path)[0]
        way.append(path)
    return way
