"""Runs the demo: reads a data set of a real object store twice through a mount, and beside it a plain directory.

`./dev demo [--size FACTOR] [--json]` checks every byte and prints the times. All files are in one temporary directory.
The demo removes the mount, the processes and the directory at its end, also after an error, ^C or SIGTERM.
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
from headrace.base.sizes import show_size
from headrace.cli.render import print_json, say, warn
from headrace.config.secret_options import option_words

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
    """Measures one pass over all files. origin_*: what the node requested meanwhile; 0 for a plain directory."""

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
    """Signals that the demo failed: wrong bytes, or no mount."""

    code = "internal"


def main() -> int:
    """Run the demo with the options of the command line, and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="./dev demo", description="Read a data set of some 300 MB through Headrace."
    )
    parser.add_argument(
        "--size",
        type=float,
        default=1.0,
        metavar="FACTOR",
        help="Scale the data set by this factor; 1 (the default) is some 300 MB.",
    )
    parser.add_argument("--io", default="auto", help="I/O mode of the mount, as of `headrace up`.")
    parser.add_argument("--json", action="store_true", help="Print the result as JSON.")
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _interrupt)
    try:
        with contextlib.ExitStack() as undo:
            return run(arguments.size, arguments.io, undo, as_json=arguments.json)
    except KeyboardInterrupt:
        warn("demo: stopped; mount, processes and files are removed")
        return 130
    except HeadraceError as error:
        warn(f"demo: {error}")
        return 1


def run(size: float, io: str, undo: contextlib.ExitStack, *, as_json: bool) -> int:
    """Run the demo, and return its exit status. undo: the stack that the demo adds its cleanups to."""
    from headrace.testing.servers import ServerMissing, seaweedfs_s3

    folder = tempfile.mkdtemp(prefix="headrace-demo-")
    undo.callback(shutil.rmtree, folder, ignore_errors=True)
    show = (lambda _line: None) if as_json else say
    show("starting an object store (SeaweedFS)")
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
    show(f"headrace up: ready in {ready['ready_s']:.2f} s, io {ready['io']} ({ready['why']})")
    epochs = []
    for name in ("first epoch", "second epoch"):
        before = _origin_counts(environment)
        took_s = read_all(mountpoint, sums, label=name, quiet=as_json)
        after = _origin_counts(environment)
        epochs.append(_epoch(name, took_s, sums, after[0] - before[0], after[1] - before[1]))
    _drop_from_memory(plain, sums)
    for name in ("plain, from disk", "plain, in memory"):
        epochs.append(_epoch(name, read_all(plain, sums, label=name, quiet=as_json), sums, 0, 0))
    _show(epochs, ready, as_json=as_json)
    return 0


def put_data(
    put: Callable[[str, bytes], None], plain: str, size: float, *, quiet: bool
) -> dict[str, tuple[int, str]]:
    """Write random files to the object store below train/ and to a plain directory. Returns name → (bytes, BLAKE2)."""
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
            for future in pending:
                advance(future.result())
    return sums


@contextlib.contextmanager
def mounted(
    url: str, mountpoint: str, folder: str, io: str, options: dict[str, str], environment: dict[str, str]
) -> Iterator[dict[str, Any]]:
    """Run `headrace up` as a process, yield what it prints when it is ready, and unmount at the end."""
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
            raise DemoError("headrace up", why=f"the mount was not ready within {READY_WITHIN_S:.0f} s")
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
    """Read and check every file once, in a shuffled order. Returns the seconds that it took, checksums included."""
    names = sorted(sums)
    random.Random(label).shuffle(names)

    def read_one(name: str) -> int:
        length, expected = sums[name]
        digest = hashlib.blake2b(digest_size=16)
        with open(os.path.join(folder, name), "rb", buffering=0) as source:
            while part := source.read(READ_BYTES):
                digest.update(part)
        if digest.hexdigest() != expected:
            raise DemoError(f"{folder}/{name}", why="its bytes differ from those that were uploaded")
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
    """Return the bytes that the node has read from its origins so far, and the number of requests."""
    command = module_command("headrace", "status", "--json")
    status = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False, timeout=30)
    if status.returncode != 0:
        raise DemoError("headrace status", why=f"exit status {status.returncode}")
    origin = json.loads(status.stdout)["origin"]
    return int(origin["bytes_read"]), int(origin["requests"])


def _drop_from_memory(folder: str, sums: dict[str, tuple[int, str]]) -> None:
    """Drop the plain files from the page cache, as the cached files were before the first epoch."""
    for name in sums:
        with open(os.path.join(folder, name), "rb") as source:
            os.fsync(source.fileno())
            os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _show(epochs: list[DemoEpoch], ready: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        rows = [asdict(epoch) | {"bytes_s": epoch.bytes_s, "files_s": epoch.files_s} for epoch in epochs]
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
    for epoch in epochs:
        is_mount = epoch.name.endswith("epoch")
        table.add_row(
            epoch.name,
            f"{epoch.took_s:.2f}",
            f"{epoch.bytes_s / 1e9:.2f}",
            f"{epoch.files_s:.0f}",
            show_size(epoch.origin_bytes) if is_mount else "",
            str(epoch.origin_requests) if is_mount else "",
            show_size(max(0, epoch.bytes_read - epoch.origin_bytes)) if is_mount else "",
        )
    Console().print(table)
    say(
        "Compare the second epoch with the plain files in memory: both were read just before. "
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
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the cleanup
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
