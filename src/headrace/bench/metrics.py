"""Compute accelerator utilization and throughput from the times of steps. All functions are pure.

Utilization is the compute time of steps 2..N over the wall time of the epoch without its first step. For many
accelerators it is the mean. MLPerf Storage's code does the same (DLIO, dlio_benchmark/utils/statscounter.py,
compute_metrics_train, with one step excluded at the start). Samples per second are those of the same steps. DLIO
divides by the same time, but counts N - 2 steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class EpochTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Hold the times of one accelerator in one epoch.

    load_s, compute_s: one value per step. step_s: one value per step, from the request for a batch to the end of its
    computation, without the wait for the other accelerators. wall_s: from the request for the first batch to the end of
    the last step. bytes_read, failed: samples' bytes and failed reads in steps 1..N. first_bytes: bytes of step 1.
    processor_s: processor time of the trainer and its loader's workers.
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
    """Hold the metrics of all accelerators in one epoch.

    au: 0 to 1. first_batch_s: time until the slowest accelerator had its first batch. bytes_s, samples_s: of steps
    2..N. bytes_read: of all steps.
    """

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
    """Measured time of a step. On busy processors a sleep ends late, and AU counts that as computing."""
    load_p50_s: float
    load_p99_s: float


def utilization(times: EpochTimes) -> float:
    """Return the accelerator utilization; 0 for an epoch of one step."""
    measured_s = times.wall_s - times.step_s[0]
    return sum(times.compute_s[1:]) / measured_s if measured_s > 0 else 0.0


def epoch_of(number: int, accelerators: Sequence[EpochTimes], *, batch: int) -> EpochMetrics:
    """Return the metrics of one epoch from the times of all accelerators."""
    steps = min(len(times.compute_s) for times in accelerators)
    waits = sorted(wait for times in accelerators for wait in times.load_s[1:]) or [0.0]
    return EpochMetrics(
        epoch=number,
        steps=steps,
        au=sum(utilization(times) for times in accelerators) / len(accelerators),
        samples_s=sum(_rate((len(times.compute_s) - 1) * batch, times) for times in accelerators),
        bytes_s=sum(_rate(times.bytes_read - times.first_bytes, times) for times in accelerators),
        first_batch_s=max(times.load_s[0] for times in accelerators),
        wall_s=max(times.wall_s for times in accelerators),
        bytes_read=sum(times.bytes_read for times in accelerators),
        failed=sum(times.failed for times in accelerators),
        processor_s=sum(times.processor_s for times in accelerators),
        compute_s=max(_mean(times.compute_s[1:]) for times in accelerators),
        load_p50_s=waits[len(waits) // 2],
        load_p99_s=waits[min(len(waits) - 1, int(len(waits) * 0.99))],
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _rate(amount: float, times: EpochTimes) -> float:
    measured_s = times.wall_s - times.step_s[0]
    return amount / measured_s if measured_s > 0 else 0.0
