"""The shards of WebDataset are known before the first is opened, and come as they would without the hook."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from headrace.hook.mounts import MountedPaths
from headrace.hook.reporter import Reporter
from headrace.hook.shards import ShardStreams

webdataset: Any = pytest.importorskip("webdataset")


class ReportedStreams(Reporter):
    """Keeps the streams, and sends none."""

    def __init__(self, mounts: MountedPaths) -> None:
        super().__init__("/no/such/node", "job", mounts)
        self.added: list[Any] = []

    def add(self, stream: Any) -> None:
        self.added.append(stream)


@pytest.fixture
def tars(tmp_path: Path) -> list[str]:
    """Ten tars with two samples each."""
    names = []
    for shard in range(10):
        names.append(str(tmp_path / f"{shard}.tar"))
        with tarfile.open(names[-1], "w") as tar:
            for number in (2 * shard, 2 * shard + 1):
                head = tarfile.TarInfo(f"{number}.txt")
                head.size = 1
                tar.addfile(head, io.BytesIO(b"x"))
    return names


def streams_of(mount: Path) -> tuple[ShardStreams, ReportedStreams]:
    mounts = MountedPaths([(str(mount), "/")])
    reporter = ReportedStreams(mounts)
    return ShardStreams("/no/such/node", "job", mounts, reporter), reporter


def keys_of(data_set: Any) -> list[str]:
    return [sample["__key__"] for sample in data_set]


def test_two_epochs_are_known_in_advance(tars: list[str], tmp_path: Path) -> None:
    def build() -> Any:
        return webdataset.WebDataset(tars, shardshuffle=5, detshuffle=True, seed=1)

    plain = build()
    epochs = [keys_of(plain), keys_of(plain)]
    streams, reporter = streams_of(tmp_path)
    data_set = build()
    assert streams.follows(data_set)
    for number, keys in enumerate(epochs):
        given = []
        for sample in streams.watched(data_set):
            given.append(sample["__key__"])
            (stream,) = reporter.added
            assert stream.position in (
                (len(given) + 1) // 2,
                len(given) // 2 + 1,
            )  # it may have opened the next
        assert given == keys
        epoch, order = stream.current
        shards = [int(Path(stream.files[shard]).stem) for shard in order]
        assert (epoch, shards) == (number, [int(key) // 2 for key in keys[::2]])


def test_a_list_without_an_end_is_known_for_a_while(tars: list[str], tmp_path: Path) -> None:
    streams, reporter = streams_of(tmp_path)
    samples = iter(streams.watched(webdataset.WebDataset(tars, resampled=True, shardshuffle=False)))
    for _ in range(50):
        next(samples)
    (stream,) = reporter.added
    assert len(stream.current[1]) == 10_000
    assert stream.position in (25, 26)


def test_shards_outside_all_mounts_are_not_reported(tars: list[str], tmp_path: Path) -> None:
    streams, reporter = streams_of(tmp_path / "elsewhere")
    assert len(keys_of(streams.watched(webdataset.WebDataset(tars, shardshuffle=False)))) == 20
    assert reporter.added == []


def test_an_error_of_the_list_comes_after_the_shards_before_it(tars: list[str], tmp_path: Path) -> None:
    def failing(source: Any) -> Iterator[Any]:
        yield next(source)
        raise OSError("the list is gone")

    failing.__module__ = "webdataset.shardlists"
    streams, _ = streams_of(tmp_path)
    data_set = webdataset.WebDataset(tars, shardshuffle=False, nodesplitter=failing)
    keys = []
    with pytest.raises(OSError, match="the list is gone"):
        for sample in streams.watched(data_set):
            keys.append(sample["__key__"])
    assert keys[:1] == ["0"]


def test_a_pipeline_with_a_stage_of_the_program_is_left_alone(tars: list[str], tmp_path: Path) -> None:
    """The program's stage may draw from a generator that it shares."""
    streams, _ = streams_of(tmp_path)
    data_set = webdataset.WebDataset(tars, shardshuffle=False, nodesplitter=lambda source: source)
    assert not streams.follows(data_set)
    assert streams.watched(data_set) is data_set


@pytest.mark.parametrize("mode", ["unlink", "keep", "resample"])
def test_a_list_that_moves_its_shards_is_left_alone(tars: list[str], tmp_path: Path, mode: str) -> None:
    """It renames a shard before it is read, and removes it when the next one is asked for."""
    from webdataset.shardlists import DirectoryShardList

    streams, reporter = streams_of(tmp_path)
    shards = DirectoryShardList(f"{tmp_path}/", pattern="*.tar", poll=None, mode=mode, select="oldest")
    data_set = webdataset.DataPipeline(shards, webdataset.tarfile_to_samples())
    assert not streams.follows(data_set)
    assert streams.watched(data_set) is data_set
    keys = [sample["__key__"] for sample in islice(streams.watched(data_set), 4)]
    assert len(keys) == 4
    assert reporter.added == []
