"""The table of workloads, data sets' sizes, and the rules."""

from __future__ import annotations

import statistics

import pytest

from headrace.base.errors import UsageError
from headrace.bench.dataset import data_set
from headrace.bench.loader_spec import LoaderSpec
from headrace.bench.storage import where
from headrace.bench.workloads import OURS, SCALED, UNSCALED, WORKLOADS, Setting, called, rules, workload


def setting(**changed: object) -> Setting:
    kept = {"sizes": 1.0, "times": 1.0, "dataset_bytes": 5 << 30, "memory_bytes": 1 << 30, "steps": 500}
    return Setting(**{**kept, "epochs": 5, "shuffle": False, "cache_dropped": True, **changed})  # type: ignore[arg-type]


def test_sizes_follow_the_stated_distributions() -> None:
    for name in ("unet3d", "cosmoflow", "imagefolder"):
        load = workload(name)
        data = data_set(load, steps=4000 // load.batch, accelerators=1, seed=1)
        sizes = [data.sizes(number)[0] for number in range(data.files)]
        assert statistics.mean(sizes) == pytest.approx(load.sample_bytes, rel=0.04), name
        if load.sd_bytes:
            assert statistics.stdev(sizes) == pytest.approx(load.sd_bytes, rel=0.06), name
        else:  # log-normal: its middle is below its mean
            assert statistics.median(sizes) == pytest.approx(
                load.sample_bytes * 2.718281828 ** -(0.5**2 / 2), rel=0.04
            )
        assert min(sizes) > 0


def test_sizes_are_the_same_again_and_differ_by_seed() -> None:
    first, other = (data_set(workload("unet3d"), steps=10, accelerators=1, seed=seed) for seed in (1, 2))
    assert first.sizes(3) == first.sizes(3) != other.sizes(3)


def test_a_factor_is_on_sizes_and_times_by_themselves() -> None:
    load = workload("unet3d").scaled(sizes=0.1, times=0.5)
    assert load.sample_bytes == pytest.approx(14_660_062.8)
    assert load.compute_s == {"a100": pytest.approx(0.318), "h100": pytest.approx(0.1615)}
    assert (load.batch, load.readers, load.au_needed) == (7, 4, 0.9)


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize(("steps", "accelerators"), [(2, 1), (20, 2), (101, 3)])
def test_files_are_enough_for_the_steps_of_every_accelerator(
    name: str, steps: int, accelerators: int
) -> None:
    load = workload(name)
    data = data_set(load, steps=steps, accelerators=accelerators, seed=1)
    taken: list[int] = []
    for rank in range(accelerators):
        feed = LoaderSpec(
            where=where("/nowhere"), data=data, files=data.files, samples=load.samples(steps, accelerators), rank=rank,
            world=accelerators, batch=load.batch, readers=load.readers, steps=steps, handed_bytes=0,
            shuffle=load.shuffled, seed=1,
        )  # fmt: skip
        order = feed.order(1)
        taken += order.tolist()
        if feed.streams:
            batches = [
                len(order[reader :: load.readers]) * data.samples_a_file // load.batch
                for reader in range(load.readers)
            ]
            assert sum(batches) >= steps
        else:
            assert len(order) == steps * load.batch
    assert len(set(taken)) == len(taken)  # nobody reads what another one reads
    assert max(taken) < max(data.files, data.samples_a_file)


def test_orders_change_only_where_they_should() -> None:
    load = workload("cosmoflow")
    data = data_set(load, steps=50, accelerators=1, seed=1)

    def order(epoch: int, *, shuffle: bool) -> list[int]:
        feed = LoaderSpec(
            where=where("/nowhere"), data=data, files=50, samples=50, rank=0, world=1, batch=1, readers=1, steps=50,
            handed_bytes=0, shuffle=shuffle, seed=9,
        )  # fmt: skip
        numbers: list[int] = feed.order(epoch).tolist()
        return numbers

    assert order(1, shuffle=False) == order(2, shuffle=False) == list(range(50))
    assert order(1, shuffle=True) == order(1, shuffle=True) != order(2, shuffle=True)
    assert sorted(order(2, shuffle=True)) == list(range(50))


def test_a_run_that_keeps_the_rules_is_called_so() -> None:
    load = workload("unet3d")
    assert called(load, rules(load, setting())) == UNSCALED
    assert called(workload("tokens"), rules(workload("tokens"), setting())) == OURS


@pytest.mark.parametrize(
    "changed",
    [
        {"dataset_bytes": (5 << 30) - 1},
        {"steps": 499},
        {"epochs": 4},
        {"sizes": 0.5},
        {"times": 0.5},
        {"shuffle": True},
        {"cache_dropped": False},
    ],
)
def test_a_run_that_breaks_one_is_never_called_anything_but_scaled(changed: dict[str, object]) -> None:
    load = workload("resnet50")
    kept_rules = rules(load, setting(**changed))
    assert [rule.kept for rule in kept_rules].count(False) == 1
    assert called(load, kept_rules) == SCALED


def test_no_such_workload() -> None:
    with pytest.raises(UsageError, match="unet3d"):
        workload("bert")
