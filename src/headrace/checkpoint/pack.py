"""Write packs: files of chunks in order of arrival, each at a multiple of ALIGN_BYTES. Each rank writes one pack per
save.

`PackWriter` writes only new chunks, and refers to chunks that the base or this pack already has. Several threads may
hash and write slots at the same time.
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
    """Locate a stored chunk. pack: its file name below PACKS."""

    pack: str
    offset: int
    stored_bytes: int
    codec: int


Key = tuple[str, int]
"""Hash and length of a chunk, which identify its content."""
Base = Mapping[Key, Stored]
"""Location of each chunk of the base, by key."""


@dataclass(frozen=True, slots=True)
class Hashed:
    """Hold a chunk of a slot and its key."""

    piece: plan.LeafRange
    key: Key


def hash_slot(slot: Slot, chunk_bytes: int) -> list[Hashed]:
    """Return the chunks of a slot with their keys, in the order of the slot."""
    chunks = [chunk for piece in slot.pieces for chunk in plan.chunks_of(piece, chunk_bytes)]
    return [Hashed(chunk, key_of(_bytes_of(slot.memory, chunk))) for chunk in chunks]


def key_of(chunk: Bytes) -> Key:
    """Return the key of a chunk."""
    return xxhash.xxh3_128_hexdigest(chunk.data), len(chunk)


class PackWriter:
    """Write the new chunks of a save to one pack. codecs: by leaf number, 0 for uncompressed. The first chunk creates
    the file."""

    def __init__(self, storage: CheckpointStorage, folder: str, name: str, codecs: list[int]) -> None:
        self._storage = storage
        self._folder = folder
        self.name = name
        self._codecs = codecs
        self._writer: FileWriter | None = None
        self._lock = threading.Lock()
        self._end = 0
        self._busy_s = 0.0
        self._new: dict[Key, Stored] = {}
        self.written_bytes = 0
        """Bytes of new chunks, before compression and without padding."""

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the pack so far, with padding."""
        return self._end

    @property
    def write_s(self) -> float:
        """Return the seconds that threads spent in writes, summed."""
        return self._busy_s

    def put(self, slot: Slot, chunks: list[Hashed], base: Base) -> dict[tuple[int, int], Stored]:
        """Write the new chunks and return where each chunk is, by (leaf, start). `finish` makes them durable."""
        locations: dict[tuple[int, int], Stored] = {}
        new_chunks: list[Hashed] = []
        with self._lock:
            for chunk in chunks:
                stored = base.get(chunk.key) or self._new.get(chunk.key)
                if stored is None and self._codecs[chunk.piece.leaf]:
                    new_chunks.append(chunk)
                    continue
                if stored is None:
                    length = chunk.key[1]
                    stored = Stored(self.name, self._reserve(length), length, 0)
                    self._new[chunk.key] = stored
                    new_chunks.append(chunk)
                locations[chunk.piece.leaf, chunk.piece.start] = stored
        plain = [chunk for chunk in new_chunks if not self._codecs[chunk.piece.leaf]]
        self._write_plain(slot, plain, locations)
        for chunk in new_chunks:
            if self._codecs[chunk.piece.leaf]:
                locations[chunk.piece.leaf, chunk.piece.start] = self._write_compressed(slot, chunk)
        return locations

    def finish(self) -> None:
        """Make the chunks and the file's name durable."""
        if self._writer is None:
            return
        self._writer.sync()
        self._writer.close()
        self._storage.sync_folder(self._folder)
        failpoint.hit("save.packed")

    def drop(self) -> None:
        """Delete the pack of a save that failed."""
        if self._writer is not None:
            self._writer.close()
            self._storage.remove(f"{self._folder}/{self.name}")

    def _reserve(self, length: int) -> int:
        """Reserve space and return its offset. The caller holds the lock. The first call creates the file."""
        if self._writer is None:
            self._writer = self._storage.create(f"{self._folder}/{self.name}")
            failpoint.hit("save.created")
        offset, self._end = self._end, self._end + plan.align(length, ALIGN_BYTES)
        return offset

    def _write_plain(
        self, slot: Slot, new_chunks: list[Hashed], locations: Mapping[tuple[int, int], Stored]
    ) -> None:
        """Write uncompressed chunks; chunks adjacent in the slot and in the file take one write."""
        start = end = offset = 0
        for chunk in new_chunks:
            chunk_offset = locations[chunk.piece.leaf, chunk.piece.start].offset
            if end and (chunk.piece.offset != end or chunk_offset - offset != end - start):
                self._write(slot.memory[start:end], offset)
                end = 0
            if not end:
                start, offset = chunk.piece.offset, chunk_offset
            end = chunk.piece.offset + plan.align(chunk.key[1], ALIGN_BYTES)
            self._count(chunk.key[1])
        if end:
            self._write(slot.memory[start:end], offset)

    def _write_compressed(self, slot: Slot, chunk: Hashed) -> Stored:
        """Write one chunk compressed, or unchanged if it does not compress."""
        codec = self._codecs[chunk.piece.leaf]
        packed = compress(_bytes_of(slot.memory, chunk.piece), codec)
        stored_bytes = len(packed)
        if stored_bytes >= chunk.key[1]:  # it does not compress: store it as it is
            codec, stored_bytes = 0, chunk.key[1]
        with self._lock:
            if chunk.key in self._new:
                return self._new[chunk.key]
            stored = Stored(self.name, self._reserve(stored_bytes), stored_bytes, codec)
            self._new[chunk.key] = stored
        if codec:
            buffer = page_aligned(plan.align(stored_bytes, ALIGN_BYTES))
            buffer[:stored_bytes] = np.frombuffer(packed, np.uint8)
            buffer[stored_bytes:] = 0
        else:
            padded = chunk.piece.offset + plan.align(stored_bytes, ALIGN_BYTES)
            buffer = slot.memory[chunk.piece.offset : padded]
        self._write(buffer, stored.offset)
        self._count(chunk.key[1])
        return stored

    def _write(self, data: Bytes, offset: int) -> None:
        assert self._writer is not None
        start_s = time.perf_counter()
        self._writer.write(data.data, offset)
        took_s = time.perf_counter() - start_s
        with self._lock:
            self._busy_s += took_s
        failpoint.hit("save.chunk")

    def _count(self, length: int) -> None:
        with self._lock:
            self.written_bytes += length


def _bytes_of(memory: Bytes, piece: plan.LeafRange) -> Bytes:
    return memory[piece.offset : piece.offset + piece.end - piece.start]
