"""The S3 gateway beside nginx, which serves the same files, and SeaweedFS's own gateway.

Four clients, a process and a connection each (`load.py`), GET objects that are cached, page cache warm, turn and turn
about. What the gateway answers is compared with what the object store was given, once.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from nodebench.machine import NotRunError, kill_group

from . import load
from .bench import OURS, Bench
from .contenders import Contender, headrace, seaweedfs, web_server

LARGE, SMALL = "5 GET 8 MiB, 4 connections", "6 GET 4 KiB, 4 connections"
WEED = "seaweedfs"
CLIENTS = 4
MIB = 1 << 20


@dataclass(frozen=True)
class Case:
    measure: str
    folder: str
    size_bytes: int
    count: int
    unit: str


def gateway(bench: Bench) -> None:
    cases = [
        Case(LARGE, "large", 8 * MIB, max(4, round(64 * bench.scale)), "GB/s"),
        Case(SMALL, "tiny", 4096, max(16, round(2000 * bench.scale)), "requests/s"),
    ]
    names_of = {case.measure: make(bench, case) for case in cases}
    name, web = web_server(bench.place, bench.root)
    bench.results.note("requests to both gateways are presigned; the web server checks nothing")
    contenders = {OURS: headrace(bench.place, bench.server), name: web, WEED: seaweedfs(bench.server)}
    for case in cases:
        names = names_of[case.measure]
        with bench.attempt(case.measure, "all"):
            for contender in contenders.values():
                ask(bench, contender, names, min(3.0, bench.seconds))  # all of it is cached, and in memory
            check(bench, contenders[OURS], names)
            for _ in range(bench.repeat):
                for who, contender in contenders.items():
                    value = value_of(case, ask(bench, contender, names, bench.seconds))
                    bench.add(case.measure, who, value, unit=case.unit)


def make(bench: Bench, case: Case) -> list[str]:
    """Make the objects, on the disk and at the server. Return their names."""
    os.makedirs(f"{bench.root}/{case.folder}")
    names = [f"{case.folder}/{n:05d}" for n in range(case.count)]
    for name in names:
        with open(f"{bench.root}/{name}", "wb") as out:
            out.write(os.urandom(case.size_bytes))
    bench.upload(case.folder)
    return names


def check(bench: Bench, contender: Contender, names: list[str]) -> None:
    """NotRunError where it answers other bytes than the object store was given."""
    connection = http.client.HTTPConnection(contender.address, timeout=30)
    for name in names:
        connection.request("GET", contender.target_of(name))
        with open(f"{bench.root}/{name}", "rb") as truth:
            if connection.getresponse().read() != truth.read():
                raise NotRunError(f"other bytes of {name}")
    connection.close()


def ask(bench: Bench, contender: Contender, names: list[str], seconds: float) -> list[dict[str, Any]]:
    """Return what each client saw."""
    targets = os.path.join(bench.place.folder("targets"), "list")
    with open(targets, "w") as out:
        out.write("\n".join(contender.target_of(name) for name in names))
    program = [sys.executable, "-S", load.__file__, contender.address, str(seconds), targets]
    running = [
        subprocess.Popen(
            [*program, str(n * len(names) // CLIENTS)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        for n in range(CLIENTS)
    ]
    answers = []
    try:
        for process in running:
            out_, err = process.communicate(timeout=seconds + 120)
            if process.returncode:
                raise NotRunError(err.strip()[-300:])
            answers.append(json.loads(out_))
    finally:
        for process in running:
            kill_group(process)
    return answers


def value_of(case: Case, answers: list[dict[str, Any]]) -> float:
    rates = [answer["bytes" if case.unit == "GB/s" else "requests"] / answer["seconds"] for answer in answers]
    return sum(rates) / (1e9 if case.unit == "GB/s" else 1)
