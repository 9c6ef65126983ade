"""Cold epochs of a real training job through a mount, over a link of 1.1 times its demand, with and without a plan.

The job is torch's DataLoader with four workers, whose step is a sleep (`trainer.py`). The node has a network of its
own, with a link to SeaweedFS that `tc tbf` limits. Requests arrive late there, as in a cloud. Each run has a new, empty
cache. The second epoch is warm. The figure is the accelerator utilization (AU) of the cold epoch, of the warm one's in
the same run; also without the wait for the first batch, which each worker reads while the cache is empty.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from nodebench import server
from nodebench.data import s5cmd
from nodebench.headrace_mount import HeadraceMount
from nodebench.machine import NotRunError, drop_page_cache, run, stop, tool
from nodebench.server import Server

from headrace.lab.network import Namespaces, why_no_namespaces

from .cases import Bench

LINK_SHARE = 1.1
ORIGIN_DELAY_S = 0.03
"""Seconds after which the object store sees a request: S3's first byte takes 20 to 100 ms."""
TOKEN_FILES, TOKENS_AT_ONCE = 6, 1 << 20
COLD = "AU of the cold epoch, of the warm one's:"
STEADY = "the same, from the first batch on:"
WARM = "AU of the warm epoch:"
FIRST = "wait for the first batches of the second epoch:"
ORIGIN = "bytes from the origin, in data sets:"


@dataclass(frozen=True)
class Workload:
    """size_bytes: of a sample. batch: samples a step. step_s: of the accelerator, longer than a real one's, so that two
    cores can serve it. count: of the samples at scale 1. kind: "files", a file each; "tokens", windows of token files;
    "arrow", rows of Arrow files as Hugging Face's `save_to_disk` makes them."""

    size_bytes: int
    batch: int
    step_s: float
    count: int
    kind: str = "files"

    @property
    def demand_bytes_s(self) -> float:
        return self.size_bytes * self.batch / self.step_s


WORKLOADS = {
    "retinanet": Workload(322_957, 24, 0.19, 6000),
    "imagefolder": Workload(110_000, 64, 0.2, 16_000),
    "tokens": Workload(16_384, 64, 0.05, 24_576, "tokens"),
    "arrow": Workload(2048, 512, 0.05, 196_608, "arrow"),
}
PARTS_OF_FILES = ("tokens", "arrow")
"""Workloads of samples that are parts of large files. A sample takes an extent of 1 MiB, so the first batches of a
shuffled epoch need about all bytes, and no order of fetches helps: their goal is another one."""


CONTENDERS = ("plan", "predictions", "no plan")
"""Of the order of the reads: known from the job, guessed from its opens, not used."""


def epochs(bench: Bench) -> None:
    store = server.start(bench.place)
    for name, load in WORKLOADS.items():
        count = max(40 * load.batch, round(load.count * bench.scale))
        folder = bench.place.folder(name)
        make_data(folder, load, count)
        s5cmd(store, ["cp", f"{folder}/", f"s3://{store.bucket}/{name}/"], timeout_s=600)
        rate_bits_s = round(LINK_SHARE * load.demand_bytes_s * 8)
        bench.results.note(
            f"{name}: {count} files, {load.demand_bytes_s / 1e6:.1f} MB/s, link {rate_bits_s / 1e6:.0f} Mbit/s, "
            f"each request {1000 * ORIGIN_DELAY_S:.0f} ms late"
        )
        for _ in range(bench.repeat):
            for contender in CONTENDERS:
                with bench.attempt(f"{COLD} {name}", contender), limited(bench, store, rate_bits_s) as place:
                    add(bench, name, load, contender, *run_job(bench, store, name, load, contender, place))


def make_data(folder: str, load: Workload, count: int) -> None:
    if load.kind == "files":
        make_files(folder, load.size_bytes, count)
    elif load.kind == "tokens":
        make_tokens(folder, load.size_bytes * count)
    else:
        make_arrow(folder, load.size_bytes, count)


