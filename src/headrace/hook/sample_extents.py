"""Say which extents of large files the samples of a data set are made of, where the data set itself says so.

An extent is a part of a file, of 1 MiB at least. What is known without a read of the files is used: where the process
has mapped Arrow files, the size of a window of tokens, and the index files of Megatron. It needs the numpy that the
program has imported.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .megatron import document_parts
from .sample_files import DEPTH_MAX, kinds_of

EXTENT_BYTES = 1 << 20
"""Least length of an extent. It is what a cache fetches at least."""
EXTENTS_MAX = 4_000_000
"""Most extents of a data set, about. Those of a larger one are longer."""
EXTENTS_A_SAMPLE_MAX = 8
"""A sample of more extents is planned with the first ones."""
_DIGEST_SAMPLES = 4096


class SampleExtents:
    """The extents of a data set. files: path and bounds of each file; its extents lie between the bounds. All extents
    are numbered from 1 on.

    pick: takes an array of samples and returns a row of numbers for each, with 0 where there are fewer.
    """

    def __init__(
        self, files: Sequence[tuple[str, array[int]]], samples: int, pick: Callable[[Any], Any]
    ) -> None:
        self.files = files
        self.samples = samples
        self.pick = pick

    @property
    def count(self) -> int:
        return sum(len(bounds) - 1 for _, bounds in self.files)

    def parts(self, samples_at_once: int) -> Iterator[tuple[int, int, bytes, bytes]]:
        """Yield (first sample, width, rows, counts). rows: `width` numbers each, for samples that follow each other and
        lie in the same extents. counts: the samples of each row; empty in all parts if few samples share rows. Numbers
        have 4 bytes."""
        numpy = sys.modules["numpy"]
        has_counts: bool | None = None
        for start in range(0, self.samples, samples_at_once):
            rows = self.pick(numpy.arange(start, min(start + samples_at_once, self.samples)))
            begins = numpy.flatnonzero(numpy.append(True, (rows[1:] != rows[:-1]).any(axis=1)))
            if has_counts is None:
                has_counts = 2 * len(begins) <= len(rows)
            counts = b""
            if has_counts:
                counts = numpy.diff(begins, append=len(rows)).astype("<u4").tobytes()
                rows = rows[begins]
            yield start, rows.shape[1], rows.astype("<u4").tobytes(), counts

    def digest(self) -> bytes:
        """Return what two processes with the same data set agree on: a hash of its extents, and of some samples."""
        digest = hashlib.blake2b(str(self.samples).encode(), digest_size=16)
        for path, bounds in self.files:
            digest.update(path.encode("utf-8", "surrogateescape") + b"\0" + bounds.tobytes())
        if self.samples:
            step = max(1, self.samples // _DIGEST_SAMPLES)
            digest.update(self.pick(sys.modules["numpy"].arange(0, self.samples, step)).tobytes())
        return digest.digest()


def extents_of(data_set: Any, depth: int = 0) -> SampleExtents | None:
    """Return the extents of the samples; None for a data set that this module doesn't know, or that is in memory."""
    if depth > DEPTH_MAX or "numpy" not in sys.modules:
        return None
    for kind in kinds_of(data_set):
        if kind in _KNOWN:
            return _KNOWN[kind](data_set, depth)
    return None


def _of_subset(data_set: Any, depth: int) -> SampleExtents | None:
    extents = extents_of(data_set.dataset, depth + 1)
    return None if extents is None else _chosen(extents, data_set.indices)


def _of_wrapper(data_set: Any, depth: int) -> SampleExtents | None:
    """Return the extents of a data set that changes what another one does, but not what it reads."""
    return extents_of(data_set.dataset, depth + 1)


def _chosen(extents: SampleExtents, indices: Any) -> SampleExtents:
    """Choose samples of another data set."""
    chosen = sys.modules["numpy"].asarray(indices)
    return SampleExtents(extents.files, len(chosen), lambda samples: extents.pick(chosen[samples]))


def _of_concatenation(data_set: Any, depth: int) -> SampleExtents | None:
    numpy = sys.modules["numpy"]
    ends = numpy.asarray(data_set.cumulative_sizes)

    def divided(samples: Any) -> tuple[Any, Any]:
        parts = numpy.searchsorted(ends, samples, side="right")
        return parts, samples - numpy.concatenate([[0], ends])[parts]

    return _joined(data_set.datasets, int(ends[-1]), divided, depth)


