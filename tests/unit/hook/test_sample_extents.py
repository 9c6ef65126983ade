"""The parts of large files that a sample is made of: the extents that the hook names have the bytes of each sample."""

from __future__ import annotations

import itertools
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Subset

from headrace.hook import sample_extents
from headrace.hook.sample_extents import EXTENT_BYTES, SampleExtents, extents_of, has_extents
from headrace.integrations.torch_data import TokenWindows

MIB = 1 << 20


def extents_by_sample(extents: SampleExtents) -> list[list[tuple[str, int, int]]]:
    """Return the (path, start, end) of each sample, as a node has them after the hook's messages."""
    numbered = [("", 0, 0)]
    for path, bounds in extents.files:
        numbered += [(path, start, end) for start, end in itertools.pairwise(bounds)]
    assert len(numbered) == extents.count + 1
    samples: list[list[tuple[str, int, int]]] = []
    have_counts = set()
    for start, width, rows, counts in extents.parts(7):
        assert start == len(samples)
        numbers, samples_of_rows = array("I", rows), array("I", counts)
        have_counts.add(bool(counts))
        for row, first in enumerate(range(0, len(numbers), width)):
            sample = [numbered[number] for number in numbers[first : first + width] if number]
            samples += [sample] * (samples_of_rows[row] if counts else 1)
    assert len(have_counts) <= 1
    return samples


def test_samples_of_the_same_extents_are_sent_as_one_row() -> None:
    numbers = np.asarray([1, 1, 1, 1, 2, 2, 2, 3, 3, 3]).reshape(-1, 1)
    extents = SampleExtents([("/a", array("Q", [0, 1, 2, 3]))], 10, lambda samples: numbers[samples])
    rows = [
        (start, width, list(array("I", numbers)), list(array("I", counts)))
        for start, width, numbers, counts in extents.parts(6)
    ]
    assert rows == [(0, 1, [1, 2], [4, 2]), (6, 1, [2, 3], [1, 3])]


def stored_rows(folder: Path, rows: int, text_bytes: int) -> Any:
    datasets: Any = pytest.importorskip("datasets")
    texts = [f"<{number}>".ljust(text_bytes, "x") for number in range(rows)]
    data = datasets.Dataset.from_dict({"number": list(range(rows)), "text": texts})
    data.save_to_disk(folder / "rows", num_shards=3)
    return datasets.load_from_disk(folder / "rows")


def test_rows_of_hugging_face_are_in_their_record_batches(tmp_path: Path) -> None:
    """All bytes of a row are in its extent: the text says so."""
    stored = stored_rows(tmp_path, 7000, 900)
    bodies = {str(path): path.read_bytes() for path in (tmp_path / "rows").glob("*.arrow")}
    assert len(bodies) == 3
    both: Any = ConcatDataset([stored.shuffle(seed=3), stored.select([44, 3, 20])])
    data_sets: list[Any] = [stored, stored.shuffle(seed=3), stored.select(range(2500, 6000))]
    for data_set in (*data_sets, Subset(stored, [5, 6999, 3000]), both):
        extents = extents_of(data_set)
        assert extents is not None
        assert has_extents(data_set)
        samples = extents_by_sample(extents)
        assert len(samples) == len(data_set)
        for index in range(0, len(data_set), 37 if len(data_set) > 100 else 1):
            ((path, start, end),) = samples[index]
            assert f"<{data_set[index]['number']}>".encode() in bodies[path][start:end]
            assert end - start <= 3 * EXTENT_BYTES
    extents = extents_of(stored)
    assert extents is not None
    for path, bounds in extents.files:
        assert bounds[-1] <= len(bodies[path])
        assert min(np.diff(np.asarray(bounds))[:-1], default=MIB) >= EXTENT_BYTES


def test_rows_in_memory_have_no_extents() -> None:
    datasets: Any = pytest.importorskip("datasets")
    assert extents_of(datasets.Dataset.from_dict({"number": [1, 2]})) is None


def test_other_data_sets_have_no_extents() -> None:
    numbers: Any = list(range(4))
    assert extents_of(numbers) is None
    assert extents_of(ConcatDataset([numbers])) is None
    assert not has_extents(Subset(numbers, [1]))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(0, 6000), min_size=1, max_size=3).filter(lambda sizes: max(sizes) >= 400),
    window=st.integers(1, 200),
    stride=st.integers(1, 300),
)
def test_windows_of_tokens_are_in_their_extents(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], window: int, stride: int
) -> None:
    folder = tmp_path_factory.mktemp("tokens")
    for number, size in enumerate(sizes):
        (folder / f"{number}.bin").write_bytes(bytes(size))
    windows = TokenWindows(str(folder), window=window, stride=stride, dtype=torch.int16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample_extents, "EXTENT_BYTES", 512)
        extents = extents_of(windows)
    assert extents is not None
    samples = extents_by_sample(extents)
    assert len(samples) == len(windows)
    expected = [
        (path, number * stride * 2, number * stride * 2 + window * 2)
        for path, count in windows.windows_by_file
        for number in range(count)
    ]
    for parts, (path, start, end) in zip(samples, expected, strict=True):
        assert {part_path for part_path, _, _ in parts} == {path}
        assert len(parts) <= (2 if window > stride else 1)
        covered = {byte for _, first, last in parts for byte in range(first, last)}
        assert covered.issuperset(range(start, end))


def test_extents_of_very_large_files_are_longer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sample_extents, "EXTENTS_MAX", 4)
    path = tmp_path / "tokens.bin"
    with path.open("wb") as file:
        file.truncate(64 * MIB)
    windows = TokenWindows(str(path), window=1024, dtype=torch.uint16)
    extents = extents_of(windows)
    assert extents is not None
    assert extents.files[0][0] == str(path)
    assert extents.count <= 4
    assert extents.digest() == extents.digest()
    other = extents_of(Subset(windows, range(5)))
    assert other is not None
    assert other.digest() != extents.digest()
