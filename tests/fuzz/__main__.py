"""./dev fuzz NAME … | all | --list: feeds parsers with what nobody would send."""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headrace.base.decoding import decode_msgpack
from tests.fuzz import targets
from tests.fuzz.judge import GROWTH_BYTES_MAX, Judge
from tests.fuzz.worker import BOARD_BYTES, Board, Found, Report

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).parent / "corpus"
TOLD_BYTES_MAX = 300
SILENCE_S = 60.0
"""A worker without a new input for so long hangs where Python can't end it."""
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""Directory for the files of parsers. A disk would be their slowest part."""
START_S = 300.0
"""So long it may import what its parser needs."""


def main() -> int:
    arguments = _arguments()
    if arguments.list:
        for name, about in targets.described():
            print(f"{name:18} {about}")
        return 0
    names = targets.NAMES if arguments.names == ["all"] else tuple(arguments.names)
    if not names or not set(names) <= set(targets.NAMES):
        print(f"usage: ./dev fuzz NAME | all; there are: {' '.join(targets.NAMES)}", file=sys.stderr)
        return 2
    if arguments.input:
        with tempfile.TemporaryDirectory(dir=MEMORY) as tempfile.tempdir:
            return _replay(names[0], _input_of(arguments.input))
    with ThreadPoolExecutor(arguments.jobs) as pool:
        clean = list(pool.map(lambda name: _fuzz(name, arguments), names))
    return 0 if all(clean) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev fuzz", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="fuzzers, or `all`")
    parser.add_argument("--list", action="store_true", help="tell which there are")
    parser.add_argument(
        "--seconds", type=float, default=None, help="of each (30, or without end with --inputs)"
    )
    parser.add_argument("--inputs", type=int, default=None, help="of each at most")
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="the same one chooses the same inputs"
    )
    parser.add_argument("--jobs", type=int, default=1, help="fuzzers at a time")
    parser.add_argument("--input", metavar="FILE", help="run this one, or base64:TEXT, and show what happens")
    arguments = parser.parse_args()
    if arguments.seconds is None:
        arguments.seconds = 30.0 if arguments.inputs is None else float("inf")
    if arguments.inputs is None:
        arguments.inputs = sys.maxsize
    return arguments


def _fuzz(name: str, arguments: argparse.Namespace) -> bool:
    """Return whether nothing was found. Print that in one line, and one more for each finding."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        report = _run_worker(name, arguments, Path(folder))
    rate = report.inputs / report.seconds if report.seconds else 0.0
    if report.grown_bytes > GROWTH_BYTES_MAX:
        report.findings.append(Found("growth", "memory grew over the run, with no single input", b""))
    print(
        f"{name:18} {report.inputs:>10,} inputs in {report.seconds:6.1f} s ({rate:8,.0f}/s, "
        f"{'guided' if report.guided else 'blind'}), memory +{report.grown_bytes >> 20} MiB, "
        f"findings: {len(report.findings)}",
        flush=True,
    )
    for finding in report.findings:
        path = CORPUS / name / hashlib.sha256(finding.input).hexdigest()[:12]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(finding.input)
        shown = path.relative_to(ROOT)
        print(f"  {finding.story}, {finding.count} times: ./dev fuzz {name} --input {shown}", flush=True)
        if len(finding.input) <= TOLD_BYTES_MAX:  # also where the corpus is thrown away, as in CI
            print(f"    or --input base64:{base64.b64encode(finding.input).decode()}", flush=True)
    return not report.findings


def _run_worker(name: str, arguments: argparse.Namespace, folder: Path) -> Report:
    board_path, report_path = folder / "board", folder / "report"
    board_path.write_bytes(bytes(BOARD_BYTES))
    board = Board(str(board_path))
    command = [sys.executable, "-m", "tests.fuzz.worker", name, f"--seed={arguments.seed}"]
    command += [f"--seconds={arguments.seconds}", f"--inputs={arguments.inputs}", f"--corpus={CORPUS / name}"]
    command += [f"--board={board_path}", f"--report={report_path}"]
    temporary = folder / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}  # the worker removes nothing when it ends
    begun_s = time.monotonic()
    with open(folder / "output", "w+b") as output:
        worker = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL
        )
        try:
            hung = _watch(worker, board)
        finally:
            worker.kill()
            worker.wait()
        if report_path.exists():
            return decode_msgpack(report_path.read_bytes(), Report)
        output.seek(0)
        said = output.read().decode(errors="replace").strip().splitlines()[-1:]
    story = "hangs outside of Python" if hung else f"the process died (status {worker.returncode}): {said}"
    lost = Found("died", story, board.current)
    return Report(False, board.inputs, time.monotonic() - begun_s, 0, [lost])


def _watch(worker: subprocess.Popen[bytes], board: Board) -> bool:
    """Return whether it had to be given up."""
    last, since_s = -1, time.monotonic()
    while True:
        try:
            worker.wait(1.0)
            return False
        except subprocess.TimeoutExpired:
            pass
        if board.inputs != last:
            last, since_s = board.inputs, time.monotonic()
        elif time.monotonic() - since_s > (SILENCE_S if last else START_S):
            return True


def _input_of(word: str) -> bytes:
    kind, _, text = word.partition(":")
    return base64.b64decode(text) if kind == "base64" else Path(word).read_bytes()


def _replay(name: str, data: bytes) -> int:
    fuzzer = targets.load(name)
    with Judge(fuzzer) as judge:
        finding = judge.look_at(data)
    print(f"{name}: {data[:200]!r}")
    if finding is None:
        print("nothing is wrong")
        return 0
    print(finding.story)
    try:
        fuzzer.parse(data)
    except Exception:  # noqa: BLE001 - to show it
        traceback.print_exc()
    return 1


if __name__ == "__main__":
    sys.exit(main())
