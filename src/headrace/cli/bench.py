"""Implements `headrace bench training | checkpoint | compare`: how storage affects training, without a GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from headrace.base.errors import UsageError
from headrace.base.hangup import end_as_by_interrupt
from headrace.base.missing_extras import require
from headrace.cli import bench_options as own
from headrace.cli import options
from headrace.cli.render import print_json, say, warn

if TYPE_CHECKING:
    from headrace.bench.compare import ComparePlan
    from headrace.bench.dataset import Progress
    from headrace.bench.hosts import BenchHosts
    from headrace.bench.training import TrainingPlan

PACKAGES = ("torch", "numpy", "google_crc32c")
"""Packages that training needs, in this process or in those of its ranks."""


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Measure how storage affects training, without a GPU.", no_args_is_help=True)
    group.command("training")(training)
    group.command("checkpoint")(checkpoint)
    group.command("compare")(compare)
    app.add_typer(group, name="bench")


def training(
    workload: own.WorkloadName,
    where: own.Target,
    version: own.Version = "",
    accelerator: own.Accelerator = "",
    accelerators: own.Accelerators = 1,
    steps: own.Steps = 100,
    by_the_rules: own.ByTheRules = False,
    epochs: own.Epochs = 5,
    scale: own.Scale = 1.0,
    scale_sizes: own.ScaleSizes = None,
    scale_times: own.ScaleTimes = None,
    shuffle: own.Shuffle = False,
    readers: own.Readers = None,
    loader: own.Loader = "torch",
    seed: own.Seed = 42,
    keep_cache: own.KeepCache = False,
    no_generate: own.NoGenerate = False,
    by: own.By = "fsspec",
    hosts: own.HostCount = 1,
    host: own.HostNumber = 0,
    meet: own.Meet = "",
    ssh: own.Ssh = "",
    remote: own.Remote = "headrace",
    endpoint: options.Endpoint = None,
    region: options.Region = None,
    profile: options.Profile = None,
    anonymous: options.Anonymous = False,
    option: options.OriginOption = None,
    json: options.Json = False,
) -> None:
    """Run epochs of a workload on files, without a GPU.

    Real loaders read the files of WHERE, and a sleep stands for compute. The command generates the data set if there is
    none, and leaves it for later runs. It prints accelerator utilization (AU) as MLPerf Storage defines it. The exit
    status is 50 when some reads failed.
    """
    if ssh:
        _over_ssh(ssh, remote)
    require(PACKAGES, "bench training", extra="bench")
    from headrace.bench import training as bench
    from headrace.bench.storage import where as place_of
    from headrace.cli.up import origin_options

    origin = origin_options(
        endpoint=endpoint, region=region, profile=profile, anonymous=anonymous, pairs=option or []
    )
    plan = bench.TrainingPlan(
        workload=workload,
        where=place_of(where, origin, by=by),
        version=version,
        accelerator=accelerator,
        accelerators=accelerators,
        steps=steps,
        epochs=epochs,
        sizes=scale if scale_sizes is None else scale_sizes,
        times=scale if scale_times is None else scale_times,
        shuffle=shuffle,
        readers=readers,
        seed=seed,
        drop=not keep_cache,
        generate=not no_generate,
        loader=loader,
        hosts=_hosts(hosts, host, meet),
    )
    _run_training(plan, by_the_rules=by_the_rules, as_json=json)


def _run_training(plan: TrainingPlan, *, by_the_rules: bool, as_json: bool) -> None:
    import dataclasses

    from headrace.bench import training as bench
    from headrace.bench.page import training_page

    end_as_by_interrupt()
    if by_the_rules:
        plan = dataclasses.replace(plan, steps=bench.steps_by_the_rules(plan))
    with _bar("data set", quiet=as_json) as progress:
        result = bench.run(plan, say=_quiet if as_json else say, progress=progress)
    if result is not None:
        _show(result, training_page, as_json=as_json)
        if result.failed:
            _exit_for_failed_reads()


def _over_ssh(names: str, remote: str) -> NoReturn:
    from headrace.bench.hosts import over_ssh, words_without_ssh

    sys.exit(over_ssh(names.split(","), words_without_ssh(), program=remote))


def checkpoint(
    folder: own.Folder,
    model: own.ModelName = "llama3-8b",
    scale: own.ScaleOfSizes = 0.01,
    mode: own.Mode = "subset",
    writes: own.Writes = 3,
    reads: own.Reads = 3,
    keep: own.Keep = False,
    keep_cache: own.KeepCache = False,
    json: options.Json = False,
) -> None:
    """Write and read checkpoints of a Llama 3 model.

    Files, their sizes and ranks are those of MLPerf Storage.
    """
    from headrace.bench import checkpoints as bench
    from headrace.bench.page import checkpoint_page

    plan = bench.CheckpointPlan(
        model=model,
        folders=[(folder, ())],
        scale=scale,
        mode=mode,
        writes=writes,
        reads=reads,
        keep=keep,
        drop=not keep_cache,
    )
    end_as_by_interrupt()
    result = bench.run(plan, say=_quiet if json else say)
    _show(result, checkpoint_page, as_json=json)


def compare(
    workload: own.WorkloadName,
    origin: own.Origin = "",
    folder: own.Folders = None,
    only: own.Only = "",
    nodes: own.Nodes = 0,
    rate: own.Rate = "",
    origin_rate: own.OriginRate = "",
    origin_latency_ms: own.OriginLatency = 0.0,
    cache: own.CacheSize = "20GiB",
    work: own.Work = "",
    price: own.Price = "aws-s3-same-region",
    prices: own.Prices = "",
    report: own.Report = "",
    version: own.Version = "",
    accelerator: own.Accelerator = "",
    accelerators: own.Accelerators = 1,
    steps: own.Steps = 100,
    epochs: own.Epochs = 3,
    scale: own.Scale = 1.0,
    scale_sizes: own.ScaleSizes = None,
    scale_times: own.ScaleTimes = None,
    shuffle: own.Shuffle = False,
    readers: own.Readers = None,
    keep_cache: own.KeepCache = False,
    endpoint: options.Endpoint = None,
    region: options.Region = None,
    option: options.OriginOption = None,
    json: options.Json = False,
) -> None:
    """Run a workload in each of the ways to feed a GPU.

    The ways are object storage, caches of each node, mounted directories and Headrace. All read the same data in the
    same run, and each begins with an empty cache. The result names the ways that are not installed.
    """
    require(PACKAGES, "bench compare", extra="bench")
    from headrace.bench import compare as bench
    from headrace.bench.training import TrainingPlan
    from headrace.cli.up import origin_options

    origin_settings = origin_options(
        endpoint=endpoint, region=region, profile=None, anonymous=False, pairs=option or []
    )
    plan = bench.ComparePlan(
        training=TrainingPlan(
            workload=workload,
            where=bench.NOWHERE,
            version=version,
            accelerator=accelerator,
            accelerators=accelerators,
            steps=steps,
            epochs=epochs,
            sizes=scale if scale_sizes is None else scale_sizes,
            times=scale if scale_times is None else scale_times,
            shuffle=shuffle,
            readers=readers,
            drop=not keep_cache,
        ),
        origin=origin,
        options=origin_settings,
        folders=folder or [],
        only=[name for name in only.split(",") if name],
        nodes=nodes,
        price=price,
        prices=prices,
        work=work,
        **_speeds(rate, origin_rate, origin_latency_ms, cache),
    )
    _run_compare(plan, report, as_json=json)


def _speeds(rate: str, origin_rate: str, latency_ms: float, cache: str) -> dict[str, Any]:
    from headrace.base.sizes import parse_size
    from headrace.lab.network import parse_rate

    return {
        "rate_bits_s": parse_rate(rate) if rate else 0,
        "origin_bytes_s": parse_size(origin_rate) if origin_rate else 0,
        "origin_latency_s": latency_ms / 1e3,
        "cache_bytes": parse_size(cache),
    }


def _run_compare(plan: ComparePlan, report: str, *, as_json: bool) -> None:
    from headrace.bench import compare as bench
    from headrace.bench.compare_page import text_page, write_report

    end_as_by_interrupt()
    with _bar("data set", quiet=as_json) as progress:
        result = bench.run(plan, say=_quiet if as_json else say, progress=progress)
    _show(result, text_page, as_json=as_json)
    if report:
        for path in write_report(result, report):
            warn(f"written: {path}")


def _hosts(count: int, number: int, meet: str) -> BenchHosts:
    from headrace.bench.hosts import BenchHosts, of_slurm
    from headrace.config.load import environment_of

    if count == 1 and not meet:
        return of_slurm(environment_of("SLURM_")) or BenchHosts()
    if count < 1:
        raise UsageError(f"--hosts {count}", why="the number of hosts is below 1")
    return BenchHosts(count, number, meet)


def _show(result: Any, page: Callable[[Any], str], *, as_json: bool) -> None:
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(result))
    else:
        say(*page(result).splitlines())


def _exit_for_failed_reads() -> None:
    from headrace.cli.exit_codes import SOME_FAILED

    warn("some reads failed")
    sys.exit(SOME_FAILED)


def _quiet(_line: str) -> None:
    return None


@contextmanager
def _bar(label: str, *, quiet: bool) -> Iterator[Progress]:
    """Show a progress bar on a terminal, and remove it at the end."""
    if quiet or not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (TextColumn(label), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    if console.is_dumb_terminal:
        yield lambda _done, _total: None
        return
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=None)

        def advance(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)
            if done >= total:
                bar.stop()

        yield advance
