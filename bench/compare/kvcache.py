"""The KV cache benchmark of MLPerf Storage v3.0 on a mount beside the plain disk, by its own kv-cache.py.

Each run writes and reads the cache of a number of simulated users of a language model: `.npy` files with fsync, each
read after `POSIX_FADV_DONTNEED`. The mount has one directory for each mode: `local`, through the session, and
`local,exclusive`, without it. Turns alternate. Writes `bench/results/kvcache-<date>.json` and `.md`. Needs root, and a
checkout of MLPerf Storage: without `--source` it says how to make one. All else of the machine should rest.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from nodebench import program
from nodebench.headrace_mount import HeadraceMount
from nodebench.machine import Workplace, drop_page_cache, run
from nodebench.report import Goal
from nodebench.results import Results
from nodebench.telling import Telling

PLAIN, LOCAL, EXCLUSIVE = "plain", "local", "local,exclusive"
LAUNCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kvcachebench", "launch.py")
INSTALL = """\
kv-cache.py is not here. It needs numpy and PyYAML:
  git clone https://github.com/mlcommons/storage MLPERF
  python3 -m venv VENV
  VENV/bin/pip install numpy pyyaml
then: ./dev bench kvcache --kvcache VENV/bin/python --source MLPERF/kv_cache_benchmark"""
SEED = "42"


@dataclass(frozen=True)
class Case:
    """Options of kv-cache.py. memory_gb: of the tier before the disk. capacity_gb: of the disk; 0 for all of it."""

    model: str
    users: int
    duration_s: int
    memory_gb: int
    allocations: int
    capacity_gb: int = 0


CASES: dict[str, Case] = {
    "small": Case("tiny-1b", 4, 20, 0, 2, capacity_gb=4),
    "1": Case("llama3.1-8b", 200, 300, 0, 16),
    "2": Case("llama3.1-8b", 100, 300, 4, 16),
    "3": Case("llama3.1-70b-instruct", 70, 300, 0, 4),
}
"""1 to 3 are v3.0's own, of kv_cache_benchmark/README.md. They need a large machine: 200 users write some 100 GB."""
MEASURES = {
    "read": ("tier_storage_read_bandwidth_gbps", "GiB/s"),
    "write": ("tier_storage_write_bandwidth_gbps", "GiB/s"),
    "p95 of a read": ("storage_read_p95_ms", "ms"),
    "p95 of a write": ("storage_write_p95_ms", "ms"),
}


class KvMount(HeadraceMount):
    """A mount whose directories `local` and `exclusive` can be written."""

    def command(self) -> list[str]:
        modes = ("off", "/local=local", "/exclusive=local,exclusive")
        return [*super().command(), "--write", ",".join(modes)]


class Bench(Telling):
    def __init__(self, place: Workplace, results: Results, given: argparse.Namespace) -> None:
        self.place, self.results, self.given = place, results, given

    def case(self, name: str) -> None:
        origin = self.place.folder("origin")
        mount = KvMount(self.place, f"file://{origin}", io="auto")
        mount.start()
        try:
            roots = {
                PLAIN: self.place.folder("plain"),
                LOCAL: os.path.join(mount.root, "local"),
                EXCLUSIVE: os.path.join(mount.root, "exclusive"),
            }
            for turn in range(self.given.repeat):
                names = list(roots)
                for who in names if turn % 2 == 0 else reversed(names):
                    self.say(f"{name}, turn {turn + 1}: {who}")
                    with self.attempt(name, who):
                        self.take(name, who, self.benchmark(CASES[name], os.path.join(roots[who], "kv")))
        finally:
            mount.stop()

    def benchmark(self, case: Case, folder: str) -> dict[str, Any]:
        """Return the summary of one run. The page cache is empty before it."""
        drop_page_cache()
        out = os.path.join(self.place.root, "kv-cache.json")
        words = ["--model", case.model, "--num-users", str(case.users), "--duration", str(case.duration_s)]
        words += ["--gpu-mem-gb", "0", "--cpu-mem-gb", str(case.memory_gb), "--generation-mode", "none"]
        words += ["--max-concurrent-allocs", str(case.allocations), "--seed", SEED, "--log-level", "ERROR"]
        words += ["--storage-capacity-gb", str(case.capacity_gb), "--cache-dir", folder, "--output", out]
        source = os.path.abspath(self.given.source)
        words += ["--config", os.path.join(source, "config.yaml")]
        run([self.given.kvcache, LAUNCH, source, *words], timeout_s=case.duration_s + 600)
        with open(out) as result:
            summary: dict[str, Any] = json.load(result)["summary"]
        os.unlink(out)
        return summary

    def take(self, name: str, who: str, summary: dict[str, Any]) -> None:
        stats = summary["cache_stats"]
        throughput = summary["storage_throughput_tokens_per_sec"]
        self.results.add(f"{name}: tokens of storage", who, throughput, unit="/s")
        for measure, (key, unit) in MEASURES.items():
            if key in stats:
                self.results.add(f"{name}: {measure}", who, stats[key], unit=unit)
        self.results.add(f"{name}: requests", who, summary["total_requests"], unit="")


def goals(results: Results) -> list[Goal]:
    listed = []
    for name in CASES:
        for who in (LOCAL, EXCLUSIVE):
            for measure in ("read", "write"):
                ratio = results.ratio(f"{name}: {measure}", who, PLAIN)
                if ratio is not None:
                    listed.append(Goal(f"{name}: {measure}, {who}, of plain", 0.95, True, ratio))
    return listed


def arguments() -> argparse.Namespace:
    parser = program.parser_of(__doc__, CASES, scale_of="nothing", folder_for=program.ON_A_DISK)
    program.add_limit(parser, minutes=30)
    parser.set_defaults(only="small")
    parser.add_argument("--source", default="", help="the folder kv_cache_benchmark of MLPerf Storage v3.0")
    parser.add_argument("--kvcache", default=sys.executable, help="Python that has its packages")
    given = program.parse(parser, CASES, root_for="it mounts, and drops the page cache")
    if not given.source:
        parser.error(INSTALL)
    return given


def measure(given: argparse.Namespace, place: Workplace, results: Results) -> None:
    end_at = time.monotonic() + given.limit
    results.note("an MLPerf Storage workload, scaled, is not an MLPerf Storage result")
    bench = Bench(place, results, given)
    for name in program.in_time(given, CASES, results, end_at=end_at, contender="all"):
        results.note(f"{name}: {CASES[name]}")
        with bench.attempt(name, "all"):
            bench.case(name)


def main() -> int:
    given, results = arguments(), Results()
    return program.run(
        "kvcache",
        given,
        results,
        lambda place: measure(given, place, results),
        folder=given.folder,
        goals=goals,
    )


if __name__ == "__main__":
    sys.exit(main())
