"""Epochs that read cached samples first: each sample once, wherever the run is resumed, with any number of ranks."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.base.errors import UsageError
from headrace.integrations.torch_data import Loader, Samples, TokenWindows
from headrace.sdk.cache import connect
from tests.integration.door.conftest import Host, forget, start

pytestmark = pytest.mark.timeout(90)
CLASSES, EACH = 3, 16
NAMES = sorted(f"class-{number % CLASSES}/{number:03d}.bin" for number in range(CLASSES * EACH))


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with pytest.MonkeyPatch.context() as patch:
        host = start(tmp_path_factory.mktemp("cached-first"), patch)
        for number in range(CLASSES * EACH):
            host.put(f"samples/class-{number % CLASSES}/{number:03d}.bin", 500 + number, seed=number)
        yield host
        forget()
        host.close()


def as_list(samples: list[Any]) -> list[Any]:
    return [name for name, _ in samples]


def name_of(body: bytes, name: str) -> str:
    return name


def loader_of(rank: int = 0, world: int = 1, workers: int = 0, **options: Any) -> Loader:
    data = Samples("headrace:///samples", decode=name_of)
    options = {"order": "cached-first", "seed": 5, "drop_last": False, **options}
    return Loader(data, 4, rank=rank, world=world, workers=workers, collate=as_list, **options)


def names_of(batches: Any) -> list[str]:
    return [name for batch in batches for name in batch]


def test_a_node_says_what_is_cached_without_fetching(host: Host) -> None:
    host.ok("free", "/samples")
    host.ok("load", "/samples/class-1")
    paths = [f"/samples/class-{number % CLASSES}/{number:03d}.bin" for number in range(6)]
    with connect() as cache:
        for _ in range(2):
            assert cache.are_cached(paths) == [False, True, False, False, True, False]


@pytest.mark.parametrize("workers", [0, 2])
def test_cached_samples_are_read_first(host: Host, workers: int) -> None:
    host.ok("free", "/samples")
    host.ok("load", "/samples/class-1")
    loader, seeded = loader_of(workers=workers), loader_of(order="seeded")
    names = names_of(loader)
    assert {name[6] for name in names[:EACH]} == {"1"}
    assert sorted(names) == NAMES
    expected = [name for name in names_of(seeded) if name[6] != "1"]
    if not workers:
        assert names[EACH:] == expected
    assert loader.epoch == 1
    assert sorted(names_of(loader)) == sorted(names)
    assert len(loader) == 12


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_is_resumed_with_what_was_not_read(host: Host, workers: int) -> None:
    host.ok("free", "/samples")
    host.ok("load", "/samples/class-2")
    begun = loader_of(workers=workers)
    names = names_of(itertools.islice(begun, 5))
    resumed = loader_of()
    resumed.load_state_dict(pickle.loads(pickle.dumps(begun.state_dict())))
    names += names_of(itertools.islice(resumed, 2))
    names += names_of(resumed)  # a loop that was left early continues
    assert sorted(names) == NAMES
    assert resumed.epoch == 1


def test_a_run_is_resumed_with_another_number_of_ranks(host: Host) -> None:
    host.ok("free", "/samples")
    host.ok("load", "/samples/class-0")
    begun = [loader_of(rank, 2) for rank in range(2)]
    names = [name for loader in begun for name in names_of(itertools.islice(loader, 3))]
    states = [loader.state_dict() for loader in begun]
    resumed = [loader_of(rank, 3) for rank in range(3)]
    for loader in resumed:
        loader.load_state_dicts(states)
        names += names_of(itertools.islice(loader, 1))
    again = [loader_of(rank, 3) for rank in range(3)]
    for loader, earlier in zip(again, resumed, strict=True):
        loader.load_state_dict(earlier.state_dict())
        names += names_of(loader)
    assert sorted(names) == NAMES
    with pytest.raises(UsageError, match="all 2 ranks"):
        resumed[0].load_state_dicts(states[:1])
    with pytest.raises(UsageError, match="same batch"):
        resumed[0].load_state_dicts([states[0], loader_of(1, 2).state_dict()])
    with pytest.raises(UsageError, match="world was 2, is 3"):
        resumed[0].load_state_dict(states[0])


def test_what_cannot_be_read_cached_first_is_refused(host: Host) -> None:
    with pytest.raises(UsageError, match="order 'random'"):
        loader_of(order="random")
    with pytest.raises(UsageError, match="in_order"):
        loader_of(in_order=False)
    with pytest.raises(UsageError, match="what is cached"):
        Loader(Samples(str(host.truth / "samples")), 4, order="cached-first")
    with pytest.raises(UsageError, match="TokenWindows does not say"):
        Loader(TokenWindows("headrace:///samples", window=8), 4, order="cached-first")
    begun = loader_of()
    names_of(itertools.islice(begun, 1))
    with pytest.raises(UsageError, match="only in one of them"):
        loader_of(order="seeded").load_state_dict(begun.state_dict())
    with pytest.raises(UsageError, match="only order"):
        loader_of(order="seeded").load_state_dicts([begun.state_dict()])
