"""Run `headrace bench training`: a workload's epochs against files anywhere, without a GPU. Read this module first.

A run creates the data set, or uses an existing one. It starts the accelerators, drops the page cache before each epoch,
and reports their utilization (AU).
"""

from __future__ import annotations

import importlib.util
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from headrace.base.errors import NotSupportedError, UsageError
from headrace.bench import accelerators, dataset, pagecache, workloads
from headrace.bench.accelerators import Between, Host
from headrace.bench.dataset import DataSet
from headrace.bench.hosts import BenchHosts, MeetingPlace, address
from headrace.bench.loader_spec import LOADERS, TENSORFLOW, TORCH, LoaderSpec, RankPlan
from headrace.bench.metrics import EpochMetrics, EpochTimes, epoch_of
from headrace.bench.storage import Where, check_folder, open_place
from headrace.bench.workloads import Rule, Workload
from headrace.testing.servers import free_ports

EPOCHS = 5
"""Default number of epochs."""
SEED = 42
"""Default seed of the data set and of the order of samples."""
LATE_SHARE_NOTED = 0.03
"""Share of a step's compute time by which sleeps may end late before the report notes it."""
Say = Callable[[str], None]
"""A callback that prints a line of progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """Describe a run.

    version: of MLPerf Storage, empty for the newest that has the workload. accelerator: empty for the first that the
    workload has. sizes, times: factors on sample sizes and on compute times. steps: per epoch. accelerators: per host.
    readers: loader workers of each accelerator; None for the workload's number. generate: create a missing data set.
    drop: drop the page cache before each epoch. loader: one of LOADERS.
    """

    workload: str
    where: Where
    version: str = ""
    accelerator: str = ""
    accelerators: int = 1
    steps: int = 100
    epochs: int = EPOCHS
    sizes: float = 1.0
    times: float = 1.0
    shuffle: bool = False
    readers: int | None = None
    seed: int = SEED
    drop: bool = True
    generate: bool = True
    loader: str = TORCH
    hosts: BenchHosts = field(default_factory=BenchHosts)

    @property
    def scaled(self) -> Workload:
        chosen = workloads.workload(self.workload, version=self.version, accelerator=self.accelerator)
        return chosen.scaled(sizes=self.sizes, times=self.times)

    @property
    def kind(self) -> str:
        """Return the accelerator that is simulated."""
        return self.accelerator or next(iter(self.scaled.compute_s))

    @property
    def shuffled(self) -> bool:
        return self.shuffle or self.scaled.shuffled

    @property
    def world(self) -> int:
        return self.hosts.count * self.accelerators


class TrainingResult(msgspec.Struct, kw_only=True):
    """Hold the output of --json.

    version: of MLPerf Storage, empty for a workload of ours. au: mean of the epochs. passed: au is not below au_needed,
    and no read failed.
    """

    called: str
    workload: str
    version: str
    format: str
    where: str
    accelerator: str
    accelerators: int
    hosts: int
    readers: int
    loader: str
    batch: int
    compute_s: float
    sizes: float
    times: float
    shuffle: bool
    files: int
    samples: int
    dataset_bytes: int
    memory_bytes: int
    steps: int
    epochs: list[EpochMetrics]
    au: float
    au_needed: float
    passed: bool
    failed: int
    page_cache: str
    rules: list[Rule]
    notes: list[str] = []


@dataclass(frozen=True, slots=True)
class Spot:
    """Name the place of the data on a host. inside: command prefix that runs a command on that host."""

    where: Where
    inside: Sequence[str] = ()


@dataclass(slots=True)
class EpochHook:
    """Hold a callback between epochs, such as for reading counters.

    It is called with "ready" when all accelerators wait and the page cache was dropped, and with "done" when they wait
    again.
    """

    between: Between = field(default=lambda _event, _epoch: None)


def run(
    plan: TrainingPlan, *, say: Say, progress: dataset.Progress, watch: EpochHook | None = None
) -> TrainingResult | None:
    """Run all epochs. Return None on hosts other than the first, which has all measurements.

    Blocks until the run ends. Raises UsageError, HeadraceError.
    """
    _check(plan)
    meeting = MeetingPlace(plan.hosts)
    if plan.hosts.number:
        meeting.wait_for_data()
    data = prepare(plan, progress=progress)
    meeting.data_is_made()
    files = open_place(plan.where).names("train")
    _check_files(plan, data, files)
    times, dropped = measure(plan, data, files, [Spot(plan.where)], say=say, watch=watch)
    return result(plan, data, files, times, page_cache=dropped) if plan.hosts.number == 0 else None


def measure(
    plan: TrainingPlan,
    data: DataSet,
    files: Mapping[str, int],
    spots: Sequence[Spot],
    *,
    say: Say,
    watch: EpochHook | None = None,
) -> tuple[list[list[EpochTimes]], str]:
    """Return the times of all accelerators by epoch, and a description of how the page cache was dropped.

    spots: the hosts of this process, beginning with number plan.hosts.number. Blocks until the run ends. Raises
    HeadraceError.
    """
    feed = feed_of(plan, data)
    dropped = ["kept, as asked"]

    def between(event: str, epoch: int) -> None:
        if event == "ready":
            say(f"epoch {epoch} of {plan.epochs}")
            if plan.drop:
                local = [spot.where.root for spot in spots if spot.where.kind == "folder"]
                dropped[0] = pagecache.drop(os.path.join(root, name) for root in local for name in files)
        if watch is not None:
            watch.between(event, epoch)

    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        meet = plan.hosts.accelerators_meet if plan.hosts.count > 1 else f"127.0.0.1:{free_ports(1)[0]}"
        hosts = [
            Host(
                RankPlan(
                    feed=msgspec.structs.replace(feed, where=spot.where),
                    epochs=plan.epochs,
                    compute_s=plan.scaled.compute_s[plan.kind],
                    meet=meet,
                    first=number * plan.accelerators,
                    out=os.path.join(folder, "times.json"),
                ),
                plan.accelerators,
                tuple(spot.inside),
            )
            for number, spot in enumerate(spots, start=plan.hosts.number)
        ]
        return accelerators.run(hosts, between), dropped[0]


def prepare(plan: TrainingPlan, *, progress: dataset.Progress) -> DataSet:
    """Create the data set, or check the existing one, and return it."""
    wanted = needed(plan)
    if plan.generate and plan.hosts.number == 0:
        return dataset.make(plan.where, wanted, progress=progress)
    existing = dataset.read_note(open_place(plan.where))
    if existing is None:
        raise UsageError(
            f"{plan.where.root} has no data set", hint="make it first, without --no-generate, on one host"
        )
    dataset.check_same(plan.where.root, existing, wanted)
    return existing


def needed(plan: TrainingPlan) -> DataSet:
    """Return the data set that the plan's steps need."""
    return dataset.data_set(plan.scaled, steps=plan.steps, accelerators=plan.world, seed=plan.seed)


