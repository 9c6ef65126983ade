"""Packs: files of chunks, appended as they come, each at a multiple of ALIGN_BYTES. One pack a save and rank.

`PackWriter` finds what is new: a chunk that the base or this pack has already is referred to, not written.
Slots may be hashed and written by several threads at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import xxhash

from headrace.base import failpoint
from headrace.checkpoint import plan
from headrace.checkpoint.compression import compress
from headrace.checkpoint.memory import Bytes, page_aligned
from headrace.checkpoint.stage import Slot
from headrace.checkpoint.storage import ALIGN_BYTES, CheckpointStorage, FileWriter


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a chunk is: pack is a file's name below PACKS."""

    pack: str
    offset: int
    stored_bytes: int
    codec: int


Key = tuple[str, int]
"""Hash and length of a chunk: what names its content."""
Base = Mapping[Key, Stored]


@dataclass(frozen=True, slots=True)
class Hashed:
    """A chunk in a slot, and its name."""

    piece: plan.LeafRange
    key: Key


def hash_slot(slot: Slot, chunk_bytes: int) -> list[Hashed]:
    """In the order of the slot."""
    chunks = [chunk for piece in slot.pieces for chunk in plan.chunks_of(piece, chunk_bytes)]
    return [Hashed(chunk, key_of(_bytes_of(slot.memory, chunk))) for chunk in chunks]


def key_of(chunk: Bytes) -> Key:
    return xxhash.xxh3_128_hexdigest(chunk.data), len(chunk)


class PackWriter:
    """codecs: of the leaves, by place; 0 is not compressed. The file is made with its first chunk."""

    def __init__(self, place: CheckpointStorage, folder: str, name: str, codecs: list[int]) -> None:
        self._place = place
        self._folder = folder
        self.name = name
        self._codecs = codecs
        self._sink: FileWriter | None = None
        self._lock = threading.Lock()
        self._end = 0
        self._busy_s = 0.0
        self._new: dict[Key, Stored] = {}
        self.written_bytes = 0
        """Of chunks as they were, before compression and without padding."""

    @property
    def size_bytes(self) -> int:
        return self._end

    @property
    def write_s(self) -> float:
        """Thread seconds in writes."""
        return self._busy_s

    def put(self, slot: Slot, chunks: list[Hashed], base: Base) -> dict[tuple[int, int], Stored]:
        """Writes what is new. Where each chunk is, by leaf and start. The bytes are durable after `finish` only."""
        found: dict[tuple[int, int], Stored] = {}
        fresh: list[Hashed] = []
        with self._lock:
            for one in chunks:
                known = base.get(one.key) or self._new.get(one.key)
                if known is None and self._codecs[one.piece.leaf]:
                    fresh.append(one)
                    continue
                if known is None:
                    length = one.key[1]
                    known = Stored(self.name, self._room(length), length, 0)
                    self._new[one.key] = known
                    fresh.append(one)
                found[one.piece.leaf, one.piece.start] = known
        self._write_plain(slot, [one for one in fresh if not self._codecs[one.piece.leaf]], found)
        for one in fresh:
            if self._codecs[one.piece.leaf]:
                found[one.piece.leaf, one.piece.start] = self._write_compressed(slot, one)
        return found

    def finish(self) -> None:
        """On return the chunks are durable; their file's name is too."""
        if self._sink is None:
            return
        self._sink.sync()
        self._sink.close()
        self._place.sync_folder(self._folder)
        failpoint.hit("save.packed")

    def drop(self) -> None:
        """Of a save that failed."""
        if self._sink is not None:
            self._sink.close()
            self._place.remove(f"{self._folder}/{self.name}")

    def _room(self, length: int) -> int:
        """An offset for so many bytes; under the lock. Also makes the file."""
        if self._sink is None:
            self._sink = self._place.create(f"{self._folder}/{self.name}")
            failpoint.hit("save.created")
        offset, self._end = self._end, self._end + plan.align(length, ALIGN_BYTES)
        return offset

    def _write_plain(self, slot: Slot, fresh: list[Hashed], found: Mapping[tuple[int, int], Stored]) -> None:
        """Neighbours in the slot and in the file are written at once."""
        start = end = offset = 0
        for one in fresh:
            at = found[one.piece.leaf, one.piece.start].offset
            if end and (one.piece.offset != end or at - offset != end - start):
                self._write(slot.memory[start:end], offset)
                end = 0
            if not end:
                start, offset = one.piece.offset, at
            end = one.piece.offset + plan.align(one.key[1], ALIGN_BYTES)
            self._count(one.key[1])
        if end:
            self._write(slot.memory[start:end], offset)

    def _write_compressed(self, slot: Slot, one: Hashed) -> Stored:
        codec = self._codecs[one.piece.leaf]
        packed = compress(_bytes_of(slot.memory, one.piece), codec)
        stored_bytes = len(packed)
        if stored_bytes >= one.key[1]:  # noise: as it is
            codec, stored_bytes = 0, one.key[1]
        with self._lock:
            if one.key in self._new:
                return self._new[one.key]
            stored = Stored(self.name, self._room(stored_bytes), stored_bytes, codec)
            self._new[one.key] = stored
        if codec:
            buffer = page_aligned(plan.align(stored_bytes, ALIGN_BYTES))
            buffer[:stored_bytes] = np.frombuffer(packed, np.uint8)
            buffer[stored_bytes:] = 0
        else:
            padded = one.piece.offset + plan.align(stored_bytes, ALIGN_BYTES)
            buffer = slot.memory[one.piece.offset : padded]
        self._write(buffer, stored.offset)
        self._count(one.key[1])
        return stored

    def _write(self, data: Bytes, offset: int) -> None:
        assert self._sink is not None
        start_s = time.perf_counter()
        self._sink.write(data.data, offset)
        took_s = time.perf_counter() - start_s
        with self._lock:
            self._busy_s += took_s
        failpoint.hit("save.chunk")

    def _count(self, length: int) -> None:
        with self._lock:
            self.written_bytes += length


def _bytes_of(memory: Bytes, piece: plan.LeafRange) -> Bytes:
    return memory[piece.offset : piece.offset + piece.end - piece.start]
