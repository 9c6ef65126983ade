"""Measures how long a call of a reader waits at most when a node of three dies, hangs or is cut off, or etcd is away.

A lab in network namespaces with an etcd and an object store of its own. A round: folders that nobody read, half of them
kept by the node that is struck, are read on the two other nodes, which is struck meanwhile. What counts is the longest
single call (list, stat, open, read) on them. Writes JSON lines with --output, and prints a Markdown table. Needs root.
"""

from __future__ import annotations

import argparse
import contextlib
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
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from stallsbench.slow import slow_store

from headrace.lab import processes, services
from headrace.lab.killed_runs import Guard
from headrace.lab.lab import Lab, LabPlan
from headrace.testing.etcd import etcd_command, find_etcd
from headrace.testing.servers import free_ports

READER = Path(__file__).with_name("stallsbench") / "reader.py"
STRUCK = 1
SURVIVORS = (2, 3)
FOLDERS = 24
SMALL = 12
SMALL_BYTES = 60_000
LARGE_BYTES = (9 << 20) + 7
THREADS = 4
CALM_S = 90.0
PROBES = 2000
"""Folders of one empty file each. A node asks the owner of such a folder when it is looked into first."""

Row = dict[str, Any]


def etcd(lab: Lab, number: signal.Signals) -> None:
    processes.send(os.path.join(lab.record.folder, "etcd"), number)


def start_etcd(lab: Lab) -> None:
    """Start it where it was, with what it had."""
    host, _, port = lab.record.cluster.partition("://")[2].partition("/")[0].rpartition(":")
    folder = os.path.join(lab.record.folder, "etcd")
    ports = [int(port), *free_ports(1)]
    words = [*etcd_command(find_etcd(), folder, host, ports), "--log-level", "warn"]
    processes.spawn(words, folder, name="etcd", environment={})