def feed_of(plan: TrainingPlan, data: DataSet) -> LoaderSpec:
    """Return the spec of the first accelerator; the others differ in their number."""
    scaled = plan.scaled
    wanted = needed(plan)
    samples = scaled.samples(plan.steps, plan.world)
    return LoaderSpec(
        where=plan.where,
        data=data,
        files=wanted.files,
        samples=samples,
        rank=0,
        world=plan.world,
        batch=scaled.batch,
        readers=scaled.readers if plan.readers is None else plan.readers,
        steps=plan.steps,
        handed_bytes=scaled.handed_bytes,
        shuffle=plan.shuffled,
        seed=plan.seed,
        loader=plan.loader,
        as_bytes=scaled.as_bytes,
        prefetch=scaled.prefetch,
    )


def result(
    plan: TrainingPlan,
    data: DataSet,
    files: Mapping[str, int],
    times: Sequence[Sequence[EpochTimes]],
    *,
    page_cache: str,
) -> TrainingResult:
    scaled = plan.scaled
    epochs = [epoch_of(number, each, batch=scaled.batch) for number, each in enumerate(times, start=1)]
    used = needed(plan)
    share = used.files * used.samples_a_file / (data.files * data.samples_a_file)
    size, memory = round(sum(files.values()) * min(1.0, share)), plan.hosts.count * pagecache.memory_bytes()
    setting = workloads.Setting(
        sizes=plan.sizes,
        times=plan.times,
        dataset_bytes=size,
        memory_bytes=memory,
        steps=plan.steps,
        epochs=plan.epochs,
        shuffle=plan.shuffled,
        cache_dropped=page_cache == pagecache.DROPPED,
    )
    kept = workloads.rules(scaled, setting)
    au, failed = sum(epoch.au for epoch in epochs) / len(epochs), sum(epoch.failed for epoch in epochs)
    return TrainingResult(
        called=workloads.called(scaled, kept),
        workload=scaled.name,
        version=scaled.version,
        format=scaled.format,
        where=plan.where.root + (f" (by {plan.where.kind})" if plan.where.kind != "folder" else ""),
        accelerator=plan.kind,
        accelerators=plan.world,
        hosts=plan.hosts.count,
        readers=scaled.readers if plan.readers is None else plan.readers,
        loader=plan.loader,
        batch=scaled.batch,
        compute_s=scaled.compute_s[plan.kind],
        sizes=plan.sizes,
        times=plan.times,
        shuffle=plan.shuffled,
        files=used.files,
        samples=scaled.samples(plan.steps, plan.world),
        dataset_bytes=size,
        memory_bytes=memory,
        steps=plan.steps,
        epochs=epochs,
        au=au,
        au_needed=scaled.au_needed,
        passed=au >= scaled.au_needed and not failed,
        failed=failed,
        page_cache=page_cache,
        rules=kept,
        notes=_notes(plan, epochs),
    )