def _joined(
    data_sets: Sequence[Any], samples: int, divided: Callable[[Any], tuple[Any, Any]], depth: int
) -> SampleExtents | None:
    """Join several data sets. divided: takes samples and returns the data set of each, and its number there."""
    numpy = sys.modules["numpy"]
    files: list[tuple[str, array[int]]] = []
    parts: list[tuple[int, SampleExtents]] = []
    count = 0
    for data_set in data_sets:
        extents = extents_of(data_set, depth + 1)
        if extents is None:
            return None
        parts.append((count, extents))
        files += extents.files
        count += extents.count

    def pick(samples: Any) -> Any:
        numbers, indices = divided(samples)
        rows = numpy.zeros((len(samples), EXTENTS_A_SAMPLE_MAX), "uint32")
        width = 1
        for number in numpy.unique(numbers):
            places = numpy.flatnonzero(numbers == number)
            first, extents = parts[number]
            picked = extents.pick(indices[places])
            rows[places, : picked.shape[1]] = numpy.where(picked, picked + first, 0)
            width = max(width, picked.shape[1])
        return rows[:, :width]

    return SampleExtents(files, samples, pick)


# ---------------------------------------------------------------- Arrow files of Hugging Face


def _of_arrow(data_set: Any, _: int) -> SampleExtents | None:
    """Return the record batches of the rows of Hugging Face's Dataset; None if some rows are in memory."""
    numpy = sys.modules["numpy"]
    table, indices = data_set._data, data_set._indices
    mapped = _MappedFiles()
    files: list[tuple[str, array[int]]] = []
    ends: list[int] = []
    rows = 0
    for blocks in getattr(table, "blocks", [[table]]):
        paths = {getattr(block, "path", None) for block in blocks}
        path = paths.pop()
        if paths or path is None:
            return None
        bounds = array("Q")
        for start, end, count in _batches(blocks, mapped):
            if not bounds or start - bounds[-2] >= EXTENT_BYTES:
                bounds[-1:] = array("Q", [start, end])
                ends.append(rows)
            rows += count
            bounds[-1], ends[-1] = max(end, bounds[-1]), rows
        if len(bounds) > 1:
            files.append((path, bounds))
    ends_of_rows = numpy.asarray(ends, "int64")

    def pick(samples: Any) -> Any:
        return (numpy.searchsorted(ends_of_rows, samples, side="right") + 1).astype("uint32").reshape(-1, 1)

    extents = SampleExtents(files, rows, pick)
    return extents if indices is None else _chosen(extents, indices.column(0).to_numpy())


def _batches(blocks: Sequence[Any], mapped: _MappedFiles) -> list[tuple[int, int, int]]:
    """Return where each record batch of a file begins and ends, and its rows. Raise ValueError if they don't follow
    each other in the file."""
    extents: list[tuple[int, int, int]] = []
    for batches in zip(*(block.table.to_batches() for block in blocks), strict=True):
        buffers = [
            (buffer.address, buffer.address + buffer.size)
            for batch in batches
            for column in batch.columns
            for buffer in column.buffers()
            if buffer is not None and buffer.size
        ]
        if not buffers:
            raise ValueError("a record batch without bytes")
        offset = mapped.offset_of(min(buffers)[0])
        end = offset + max(end for _, end in buffers) - min(buffers)[0]
        if extents and offset <= extents[-1][0]:
            raise ValueError("record batches in another order")
        extents.append((offset, end, batches[0].num_rows))
    return extents


