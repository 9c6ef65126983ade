"""Accelerator utilization and throughput out of the times of steps. Pure.

As MLPerf Storage's code has it (DLIO, dlio_benchmark/utils/statscounter.py, compute_metrics_train, with one step
excluded at the start): the seconds of computing in steps 2..N over the wall time of the epoch less its first step; of
many accelerators the mean. Samples a second are of the same steps; DLIO divides by the same time, but counts N - 2.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class EpochTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Of one accelerator. load_s, compute_s: of each step. step_s: of the same, from asking for a batch until it was
    computed on, without the wait for the other accelerators. wall_s: of the epoch, from before its loader was asked
    for the first batch until after the last step. bytes_read, failed: samples' bytes, and reads that failed, in
    steps 1..N. first_bytes: of step 1. processor_s: of the trainer and its loader's workers.
    """

    load_s: list[float]
    compute_s: list[float]
    step_s: list[float]
    wall_s: float
    bytes_read: int
    first_bytes: int
    failed: int = 0
    processor_s: float = 0.0


class EpochMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Of all accelerators. au: 0 to 1. first_batch_s: until the slowest had its first batch. Bytes and samples a second
    are those of steps 2..N; bytes_read those of all."""

    epoch: int
    steps: int
    au: float
    samples_s: float
    bytes_s: float
    first_batch_s: float
    wall_s: float
    bytes_read: int
    failed: int
    processor_s: float
    compute_s: float
    """Of a step, as it was: a sleep is late where processors are busy, and AU counts that as computing."""
    load_p50_s: float
    load_p99_s: float


def utilization(times: EpochTimes) -> float:
    """0 where there is only one step."""
    measured_s = times.wall_s - times.step_s[0]
    return sum(times.compute_s[1:]) / measured_s if measured_s > 0 else 0.0


def epoch_of(number: int, accelerators: Sequence[EpochTimes], *, batch: int) -> EpochMetrics:
    steps = min(len(one.compute_s) for one in accelerators)
    waits = sorted(wait for one in accelerators for wait in one.load_s[1:]) or [0.0]
    return EpochMetrics(
        epoch=number,
        steps=steps,
        au=sum(utilization(one) for one in accelerators) / len(accelerators),
        samples_s=sum(_rate((len(one.compute_s) - 1) * batch, one) for one in accelerators),
        bytes_s=sum(_rate(one.bytes_read - one.first_bytes, one) for one in accelerators),
        first_batch_s=max(one.load_s[0] for one in accelerators),
        wall_s=max(one.wall_s for one in accelerators),
        bytes_read=sum(one.bytes_read for one in accelerators),
        failed=sum(one.failed for one in accelerators),
        processor_s=sum(one.processor_s for one in accelerators),
        compute_s=max(_mean(one.compute_s[1:]) for one in accelerators),
        load_p50_s=waits[len(waits) // 2],
        load_p99_s=waits[min(len(waits) - 1, int(len(waits) * 0.99))],
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _rate(amount: float, times: EpochTimes) -> float:
    measured_s = times.wall_s - times.step_s[0]
    return amount / measured_s if measured_s > 0 else 0.0
