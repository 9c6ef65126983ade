"""How long a call of a reader waits at most when a node of three dies, hangs or is cut off, or etcd is away.

A lab in network namespaces with an etcd and an object store of its own. A round: folders that nobody read, half of them
kept by the node that is struck, are read on the two other nodes, which is struck meanwhile. What counts is the longest
single call (list, stat, open, read) on them. Writes JSON lines with --output, and prints a Markdown table. Needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from headrace.lab import processes, services
from headrace.lab.lab import Lab, LabPlan

READER = Path(__file__).with_name("stallsbench") / "reader.py"
STRUCK = 1
SURVIVORS = (2, 3)
FOLDERS = 24
SMALL = 12
SMALL_BYTES = 60_000
LARGE_BYTES = (9 << 20) + 7
THREADS = 4
CALM_S = 90.0

Row = dict[str, Any]


def etcd(lab: Lab, number: int) -> None:
    processes.send(os.path.join(lab.record.folder, "etcd"), number)


FAULTS: dict[str, tuple[Callable[[Lab], object], Callable[[Lab], object]]] = {
    "none": (lambda lab: None, lambda lab: None),
    "kill": (lambda lab: lab.kill(STRUCK), lambda lab: lab.start(STRUCK)),
    "stop": (lambda lab: lab.stop(STRUCK), lambda lab: lab.cont(STRUCK)),
    "cut": (lambda lab: lab.cut(STRUCK), lambda lab: lab.heal(STRUCK)),
    "cut in": (lambda lab: lab.cut(STRUCK, one_way="in"), lambda lab: lab.heal(STRUCK)),
    "cut out": (lambda lab: lab.cut(STRUCK, one_way="out"), lambda lab: lab.heal(STRUCK)),
    "etcd stopped": (lambda lab: etcd(lab, signal.SIGSTOP), lambda lab: etcd(lab, signal.SIGCONT)),
}
"""What strikes, and what ends it."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="of each fault")
    parser.add_argument("--faults", default=",".join(FAULTS), help="with commas between them")
    parser.add_argument("--output", default="", help="a file for the rows, a line of JSON a round")
    parser.add_argument("--folder", default="/var/tmp", help="where the lab lies")
    parser.add_argument("--seed", type=int, default=17)
    return parser.parse_args()


def put_round(lab: Lab, truth: Path, top: str, chance: random.Random) -> list[str]:
    """Its folders, at the origin and in the truth."""
    sizes = {
        f"{top}/{folder:02d}/{number:02d}": SMALL_BYTES + number
        for folder in range(FOLDERS)
        for number in range(SMALL)
    }
    sizes |= {f"{top}/{folder:02d}/large": LARGE_BYTES for folder in range(0, FOLDERS, 3)}
    for name, size in sizes.items():
        path = truth / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chance.randbytes(size))
    store = services.client_of(lab.store())
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: store.put(name, (truth / name).read_bytes()), sizes))
    words = [*services.python_words(), "sync", lab.mountpoint(STRUCK)]
    subprocess.run(words, env=lab.environment(STRUCK), capture_output=True, timeout=60, check=True)
    return [f"{top}/{folder:02d}" for folder in range(FOLDERS)]


def start_reader(lab: Lab, number: int, truth: Path, folders: list[str]) -> subprocess.Popen[str]:
    words = [sys.executable, str(READER), lab.mountpoint(number), str(truth), str(THREADS), *folders]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def rows_of(reader: subprocess.Popen[str]) -> tuple[list[Row], Row]:
    """Its slow calls, and what it said at the end."""
    out, _ = reader.communicate(timeout=300)
    *slow, end = map(json.loads, out.splitlines())
    return slow, end


def is_calm(lab: Lab) -> bool:
    for number in (STRUCK, *SURVIVORS):
        report = lab.report(number)["cluster"]
        peers = report["peers"].values()
        if len(report["members"]) != 3 or any(peer["breaker"] != "closed" for peer in peers):
            return False
    return True


def wait_calm(lab: Lab) -> None:
    """All are members and ask one another. A breaker closes by a probe, which a read brings about."""
    end_s = time.monotonic() + CALM_S
    while not is_calm(lab):
        if time.monotonic() > end_s:
            raise SystemExit("the cluster does not come to rest")
        for number in (STRUCK, *SURVIVORS):
            touch = f"{lab.mountpoint(number)}/nothing-{random.random()}"
            subprocess.run(["stat", touch], capture_output=True, timeout=60, check=False)
        time.sleep(0.3)


def origin_bytes(lab: Lab) -> int:
    return sum(lab.report(number)["origin"]["bytes_read"] for number in (STRUCK, *SURVIVORS))


def run_round(lab: Lab, truth: Path, fault: str, number: int, chance: random.Random) -> Row:
    folders = put_round(lab, truth, f"{fault.replace(' ', '-')}-{number}", chance)
    chance.shuffle(folders)
    wait_calm(lab)
    before = origin_bytes(lab)
    _, warmed = rows_of(start_reader(lab, STRUCK, truth, folders[::2]))
    chance.shuffle(folders)
    strike, mend = FAULTS[fault]
    readers = [start_reader(lab, survivor, truth, folders) for survivor in SURVIVORS]
    time.sleep(chance.uniform(0.1, 0.8))
    struck_s = time.monotonic()
    strike(lab)
    done = [rows_of(reader) for reader in readers]
    ended_s = time.monotonic()
    fetched = origin_bytes(lab) - before if fault == "none" else 0
    mend(lab)
    slow = sorted((one for rows, _ in done for one in rows), key=lambda one: -one["took_s"])
    for one in slow:
        one["at_s"] -= struck_s
    longest: dict[str, float] = {}
    for _, end in done:
        for call, took_s in end["longest_s"].items():
            longest[call] = max(took_s, longest.get(call, 0.0))
    return {
        "fault": fault,
        "round": number,
        "longest_s": longest,
        "stall_s": max(longest.values()),
        "slow_calls": len(slow),
        "over_2_s": sum(one["took_s"] > 2 for one in slow),
        "slow": slow[:12],
        "errors": warmed["errors"] + [error for _, end in done for error in end["errors"]],
        "took_s": ended_s - struck_s,
        "origin_share": fetched / max(1, done[0][1]["bytes"]),
    }


def table(rows: list[Row]) -> str:
    lines = [
        "| fault | rounds | longest call, s: median | worst | calls over 2 s | errors |",
        "|---|---|---|---|---|---|",
    ]
    for fault in FAULTS:
        mine = [row for row in rows if row["fault"] == fault]
        if mine:
            stalls = [row["stall_s"] for row in mine]
            over, errors = sum(row["over_2_s"] for row in mine), sum(len(row["errors"]) for row in mine)
            lines.append(
                f"| {fault} | {len(mine)} | {median(stalls):.2f} | {max(stalls):.2f} | {over} | {errors} |"
            )
    return "\n".join(lines)


def main() -> None:
    given = arguments()
    chance = random.Random(given.seed)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="stalls-", dir=given.folder) as base:
        truth = Path(base) / "truth"
        with Lab(f"{base}/lab.json") as lab:
            lab.up(LabPlan(nodes=3, sample=False, folder=f"{base}/lab", settings={"sync_interval_s": "3600"}))
            for number in range(given.rounds):
                for fault in given.faults.split(","):
                    row = run_round(lab, truth, fault, number, chance)
                    rows.append(row)
                    line = json.dumps(row)
                    print(f"{fault} {number}: {row['stall_s']:.2f} s", file=sys.stderr)
                    if given.output:
                        with open(given.output, "a", encoding="utf-8") as out:
                            out.write(line + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
