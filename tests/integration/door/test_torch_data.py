"""Data sets for torch: every byte is the origin's; each sample once an epoch; a run that is resumed goes on exactly."""

from __future__ import annotations

import io
import itertools
import json
import os
import pickle
import random
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from headrace.base.errors import PathNotFoundError, UsageError
from headrace.integrations.torch_data import Loader, Samples, Shards, TokenWindows
from tests.integration.door.conftest import Host, forget, start

pytestmark = pytest.mark.timeout(90)
CLASSES, EACH, SHARDS, IN_SHARD = 3, 17, 6, 11
TOKENS = 4_000_037


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with pytest.MonkeyPatch.context() as patch:
        host = start(tmp_path_factory.mktemp("torch"), patch)
        for number in range(CLASSES * EACH):
            host.put(f"samples/class-{number % CLASSES}/{number:03d}.bin", 500 + number, seed=number)
        chance = np.random.default_rng(3)
        (host.truth / "tokens.bin").write_bytes(chance.integers(0, 65536, TOKENS, dtype=np.uint16).tobytes())
        (host.truth / "shards").mkdir()
        for number in range(SHARDS):
            shard(host.truth / f"shards/{number:02d}.tar", number)
        yield host
        forget()
        host.close()


def shard(path: Path, number: int) -> None:
    chance = random.Random(number)
    with tarfile.open(path, "w") as tar:
        for index in range(IN_SHARD):
            for extension, body in (("bin", chance.randbytes(300 + index)), ("cls", b"%d" % (index % 4))):
                member = tarfile.TarInfo(f"folder.x/{number:02d}-{index:03d}.{extension}")
                member.size = len(body)
                tar.addfile(member, io.BytesIO(body))


@pytest.fixture(params=["node", "folder"])
def location_of(request: pytest.FixtureRequest, host: Host) -> Callable[[str], str]:
    """Return a function that gives where a folder of the origin is read: by the node, or as any folder."""
    if request.param == "node":
        return lambda name: f"headrace:///{name}"
    return lambda name: str(host.truth / name)


def as_list(samples: list[Any]) -> list[Any]:
    return samples


def key_of(sample: dict[str, Any]) -> str:
    return str(sample["__key__"])


def name_of(body: bytes, name: str) -> str:
    return name


def test_samples_are_the_origins_with_their_labels(host: Host, location_of: Callable[[str], str]) -> None:
    data = Samples(location_of("samples"))
    assert data.classes == [f"class-{number}" for number in range(CLASSES)]
    assert len(data) == CLASSES * EACH
    for (body, label), name in zip(data.__getitems__(range(len(data))), data.names, strict=True):
        assert bytes(body.numpy()) == (host.truth / "samples" / name).read_bytes()
        assert label == int(name[6])
    assert bytes(data[3][0].numpy()) == (host.truth / "samples" / data.names[3]).read_bytes()
    copy = pickle.loads(pickle.dumps(data))
    assert torch.equal(copy[5][0], data[5][0])
    with pytest.raises(PathNotFoundError, match=r"\.jpg"):
        Samples(location_of("samples"), suffixes=(".jpg",))


def body_of(body: bytes, name: str) -> tuple[str, bytes]:
    return name, body


@pytest.mark.parametrize(("method", "cached"), [("fork", True), ("fork", False), ("spawn", False)])
def test_a_loader_of_torchs_own(host: Host, method: str, *, cached: bool) -> None:
    """Its workers are forked, from a parent that has read already, or spawned: the bytes are the origin's."""
    host.ok("load" if cached else "free", "/samples")
    data = Samples("headrace:///samples", decode=body_of)
    assert data[0][0][1] == (host.truth / "samples" / data.names[0]).read_bytes()
    batches = DataLoader(
        data,
        batch_size=5,
        num_workers=1 if method == "spawn" else 2,  # each one that is spawned imports torch
        shuffle=True,
        collate_fn=as_list,
        multiprocessing_context=method,
        persistent_workers=True,  # an epoch of its own would be some seconds of `import torch`
    )
    for _ in range(2):
        bodies = {name: body for batch in batches for (name, body), _ in batch}
        assert bodies == {name: (host.truth / "samples" / name).read_bytes() for name in data.names}


@pytest.mark.parametrize("workers", [0, 2])
def test_each_sample_once_an_epoch_over_all_ranks(location_of: Callable[[str], str], workers: int) -> None:
    data = Samples(location_of("samples"), decode=name_of)
    orders = []
    loaders = [
        Loader(data, 4, workers=workers, rank=rank, world=3, drop_last=False, seed=1, collate=as_list)
        for rank in range(3)
    ]
    for _ in range(2):
        names = [name for loader in loaders for batch in loader for name, _ in batch]
        assert sorted(names) == data.names  # 51 samples are 17 each
        orders.append(names)
    assert orders[0] != orders[1]
    assert [len(loader) for loader in loaders] == [5, 5, 5]
    uneven = [
        list(Loader(data, 4, rank=rank, world=4, drop_last=False, collate=as_list)) for rank in range(4)
    ]
    assert {len(batches) for batches in uneven} == {4}
    assert {name for batches in uneven for batch in batches for name, _ in batch} == set(data.names)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["samples", "shards"])
