"""Run `headrace bench compare`: several ways to feed a GPU, with the same data and workload in one run. Read this
module first.

The data set is created at the origin. Each way in turn starts with nothing cached, runs all epochs, and ends. All of
them reach the origin through one proxy, which counts requests and bytes, and delays and throttles them as the plan
asks. With `nodes`, a lab is started: each of its nodes is a host with a link of its own.
"""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from headrace.base.decoding import convert
from headrace.base.errors import HeadraceError, NotSupportedError, UsageError
from headrace.bench import dataset, prices, systems, training
from headrace.bench.counting import StoreCounts
from headrace.bench.hosts import PORT, BenchHosts
from headrace.bench.process import Process
from headrace.bench.processor import processor_s
from headrace.bench.storage import Where, check_folder, open_place
from headrace.bench.systems import Bucket, HostSlot, SystemUnderTest
from headrace.bench.training import EpochHook, Say, Spot, TrainingPlan, TrainingResult
from headrace.lab import network, processes
from headrace.lab.lab import Lab, LabPlan

REFERENCE = "local disk"
"""Name of the way that the others are compared with."""
NOWHERE = Where("folder", "/")
"""Place of a plan, which is not used: each way has its own."""
ANSWER_WITHIN_S = 10.0
"""Time limit for an answer of the proxy, in seconds."""
LAB = "lab"
WAYS = ("local", "s3fs-library", "obstore", "rclone", "s3fs-fuse", "juicefs", "headrace")
"""Names for --only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparePlan:
    """Describe a run.

    training: its place and hosts are ignored. origin: s3://BUCKET/PREFIX; empty for a store that the run starts.
    folders: directories that the user named. only: names of WAYS; empty for all. nodes: nodes of a lab; 0 for this
    machine alone. rate_bits_s: rate of each node's link. origin_bytes_s, origin_latency_s: 0 for no limit.
    cache_bytes: cache of each way on each host. work: directory of caches and mounts.
    """

    training: TrainingPlan
    origin: str = ""
    options: dict[str, str] = field(default_factory=dict)
    folders: Sequence[str] = ()
    only: Sequence[str] = ()
    nodes: int = 0
    rate_bits_s: int = 0
    origin_bytes_s: float = 0.0
    origin_latency_s: float = 0.0
    cache_bytes: int = 20 << 30
    price: str = prices.DEFAULT
    prices: str = ""
    work: str = ""


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """Count what the origin served in an epoch. cost: in US dollars."""

    epoch: int
    bytes: int
    requests: int
    gets: int
    errors: int
    cost: float


class SystemResult(msgspec.Struct, kw_only=True):
    """Hold the measurements of one way.

    not_run: the reason if training is None. served: counts of each epoch. processor_s_gib: processor time of the way's
    own processes and of the readers, per GiB read.
    """

    name: str
    kind: str
    not_run: str = ""
    training: TrainingResult | None = None
    served: list[Served] = []
    disk_bytes: int = 0
    processor_s_gib: float = 0.0


class CompareResult(msgspec.Struct, kw_only=True):
    """Hold the output of --json. called: the name that the runs may bear."""

    called: str
    workload: str
    origin: str
    nodes: int
    rate_bits_s: int
    origin_bytes_s: float
    origin_latency_s: float
    dataset_bytes: int
    price: str
    ways: list[SystemResult]
    notes: list[str]


def run(plan: ComparePlan, *, say: Say, progress: dataset.Progress) -> CompareResult:
    """Run all ways. On return, also after an error, no process, mount or file of the run is left.

    Raises UsageError, HeadraceError.
    """
    price = prices.price(plan.price, plan.prices)
    _check(plan)
    with contextlib.ExitStack() as undo:
        work = tempfile.mkdtemp(prefix="hr-compare-", dir=plan.work or None)
        undo.callback(shutil.rmtree, work, ignore_errors=True)
        stage = _Stage(plan, work, undo, say)
        plan = stage.plan
        say(f"data set at {stage.bucket.url}")
        data = dataset.make(stage.direct, training.needed(plan.training), progress=progress)
        files = open_place(stage.direct).names("train")
        stage.up(undo, say)
        results = []
        for way in _ways(plan, work):
            say(f"{way.name}:")
            try:
                if isinstance(way, systems.LocalDirectory) or way.name == systems.JuiceFS.name:
                    target = (
                        way.path if isinstance(way, systems.LocalDirectory) else os.path.join(work, "plain")
                    )
                    dataset.make(Where("folder", target), training.needed(plan.training), progress=progress)
                results.append(_run_way(way, stage, data, files, price, say))
            except HeadraceError as error:
                say(f"  not run: {error}")
                results.append(SystemResult(name=way.name, kind=way.kind, not_run=str(error)))
    return _result(plan, stage, results, sum(files.values()), price)


class _Stage:
    """Hold the origin, its proxy, and the hosts."""

    def __init__(self, plan: ComparePlan, work: str, undo: contextlib.ExitStack, say: Say) -> None:
        self.lab: Lab | None = None
        self._work, self._slot_count = work, 0
        address, hosts = "127.0.0.1", BenchHosts()
        if plan.nodes:
            net = network.choose(os.path.join(work, LAB), plan.rate_bits_s)[0]
            undo.callback(net.remove)
            net.make()
            address, hosts = net.gateway, BenchHosts(plan.nodes, 0, f"{net.address(1)}:{PORT}")
        url, options = plan.origin, dict(plan.options)
        if not url:
            url, options = undo.enter_context(_own_store(work, say))
        endpoint = options.get("endpoint", "")
        if not endpoint.startswith("http://"):
            raise UsageError(
                f"origin {url}",
                why="requests are counted by a proxy, which needs an endpoint of plain HTTP",
                hint="--endpoint http://…; headrace bench training runs on any",
            )
        self.direct = Where("obstore", url, options)
        self._proxy = Process(
            [
                "-m",
                "headrace.bench.counting",
                address,
                endpoint,
                str(plan.origin_bytes_s),
                str(plan.origin_latency_s),
            ],
            inside=(),
            log=os.path.join(work, "proxy.log"),
        )
        undo.callback(self._proxy.kill)
        port = int(_answer(self._proxy)["port"])
        bucket, _, prefix = url.partition("://")[2].partition("/")
        self.bucket = Bucket(
            bucket, prefix.strip("/"), {**options, "endpoint": f"http://{address}:{port}"}, endpoint
        )
        self.plan = replace(plan, training=replace(plan.training, hosts=hosts))

    def up(self, undo: contextlib.ExitStack, say: Say) -> None:
        """Start the lab if the plan has nodes. The data set must exist before, because nodes keep listings."""
        plan, folder = self.plan, os.path.join(self._work, LAB)
        if not plan.nodes:
            return
        self.lab = undo.enter_context(Lab(os.path.join(folder, "state.json"), progress=say))
        os.makedirs(folder)
        self.lab.up(
            LabPlan(
                nodes=plan.nodes,
                rate_bits_s=plan.rate_bits_s,
                cache_bytes=plan.cache_bytes,
                origin=self.bucket.url,
                origin_options=self.bucket.options,
                folder=folder,
                sample=False,
            )
        )

    def of_each_host(self, way: SystemUnderTest) -> list[SystemUnderTest]:
        """Return one instance of a way for each host, not started."""
        if self.lab is None:
            return [way]
        if isinstance(way, systems.Headrace):
            return [_LabNode(self.lab, number) for number in range(1, self.plan.nodes + 1)]
        return [copy.copy(way) for _ in range(self.plan.nodes)]

    def slots(self, way: SystemUnderTest) -> list[HostSlot]:
        """Create a slot for each host."""
        self._slot_count += 1
        slots = []
        for number in range(1, (self.plan.nodes or 1) + 1):
            folder = os.path.join(self._work, f"way-{self._slot_count}-{number}")
            os.makedirs(folder)
            inside = tuple(self.lab.inside(number)) if self.lab is not None else ()
            slots.append(HostSlot(folder, self.plan.cache_bytes, inside))
        return slots

    def counts(self) -> StoreCounts:
        self._proxy.answer("count")
        return convert(_answer(self._proxy), StoreCounts)


class _LabNode(SystemUnderTest):
    """Use a node of the lab, which has run since the lab started."""

    name, kind = systems.Headrace.name, systems.OURS

    def __init__(self, lab: Lab, number: int) -> None:
        self._lab, self._number = lab, number

    def start(self, bucket: Bucket, slot: HostSlot) -> Where:
        return Where("folder", self._lab.mountpoint(self._number))

    def processes(self) -> list[int]:
        return list(processes.marked(self._lab.folder(self._number)))

    def disk_bytes(self) -> int:
        return systems.used_bytes(os.path.join(self._lab.folder(self._number), "cache"))


def _ways(plan: ComparePlan, work: str) -> list[SystemUnderTest]:
    """Return one instance of each way. The reference is the first, Headrace the last."""
    plain = os.path.join(work, "plain")
    reference = systems.LocalDirectory(plain)
    reference.name, reference.kind = REFERENCE, "reference"
    shared = os.path.join(work, "shared")
    os.makedirs(shared)
    factories: dict[str, Callable[[], SystemUnderTest]] = {
        "local": lambda: reference,
        "s3fs-library": lambda: systems.Library("fsspec"),
        "obstore": lambda: systems.Library("obstore"),
        "rclone": systems.Rclone,
        "s3fs-fuse": systems.S3fsFuse,
        "juicefs": lambda: systems.JuiceFS(plain, shared),
        "headrace": systems.Headrace,
    }
    named: list[SystemUnderTest] = [systems.LocalDirectory(os.path.abspath(path)) for path in plan.folders]
    chosen = [make() for name, make in factories.items() if name in plan.only or not plan.only]
    return [*chosen[:-1], *named, chosen[-1]]


def _run_way(
    way: SystemUnderTest,
    stage: _Stage,
    data: dataset.DataSet,
    files: dict[str, int],
    price: prices.Price,
    say: Say,
) -> SystemResult:
    plan, each = stage.plan, stage.of_each_host(way)
    at_start: dict[int, tuple[StoreCounts, float]] = {}
    served: list[Served] = []
    used_s = 0.0

    def between(event: str, epoch: int) -> None:
        nonlocal used_s
        counts, processors_s = (
            stage.counts(),
            processor_s(pid for system in each for pid in system.processes()),
        )
        if event == "ready":
            at_start[epoch] = counts, processors_s
            return
        before, before_s = at_start[epoch]
        used_s += max(0.0, processors_s - before_s)
        got = counts.since(before)
        served.append(
            Served(
                epoch=epoch,
                bytes=got.bytes_out,
                requests=got.requests,
                gets=got.gets,
                errors=got.errors,
                cost=price.of(got),
            )
        )

    try:
        spots = [
            Spot(system.start(stage.bucket, slot), slot.inside)
            for system, slot in zip(each, stage.slots(way), strict=True)
        ]
        training_plan = replace(plan.training, where=spots[0].where)
        times, dropped = training.measure(
            training_plan, data, files, spots, say=lambda line: say(f"  {line}"), watch=EpochHook(between)
        )
        measured = training.result(training_plan, data, files, times, page_cache=dropped)
        disk = sum(system.disk_bytes() for system in each)
    finally:
        for system in each:
            system.stop()
    read = sum(epoch.bytes_read for epoch in measured.epochs)
    used_s += sum(epoch.processor_s for epoch in measured.epochs)
    return SystemResult(
        name=way.name,
        kind=way.kind,
        training=measured,
        served=served,
        disk_bytes=disk,
        processor_s_gib=used_s / (read / 2**30) if read else 0.0,
    )


def _result(
    plan: ComparePlan, stage: _Stage, ways: list[SystemResult], dataset_bytes: int, price: prices.Price
) -> CompareResult:
    ran = [way.training for way in ways if way.training is not None]
    notes = [f"{plan.price}: {price.note}"] if price.note else []
    if plan.nodes:
        notes.append(
            "the nodes share this machine's processors; their links are shaped, its disk and memory are not"
        )
    return CompareResult(
        called=ran[0].called if ran else "",
        workload=plan.training.workload,
        origin=stage.bucket.url,
        nodes=plan.nodes,
        rate_bits_s=plan.rate_bits_s,
        origin_bytes_s=plan.origin_bytes_s,
        origin_latency_s=plan.origin_latency_s,
        dataset_bytes=dataset_bytes,
        price=plan.price,
        ways=ways,
        notes=[
            *notes,
            *(
                f"{way.name}: {note}"
                for way in ways
                if way.training is not None
                for note in way.training.notes
            ),
        ],
    )


@contextlib.contextmanager
def _own_store(work: str, say: Say) -> Iterator[tuple[str, dict[str, str]]]:
    from headrace.testing.servers import ServerMissing, seaweedfs_s3

    say("starting an object store (SeaweedFS)")
    try:
        with seaweedfs_s3(os.path.join(work, "store")) as server:
            yield server.url("compare"), server.options()
    except ServerMissing as error:
        raise NotSupportedError("bench compare without --origin", why=str(error)) from error


def _answer(proxy: Process) -> dict[str, Any]:
    end_s = time.monotonic() + ANSWER_WITHIN_S
    while (line := proxy.read_message()) is None:
        if time.monotonic() > end_s:
            raise HeadraceError("the counting proxy does not answer")
    return line


def _check(plan: ComparePlan) -> None:
    unknown = [name for name in plan.only if name not in WAYS]
    if unknown:
        raise UsageError(f"--only {unknown[0]}", why="unknown", hint=", ".join(WAYS))
    if plan.origin and not plan.origin.startswith("s3://"):
        raise UsageError(f"origin {plan.origin}", why="the ways have S3 in common", hint="s3://BUCKET/PREFIX")
    training.check_numbers(plan.training)
    for folder in plan.folders:
        check_folder(Where("folder", folder))
    if plan.work:
        check_folder(Where("folder", plan.work))
    if not 0 <= plan.nodes <= 64:
        raise UsageError(f"--nodes {plan.nodes}", why="0 to 64")
    if plan.rate_bits_s and not plan.nodes:
        raise UsageError("--rate", why="--rate limits the links of the lab", hint="--nodes N")
