"""Predictions for jobs without a plan: of walks, shuffled epochs and repeated orders; none for what has no order."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from headrace.plan.prediction import AccessPredictor

FILES = 2000


def shuffled(count: int, seed: int = 0) -> list[int]:
    files = list(range(count))
    random.Random(seed).shuffle(files)
    return files


def run(predictor: AccessPredictor, files: Iterable[int], ahead: int = 8) -> list[int]:
    """Open the files, and ask for predictions before each open. Return those that were handed out."""
    issued: list[int] = []
    for number, file in enumerate(files):
        issued += predictor.predictions(ahead)
        predictor.open(file, number * 0.01)
    return issued


def test_a_walk_is_predicted_in_its_order() -> None:
    predictor = AccessPredictor(FILES, 32)
    issued = run(predictor, range(500))
    assert predictor.model is predictor.sequential
    assert issued == list(range(issued[0], issued[0] + len(issued)))
    assert issued[0] < 64
    assert predictor.wrong == 0
    assert predictor.right > 400
    assert len(predictor.predictions(100)) <= 32
    assert predictor.predictions(100) == []
    assert predictor.files_s == pytest.approx(100)


def test_a_walk_of_several_workers_is_predicted() -> None:
    predictor = AccessPredictor(FILES, 64)
    batches = [range(start, start + 8) for start in range(0, 1600, 8)]
    mixed = [
        batches[group + worker][index]
        for group in range(0, 200, 4)
        for index in range(8)
        for worker in range(4)
    ]
    run(predictor, mixed)
    assert predictor.model is predictor.sequential
    assert predictor.wrong <= 64 < predictor.right


def test_a_walk_that_jumps_is_followed() -> None:
    predictor = AccessPredictor(FILES, 16)
    run(predictor, [*range(1000, 1400), *range(100, 500), *range(1500, 1900)])
    assert predictor.right > 1000
    assert predictor.wrong <= 2 * 16


def test_a_shuffled_epoch_is_predicted_as_what_was_not_read() -> None:
    predictor = AccessPredictor(FILES, 100)
    order = shuffled(FILES)
    run(predictor, order[:600])
    assert predictor.model is predictor.shuffled
    assert (predictor.precision_of_issued or 0) > 0.99
    unread = set(order[600:])
    assert set(predictor.predictions(1000)) <= unread


def test_another_shuffled_epoch_begins_with_all_files() -> None:
    predictor = AccessPredictor(FILES, 100)
    for epoch in range(3):
        run(predictor, shuffled(FILES, epoch))
    assert predictor.repeated.precision is not None and predictor.repeated.precision < 0.5
    assert predictor.model is predictor.shuffled
    run(predictor, shuffled(FILES, 3)[:200])
    assert (predictor.precision_of_issued or 0) > 0.95


def test_the_files_of_a_job_are_those_of_its_first_epoch() -> None:
    """It trains on two thirds of the data set, and reads about all of them in each epoch."""
    predictor = AccessPredictor(3000, 200)
    for epoch in range(4):
        run(predictor, shuffled(2000, epoch)[: 2000 - epoch])
    run(predictor, shuffled(2000, 9)[:500])
    predictor.right = predictor.wrong = 0
    issued = run(predictor, shuffled(2000, 9)[500:1990])
    assert predictor.model is predictor.shuffled
    assert max(issued) < 2000
    assert (predictor.precision_of_issued or 0) > 0.9


def test_a_repeated_order_is_replayed() -> None:
    predictor = AccessPredictor(FILES, 32)
    order = shuffled(FILES)
    run(predictor, order)
    run(predictor, order[:1000])
    assert predictor.model is predictor.repeated
    issued = predictor.predictions(32)
    assert issued and set(issued) <= set(order[1000:1064])
    before = predictor.wrong
    run(predictor, order[1000:])
    assert predictor.wrong == before


def test_independent_draws_are_not_predicted_for_long() -> None:
    predictor, draws = AccessPredictor(FILES, 50), random.Random(3)
    run(predictor, (draws.randrange(FILES) for _ in range(FILES)))
    assert predictor.model is None
    assert predictor.wrong <= 100


def test_a_model_that_becomes_wrong_is_switched_off() -> None:
    predictor, draws = AccessPredictor(FILES, 50), random.Random(3)
    run(predictor, range(500))
    assert predictor.model is predictor.sequential
    run(predictor, (draws.randrange(FILES) for _ in range(2 * FILES)))
    assert predictor.model is None
    assert predictor.predictions(10) == []
    assert predictor.wrong < 300


def test_opens_that_say_nothing_change_nothing() -> None:
    predictor = AccessPredictor(100, 10)
    for _ in range(50):
        predictor.open(-1, 0.0)
        predictor.open(100, 0.0)
        predictor.open(7, 0.0)
    assert predictor.model is None
    assert predictor.shuffled.precision is None


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_small_data_set_is_no_error(count: int) -> None:
    predictor = AccessPredictor(count, 10)
    for number in range(100):
        predictor.open(number % max(1, count), float(number))
        predictor.predictions(5)
