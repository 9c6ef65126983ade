"""^C while processes make a data set ends them without a trace of each."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.integration.cli.host import wait_until

LIMIT_S = 60.0
SCRIPT = """
import sys
from headrace.bench import dataset, workloads
from headrace.bench.storage import where

wanted = dataset.data_set(workloads.workload("imagefolder"), steps=400, accelerators=1, seed=1)
try:
    dataset.make(where(sys.argv[1]), wanted, progress=lambda *_: None, processes=2)
except KeyboardInterrupt:
    sys.exit(130)
"""
INTERRUPT = 1 << signal.SIGINT - 1


def workers_of(pid: int) -> list[int]:
    """Return the processes that make files, which multiprocessing started."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        pids = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(child) for child in pids if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
    return []


def prints_a_trace(pid: int) -> bool:
    """Return whether Python turns ^C into an exception in a process."""
    rows = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    caught, blocked = (int(rows[name], 16) & INTERRUPT for name in ("SigCgt", "SigBlk"))
    return bool(caught) and not blocked


def test_an_interrupt_ends_all_processes_without_a_trace(tmp_path: Path) -> None:
    traced: list[int] = []
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    ) as maker:

        def has_begun() -> bool:
            traced.extend(pid for pid in workers_of(maker.pid) if prints_a_trace(pid))
            files = (path for path in (tmp_path / "train").rglob("*") if path.is_file())
            return any(files) or maker.poll() is not None

        try:
            wait_until(has_begun, LIMIT_S)
            os.killpg(maker.pid, signal.SIGINT)
            _, errors = maker.communicate(timeout=LIMIT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(maker.pid, signal.SIGKILL)
    assert (maker.returncode, errors, traced) == (130, "", [])
