"""A sampler that shares state with the program gives the batches that it gives without the hook, and has no plan."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler

from headrace.hook import copied_code
from headrace.hook.copied_code import check_copy
from headrace.hook.samplers import NotPlannable, learn, next_epoch
from tests.unit.hook import shared_state_program
from tests.unit.hook.hooked_programs import run, silent_node

__all__ = ["silent_node"]
PROGRAM = shared_state_program.__name__
SHARING, HARMLESS = shared_state_program.SHARING, shared_state_program.HARMLESS | shared_state_program.COPIED


@pytest.mark.timeout(200)
def test_batches_of_samplers_that_share_state_are_unchanged(tmp_path: Path, silent_node: Path) -> None:
    """Three epochs, without workers and with two, and what the program draws after them."""
    plain: dict[str, Any] = json.loads(run(tmp_path, None, "-m", PROGRAM)[0])
    output, said, _ = run(tmp_path, silent_node, "-m", PROGRAM)
    watched: dict[str, Any] = json.loads(output)
    assert [name for name, result in plain.items() if watched[name] != result] == []
    lines = [line for line in said.splitlines() if line.startswith("headrace")]
    assert all(": a loader runs without a plan: " in line for line in lines)
    assert len(set(lines)) == len(lines)
    shared = "the variable RNG of the module __main__, of the type random.Random"
    assert f"headrace: a loader runs without a plan: a copy of its sampler would share {shared}" in lines


@pytest.mark.parametrize("name", SHARING)
def test_a_sampler_that_shares_state_is_not_copied(name: str) -> None:
    sampler = SHARING[name]()
    with pytest.raises(NotPlannable, match="a copy of its sampler would share"):
        learn(sampler, iter(sampler), world=1, is_chosen=True)


@pytest.mark.parametrize("name", HARMLESS)
def test_a_sampler_that_shares_nothing_is_planned(name: str) -> None:
    sampler = HARMLESS[name]()
    for _ in range(2):
        iterator = iter(sampler)
        order = learn(sampler, iterator, world=1)
        taken = [
            int(index) for batch in iterator for index in (batch if isinstance(batch, list) else [batch])
        ]
        assert order.indices.tolist() == taken
        assert taken


def test_the_next_epoch_runs_no_code_of_the_program() -> None:
    """It is asked for in another thread, which can't put the generators of the program back."""
    sampler: Any = DistributedSampler(range(24), num_replicas=2, rank=1)  # type: ignore[arg-type]
    batches = shared_state_program.OwnBatches(sampler, 3, drop_last=False)
    state, numpy_state = random.getstate(), np.random.get_state(legacy=False)
    assert next_epoch(batches) is None
    assert random.getstate() == state
    assert str(np.random.get_state(legacy=False)) == str(numpy_state)


class SeedsAll(shared_state_program.Own):
    def __iter__(self) -> Iterator[int]:
        torch.manual_seed(3)
        yield from torch.randperm(24).tolist()


class OnDevice(shared_state_program.Own):
    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(24, device="cuda").tolist()


class OnItsDevice(shared_state_program.Own):
    def __init__(self) -> None:
        super().__init__()
        self.device = torch.device("cuda")

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(24, device=self.device).tolist()


@pytest.mark.parametrize("kind", [SeedsAll, OnDevice, OnItsDevice])
def test_generators_of_accelerators_are_not_put_back(
    kind: type[shared_state_program.Own], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samplers that use such generators are not copied, where torch has been built for an accelerator."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    sampler = kind()
    with pytest.raises(NotPlannable, match="the random generator of an accelerator"):
        learn(sampler, iter(sampler), world=1)


def test_a_list_of_all_batches_is_no_reason_to_refuse() -> None:
    sampler: Any = shared_state_program.Own()
    sampler.batches = [[number, number + 1] for number in range(2 * copied_code.OBJECTS_MAX)]
    iterator = iter(sampler)
    assert learn(sampler, iterator, world=1).indices.tolist() == list(iterator)
    sampler.batches = [[[number]] for number in range(copied_code.OBJECTS_MAX)]
    with pytest.raises(NotPlannable, match="too many objects"):
        learn(sampler, iter(sampler), world=1)


class Untouchable:
    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(name)


def test_the_check_asks_no_object_for_an_attribute() -> None:
    assert check_copy(shared_state_program.Holding(Untouchable()), stood_for={})


def doubled(build: Callable[[Any], Any], times: int) -> Any:
    value: Any = build(())
    for _ in range(times):
        value = build((value, value))
    return value


PAIRS = doubled(lambda parts: parts, 60)


class OfPairs(shared_state_program.Own):
    def draw(self) -> int:
        return len(PAIRS)


@pytest.mark.timeout(60)
def test_shared_objects_are_looked_at_once() -> None:
    """Each pair has the one before twice."""
    sampler = OfPairs()
    iterator = iter(sampler)
    assert learn(sampler, iterator, world=1).indices.tolist() == list(iterator)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("build", "times"),
    [(lambda parts: dict(enumerate(parts)), 60), (list, 60), (lambda parts: [*parts] * 500, 8)],
    ids=["dicts", "lists", "long lists"],
)
def test_deep_and_large_parts_of_a_data_set_are_refused(build: Callable[[Any], Any], times: int) -> None:
    sampler: Any = shared_state_program.WithHarmlessFunctions()
    sampler.data_source.weights = doubled(build, times)
    with pytest.raises(NotPlannable, match="deep or large lists of a data set"):
        learn(sampler, iter(sampler), world=1)


LOGGER = logging.getLogger(__name__)


class Prints(shared_state_program.Own):
    def draw(self) -> int:
        print("drawing")
        return super().draw()


class Logs(shared_state_program.Own):
    def draw(self) -> int:
        LOGGER.info("drawing")
        return super().draw()


def test_a_sampler_that_writes_lines_is_not_copied(caplog: pytest.LogCaptureFixture) -> None:
    """A copy would write them, too."""
    prints, logs = Prints(), Logs()
    with pytest.raises(NotPlannable, match=r"what print\(\) reaches"):
        learn(prints, iter(prints), world=1)
    with caplog.at_level(logging.WARNING, __name__):
        learn(logs, iter(logs), world=1)
    with caplog.at_level(logging.INFO, __name__):
        with pytest.raises(NotPlannable, match=rf"the logger {__name__}, by its info\(\)"):
            learn(logs, iter(logs), world=1)
    assert caplog.records == []
