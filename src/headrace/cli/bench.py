"""`headrace bench training | checkpoint | compare`: what storage does to training on these machines, without a GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from headrace.base.errors import UsageError
from headrace.cli import options
from headrace.cli.render import print_json, say, warn

if TYPE_CHECKING:
    from headrace.bench.dataset import Progress
    from headrace.bench.hosts import Hosts
    from headrace.bench.training import TrainingPlan

WorkloadName = Annotated[
    str, typer.Argument(metavar="WORKLOAD", help="unet3d, resnet50, cosmoflow, imagefolder or tokens.")
]
Target = Annotated[
    str,
    typer.Argument(
        metavar="WHERE", help="A folder, a mount, headrace:///PATH, s3://… or another fsspec URL."
    ),
]
Accelerator = Annotated[
    str, typer.Option("--accelerator", metavar="KIND", help="Whose compute time: a100 or h100.")
]
Accelerators = Annotated[int, typer.Option("--accelerators", metavar="N", help="Simulated on each host.")]
Steps = Annotated[
    int, typer.Option("--steps", metavar="N", help="Of an epoch; MLPerf Storage has 500 or more.")
]
ByTheRules = Annotated[
    bool, typer.Option("--by-the-rules", help="Instead: a data set as large as MLPerf Storage asks for.")
]
Epochs = Annotated[int, typer.Option("--epochs", metavar="N")]
Scale = Annotated[float, typer.Option("--scale", metavar="F", help="A factor on sizes and times.")]
ScaleSizes = Annotated[float | None, typer.Option("--scale-sizes", metavar="F", help="On sizes only.")]
ScaleTimes = Annotated[float | None, typer.Option("--scale-times", metavar="F", help="On times only.")]
Shuffle = Annotated[bool, typer.Option("--shuffle", help="Another order in each epoch.")]
Readers = Annotated[
    int | None,
    typer.Option("--readers", metavar="N", help="Loader workers an accelerator, if not the workload's."),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Of the data and of orders.")]
KeepCache = Annotated[bool, typer.Option("--keep-cache", help="Leave the page cache as it is.")]
NoGenerate = Annotated[bool, typer.Option("--no-generate", help="The data set must be there.")]
By = Annotated[str, typer.Option("--by", metavar="LIBRARY", help="Of a URL: fsspec or obstore.")]
HostCount = Annotated[int, typer.Option("--hosts", metavar="N", help="How many take part.")]
HostNumber = Annotated[int, typer.Option("--host", metavar="I", help="Which of them this is, from 0.")]
Meet = Annotated[
    str, typer.Option("--meet", metavar="HOST:PORT", help="Of the first host, which listens there.")
]
Ssh = Annotated[str, typer.Option("--ssh", metavar="HOST,HOST", help="Run this on these hosts, by ssh.")]
Remote = Annotated[str, typer.Option("--remote", metavar="COMMAND", help="How headrace is called there.")]
ModelName = Annotated[
    str, typer.Option("--model", metavar="MODEL", help="llama3-8b, llama3-70b, llama3-405b or llama3-1t.")
]
Folder = Annotated[str, typer.Argument(metavar="FOLDER", help="Where; a folder of its own is made in it.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Measure what storage does to training, without a GPU.", no_args_is_help=True)
    group.command("training")(training)
    group.command("checkpoint")(checkpoint)
    app.add_typer(group, name="bench")


def training(
    workload: WorkloadName,
    where: Target,
    accelerator: Accelerator = "a100",
    accelerators: Accelerators = 1,
    steps: Steps = 100,
    by_the_rules: ByTheRules = False,
    epochs: Epochs = 5,
    scale: Scale = 1.0,
    scale_sizes: ScaleSizes = None,
    scale_times: ScaleTimes = None,
    shuffle: Shuffle = False,
    readers: Readers = None,
    seed: Seed = 42,
    keep_cache: KeepCache = False,
    no_generate: NoGenerate = False,
    by: By = "fsspec",
    hosts: HostCount = 1,
    host: HostNumber = 0,
    meet: Meet = "",
    ssh: Ssh = "",
    remote: Remote = "headrace",
    endpoint: options.Endpoint = None,
    region: options.Region = None,
    profile: options.Profile = None,
    anonymous: options.Anonymous = False,
    option: options.OriginOption = None,
    json: options.Json = False,
) -> None:
    """Run a workload's epochs on the files of WHERE: real loaders, and a sleep for compute.

    The data set is made where there is none, and used again. Prints accelerator utilization (AU) as MLPerf Storage
    defines it.
    """
    if ssh:
        _over_ssh(ssh, remote)
    from headrace.bench import training as bench
    from headrace.bench.places import where as place_of
    from headrace.cli.up import origin_options

    bench.need_torch("bench training")
    given = origin_options(
        endpoint=endpoint, region=region, profile=profile, anonymous=anonymous, pairs=option or []
    )
    plan = bench.TrainingPlan(
        workload=workload,
        where=place_of(where, given, by=by),
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
        hosts=_hosts(hosts, host, meet),
    )
    _run_training(plan, by_the_rules=by_the_rules, as_json=json)


def _run_training(plan: TrainingPlan, *, by_the_rules: bool, as_json: bool) -> None:
    import dataclasses

    from headrace.bench import training as bench
    from headrace.bench.page import training_page

    if by_the_rules:
        plan = dataclasses.replace(plan, steps=bench.steps_by_the_rules(plan))
    with _bar("data set", quiet=as_json) as progress:
        found = bench.run(plan, say=_quiet if as_json else say, progress=progress)
    if found is not None:
        _show(found, training_page, as_json=as_json)
        if found.failed:
            _some_failed()


def _over_ssh(names: str, remote: str) -> NoReturn:
    from headrace.bench.hosts import over_ssh, words_without_ssh

    sys.exit(over_ssh(names.split(","), words_without_ssh(), program=remote))


def checkpoint(
    folder: Folder,
    model: ModelName = "llama3-8b",
    scale: Annotated[float, typer.Option("--scale", metavar="F", help="A factor on all sizes.")] = 0.01,
    mode: Annotated[
        str, typer.Option("--mode", metavar="MODE", help="subset: the first 8 ranks; default: all.")
    ] = "subset",
    writes: Annotated[int, typer.Option("--writes", metavar="N", help="MLPerf Storage has 10.")] = 3,
    reads: Annotated[int, typer.Option("--reads", metavar="N")] = 3,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the files.")] = False,
    keep_cache: KeepCache = False,
    json: options.Json = False,
) -> None:
    """Write checkpoints of a Llama 3 model into FOLDER as MLPerf Storage lays them out, and read them."""
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
    found = bench.run(plan, say=_quiet if json else say)
    _show(found, checkpoint_page, as_json=json)


def _hosts(count: int, number: int, meet: str) -> Hosts:
    from headrace.bench.hosts import Hosts, of_slurm
    from headrace.config.load import environment_of

    if count == 1 and not meet:
        return of_slurm(environment_of("SLURM_")) or Hosts()
    if count < 1:
        raise UsageError(f"--hosts {count}", why="1 or more")
    return Hosts(count, number, meet)


def _show(found: Any, page: Callable[[Any], str], *, as_json: bool) -> None:
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(found))
    else:
        say(page(found))


def _some_failed() -> None:
    from headrace.cli.exit_codes import SOME_FAILED

    warn("some reads failed")
    sys.exit(SOME_FAILED)


def _quiet(_line: str) -> None:
    return None


@contextmanager
def _bar(label: str, *, quiet: bool) -> Iterator[Progress]:
    """On a terminal; it goes when all is done."""
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
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)

        def advance(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)
            if done >= total:
                bar.stop()

        yield advance
