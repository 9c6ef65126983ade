"""Predictions for any series of opens: bounded, of files that exist, never one that was read in this epoch."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from headrace.plan.prediction import AccessPredictor

PARTS = st.lists(
    st.tuples(
        st.sampled_from(["walk", "shuffle", "repeat", "draws", "same", "outside"]),
        st.integers(0, 2**16),
        st.integers(1, 150),
    ),
    max_size=6,
)


def opens_of(kind: str, seed: int, length: int, count: int) -> list[int]:
    random_source = random.Random(seed)
    if kind == "walk":
        start = seed % count
        return [(start + step) % count for step in range(length)]
    if kind in ("shuffle", "repeat"):
        order = list(range(count))
        random.Random(seed % 3 if kind == "repeat" else seed).shuffle(order)
        return order[: length * 2]
    if kind == "same":
        return [seed % count] * length
    if kind == "outside":
        return [random_source.choice([-1, count, 1 << 40]) for _ in range(length)]
    return [random_source.randrange(count) for _ in range(length)]


@given(st.integers(1, 200), PARTS, st.integers(1, 40), st.integers(0, 20))
def test_predictions_are_bounded_and_counted(
    count: int, parts: list[tuple[str, int, int]], outstanding_max: int, limit: int
) -> None:
    predictor = AccessPredictor(count, outstanding_max)
    issued, now_s = 0, 0.0
    for kind, seed, length in parts:
        for file in opens_of(kind, seed, length, count):
            files = predictor.predictions(limit)
            assert len(files) <= min(limit, outstanding_max)
            assert len(set(files)) == len(files)
            assert all(0 <= predicted < count for predicted in files)
            assert not any(predictor.shuffled.has_read(predicted) for predicted in files)
            issued += len(files)
            now_s += seed % 7
            predictor.open(file, now_s)
            outstanding = issued - predictor.right - predictor.wrong
            assert 0 <= outstanding <= outstanding_max
            assert predictor.files_s >= 0
