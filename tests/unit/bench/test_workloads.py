"""The table of workloads, data sets' sizes, and the rules."""

from __future__ import annotations

import statistics

import pytest

from headrace.base.errors import UsageError
from headrace.bench.dataset import data_set
from headrace.bench.loader_spec import LoaderSpec
from headrace.bench.storage import where
from headrace.bench.workloads import (
    OURS,
    SCALED,
    UNSCALED,
    WORKLOADS,
    Setting,
    Workload,
    called,
    names,
    rules,
    workload,
)


def setting(**changed: object) -> Setting:
    kept = {"sizes": 1.0, "times": 1.0, "dataset_bytes": 5 << 30, "memory_bytes": 1 << 30, "steps": 500}
    return Setting(**{**kept, "epochs": 5, "shuffle": False, "cache_dropped": True, **changed})  # type: ignore[arg-type]


def test_sizes_follow_the_stated_distributions() -> None:
    for name in ("unet3d", "cosmoflow", "imagefolder", "retinanet"):
        load = workload(name)
        data = data_set(load, steps=4000 // load.batch, accelerators=1, seed=1)
        sizes = [data.sizes(number)[0] for number in range(data.files)]
        assert statistics.mean(sizes) == pytest.approx(load.sample_bytes, rel=0.04), name
        if load.sd_bytes:
            assert statistics.stdev(sizes) == pytest.approx(load.sd_bytes, rel=0.06), name
        elif not load.sigma:
            assert set(sizes) == {load.sample_bytes}, name
        else:  # log-normal: its middle is below its mean
            assert statistics.median(sizes) == pytest.approx(
                load.sample_bytes * 2.718281828 ** -(0.5**2 / 2), rel=0.04
            )
        assert min(sizes) > 0


def test_sizes_are_the_same_again_and_differ_by_seed() -> None:
    first, other = (data_set(workload("unet3d"), steps=10, accelerators=1, seed=seed) for seed in (1, 2))
    assert first.sizes(3) == first.sizes(3) != other.sizes(3)


def test_a_factor_is_on_sizes_and_times_by_themselves() -> None:
    load = workload("unet3d", version="v2.0").scaled(sizes=0.1, times=0.5)
    assert load.sample_bytes == pytest.approx(14_660_062.8)
    assert load.compute_s == {"a100": pytest.approx(0.318), "h100": pytest.approx(0.1615)}
    assert (load.batch, load.readers, load.au_needed) == (7, 4, 0.9)


@pytest.mark.parametrize("load", WORKLOADS, ids=lambda load: load.name + load.version)
@pytest.mark.parametrize(("steps", "accelerators"), [(2, 1), (20, 2), (101, 3)])
def test_files_are_enough_for_the_steps_of_every_accelerator(
    load: Workload, steps: int, accelerators: int
) -> None:
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


def test_values_of_version_3_are_those_of_its_closed_submissions() -> None:
    # SAMSUNG/code-08dbf816/configs/dlio/workload/{retinanet,unet3d}_b200.yaml in mlcommons/storage_results_v3.0
    retinanet = workload("retinanet")
    assert (retinanet.version, retinanet.format, retinanet.sample_bytes) == ("v3.0", "jpeg", 322_957)
    assert (retinanet.batch, retinanet.readers, retinanet.compute_s) == (24, 4, {"b200": 0.04755})
    assert (retinanet.au_needed, retinanet.epochs, retinanet.shuffled) == (0.85, 8, True)
    unet3d = workload("unet3d")
    assert (unet3d.version, unet3d.batch, unet3d.readers, unet3d.compute_s) == (
        "v3.0",
        7,
        32,
        {"b200": 0.162},
    )
    assert (unet3d.au_needed, unet3d.epochs) == (0.9, 5)


@pytest.mark.parametrize(
    ("name", "version", "accelerator", "chosen"),
    [
        ("unet3d", "", "", "v3.0"),
        ("unet3d", "", "b200", "v3.0"),
        ("unet3d", "", "h100", "v2.0"),
        ("unet3d", "v2.0", "", "v2.0"),
        ("resnet50", "", "", "v2.0"),
        ("retinanet", "v3.0", "b200", "v3.0"),
        ("tokens", "v3.0", "a100", ""),
        ("tokens", "v2.0", "", ""),
    ],
)
def test_the_newest_version_that_has_the_workload(
    name: str, version: str, accelerator: str, chosen: str
) -> None:
    assert workload(name, version=version, accelerator=accelerator).version == chosen


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"name": "bert"}, "retinanet"),
        ({"name": "unet3d", "version": "v1.0"}, "v2.0, v3.0"),
        ({"name": "resnet50", "version": "v3.0"}, "--version v2.0"),
        ({"name": "retinanet", "accelerator": "a100"}, "b200"),
        ({"name": "unet3d", "version": "v2.0", "accelerator": "b200"}, "a100, h100"),
        ({"name": "unet3d", "accelerator": "v100"}, "a100, h100, b200"),
    ],
    ids=str,
)
def test_what_no_version_has_is_refused(wanted: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        workload(**wanted)


def test_jpegs_of_mlperf_are_in_one_directory_as_those_of_dlio() -> None:
    named = {name: data_set(workload(name), steps=2, accelerators=1, seed=1).name(7) for name in names()}
    assert named["retinanet"] == "train/img_07_of_48.jpeg"
    assert named["imagefolder"] == "train/007/img_007_of_512.jpeg"


def test_each_version_names_its_own_rules() -> None:
    for name, said in (("resnet50", "Submission Guidelines 6.6"), ("retinanet", "training/README.md")):
        assert said in rules(workload(name), setting())[0].text
    assert rules(workload("retinanet"), setting())[2].kept is False  # 8 epochs, not 5
    assert all(rule.kept for rule in rules(workload("retinanet"), setting(epochs=8, shuffle=True)))


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
