"""The demo: a data set in a real object store, read twice through a mount, checked, timed, beside a plain folder.

`./dev demo [--size FACTOR] [--json]`. Everything lives in one temporary folder; whatever happens (an error, ^C,
SIGTERM) the mount, the processes and the folder are gone at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any

from headrace.base.errors import HeadraceError
from headrace.base.interpreter import module_command
from headrace.cli.render import print_json, say, warn
from headrace.config.secret_options import option_words
from headrace.config.sizes import show_size

SMALL_COUNT = 1500
SMALL_BYTES = 110_000
LARGE_COUNT = 2
LARGE_BYTES = 64 << 20
READ_BYTES = 1 << 20
READY_WITHIN_S = 60.0
STOP_WITHIN_S = 60.0
THREADS = 4

Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class DemoEpoch:
    """One reading of all files. origin_*: what the node asked of the object store meanwhile; 0 for a plain folder."""

    name: str
    took_s: float
    files: int
    bytes_read: int
    origin_bytes: int = 0
    origin_requests: int = 0

    @property
    def bytes_s(self) -> float:
        return self.bytes_read / self.took_s

    @property
    def files_s(self) -> float:
        return self.files / self.took_s


class DemoError(HeadraceError):
    """The demo saw something that must not be: wrong bytes, or no mount."""

    code = "internal"


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev demo", description="Headrace on a data set of some 300 MB.")
    parser.add_argument("--size", type=float, default=1.0, metavar="FACTOR", help="1 is some 300 MB")
    parser.add_argument("--io", default="auto", help="as of `headrace up`")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    for one in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(one, _interrupt)
    try:
        with contextlib.ExitStack() as undo:
            return run(arguments.size, arguments.io, undo, as_json=arguments.json)
    except KeyboardInterrupt:
        warn("demo stopped; everything is cleaned up")
        return 130
    except HeadraceError as error:
        warn(f"demo: {error}")
        return 1


def run(size: float, io: str, undo: contextlib.ExitStack, *, as_json: bool) -> int:
    """undo: takes what is to be cleaned up."""
    from headrace.testing.servers import ServerMissing, seaweedfs_s3

    folder = tempfile.mkdtemp(prefix="headrace-demo-")
    undo.callback(shutil.rmtree, folder, ignore_errors=True)
    shown = (lambda _line: None) if as_json else say
    shown("starting an object store (SeaweedFS)")
    try:
        server = undo.enter_context(seaweedfs_s3())
    except ServerMissing as error:
        warn(f"demo: {error}")
        return 1
    except RuntimeError as error:
        raise DemoError("the object store did not start", why=str(error)[-300:]) from error
    plain = os.path.join(folder, "plain")
    sums = put_data(server.put, plain, size, quiet=as_json)
    mountpoint = os.path.join(folder, "mount")
    os.mkdir(mountpoint)
    environment = os.environ | {"HEADRACE_RUN_FOLDER": os.path.join(folder, "run")}
    ready = undo.enter_context(
        mounted(server.url("train"), mountpoint, folder, io, server.options(), environment)
    )
    shown(f"headrace up: ready in {ready['ready_s']:.2f} s, io {ready['io']} ({ready['why']})")
    epochs = []
    for name in ("first epoch", "second epoch"):
        before = _origin_counts(environment)
        took_s = read_all(mountpoint, sums, label=name, quiet=as_json)
        after = _origin_counts(environment)
        epochs.append(_epoch(name, took_s, sums, after[0] - before[0], after[1] - before[1]))
    _drop_from_memory(plain, sums)
    for name in ("plain folder, from disk", "plain folder, in memory"):
        epochs.append(_epoch(name, read_all(plain, sums, label=name, quiet=as_json), sums, 0, 0))
    _show(epochs, ready, as_json=as_json)
    return 0


def put_data(
    put: Callable[[str, bytes], None], plain: str, size: float, *, quiet: bool
) -> dict[str, tuple[int, str]]:
    """Random files into the object store below train/ and, the same, into a plain folder. Name → (bytes, BLAKE2)."""
    rng = random.Random(7)
    small = max(1, round(SMALL_COUNT * size))
    large_bytes = max(READ_BYTES, round(LARGE_BYTES * size))
    plan = [
        (f"images/{n % 10}/{n:06d}.bin", SMALL_BYTES + rng.randrange(-20_000, 20_000)) for n in range(small)
    ]
    plan += [(f"shards/{n}.tar", large_bytes) for n in range(LARGE_COUNT)]
    sums: dict[str, tuple[int, str]] = {}

    def put_one(name: str, data: bytes) -> int:
        path = os.path.join(plain, name)
        with open(path, "wb") as out:
            out.write(data)
        put(f"train/{name}", data)
        return len(data)

    for name, _ in plan:
        os.makedirs(os.path.dirname(os.path.join(plain, name)), exist_ok=True)
    with _bar("putting data", sum(length for _, length in plan), quiet=quiet) as advance:
        with ThreadPoolExecutor(THREADS) as pool:
            pending = []
            for name, length in plan:
                data = rng.randbytes(length)
                sums[name] = (length, hashlib.blake2b(data, digest_size=16).hexdigest())
                pending.append(pool.submit(put_one, name, data))
                if len(pending) >= 2 * THREADS:
                    advance(pending.pop(0).result())
            for one in pending:
                advance(one.result())
    return sums


@contextlib.contextmanager
def mounted(
    url: str, mountpoint: str, folder: str, io: str, options: dict[str, str], environment: dict[str, str]
) -> Iterator[dict[str, Any]]:
    """`headrace up` as a process; what it said when it was ready. Unmounted on the way out."""
    command = module_command("headrace", "up", url, mountpoint, "--io", io, "--json")
    command += ["--cache", f"{os.path.join(folder, 'cache')}:4GiB"]
    command += option_words(options, folder)
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment, start_new_session=True
    )
    try:
        assert process.stdout is not None
        readable, _, _ = select.select([process.stdout], [], [], READY_WITHIN_S)
        line = process.stdout.readline() if readable else b""
        if not line:
            raise DemoError("headrace up", why="it did not become ready")
        yield json.loads(line)
    finally:
        process.terminate()
        try:
            process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            down = module_command("headrace", "down", mountpoint)
            subprocess.run(down, env=environment, check=False, timeout=STOP_WITHIN_S)


def read_all(folder: str, sums: dict[str, tuple[int, str]], *, label: str, quiet: bool) -> float:
    """Reads every file once in a shuffled order and checks it; the seconds it took, checking included."""
    names = sorted(sums)
    random.Random(label).shuffle(names)

    def read_one(name: str) -> int:
        length, expected = sums[name]
        digest = hashlib.blake2b(digest_size=16)
        with open(os.path.join(folder, name), "rb", buffering=0) as source:
            while part := source.read(READ_BYTES):
                digest.update(part)
        if digest.hexdigest() != expected:
            raise DemoError(f"{folder}/{name}", why="its bytes are not those that were put")
        return length

    with _bar(label, sum(length for length, _ in sums.values()), quiet=quiet) as advance:
        began_s = time.perf_counter()
        pool = ThreadPoolExecutor(THREADS)
        try:
            for length in pool.map(read_one, names):
                advance(length)
        finally:
            pool.shutdown(cancel_futures=True)
        return time.perf_counter() - began_s


def _epoch(
    name: str, took_s: float, sums: dict[str, tuple[int, str]], bytes_: int, requests: int
) -> DemoEpoch:
    return DemoEpoch(name, took_s, len(sums), sum(length for length, _ in sums.values()), bytes_, requests)


def _origin_counts(environment: dict[str, str]) -> tuple[int, int]:
    """Bytes and requests that the node has asked of its origins so far."""
    command = module_command("headrace", "status", "--json")
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False, timeout=30)
    if done.returncode != 0:
        raise DemoError("headrace status", why=f"exit status {done.returncode}")
    origin = json.loads(done.stdout)["origin"]
    return int(origin["bytes_read"]), int(origin["requests"])


def _drop_from_memory(folder: str, sums: dict[str, tuple[int, str]]) -> None:
    """The plain files, as the cached ones before the first epoch, are not in the page cache."""
    for name in sums:
        with open(os.path.join(folder, name), "rb") as source:
            os.fsync(source.fileno())
            os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _show(epochs: list[DemoEpoch], ready: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        rows = [asdict(one) | {"bytes_s": one.bytes_s, "files_s": one.files_s} for one in epochs]
        print_json({"epochs": rows, "verified": True, "ready_s": ready["ready_s"], "io": ready["io"]})
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    first = epochs[0]
    table = Table(
        title=f"{first.files} files, {show_size(first.bytes_read)}, every byte checked, {THREADS} threads",
        box=box.SIMPLE,
        pad_edge=False,
        collapse_padding=True,  # 80 columns are enough
    )
    table.add_column("reading")
    for name in ("seconds", "GB/s", "files/s", "from\norigin", "requests", "from\ncache"):
        table.add_column(name, justify="right")
    for one in epochs:
        ours = one.name.endswith("epoch")
        table.add_row(
            one.name,
            f"{one.took_s:.2f}",
            f"{one.bytes_s / 1e9:.2f}",
            f"{one.files_s:.0f}",
            show_size(one.origin_bytes) if ours else "",
            str(one.origin_requests) if ours else "",
            show_size(max(0, one.bytes_read - one.origin_bytes)) if ours else "",
        )
    Console().print(table)
    say(
        "The second epoch is beside the plain folder in memory: both were read just before. "
        "Seconds include the checksums."
    )


@contextlib.contextmanager
def _bar(label: str, total_bytes: int, *, quiet: bool) -> Iterator[Advance]:
    if quiet or not sys.stderr.isatty():
        yield lambda _bytes: None
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total_bytes)
        yield lambda length: bar.advance(task, length)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    for one in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(one, signal.SIG_IGN)  # cleaning up is not to be broken off
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
