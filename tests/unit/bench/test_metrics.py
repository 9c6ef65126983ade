"""Accelerator utilization against cases that were computed by hand."""

from __future__ import annotations

import pytest

from headrace.bench.metrics import EpochTimes, epoch_of, utilization


def times(load: list[float], compute: list[float], *, wall: float, bytes_each: int = 100) -> EpochTimes:
    return EpochTimes(
        load_s=load,
        compute_s=compute,
        step_s=[a + b for a, b in zip(load, compute, strict=True)],
        wall_s=wall,
        bytes_read=bytes_each * len(load),
        first_bytes=bytes_each,
    )


def test_a_loader_that_is_always_ahead_gives_all_of_it() -> None:
    # the first batch takes 5 s; then four steps of 1 s: 4 / (5 + 5 - 6)
    assert utilization(times([5, 0, 0, 0, 0], [1, 1, 1, 1, 1], wall=10)) == pytest.approx(1.0)


def test_waits_after_the_first_step_count_and_its_own_does_not() -> None:
    # steps 2 to 5: 1 s of compute, 0.25 s of wait each: 4 / 5; the first took 7 + 1 s
    accelerator = times([7, 0.25, 0.25, 0.25, 0.25], [1, 1, 1, 1, 1], wall=13)
    assert utilization(accelerator) == pytest.approx(0.8)


def test_what_is_in_no_step_counts_as_waiting() -> None:
    # a barrier of 0.1 s after each of 5 steps, the first one's too, as DLIO has it
    accelerator = times([1, 0, 0, 0, 0], [1, 1, 1, 1, 1], wall=6.5)
    assert utilization(accelerator) == pytest.approx(4 / 4.5)


def test_one_step_is_none() -> None:
    assert utilization(times([1], [1], wall=2)) == 0.0


def test_the_epoch_of_two_accelerators() -> None:
    quick = times([2, 0, 0], [1, 1, 1], wall=5, bytes_each=1000)  # 2 / 2
    slow = times([1, 0.5, 0.5], [1, 1, 1], wall=5, bytes_each=3000)  # 2 / 3
    epoch = epoch_of(4, [quick, slow], batch=8)
    assert epoch.au == pytest.approx((1 + 2 / 3) / 2)
    assert epoch.samples_s == pytest.approx(2 * 8 / 2 + 2 * 8 / 3)
    assert epoch.bytes_s == pytest.approx(2000 / 2 + 6000 / 3)
    assert (epoch.epoch, epoch.steps, epoch.first_batch_s, epoch.bytes_read) == (4, 3, 2, 12000)
