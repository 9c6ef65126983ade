"""Say which file each sample of a data set is, where the data set itself says so."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

SampleFiles = Sequence[str]
"""The path of the file of each sample, by the sample's index."""
DEPTH_MAX = 16


def kinds_of(data_set: Any) -> list[tuple[str, str]]:
    """Return the modules and names of the classes of a data set, its own first."""
    return [(kind.__module__, kind.__name__) for kind in type(data_set).__mro__]


def files_of(data_set: Any, depth: int = 0) -> SampleFiles | None:
    """Return the file of each sample; None for a data set that this module doesn't know."""
    if depth > DEPTH_MAX:
        return None
    for kind in kinds_of(data_set):
        known = _KNOWN.get(kind)
        if known is not None:
            return known(data_set, depth)
    return None


class DerivedFiles(Sequence[str]):
    """Derive the path of each sample when it is asked for: a list of 10,000,000 paths would take up to a gigabyte."""

    def __init__(self, rows: Sequence[Any], path_of: Callable[[Any], str]) -> None:
        self._rows = rows
        self._path_of = path_of

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._path_of(self._rows[number]) for number in range(*index.indices(len(self)))]
        return self._path_of(self._rows[index])


def _chosen(files: SampleFiles, indices: Sequence[int]) -> SampleFiles:
    """Choose samples of another data set."""
    return DerivedFiles(array("I", indices), files.__getitem__)


def _of_samples(data_set: Any, _: int) -> SampleFiles | None:
    """Return the files of torchvision's DatasetFolder and ImageFolder."""
    return DerivedFiles(data_set.samples, itemgetter(0))


def _of_headrace(data_set: Any, _: int) -> SampleFiles | None:
    """Return the files of our Samples, as URLs of the namespace or as paths."""
    top = data_set.place.name.rstrip("/")
    return DerivedFiles(data_set.names, lambda name: f"{top}/{name}")


def _of_subset(data_set: Any, depth: int) -> SampleFiles | None:
    files = files_of(data_set.dataset, depth + 1)
    return None if files is None else _chosen(files, data_set.indices)


def _of_concatenation(data_set: Any, depth: int) -> SampleFiles | None:
    paths: list[str] = []
    for part in data_set.datasets:
        files = files_of(part, depth + 1)
        if files is None or len(files) != len(part):
            return None
        paths += files[0 : len(files)]
    return paths


_KNOWN: dict[tuple[str, str], Callable[[Any, int], SampleFiles | None]] = {
    ("torchvision.datasets.folder", "DatasetFolder"): _of_samples,
    ("headrace.integrations.torch_data", "Samples"): _of_headrace,
    ("torch.utils.data.dataset", "Subset"): _of_subset,
    ("torch.utils.data.dataset", "ConcatDataset"): _of_concatenation,
}


def is_known(data_set: Any, depth: int = 0) -> bool:
    """Return whether `files_of` knows a data set, without listing its files."""
    if depth > DEPTH_MAX or not set(kinds_of(data_set)) & set(_KNOWN):
        return False
    parts = getattr(data_set, "datasets", None) or [getattr(data_set, "dataset", None)]
    return all(part is None or is_known(part, depth + 1) for part in parts)
