"""Measures what `headrace diagnose` costs the job that it watches: steps a second with and without, by turns.

    .venv/bin/python bench/micro/diagnose_cost.py [--seconds 8] [--rounds 5]

Jobs: `full`, whose loader's workers keep every core busy, so that all that the sampling takes is taken from them; and
`roomy`, one worker and a trainer that sleeps, which leaves cores to the sampling. Rates: looks a second.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

RATES = (0, 10, 50)
SETTLE_S = 3.0
SHORT_S, LONG_S = 3, 13


def job(kind: str) -> None:
    import torch
    from torch.utils.data import DataLoader, Dataset

    from headrace.diagnose import watch

    class Work(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 1 << 30

        def __getitem__(self, index: int) -> torch.Tensor:
            end_s = time.thread_time() + 0.001
            total = 0
            while time.thread_time() < end_s:
                total += index
            return torch.tensor(total % 7)

    workers = len(os.sched_getaffinity(0)) if kind == "full" else 1
    marks = watch()
    for _ in DataLoader(Work(), batch_size=8, num_workers=workers):
        marks.step_begins(8)
        if kind == "roomy":
            time.sleep(0.002)
        marks.step_ends()


def watching(pid: int, rate_hz: int, seconds: float) -> subprocess.Popen[bytes]:
    words = ["diagnose", "--pid", str(pid), "--rate", str(rate_hz), "--seconds", str(seconds)]
    return subprocess.Popen([sys.executable, "-m", "headrace", *words], stdout=subprocess.DEVNULL)


def measured(pid: int, rate_hz: int, seconds: float) -> float:
    """Steps a second while it is watched at that rate, or not at all with 0."""
    from headrace.diagnose.marks import MarksReader

    marks = MarksReader.find(pid)
    assert marks is not None
    watcher = watching(pid, rate_hz, SETTLE_S + seconds) if rate_hz else None
    time.sleep(SETTLE_S)  # its start, which reads the symbols of the interpreter, is another matter
    began, began_s = marks.read().steps, time.monotonic()
    time.sleep(seconds)
    rate = (marks.read().steps - began) / (time.monotonic() - began_s)
    if watcher is not None:
        watcher.wait()
    return rate


def cores(pid: int, rate_hz: int) -> float:
    """Processors that the watching itself uses: what a longer one takes more than a short one."""
    spent = []
    for seconds in SHORT_S, LONG_S:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        watching(pid, rate_hz, seconds).wait()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return (spent[1] - spent[0]) / (LONG_S - SHORT_S)


def rounds(pid: int, count: int, seconds: float) -> Iterator[dict[int, float]]:
    for number in range(count):
        order = RATES if number % 2 == 0 else RATES[::-1]
        yield {rate: measured(pid, rate, seconds) for rate in order}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--job")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    if given.job:
        job(given.job)
        return
    for kind in ("full", "roomy"):
        process = subprocess.Popen([sys.executable, __file__, "--job", kind], start_new_session=True)
        try:
            time.sleep(8)
            measured = list(rounds(process.pid, given.rounds, given.seconds))
            used = {rate: cores(process.pid, rate) for rate in RATES if rate}
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for rate in RATES:
            lost = sorted(100 * (1 - measurement[rate] / measurement[0]) for measurement in measured)
            steps = statistics.median(measurement[rate] for measurement in measured)
            print(
                f"{kind} {rate:>3} Hz: {steps:.1f} steps/s; {statistics.median(lost):+.1f} % lost, "
                f"{lost[0]:+.1f} to {lost[-1]:+.1f}; {used.get(rate, 0):.3f} cores used",
                flush=True,
            )


if __name__ == "__main__":
    main()
