"""The fuzzing itself finds what is planted."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz import mutations, targets
from tests.fuzz.fuzzer import Fuzzer
from tests.fuzz.judge import Judge
from tests.fuzz.shrink import shrink
from tests.fuzz.worker import BOARD_BYTES, Board, Run, fuzz_blindly

CORPUS = Path(__file__).parent / "corpus"
CORPUS_BYTES_MAX = 256 << 10
"""The limit of the whole corpus, which is kept small."""


def test_corpus_is_small() -> None:
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < CORPUS_BYTES_MAX
    assert {path.parent.name for path in files} <= set(targets.NAMES)


def planted(data: bytes) -> None:
    if data.startswith(b"size=") and data[5:].isdigit() and int(data[5:]) > 1000:
        raise KeyError(data)
    raise ValueError


def hangs(data: bytes) -> None:
    while b"loop" in data:
        pass


def hoards(data: bytes) -> None:
    if b"hoard" in data:
        bytearray(80 << 20)[:] = b"\1" * (80 << 20)


def asks_for_too_much(data: bytes) -> None:
    bytearray(int(data))


def recurses(data: bytes) -> None:
    recurses(data)


@pytest.mark.parametrize(
    ("parse", "data", "kind"),
    [
        (planted, b"size=1001", "KeyError at fuzz/test_fuzzing.py"),
        (hangs, b"a loop", "hang"),
        (hoards, b"hoard", "growth"),
        (asks_for_too_much, b"9999999999", "MemoryError"),
        (recurses, b"", "RecursionError"),
    ],
)
def test_judge_finds(parse: Callable[[bytes], None], data: bytes, kind: str) -> None:
    fuzzer = Fuzzer("planted", "", parse, (ValueError,), [data])
    with Judge(fuzzer) as judge:
        finding = judge.look_at(data)
    assert finding is not None
    assert finding.kind.startswith(kind)


def test_blind_run_finds_and_shrinks(tmp_path: Path) -> None:
    (tmp_path / "board").write_bytes(bytes(BOARD_BYTES))
    fuzzer = Fuzzer("planted", "", planted, (ValueError,), [b"size=12"], mutate=mutations.mutate_text)
    with Judge(fuzzer) as judge:
        run = Run(fuzzer, judge, Board(str(tmp_path / "board")), limit_s=60, inputs_max=5000)
        fuzz_blindly(run, fuzzer, fuzzer.seeds, 1)
    (finding,) = run.end().findings
    assert finding.count > 1
    assert re.fullmatch(rb"size=\d{4}", finding.input)
    assert Board(str(tmp_path / "board")).inputs == run.report.inputs == 5000


def test_shrink_keeps_what_shows() -> None:
    assert shrink(b"xxxxxxBUGyyyyyyyyyyyyyyyyyyyy", lambda data: b"BUG" in data) == b"BUG"
    began_s = time.monotonic()
    assert shrink(b"abc" * 1000, lambda data: False, seconds=0.1) == b"abc" * 1000
    assert time.monotonic() - began_s < 60


def test_command() -> None:
    command = [sys.executable, "-m", "tests.fuzz"]
    done = subprocess.run([*command, "sizes", "--inputs", "300"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(r"sizes +300 inputs in .*, findings: 0\n", done.stdout)
    unknown = subprocess.run([*command, "nothing"], capture_output=True, text=True, check=False)
    assert unknown.returncode == 2 and "sizes" in unknown.stderr