class _MappedFiles:
    """The files that are mapped into this process, by addresses (proc(5), /proc/pid/maps)."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int]] = []
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as table:
            for line in table:
                addresses, _, offset, _, inode = line.split(maxsplit=5)[:5]
                if inode != "0":
                    start, end = (int(address, 16) for address in addresses.split("-"))
                    self._rows.append((start, end, int(offset, 16)))

    def offset_of(self, address: int) -> int:
        """Return the offset in its file of a mapped byte. Raise ValueError for memory without a file."""
        for start, end, offset in self._rows:
            if start <= address < end:
                return offset + address - start
        raise ValueError("rows are in memory")


# ---------------------------------------------------------------- windows of tokens


def _of_windows(data_set: Any, _: int) -> SampleExtents | None:
    """Return the extents of our TokenWindows. No window is in more than two of them."""
    numpy = sys.modules["numpy"]
    stride, window = data_set.stride_bytes, data_set.window_bytes
    least = max(window, _least_bytes(sum(count for _, count in data_set.windows_by_file) * stride))
    length = -(-least // stride) * stride
    files, counts, firsts, number = [], [], [], 1
    for path, count in data_set.windows_by_file:
        if count:
            end = (count - 1) * stride + window
            files.append((path, array("Q", [*range(0, end, length), end])))
            firsts.append(number)
            number += len(files[-1][1]) - 1
            counts.append(count)
    ends, firsts_of_files = numpy.cumsum(counts), numpy.asarray(firsts)

    def pick(samples: Any) -> Any:
        file = numpy.searchsorted(ends, samples, side="right")
        start = (samples - numpy.concatenate([[0], ends])[file]) * stride
        first, last = start // length, (start + window - 1) // length
        rows = (firsts_of_files[file] + first).reshape(-1, 1)
        if window > stride:
            rows = numpy.hstack(
                [rows, numpy.where(last > first, firsts_of_files[file] + last, 0).reshape(-1, 1)]
            )
        return rows.astype("uint32")

    return SampleExtents(files, int(ends[-1]), pick)


def _least_bytes(size_bytes: int) -> int:
    """Return the length of the extents of files with these bytes in all: a multiple of 1 MiB."""
    return EXTENT_BYTES * (size_bytes // (EXTENTS_MAX * EXTENT_BYTES) + 1)


# ---------------------------------------------------------------- Megatron-LM


def _of_megatron(data_set: Any, _: int) -> SampleExtents | None:
    """Return the extents of the samples of a GPTDataset."""
    size_bytes, parts_of = document_parts(data_set, EXTENTS_A_SAMPLE_MAX)
    length = _least_bytes(size_bytes)
    bounds = array("Q", [*range(0, size_bytes, length), size_bytes])

    def pick(samples: Any) -> Any:
        starts, ends = parts_of(samples)
        return _distinct_extents(starts, ends, length)

    return SampleExtents([(f"{data_set.dataset.path_prefix}.bin", bounds)], len(data_set), pick)


def _distinct_extents(starts: Any, ends: Any, length: int) -> Any:
    """Return the numbers of the extents of parts, of which each sample has a row; empty parts end where they start."""
    numpy = sys.modules["numpy"]
    is_part = ends > starts
    first, last = starts // length + 1, (ends - 1) // length + 1
    columns = [numpy.where(is_part, first, 0)]
    for further in range(1, min(EXTENTS_A_SAMPLE_MAX, int((last - first)[is_part].max(initial=0)) + 1)):
        columns.append(numpy.where(is_part & (first + further <= last), first + further, 0))
    numbers = numpy.hstack(columns)
    numbers.sort(axis=1)
    numbers[:, 1:][numbers[:, 1:] == numbers[:, :-1]] = 0
    width = max(1, int(numpy.count_nonzero(numbers, axis=1).max(initial=1)))
    numbers = -numpy.sort(-numbers, axis=1)
    return numbers[:, : min(width, EXTENTS_A_SAMPLE_MAX)].astype("uint32")


def _of_blend(data_set: Any, depth: int) -> SampleExtents | None:
    """Return the extents of the samples of a BlendedDataset."""
    numpy = sys.modules["numpy"]
    data_sets, numbers = data_set.dataset_index, data_set.dataset_sample_index
    if data_sets is None:
        data_sets = numpy.load(data_set.path_to_dataset_index, mmap_mode="r")
        numbers = numpy.load(data_set.path_to_dataset_sample_index, mmap_mode="r")
    return _joined(
        data_set.datasets, len(data_set), lambda samples: (data_sets[samples], numbers[samples]), depth
    )


_KNOWN: dict[tuple[str, str], Callable[[Any, int], SampleExtents | None]] = {
    ("datasets.arrow_dataset", "Dataset"): _of_arrow,
    ("headrace.integrations.torch_data", "TokenWindows"): _of_windows,
    ("megatron.core.datasets.gpt_dataset", "GPTDataset"): _of_megatron,
    ("megatron.core.datasets.blended_dataset", "BlendedDataset"): _of_blend,
    ("megatron.training.datasets.data_samplers", "RandomSeedDataset"): _of_wrapper,
    ("torch.utils.data.dataset", "Subset"): _of_subset,
    ("torch.utils.data.dataset", "ConcatDataset"): _of_concatenation,
}


def has_extents(data_set: Any, depth: int = 0) -> bool:
    """Return whether `extents_of` knows a data set, without looking for its extents."""
    kinds = set(kinds_of(data_set)) & set(_KNOWN)
    if depth > DEPTH_MAX or not kinds:
        return False
    if not kinds & _WRAPPERS:
        return True
    parts = getattr(data_set, "datasets", None) or [getattr(data_set, "dataset", None)]
    return all(has_extents(part, depth + 1) for part in parts)


_WRAPPERS = {
    ("megatron.training.datasets.data_samplers", "RandomSeedDataset"),
    ("megatron.core.datasets.blended_dataset", "BlendedDataset"),
    ("torch.utils.data.dataset", "Subset"),
    ("torch.utils.data.dataset", "ConcatDataset"),
}
