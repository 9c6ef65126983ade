"""Measures what the plan hook costs a program that reads no mount: processor time of its steps, and of a begin.

    .venv/bin/python bench/micro/plan_hook.py [--pairs 5] [--epochs 30] [--samples 6400] [--work-bytes 160000]

A pair is one process with the hook and one without it. A stand-in for the node answers all messages as the node would,
which knows no file of the data set in a mount. The two run epochs by turns, so that what else the machine does hits
both. The result is the median over the pairs of the median ratio of epochs. A sample takes some 0.23 ms of processor
time, user and system, and opens a file outside all mounts in the process of the loader, where the hook's cost is
largest. At the end each process begins an epoch of many samples, shuffled and in sequence.

Two processes that run the same program differ by up to 3 % on some machines. There, `--work-bytes 100 --samples 64000`
shows what the hook takes of a sample: `sample_more_us`.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from hashlib import md5
from pathlib import Path
from typing import Any

BATCH = 32


def job(options: argparse.Namespace) -> None:
    """Run an epoch for each line of stdin, and print its processor seconds. At the end print the seconds until the
    first batch of a large one."""
    from torch.utils.data import DataLoader, Dataset

    os.sched_setaffinity(
        0, {max(os.sched_getaffinity(0))}
    )  # processors of a virtual machine differ by some percent
    body = mmap.mmap(
        -1, options.work_bytes
    )  # page-aligned: where malloc puts it depends on what was imported
    body.write(bytes(options.work_bytes))

    class Work(Dataset[int]):
        def __len__(self) -> int:
            return int(options.samples)

        def __getitem__(self, index: int) -> int:
            with open(options.job, "rb"):
                md5(body).digest()
            return index

    loader = DataLoader(Work(), BATCH, shuffle=True)
    for _ in sys.stdin:
        begin_s = time.process_time()
        for _ in loader:
            pass
        print(time.process_time() - begin_s, flush=True)
    result = {}
    for kind, shuffle in (("shuffled", True), ("sequential", False)):
        begin_s = time.perf_counter()
        iterator = iter(DataLoader(range(options.large), 256, shuffle=shuffle))  # type: ignore[arg-type]
        next(iterator, None)
        result[f"begin_{kind}_s"] = time.perf_counter() - begin_s
    print(json.dumps(result))


def answer_all(listening: socket.socket) -> None:
    from headrace.hook.frames import decoded, encoded

    def serve(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            while head := stream.read(4):
                message = decoded(stream.read(int.from_bytes(head, "little")))
                is_progress = message["type"] == "PlanProgress"
                connection.sendall(encoded("PlanNoted", used=False) if is_progress else encoded("Done"))

    while True:
        threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()


def started(options: argparse.Namespace, folder: Path, *, hooked: bool) -> subprocess.Popen[str]:
    import headrace.hook
    from headrace.hook.loaders import MOUNTS, SOCKET

    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    site = Path(headrace.hook.__file__).with_name("site")
    variables = {"PYTHONPATH": str(site), SOCKET: str(folder / "node"), MOUNTS: '[["/no/mount", "/"]]'}
    if not hooked:  # as long an environment, as it moves the stack, which alone changes times by some percent
        variables = {
            name.replace("HEADRACE", "UNHOOKED"): value.replace("/site", "/none")
            for name, value in variables.items()
        }
    words = ["--job", str(folder / "file"), "--samples", str(options.samples), "--large", str(options.large)]
    words += ["--work-bytes", str(options.work_bytes)]
    return subprocess.Popen(
        [sys.executable, __file__, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment | variables,
    )


def epoch_s(process: subprocess.Popen[str]) -> float:
    """Let a process run an epoch, and return its processor seconds."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def measured(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run one pair."""
    processes = {hooked: started(options, folder, hooked=hooked) for hooked in (True, False)}
    epochs: dict[bool, list[float]] = {True: [], False: []}
    for number in range(options.epochs + 1):
        for hooked in (True, False) if number % 2 else (False, True):
            epochs[hooked].append(epoch_s(processes[hooked]))
    pairs = list(zip(epochs[True], epochs[False], strict=True))[1:]
    begins = {hooked: json.loads(process.communicate()[0]) for hooked, process in processes.items()}
    return {
        "epoch_more": statistics.median(more / plain - 1 for more, plain in pairs),
        "sample_us": 1e6 * statistics.median(plain for _, plain in pairs) / options.samples,
        "sample_more_us": 1e6 * statistics.median(more - plain for more, plain in pairs) / options.samples,
        **{name: [begins[True][name], begins[False][name]] for name in begins[True]},
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--samples", type=int, default=6400)
    parser.add_argument("--work-bytes", type=int, default=160_000, help="that each sample hashes")
    parser.add_argument("--large", type=int, default=10_000_000, help="samples of the epoch at the end")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        job(options)
        return
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listening:
        Path(folder, "file").touch()
        listening.bind(f"{folder}/node")
        listening.listen(64)
        threading.Thread(target=answer_all, args=(listening,), daemon=True).start()
        pairs = [measured(options, Path(folder)) for _ in range(options.pairs)]
    more = statistics.median(pair["epoch_more"] for pair in pairs)
    print(json.dumps({"pairs": pairs, "epoch_more": more}, indent=2))


if __name__ == "__main__":
    main()