def make_tokens(folder: str, size_bytes: int) -> None:
    """Make 6 files of random tokens of 2 bytes."""
    for number in range(TOKEN_FILES):
        with open(f"{folder}/{number}.bin", "wb") as file:
            for start in range(0, size_bytes // TOKEN_FILES, TOKENS_AT_ONCE):
                file.write(os.urandom(min(TOKENS_AT_ONCE, size_bytes // TOKEN_FILES - start)))


def make_arrow(folder: str, size_bytes: int, count: int) -> None:
    """Make a data set of Hugging Face of random texts."""
    import datasets  # type: ignore[import-untyped]

    def rows() -> Iterator[dict[str, str]]:
        for _ in range(count):
            yield {"text": os.urandom(size_bytes // 2).hex()}

    data = datasets.Dataset.from_generator(rows, cache_dir=f"{folder}-cache")
    data.save_to_disk(folder, num_shards=TOKEN_FILES)


def make_files(folder: str, size_bytes: int, count: int) -> None:
    block = os.urandom(8 << 20)
    for number in range(count):
        if number % 500 == 0:
            os.makedirs(f"{folder}/d{number // 500:02d}")
        offset = number * 4099 % (len(block) - size_bytes)
        with open(f"{folder}/d{number // 500:02d}/{number:05d}", "wb") as file:
            file.write(block[offset : offset + size_bytes])


@dataclass(frozen=True)
class Limited:
    """A network with a limited link. inside: the words before a command that is to run in it. endpoint: of the object
    store, beyond the link."""

    inside: list[str]
    endpoint: str


@contextmanager
def limited(bench: Bench, store: Server, rate_bits_s: int) -> Iterator[Limited]:
    why = why_no_namespaces()
    if why:
        raise NotRunError(why)
    network = Namespaces(bench.place.folder("network"), rate_bits_s)
    port = store.endpoint.rsplit(":", 1)[1]
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "forward.py")
    try:
        network.make()
        network.add(1)
        words = [tool("python"), program, network.gateway, port, port, str(ORIGIN_DELAY_S)]
        forwarder = subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True)
        try:
            assert forwarder.stdout is not None
            forwarder.stdout.readline()
            yield Limited(network.inside(1), f"http://{network.gateway}:{port}")
        finally:
            stop(forwarder, grace_s=1)
    finally:
        network.remove()


class LimitedMount(HeadraceMount):
    """A mount whose node is behind the link."""

    def __init__(self, bench: Bench, store: Server, name: str, contender: str, place: Limited) -> None:
        super().__init__(
            bench.place,
            f"s3://{store.bucket}/{name}",
            io="noopen",
            endpoint=place.endpoint,
            options=store.options(),
        )
        self._inside = place.inside
        self._predicts = contender == "predictions"
        self._run_folder = bench.place.folder("run")

    def command(self) -> list[str]:
        return [*self._inside, *super().command()]

    def environment(self) -> dict[str, str]:
        own = {"HEADRACE_RUN_FOLDER": self._run_folder, "HEADRACE_PREDICT_READS": str(self._predicts).lower()}
        return {**super().environment(), **own}


def run_job(
    bench: Bench, store: Server, name: str, load: Workload, contender: str, place: Limited
) -> tuple[list[dict[str, Any]], int]:
    """Return what the trainer measured in each epoch, and the bytes that left the origin."""
    mount = LimitedMount(bench, store, name, contender, place)
    try:
        mount.start()
        drop_page_cache()
        trainer = os.path.join(os.path.dirname(os.path.abspath(__file__)), "trainer.py")
        words = [tool("python"), trainer, mount.root, str(load.batch), str(load.step_s), "2", load.kind]
        before = [tool("headrace"), "run", "--"] if contender == "plan" else []
        out = run([*before, *words], timeout_s=900, env=mount.environment())
        return json.loads(out.strip().splitlines()[-1]), int(mount.status()["origin"]["bytes_read"])
    finally:
        mount.stop()


def add(
    bench: Bench, name: str, load: Workload, contender: str, measured: list[dict[str, Any]], origin_bytes: int
) -> None:
    cold, warm = (epoch["steps"] * load.step_s / epoch["seconds"] for epoch in measured)
    bench.say(f"  {name} {contender}: AU {cold:.3f} cold, {warm:.3f} warm")
    bench.results.add(f"{COLD} {name}", contender, cold / warm, unit="share")
    steady = measured[0]["steps"] * load.step_s / (measured[0]["seconds"] - measured[0]["wait_s"])
    bench.results.add(f"{STEADY} {name}", contender, steady / warm, unit="share")
    bench.results.add(f"{WARM} {name}", contender, warm, unit="share")
    bench.results.add(f"{FIRST} {name}", contender, measured[1]["first_wait_s"] / load.step_s, unit="steps")
    bench.results.add(f"{ORIGIN} {name}", contender, origin_bytes / measured[0]["bytes"], unit="data sets")
