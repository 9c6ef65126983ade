"""Files that a process opens while it loads a sample. A program never sees an error of the hook."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Dataset, Subset

from headrace.hook.data_set_keys import data_set_key
from headrace.hook.mounts import MountedPaths
from headrace.hook.opened_files import MarkedDataSet, OpenedSampleFiles, _audit_hook


class AuditedSamples:
    """A data set whose samples raise events, as Python does for each `open`, and as a library may."""

    def __init__(self, audit: Callable[[str, tuple[Any, ...]], None]) -> None:
        self._audit = audit

    def __getitem__(self, index: int) -> int:
        self._audit("open", ("of a library",))
        self._audit("open", ("of a library", "r", os.O_RDONLY, "more"))
        self._audit("open", ("written", "w", os.O_WRONLY))
        self._audit("open", (f"{index}", "r", os.O_RDONLY))
        return index


def test_events_of_a_library_do_not_disturb_a_program() -> None:
    files = OpenedSampleFiles("/nothing", MountedPaths([]))
    audit = _audit_hook(files)
    opened: list[tuple[int, str]] = []
    assert files.load(AuditedSamples(audit), 17, opened) == 17
    assert opened == [(17, "17")]
    audit("open", ("later", "r", os.O_RDONLY))
    assert opened == [(17, "17")]


class NamedFiles(Dataset[str]):
    """Opens the file of a name for each sample. before: called with the index before that."""

    def __init__(self, folder: Path, names: list[str], before: Callable[[int], Any] = bool) -> None:
        self.folder = folder
        self.names = names
        self.before = before

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> str:
        self.before(index)
        with open(self.folder / self.names[index]) as file:
            return file.read()


class ReportedFiles(OpenedSampleFiles):
    """Keeps what it would report to a node."""

    def __init__(self, mount: Path) -> None:
        super().__init__("/nothing", MountedPaths([(str(mount), "/")]))
        self.known: dict[str, list[tuple[int, str]]] = {}

    def report(self, key: str, known: list[tuple[int, str]]) -> bool:
        self.known.setdefault(key, []).extend(known)
        return True

    def marked(self, data_set: Any) -> MarkedDataSet:
        marked = self.mark(data_set, auto_collation=True)
        assert isinstance(marked, MarkedDataSet)
        return marked

    def reported(self, data_set: Any) -> list[tuple[int, str]]:
        return self.known.pop(data_set_key(data_set, os.getpid()))


def load(marked: MarkedDataSet, indices: list[int]) -> list[Any]:
    """Load a batch as a fetcher of torch does."""
    samples = marked.__getitems__(indices) if marked.__getitems__ else [marked[index] for index in indices]
    marked.end_batch()
    return samples


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in "abcdef":
        (tmp_path / name).write_text(name)
    return tmp_path


def test_the_files_of_a_subset_are_learned(folder: Path) -> None:
    """torch gives a Subset its batches in one call."""
    files = ReportedFiles(folder)
    subset = Subset(Subset(NamedFiles(folder, list("abcdef")), [5, 3, 1]), [2, 0])
    assert load(files.marked(subset), [1, 0]) == ["f", "b"]
    assert files.reported(subset) == [(1, "/f"), (0, "/b")]


class OfBatches(NamedFiles):
    def __getitems__(self, indices: list[int]) -> list[str]:
        return [self[index] for index in indices]


def test_a_subset_whose_data_set_loads_batches_is_left_alone(folder: Path) -> None:
    files = ReportedFiles(folder)
    subset = Subset(OfBatches(folder, list("abc")), [1, 0])
    assert files.mark(subset, auto_collation=True) is subset


def test_samples_that_threads_load_are_told_apart(folder: Path) -> None:
    """Each loads one half, and waits for the other one within each sample."""
    files, both = ReportedFiles(folder), threading.Barrier(2)
    halves = [NamedFiles(folder, names, lambda _: both.wait(60)) for names in (list("abc"), list("def"))]
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(load, map(files.marked, halves), [[0, 1, 2]] * 2)) == [
            list("abc"),
            list("def"),
        ]
    assert files.reported(halves[0]) == [(0, "/a"), (1, "/b"), (2, "/c")]
    assert files.reported(halves[1]) == [(0, "/d"), (1, "/e"), (2, "/f")]


class InThreads(NamedFiles):
    """Opens its files in another thread."""

    def __getitem__(self, index: int) -> str:
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(super().__getitem__, index).result()


def test_a_sample_may_open_its_files_in_threads(folder: Path) -> None:
    files = ReportedFiles(folder)
    data_set = InThreads(folder, list("ab"))
    assert load(files.marked(data_set), [1]) == ["b"]
    assert files.reported(data_set) == [(1, "/b")]


def test_what_other_threads_open_is_no_file_of_a_sample_that_opens_its_own(folder: Path) -> None:
    """A thread may write logs, or read a checkpoint."""
    files = ReportedFiles(folder)

    def open_another(_: int) -> None:
        thread = threading.Thread(target=(folder / "f").read_text)
        thread.start()
        thread.join()

    data_set = NamedFiles(folder, list("ab"), open_another)
    load(files.marked(data_set), [1])
    assert files.reported(data_set) == [(1, "/b")]


def test_a_sample_may_load_samples_of_another_data_set(folder: Path) -> None:
    files = ReportedFiles(folder)
    inner = files.marked(NamedFiles(folder, list("def")))
    outer = NamedFiles(folder, list("abc"), lambda index: load(inner, [2 - index]))
    load(files.marked(outer), [0, 1])
    assert files.reported(outer) == [(0, "/a"), (1, "/b")]
    assert files.reported(inner.data_set) == [(2, "/f"), (1, "/e")]


def test_data_sets_of_one_class_and_length_have_keys_of_their_own(folder: Path) -> None:
    whole = NamedFiles(folder, list("abcdef"))
    data_sets: list[Any] = [
        *(Subset(whole, [0, 1, 2]), Subset(whole, [3, 4, 5]), Subset(whole, range(1, 4))),
        *(
            NamedFiles(folder, list("abc")),
            NamedFiles(folder, list("def")),
            NamedFiles(folder / "x", list("abc")),
        ),
    ]
    keys = [data_set_key(data_set, 7) for data_set in data_sets]
    assert len(set(keys)) == len(keys)
    assert keys == [data_set_key(data_set, 7) for data_set in data_sets]


class Unnamed:
    """Has no attributes, and fails if it is asked for any."""

    __slots__ = ()

    def __len__(self) -> int:
        return 3

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


def test_a_data_set_without_attributes_has_a_key() -> None:
    assert data_set_key(Unnamed(), 7) == f"7:{__name__}.Unnamed:3"
    assert data_set_key(range(3), 7).startswith("7:builtins.range:3")
