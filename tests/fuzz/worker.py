"""One process that fuzzes one parser: `python -m tests.fuzz.worker NAME …`, started by `tests/fuzz/__main__.py`.

Guided by coverage where atheris can be installed (libFuzzer chooses what to change, and keeps what reaches new lines);
else inputs are chosen blindly from the seeds. The board is a file that the parent reads, also after this process died.
"""

from __future__ import annotations

import argparse
import importlib.util
import mmap
import os
import random
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tests.fuzz.fuzzer import Fuzzer
from tests.fuzz.judge import Judge, resident_bytes
from tests.fuzz.shrink import shrink

INPUT_BYTES_MAX = 1 << 20
FINDINGS_MAX = 20
"""Defects of one run that are told; the first ones are to be mended before more make sense."""
BASELINE_EVERY = 4096
_BOARD = struct.Struct("<QQ")  # inputs so far, length of the current one; then its bytes
BOARD_BYTES = _BOARD.size + INPUT_BYTES_MAX
_SILENT = [
    f"-handle_{name}=0"
    for name in ("abrt", "bus", "fpe", "ill", "int", "segv", "term", "xfsz", "usr1", "usr2")
]


class Found(msgspec.Struct):
    """input: as small as it could be made. count: how many inputs showed it."""

    kind: str
    story: str
    input: bytes
    count: int = 1


class Report(msgspec.Struct):
    """Is the report of a run at its end. guided: by coverage."""

    guided: bool = False
    inputs: int = 0
    seconds: float = 0.0
    grown_bytes: int = 0
    findings: list[Found] = []


class Board:
    """The number of inputs so far and the current one, in a file that outlives the process."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), BOARD_BYTES)

    def begin(self, number: int, data: bytes) -> None:
        _BOARD.pack_into(self._map, 0, number, len(data))
        self._map[_BOARD.size : _BOARD.size + len(data)] = data

    @property
    def inputs(self) -> int:
        return int(_BOARD.unpack_from(self._map)[0])

    @property
    def current(self) -> bytes:
        return self._map[_BOARD.size : _BOARD.size + _BOARD.unpack_from(self._map)[1]]


class Run:
    """limit_s, inputs_max: whichever comes first ends it."""

    def __init__(
        self, fuzzer: Fuzzer, judge: Judge, board: Board, *, limit_s: float, inputs_max: int
    ) -> None:
        self._fuzzer, self._judge, self._board = fuzzer, judge, board
        self._limit_s, self._inputs_max = limit_s, inputs_max
        self._begun_s = time.monotonic()
        self._resident_bytes = resident_bytes()
        self.report = Report()

    def is_over(self) -> bool:
        report = self.report
        report.seconds = time.monotonic() - self._begun_s
        return (
            report.seconds > self._limit_s
            or report.inputs >= self._inputs_max
            or len(report.findings) >= FINDINGS_MAX
        )

    def take(self, data: bytes) -> None:
        report = self.report
        report.inputs += 1
        self._board.begin(report.inputs, data)
        finding = self._judge.look_at(data)
        if finding is not None:
            self._note(finding.kind, finding.story, data)
        if report.inputs % BASELINE_EVERY == 0:
            self._judge.begin_anew()

    def end(self) -> Report:
        self.report.grown_bytes = max(0, resident_bytes() - self._resident_bytes)
        return self.report

    def _note(self, kind: str, story: str, data: bytes) -> None:
        for finding in self.report.findings:
            if finding.kind == kind:
                finding.count += 1
                return
        if kind == "growth" and not self._shows(kind, data):
            return  # between two inputs: what the mutations took is not the parser's
        small = shrink(data, lambda smaller: self._shows(kind, smaller))
        self.report.findings.append(Found(kind, story, small))

    def _shows(self, kind: str, data: bytes) -> bool:
        finding = self._judge.look_at(data)
        return finding is not None and finding.kind == kind


def can_guide() -> bool:
    return importlib.util.find_spec("atheris") is not None


def fuzz_blindly(run: Run, fuzzer: Fuzzer, seeds: list[bytes], seed: int) -> None:
    chance = random.Random(seed)
    for data in seeds:
        run.take(data)
    while not run.is_over():
        data = fuzzer.mutate(chance.choice(seeds), fuzzer.words, chance)
        run.take(data[: fuzzer.input_bytes_max])


def fuzz_guided(
    run: Run, fuzzer: Fuzzer, seeds: list[bytes], seed: int, folder: str, end: Callable[[], None]
) -> None:
    """Never returns: libFuzzer's loop ends with the process, at `end`."""
    import atheris

    def take(data: bytes) -> None:
        run.take(data)
        if run.is_over():
            end()

    def mutate(data: bytes, bytes_max: int, number: int) -> bytes:
        chance = random.Random(number)
        if chance.random() < 0.3:
            changed: bytes = atheris.Mutate(data, bytes_max)
            return changed
        return fuzzer.mutate(data, fuzzer.words, chance)[:bytes_max]

    for number, data in enumerate(seeds):
        Path(folder, f"{number:04d}").write_bytes(data)
    options = [f"-seed={seed % (1 << 31) + 1}", f"-max_len={fuzzer.input_bytes_max}", "-len_control=0"]
    options += ["-timeout=300", "-rss_limit_mb=0", "-malloc_limit_mb=0", "-verbosity=0"]
    options += ["-report_slow_units=3600", *_SILENT, folder]
    atheris.Setup([sys.argv[0], *options], take, custom_mutator=mutate)
    atheris.Fuzz()


def load(name: str, *, guided: bool) -> Fuzzer:
    """guided: the program's code is instrumented while it is imported."""
    if not guided:
        from tests.fuzz import targets

        return targets.load(name)
    import atheris

    with atheris.instrument_imports(include=["headrace"], enable_loader_override=False):
        from tests.fuzz import targets

        return targets.load(name)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--inputs", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--board", required=True)
    parser.add_argument("--report", required=True)
    arguments = parser.parse_args()
    guided = can_guide()
    fuzzer = load(arguments.name, guided=guided)
    corpus = sorted(Path(arguments.corpus).glob("*"))
    seeds = [*fuzzer.seeds, *(path.read_bytes() for path in corpus)]
    with tempfile.TemporaryDirectory() as folder, Judge(fuzzer) as judge:
        for data in seeds:  # what is made once, and kept, is no growth
            judge.look_at(data)
        judge.begin_anew()
        limits = {"limit_s": arguments.seconds, "inputs_max": arguments.inputs}
        run = Run(fuzzer, judge, Board(arguments.board), **limits)
        run.report.guided = guided

        def end() -> None:
            Path(arguments.report).write_bytes(msgspec.msgpack.encode(run.end()))
            os._exit(0)  # libFuzzer's loop has no other end

        if guided:
            fuzz_guided(run, fuzzer, seeds, arguments.seed, folder, end)
        fuzz_blindly(run, fuzzer, seeds, arguments.seed)
        end()


if __name__ == "__main__":
    main()
