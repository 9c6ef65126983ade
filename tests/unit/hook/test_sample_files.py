"""The file of a sample: known data sets name it themselves, and mounts show it."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.utils.data import ConcatDataset, Dataset, Subset

from headrace.hook.mounts import MountedPaths, mounts_of_process
from headrace.hook.sample_files import files_of, is_known


class DatasetFolder(Dataset[str]):
    """Stands for torchvision's, which is not a dependency: files_of goes by the names of classes."""

    def __init__(self, names: list[str]) -> None:
        self.samples = [(name, 0) for name in names]

    def __len__(self) -> int:
        return len(self.samples)


DatasetFolder.__module__ = "torchvision.datasets.folder"


class ImageFolder(DatasetFolder):
    pass


def test_data_sets_over_folders_name_their_files() -> None:
    first, second = ImageFolder(["/d/a", "/d/b", "/d/c"]), DatasetFolder(["/e/x", "/e/y"])
    both: ConcatDataset[str] = ConcatDataset([Subset(first, [2, 0]), second])
    files = files_of(Subset(both, [3, 0, 1]))
    assert files is not None
    assert [files[index] for index in range(len(files))] == ["/e/y", "/d/c", "/d/a"]
    assert files[1:3] == ["/d/c", "/d/a"]
    assert is_known(both)


def test_other_data_sets_are_learned() -> None:
    class Own(Dataset[int]):
        def __len__(self) -> int:
            return 3

    assert files_of(Own()) is None
    assert not is_known(Own())
    mixed: ConcatDataset[object] = ConcatDataset([Own(), DatasetFolder(["/a"])])
    assert files_of(mixed) is None
    assert not is_known(mixed)


def test_a_path_of_the_namespace_is_below_the_innermost_mount(tmp_path: Path) -> None:
    mounts = MountedPaths([("/mnt", "/"), ("/mnt/seal", "/imagenet")])
    assert mounts.namespace_path("/mnt/a/b") == "/a/b"
    assert mounts.namespace_path("/mnt/seal/b") == "/imagenet/b"
    assert mounts.namespace_path("/mnt/../mnt/./a") == "/a"
    assert mounts.namespace_path("/mntx/a") is None
    assert mounts.namespace_path("headrace:///x/y") == "/x/y"
    link = tmp_path / "data"
    link.symlink_to("/mnt/deep")
    assert mounts.namespace_path(f"{link}/f") == "/deep/f"
    assert mounts.namespace_path(f"{tmp_path}/f") is None


@pytest.mark.parametrize("named", ['[["/m", "/"]]', '[["/m/", "/"]]'])
def test_mounts_are_those_that_the_command_named(named: str) -> None:
    assert mounts_of_process(named).namespace_path("/m/x") == "/x"
