"""The memory and the processor time of plans whose samples are parts of large files."""

from __future__ import annotations

import random
import time
import tracemalloc
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.base.model import FileId
from headrace.hook.sample_extents import SampleExtents, extents_of
from headrace.integrations.torch_data import TokenWindows
from headrace.plan.extent_map import ExtentMap, ExtentOrder, spaced_range
from headrace.plan.file_numbers import FileNumbers
from headrace.plan.orders import PlannedStream

from .cases import SAMPLES, Bench

FILES = 100
WINDOW_BYTES, EXTENT_BYTES = 16_384, 1 << 20
MEGATRON_EXTENTS, MEGATRON_SAMPLES = 7629, 976_504
"""Of 8 GB of tokens, in samples of 4,096."""
SAMPLES_AT_ONCE = 1 << 16
MEMORY = "a plan of extents: memory, order and map"
OF_THE_JOB = "a plan of extents: processor time of the job"
OF_THE_NODE = "a plan of extents: processor time of the node"


class Windows(TokenWindows):
    """Windows of files that nobody reads."""

    def __init__(self, count: int) -> None:
        self.stride_bytes = self.window_bytes = WINDOW_BYTES
        self.windows_by_file = [(f"/d/{number}", count // FILES) for number in range(FILES)]


def extents(bench: Bench) -> None:
    """A shuffled epoch of windows of tokens, and one of Megatron: it reads its own shuffled index in sequence."""
    count = max(10_000, round(SAMPLES * bench.scale)) // FILES * FILES
    shuffled = array("I", random.Random(0).sample(range(count), count))
    documents = max(1000, round(MEGATRON_SAMPLES * bench.scale))
    kinds: dict[str, tuple[Callable[[], SampleExtents], array[int]]] = {
        "windows of 16 KiB": (lambda: known_extents(count), shuffled),
        "Megatron": (lambda: document_extents(documents), array("I", range(documents))),
    }
    for _ in range(bench.repeat):
        for name, (known, order) in kinds.items():
            add(bench, name, known, order)


def add(bench: Bench, name: str, known: Callable[[], SampleExtents], order: array[int]) -> None:
    start = time.thread_time()
    extents = known()
    parts = list(extents.parts(SAMPLES_AT_ONCE))
    bench.results.add(OF_THE_JOB, name, time.thread_time() - start, unit="s")
    sent = sum(len(rows) + len(counts) for _, _, rows, counts in parts)
    bench.results.add("a plan of extents: sent, without the order", name, sent / 1e6, unit="MB")
    start = time.thread_time()
    extent_map = map_of(extents, parts, FileNumbers())
    spaced = spaced_range(order)
    kept = order if spaced is None or array("I", spaced) != order else spaced
    stream = PlannedStream(ExtentOrder(kept, extent_map, extent_map.width), 256)
    bench.results.add(OF_THE_NODE, name, time.thread_time() - start, unit="s")
    numbers_of_files = FileNumbers()  # its empty tables are those of all plans
    held_bytes = allocated_bytes(lambda: map_of(extents, parts, numbers_of_files))
    held_bytes += order.itemsize * len(order) if kept is order else 0
    bench.results.add(MEMORY, name, held_bytes / extents.samples, unit="B a sample")
    start = time.thread_time()
    numbers = stream.upcoming(stream.end // 2, 10_000)
    took_s = time.thread_time() - start
    bench.results.add("a plan of extents: next ones", name, took_s / len(numbers) * 1e6, unit="µs")


def allocated_bytes(build: Callable[[], object]) -> int:
    """Return the bytes that an object holds: the resident memory of so small a one is mostly what its making left."""
    tracemalloc.start()
    try:
        kept = build()
        held_bytes, _ = tracemalloc.get_traced_memory()
        del kept
        return held_bytes
    finally:
        tracemalloc.stop()


def map_of(
    extents: SampleExtents, parts: list[tuple[int, int, bytes, bytes]], numbers: FileNumbers
) -> ExtentMap:
    """Return the map that a node makes of a data set's messages."""
    extent_map = ExtentMap(numbers)
    first = 1
    for number, (_, bounds) in enumerate(extents.files, 1):
        extent_map.divide(first, FileId(number), bounds)
        first += len(bounds) - 1
    for sample, width, rows, counts in parts:
        extent_map.place(sample, width, array("I", rows), array("I", counts) if counts else None)
    return extent_map


def known_extents(count: int) -> SampleExtents:
    known = extents_of(Windows(count))
    assert known is not None
    return known


def document_extents(samples: int) -> SampleExtents:
    """Return extents of samples that are ends of three documents, each somewhere in the data."""
    count = max(8, MEGATRON_EXTENTS * samples // MEGATRON_SAMPLES)
    places: Any = np.random.default_rng(0).integers(1, count + 1, (samples, 3)).astype("uint32")
    bounds = array("Q", range(0, (count + 1) * EXTENT_BYTES, EXTENT_BYTES))
    return SampleExtents([("/d/tokens.bin", bounds)], samples, lambda chosen: places[chosen])