def test_a_run_that_is_resumed_goes_on_with_the_next_batch(
    location_of: Callable[[str], str], kind: str, workers: int
) -> None:
    def make() -> Loader:
        data: Any = Samples(location_of("samples"), decode=name_of)
        if kind == "shards":
            data = Shards(location_of("shards"), decode=key_of, shuffle=8)
        return Loader(data, 4, workers=workers, rank=1, world=2, seed=9, collate=as_list, drop_last=False)

    whole = make()
    epochs = [list(whole), list(whole)]
    assert epochs[0] != epochs[1]
    last = len(epochs[0]) - 1
    for stop in (1, last) if workers else (0, 1, 3, last):  # each epoch of a loader forks its workers
        first, second = make(), make()
        assert taken(first, stop) == epochs[0][:stop]
        second.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
        assert list(second) == epochs[0][stop:]
        third = make()
        third.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert list(third) == epochs[0][stop:], "from the metadata of a checkpoint"
    assert list(second) == epochs[1]


def taken(loader: Loader, count: int) -> list[Any]:
    """The first batches; the others were read ahead in vain."""
    return list(itertools.islice(loader, count)) if count else []


def test_a_state_of_something_else_is_refused(location_of: Callable[[str], str]) -> None:
    data = Samples(location_of("samples"), decode=name_of)
    begun = Loader(data, 4, collate=as_list)
    taken(begun, 2)
    state = begun.state_dict()
    with pytest.raises(UsageError, match="batch_size was 4, is 5"):
        Loader(data, 5, collate=as_list).load_state_dict(state)
    with pytest.raises(UsageError, match="format"):
        Loader(data, 4).load_state_dict({})
    with pytest.raises(UsageError, match="rank 2 of 2"):
        Loader(data, 4, rank=2, world=2)
    with pytest.raises(UsageError, match="in_order"):  # its state could not say which batches were returned
        Loader(data, 4, workers=2, in_order=False)
    Loader(Shards(location_of("shards")), 4, workers=2, in_order=False)


def test_shards_are_what_their_tar_files_say(host: Host, location_of: Callable[[str], str]) -> None:
    expected = {}
    for path in sorted((host.truth / "shards").iterdir()):
        with tarfile.open(path) as tar:
            for member in tar:
                body = tar.extractfile(member)
                assert body is not None
                expected[member.name] = body.read()
    bodies = {}
    for sample in Shards(location_of("shards"), shuffle=0):
        for word in ("bin", "cls"):
            bodies[f"{sample['__key__']}.{word}"] = bytes(sample[word].numpy())
    assert bodies == expected
    batches = list(Loader(Shards(location_of("shards")), 1, collate=as_list, workers=2))
    assert sorted(sample["__key__"] for (sample,) in batches) == sorted({name[:-4] for name in expected})
    with pytest.raises(UsageError, match="6 shards"):
        list(Loader(Shards(location_of("shards")), 4, workers=2, rank=0, world=4, collate=as_list))


def test_a_shard_that_is_none(host: Host, tmp_path: Path) -> None:
    (tmp_path / "bad.tar").write_bytes(random.Random(1).randbytes(5000))
    with pytest.raises(UsageError, match=r"bad\.tar"):
        list(Shards(str(tmp_path)))
    with pytest.raises(PathNotFoundError, match=r"\*\.tar"):
        Shards(str(host.truth / "samples"))


def test_windows_of_tokens(host: Host, location_of: Callable[[str], str]) -> None:
    truth = np.fromfile(host.truth / "tokens.bin", dtype=np.uint16)
    data = TokenWindows(location_of("tokens.bin"), window=513, stride=512)
    assert len(data) == (TOKENS - 513) // 512 + 1
    for index in (0, 1, 1000, len(data) - 1):
        assert np.array_equal(data[index].numpy(), truth[index * 512 : index * 512 + 513])
    with pytest.raises(IndexError):
        data[len(data)]
    for batch in Loader(data, 64, workers=2, seed=4):
        assert batch.shape == (64, 513)
        break
    with pytest.raises(PathNotFoundError, match="window"):
        TokenWindows(location_of("tokens.bin"), window=TOKENS + 1)


def test_of_tokens_only_the_windows_are_fetched(host: Host) -> None:
    def origin_bytes() -> int:
        return int(host.status()["origin"]["bytes_read"])

    window_bytes, size_bytes = 16384, 100 << 20
    with (host.truth / "many.bin").open("wb") as sparse:
        sparse.truncate(size_bytes)
        for index in (5, size_bytes // window_bytes - 1):
            sparse.seek(index * window_bytes)
            sparse.write(random.Random(index).randbytes(window_bytes))
    host.ok("sync", "/")
    before = origin_bytes()
    data = TokenWindows("headrace:///many.bin", window=8192)
    with (host.truth / "many.bin").open("rb") as source:
        for index in (5, len(data) - 1):
            source.seek(index * window_bytes)
            assert data[index].numpy().tobytes() == source.read(window_bytes)
    assert origin_bytes() - before < 40 << 20
    os.unlink(host.truth / "many.bin")