FAULTS: dict[str, tuple[Callable[[Lab], object], Callable[[Lab], object]]] = {
    "none": (lambda lab: None, lambda lab: None),
    "kill": (lambda lab: lab.kill(STRUCK), lambda lab: lab.start(STRUCK)),
    "stop": (lambda lab: lab.stop(STRUCK), lambda lab: lab.cont(STRUCK)),
    "cut": (lambda lab: lab.cut(STRUCK), lambda lab: lab.heal(STRUCK)),
    "cut in": (lambda lab: lab.cut(STRUCK, one_way="in"), lambda lab: lab.heal(STRUCK)),
    "cut out": (lambda lab: lab.cut(STRUCK, one_way="out"), lambda lab: lab.heal(STRUCK)),
    "etcd killed": (lambda lab: etcd(lab, signal.SIGKILL), start_etcd),
    "etcd stopped": (lambda lab: etcd(lab, signal.SIGSTOP), lambda lab: etcd(lab, signal.SIGCONT)),
}
"""What strikes, and what ends it."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="of each fault")
    parser.add_argument("--faults", default=",".join(FAULTS), help="with commas between them")
    parser.add_argument("--output", default="", help="a file for the rows, a line of JSON a round")
    parser.add_argument("--folders", type=int, default=FOLDERS, help="that are read in a round")
    parser.add_argument("--between-s", type=float, default=0.03, help="pause of a reader after each file")
    parser.add_argument(
        "--origin-delay-s", type=float, default=0.0, help="how late each answer of the origin is"
    )
    parser.add_argument("--folder", default="/var/tmp", help="where the lab lies")
    parser.add_argument("--seed", type=int, default=17)
    return parser.parse_args()


class Bench:
    """store: the origin itself, where nodes may see a slower one."""

    def __init__(
        self,
        lab: Lab,
        store: services.ObjectStore,
        truth: Path,
        given: argparse.Namespace,
        chance: random.Random,
    ) -> None:
        self.lab = lab
        self.truth = truth
        self.chance = chance
        self._store = services.client_of(store)
        self._folders = given.folders
        self._between_s = given.between_s
        names = [f"probes/{number:04d}/empty" for number in range(PROBES)]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda name: self._store.put(name, b""), names))
        self._probes = iter(names)

    def put_round(self, top: str) -> list[str]:
        """Its folders, at the origin and in the truth."""
        sizes = {
            f"{top}/{folder:02d}/{number:02d}": SMALL_BYTES + number
            for folder in range(self._folders)
            for number in range(SMALL)
        }
        sizes |= {f"{top}/{folder:02d}/large": LARGE_BYTES for folder in range(0, self._folders, 3)}
        for name, size in sizes.items():
            path = self.truth / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.chance.randbytes(size))
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda name: self._store.put(name, (self.truth / name).read_bytes()), sizes))
        words = [*services.python_words(), "sync", self.lab.mountpoint(STRUCK)]
        environment = self.lab.environment(STRUCK)
        subprocess.run(words, env=environment, capture_output=True, timeout=60, check=True)
        end_s = time.monotonic() + CALM_S
        for number in (STRUCK, *SURVIVORS):  # a listing may be under way yet
            while not os.path.isdir(f"{self.lab.mountpoint(number)}/{top}"):
                if time.monotonic() > end_s:
                    raise SystemExit("what was put is not seen")
                time.sleep(0.1)
        return [f"{top}/{folder:02d}" for folder in range(self._folders)]

    def start_reader(self, number: int, folders: list[str]) -> subprocess.Popen[str]:
        words = [sys.executable, str(READER), self.lab.mountpoint(number), str(self.truth)]
        words += [str(THREADS), str(self._between_s), *folders]
        return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)

    def is_calm(self) -> bool:
        for number in (STRUCK, *SURVIVORS):
            report = self.lab.report(number)["cluster"]
            peers = report["peers"].values()
            if len(report["members"]) != 3 or any(peer["breaker"] != "closed" for peer in peers):
                return False
        return True

    def wait_calm(self) -> None:
        """All are members and ask one another. A breaker closes by a probe, which a read of what that node owns
        brings about."""
        end_s = time.monotonic() + CALM_S
        while not self.is_calm():
            if time.monotonic() > end_s:
                raise SystemExit("the cluster does not come to rest")
            names = [name for name, _ in zip(self._probes, range(6), strict=False)]
            for number in (STRUCK, *SURVIVORS):
                touched = [f"{self.lab.mountpoint(number)}/{name}" for name in names]
                subprocess.run(["stat", *touched], capture_output=True, timeout=60, check=False)
            time.sleep(0.3)

    def origin_bytes(self) -> int:
        return sum(self.lab.report(number)["origin"]["bytes_read"] for number in (STRUCK, *SURVIVORS))

    def run_round(self, fault: str, number: int) -> Row:
        folders = self.put_round(f"{fault.replace(' ', '-')}-{number}")
        self.chance.shuffle(folders)
        self.wait_calm()
        before = self.origin_bytes()
        _, warmed = rows_of(self.start_reader(STRUCK, folders[::2]))
        self.chance.shuffle(folders)
        strike, mend = FAULTS[fault]
        readers = [self.start_reader(survivor, folders) for survivor in SURVIVORS]
        time.sleep(self.chance.uniform(0.1, 0.8))
        struck_s = time.monotonic()
        strike(self.lab)
        done = [rows_of(reader) for reader in readers]
        ended_s = time.monotonic()
        fetched = self.origin_bytes() - before if fault == "none" else 0
        mend(self.lab)
        slow = sorted((row for rows, _ in done for row in rows), key=lambda row: -row["took_s"])
        for row in slow:
            row["at_s"] -= struck_s
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
            "over_2_s": sum(row["took_s"] > 2 for row in slow),
            "slow": slow[:12],
            "errors": warmed["errors"] + [error for _, end in done for error in end["errors"]],
            "took_s": ended_s - struck_s,
            "origin_share": fetched / max(1, done[0][1]["bytes"]),
        }


def rows_of(reader: subprocess.Popen[str]) -> tuple[list[Row], Row]:
    """Its slow calls, and what it said at the end."""
    out, _ = reader.communicate(timeout=600)
    *slow, end = map(json.loads, out.splitlines())
    return slow, end


def table(rows: list[Row]) -> str:
    lines = [
        "| fault | rounds | longest call, s: median | worst | calls over 2 s | errors | from the origin, of the data |",
        "|---|---|---|---|---|---|---|",
    ]
    for fault in FAULTS:
        mine = [row for row in rows if row["fault"] == fault]
        if mine:
            stalls = [row["stall_s"] for row in mine]
            over, errors = sum(row["over_2_s"] for row in mine), sum(len(row["errors"]) for row in mine)
            share = f"{max(row['origin_share'] for row in mine):.4f}" if fault == "none" else ""
            lines.append(
                f"| {fault} | {len(mine)} | {median(stalls):.2f} | {max(stalls):.2f} | {over} | {errors} | {share} |"
            )
    return "\n".join(lines)


def main() -> None:
    given = arguments()
    rows: list[Row] = []
    with contextlib.ExitStack() as stack:
        guard = Guard()  # ends the lab when this is killed
        base = stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-stalls-", dir=given.folder))
        guard.add_folder(Path(base), is_removed=True)
        settings = {"sync_interval_s": "3600"}
        plan = LabPlan(nodes=3, sample=False, folder=f"{base}/lab", settings=settings)
        store = None
        if given.origin_delay_s:
            store, late = stack.enter_context(slow_store(f"{base}/store", plan.folder, given.origin_delay_s))
            plan = replace(plan, origin=late.url, origin_options=late.options)
        lab = stack.enter_context(Lab(f"{base}/lab.json"))
        lab.up(plan)
        bench = Bench(lab, store or lab.store(), Path(base) / "truth", given, random.Random(given.seed))
        for number in range(given.rounds):
            for fault in given.faults.split(","):
                row = bench.run_round(fault, number)
                rows.append(row)
                print(f"{fault} {number}: {row['stall_s']:.2f} s", file=sys.stderr)
                if given.output:
                    with open(given.output, "a", encoding="utf-8") as out:
                        out.write(json.dumps(row) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