def _notes(plan: TrainingPlan, epochs: Sequence[EpochMetrics]) -> list[str]:
    wanted_s = plan.scaled.compute_s[plan.kind]
    late = max(epoch.compute_s for epoch in epochs) / wanted_s - 1
    if late < LATE_SHARE_NOTED:
        return []
    more = f"{100 * late:.0f} %"
    return [f"compute took up to {more} longer than it should: the processors are busy, which flatters AU"]


def steps_by_the_rules(plan: TrainingPlan) -> int:
    """Return the number of steps for which the data set is as large as MLPerf Storage requires."""
    scaled = plan.scaled
    wanted = workloads.MEMORY_MULTIPLE * pagecache.memory_bytes() * plan.hosts.count
    return max(workloads.STEPS_MIN, math.ceil(wanted / (scaled.sample_bytes * scaled.samples(1, plan.world))))


def _check(plan: TrainingPlan) -> None:
    workloads.workload(plan.workload, version=plan.version, accelerator=plan.accelerator)
    _check_loader(plan)
    check_numbers(plan)
    if not 0 <= plan.hosts.number < plan.hosts.count:
        raise UsageError(f"--host {plan.hosts.number}", why=f"there are {plan.hosts.count}, from 0")
    if plan.hosts.count > 1:
        address(plan.hosts.meet)
    check_folder(plan.where)


def check_numbers(plan: TrainingPlan) -> None:
    """Raise UsageError for counts and factors that are out of range."""
    numbers: dict[str, int] = {"accelerators": plan.accelerators, "epochs": plan.epochs}
    for name, value in numbers.items():
        if value < 1:
            raise UsageError(f"--{name} {value}", why="1 or more")
    if (plan.readers or 0) < 0 or plan.seed < 0:
        raise UsageError("--readers and --seed", why="0 or more")
    if plan.steps < 2:
        raise UsageError(f"--steps {plan.steps}", why="2 or more: the first one does not count")
    if not (0 < plan.sizes < math.inf and 0 < plan.times < math.inf):
        raise UsageError("--scale", why="a number above 0")


def _check_loader(plan: TrainingPlan) -> None:
    if plan.loader not in LOADERS:
        raise UsageError(f"--loader {plan.loader}", why="unknown", hint=" or ".join(LOADERS))
    if plan.loader != TENSORFLOW:
        return
    if plan.scaled.format != "tfrecord" or plan.where.kind != "folder":
        raise UsageError(f"--loader {TENSORFLOW}", why="it reads tfrecords of a directory or a mount")
    if importlib.util.find_spec("tensorflow") is None:
        raise NotSupportedError(
            f"--loader {TENSORFLOW}", why="tensorflow is not installed", hint="pip install tensorflow"
        )


def _check_files(plan: TrainingPlan, data: DataSet, files: dict[str, int]) -> None:
    """Raise UsageError if the place lacks files of the data set."""
    lacking = [number for number in range(data.files) if data.name(number) not in files]
    if lacking:
        raise UsageError(
            f"{plan.where.root} lacks {len(lacking)} files",
            why=f"such as {data.name(lacking[0])}",
            hint="make the data set again: existing files are kept",
        )
