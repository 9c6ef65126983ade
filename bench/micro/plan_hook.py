"""What the plan hook costs a training program that reads no mount: time of its steps, and of an epoch's begin.

    .venv/bin/python bench/micro/plan_hook.py [--rounds 7] [--samples 20000] [--large 10000000]

Each round runs the program with and without the hook, by turns, with a node that answers all messages. The program's
samples take some 0.3 ms of processor time each and open a file outside all mounts, in its own process, where the hook's
cost is largest. Then it begins an epoch of many samples, shuffled and in sequence.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

WORK = 9000
BATCH = 32


def job(samples: int, large: int, path: str) -> None:
    """Print the processor seconds of two epochs, and the seconds until the first batch of a large one."""
    from torch.utils.data import DataLoader, Dataset

    class Work(Dataset[int]):
        def __len__(self) -> int:
            return samples

        def __getitem__(self, index: int) -> int:
            with open(path, "rb"):
                for _ in range(WORK):
                    index += 1
            return index

    loader = DataLoader(Work(), BATCH, shuffle=True)
    next(iter(loader))
    begin_s = time.process_time()
    for _ in range(2):
        for _ in loader:
            pass
    result = {"epoch_cpu_s": (time.process_time() - begin_s) / 2}
    for kind, shuffle in (("shuffled", True), ("sequential", False)):
        begin_s = time.perf_counter()
        iterator = iter(DataLoader(range(large), 256, shuffle=shuffle))  # type: ignore[arg-type]
        next(iterator)
        result[f"begin_{kind}_s"] = time.perf_counter() - begin_s
    print(json.dumps(result))


def answer_all(listening: socket.socket) -> None:
    from headrace.hook.frames import encoded

    def serve(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            while head := stream.read(4):
                stream.read(int.from_bytes(head, "little"))
                connection.sendall(encoded("Done"))

    while True:
        threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()


def measured(options: argparse.Namespace, folder: Path, *, hooked: bool) -> dict[str, float]:
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
    environment |= variables
    words = ["--job", str(folder / "file"), "--samples", str(options.samples), "--large", str(options.large)]
    done = subprocess.run(
        [sys.executable, __file__, *words], capture_output=True, text=True, env=environment, check=True
    )
    result: dict[str, float] = json.loads(done.stdout)
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--large", type=int, default=10_000_000)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        job(options.samples, options.large, options.job)
        return
    rows: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listening:
        Path(folder, "file").touch()
        listening.bind(f"{folder}/node")
        listening.listen(64)
        threading.Thread(target=answer_all, args=(listening,), daemon=True).start()
        for number in range(options.rounds):
            for hooked in (True, False) if number % 2 else (False, True):
                rows[hooked].append(measured(options, Path(folder), hooked=hooked))
    summary: dict[str, Any] = {}
    for name in rows[True][0]:
        with_hook, without = (
            statistics.median(row[name] for row in rows[hooked]) for hooked in (True, False)
        )
        summary[name] = {"with": with_hook, "without": without, "more": with_hook / without - 1}
    print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    main()
