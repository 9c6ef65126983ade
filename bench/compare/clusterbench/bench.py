"""Holds what all cases share: labs, data in their object stores, readers at their mounts, counters of their nodes."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from nodebench.machine import NotRunError, Workplace, kill_group, run
from nodebench.results import Results
from nodebench.telling import Telling

from headrace.lab import services
from headrace.lab.lab import CACHE_BYTES, Lab, LabPlan

from . import raw, reader

Files = dict[str, tuple[int, int]]
"""Name → size and CRC-32."""
MIB = 1 << 20
UPLOADS = 8


@dataclass
class Bench(Telling):
    place: Workplace
    results: Results
    scale: float
    repeat: int
    end_at: float
    """Monotonic time after which no new case begins."""

    @contextmanager
    def lab(
        self, nodes: int, rate_mbit: int, *, cache_bytes: int = CACHE_BYTES, **settings: str
    ) -> Iterator[Lab]:
        """Over an empty bucket; rate 0: not shaped."""
        folder = self.place.folder("lab")
        new_lab = Lab(os.path.join(folder, "lab.json"), progress=lambda line: self.say(f"  {line}"))
        with ExitStack() as undo:
            undo.callback(shutil.rmtree, folder, ignore_errors=True)
            undo.enter_context(new_lab)
            self.place.undo.callback(undo.close)  # a second time, should a signal end the first
            plan = LabPlan(
                nodes=nodes,
                rate_bits_s=rate_mbit * 10**6,
                cache_bytes=cache_bytes,
                sample=False,
                settings=settings,
                folder=os.path.join(folder, "data"),
            )
            new_lab.up(plan)
            if new_lab.record.why_loopback:
                raise NotRunError(new_lab.record.why_loopback)
            if len(new_lab.report(1)["cluster"].get("members", [])) != nodes:
                raise NotRunError("the nodes know nothing of each other")
            yield new_lab

    def put(self, lab: Lab, prefix: str, count: int, size: int) -> Files:
        """Do as put_unseen; the nodes find them on return."""
        files = self.put_unseen(lab, prefix, count, size)
        self.look_again(lab)
        return files

    def look_again(self, lab: Lab) -> None:
        """They looked at the bucket before: what they know of it is empty."""
        for number in lab.record.nodes:
            self.ask(lab, number, "sync", "/", timeout_s=120)

    def put_unseen(self, lab: Lab, prefix: str, count: int, size: int) -> Files:
        """Random objects; what is put is what readers are to find."""
        self.say(f"  {count} objects of {size} bytes are put")
        client, names = services.client_of(lab.store()), [f"{prefix}/{n:06d}.bin" for n in range(count)]

        def put_one(name: str) -> tuple[int, int]:
            data = random.Random(name).randbytes(size)
            client.put(name, data)
            return len(data), zlib.crc32(data)

        with ThreadPoolExecutor(UPLOADS) as pool:
            return dict(zip(names, pool.map(put_one, names), strict=True))

    def load(self, lab: Lab, path: str, *, timeout_s: float = 600) -> float:
        """Seconds of `headrace load`, started at node 1."""
        self.say(f"  load {path}")
        began_s = time.perf_counter()
        self.ask(lab, 1, "load", path, timeout_s=timeout_s)
        return time.perf_counter() - began_s

    def ask(self, lab: Lab, number: int, *words: str, timeout_s: float) -> None:
        """A command of headrace's to one node, to its end."""
        cache = os.path.join(lab.folder(number), "cache")
        command = [*services.python_words(), *words, "--cache", cache, "--json"]
        run(command, timeout_s=timeout_s, env=lab.environment(number))

    def counts(self, lab: Lab, nodes: Sequence[int]) -> dict[str, float]:
        """Return the counts of the nodes together."""
        total: dict[str, float] = {"origin_bytes": 0, "origin_reads": 0, "peer_bytes": 0, "moved_bytes": 0}
        for number in nodes:
            report = lab.report(number)
            total["origin_bytes"] += report["origin"]["bytes_read"]
            total["origin_reads"] += sum(
                mount["read_requests"] for mount in report["origin"]["mounts"].values()
            )
            total["peer_bytes"] += report["peers"].get("bytes_read", 0)
            total["moved_bytes"] += report["rebalance"].get("bytes_handed_over", 0)
        return total


def grown(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {key: after[key] - before[key] for key in before}


class Readers:
    """One process a node; all begin when told."""

    def __init__(self, bench: Bench, lab: Lab, work: Mapping[int, Files], *, threads: int) -> None:
        folder = bench.place.folder("readers")
        self._gate = os.path.join(folder, "go")
        self._processes: dict[int, subprocess.Popen[str]] = {}
        for number, files in work.items():
            names = os.path.join(folder, f"{number}.json")
            with open(names, "w") as out:
                json.dump(files, out)
            words = [sys.executable, reader.__file__, lab.mountpoint(number), names, str(threads), self._gate]
            process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
            self._processes[number] = process
            bench.place.undo.callback(kill_group, process)
        self.wait_for("ready")

    def wait_for(self, word: str) -> None:
        for process in self._processes.values():
            assert process.stdout is not None
            line = process.stdout.readline()
            if line.strip() != word:
                raise NotRunError(f"a reader said {line!r}, not {word}")

    def go(self) -> None:
        open(self._gate, "w").close()

    def results(self, *, timeout_s: float = 300) -> dict[int, dict[str, Any]]:
        """NotRunError when one does not end in time."""
        results = {}
        for number, process in self._processes.items():
            try:
                out, _ = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                kill_group(process)
                raise NotRunError(f"the reader of node {number} did not end in {timeout_s:.0f} s") from None
            results[number] = json.loads(out.strip().splitlines()[-1])
        return results


def read_all(
    bench: Bench, lab: Lab, work: Mapping[int, Files], *, threads: int = 4
) -> dict[int, dict[str, Any]]:
    """Read all files at once, at each node's mount. NotRunError when a byte is wrong or a read failed."""
    readers = Readers(bench, lab, work, threads=threads)
    readers.go()
    results = readers.results()
    for number, result in results.items():
        if result["failed"] or result["wrong"]:
            raise NotRunError(
                f"node {number}: {result['failed']} reads failed ({result['errors']}), {result['wrong']} wrong"
            )
    return results


def raw_seconds(bench: Bench, lab: Lab, wanted: Mapping[tuple[int, int], int]) -> float:
    """Return the seconds until all have, by sendfile, so many bytes of each other: by owner and reader. All at once."""
    gate = os.path.join(bench.place.folder("raw"), "go")
    servers = [
        _spoken([*lab.inside(number), sys.executable, raw.__file__, "serve", lab.address(number)])
        for number in sorted({owner for owner, _ in wanted})
    ]
    readers = []
    try:
        for number in sorted({reader for _, reader in wanted}):
            words = [*lab.inside(number), sys.executable, raw.__file__, "get", gate]
            for (owner, reader), size in wanted.items():
                words += [lab.address(owner), str(size)] if reader == number and size else []
            readers.append(_spoken(words))
        open(gate, "w").close()
        return max(float(process.communicate(timeout=300)[0]) for process in readers)
    finally:
        for process in (*servers, *readers):
            kill_group(process)


def _spoken(words: list[str]) -> subprocess.Popen[str]:
    """A process that has said its first line."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    if process.stdout.readline().strip() != "ready":
        kill_group(process)
        raise NotRunError("raw sendfile did not begin")
    return process
