"""Four nodes read a hot set that one of them owns. Between that they read a cold set, which takes the space of borrowed
files."""

from __future__ import annotations

import os
import statistics
import time

from clusterbench.bench import Bench as ClusterBench
from clusterbench.bench import Files, read_all
from nodebench.machine import NotRunError

from headrace.lab.lab import Lab
from headrace.ring.view import ClusterView, NodeInfo, next_view

from .cases import Bench

SERVED = "hot set of one owner, read by 4 nodes: what the owner serves a round, of the set"
READ_S = "hot set of one owner, read by 4 nodes: until the slowest has it"
RULES = {"replicas = 1": "1", "replicas = 3": "3", 'replicas = "auto"': '"auto"'}
NODES, OWNER = 4, 1
CACHE_BYTES = 256 << 20
BORROWED_SHARE = "0.1"
HOT_BYTES, COLD_BYTES = 200_000, 1 << 20
ROUNDS, SETTLED_ROUNDS = 10, 4
"""The last rounds are counted: by then hot files have their copies."""
PAUSE_S = 2.0
"""Seconds in which copies are made, after each round."""


def hot_set(bench: Bench) -> None:
    """Copies are borrowed where no rule keeps them, and the cold set takes their space."""
    place = ClusterBench(bench.place, bench.results, bench.scale, bench.repeat, time.monotonic() + 3600)
    for _ in range(bench.repeat):
        for name, value in RULES.items():
            with place.lab(NODES, 0, cache_bytes=CACHE_BYTES, BORROWED_SHARE=BORROWED_SHARE) as lab:
                rounds(bench, place, lab, name, value)


def rounds(bench: Bench, place: ClusterBench, lab: Lab, name: str, value: str) -> None:
    policy = os.path.join(bench.place.folder("policy"), "policy.toml")
    with open(policy, "w") as file:
        file.write(f'[[rule]]\nmatch = ["/hot/"]\nreplicas = {value}\n')
    place.ask(lab, OWNER, "policy", "set", policy, timeout_s=60)
    hot = place.put_unseen(lab, "hot", bench.count(64, 24), HOT_BYTES)
    cold = place.put(lab, "cold", bench.count(128, 64), COLD_BYTES)
    hot = owned_by(lab, hot)
    served, seconds = [], []
    for _ in range(ROUNDS):
        before = bytes_served(lab)
        results = read_all(place, lab, dict.fromkeys(range(1, NODES + 1), hot))
        served.append((bytes_served(lab) - before) / sum(size for size, _ in hot.values()))
        seconds.append(max(result["seconds"] for result in results.values()))
        read_all(place, lab, dict.fromkeys(range(1, NODES + 1), cold))
        time.sleep(PAUSE_S)
    bench.results.add(SERVED, f"{name}, first round", served[0], unit="")
    bench.results.add(SERVED, name, statistics.mean(served[-SETTLED_ROUNDS:]), unit="")
    bench.results.add(READ_S, name, statistics.mean(seconds[-SETTLED_ROUNDS:]) * 1e3, unit="ms")


def owned_by(lab: Lab, files: Files) -> Files:
    """Return the files of which the owner is the primary one."""
    view, owner = view_of(lab), lab.report(OWNER)["cluster"]["node"]
    owned = {name: row for name, row in files.items() if view.owners(f"/{name}".encode())[0].id == owner}
    if not owned:
        raise NotRunError("the owner has none of the hot files")
    return owned


def view_of(lab: Lab) -> ClusterView:
    rows = lab.report(OWNER)["cluster"]["members"]
    nodes = {
        row["id"]: NodeInfo(row["id"], "", row["address"], row["zone"], row["capacity_bytes"], "", 1)
        for row in rows
    }
    return next_view(None, nodes, epoch=1)


def bytes_served(lab: Lab) -> int:
    """Return the bytes that the other nodes have got from the owner."""
    owner = lab.report(OWNER)["cluster"]["node"]
    peers = [lab.report(number)["cluster"]["peers"] for number in range(1, NODES + 1) if number != OWNER]
    return sum(int(row[owner]["bytes"]) for row in peers if owner in row)
