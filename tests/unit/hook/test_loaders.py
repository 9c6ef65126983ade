"""Watched loaders: whose batches count, and what can't be watched."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from headrace.hook.loaders import Watcher, _CountedBatches
from headrace.hook.mounts import MountedPaths
from headrace.hook.reporter import ReportedStream
from headrace.hook.samplers import learn


def test_two_iterators_of_a_loader_are_counted_apart() -> None:
    """Only the one that began last is reported."""
    sampler: Any = BatchSampler(SequentialSampler(range(8)), 4, drop_last=False)
    stream = ReportedStream(
        id="a",
        key="k",
        files=None,
        samples=8,
        batch_size=4,
        rank=0,
        world=1,
        index_sampler=lambda: None,
    )
    iterators = []
    for _ in range(2):
        loading = SimpleNamespace(_sampler_iter=iter(sampler), _index_sampler=sampler)
        order = learn(sampler, loading._sampler_iter, world=1)
        stream.begin(order.indices)
        iterators.append(_CountedBatches(order, loading, stream, lambda *_: None))
    for older, newer in zip(*iterators, strict=True):
        assert older == newer
    assert stream.position == 8


def test_a_loader_whose_batches_are_a_list_is_not_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    watcher = Watcher("/nothing", "job", MountedPaths([]), chosen_only=True)
    listed: DataLoader[Any] = DataLoader(range(4), batch_sampler=[[0, 1], [2, 3]])  # type: ignore[arg-type]
    assert not watcher.choose(listed._index_sampler)
    assert "a sampler of the type list can't be followed" in capsys.readouterr().err
    assert watcher.choose(DataLoader(range(4), 2)._index_sampler)  # type: ignore[arg-type]
