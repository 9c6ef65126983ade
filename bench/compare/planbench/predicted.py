"""Predictions of jobs without a plan: how many of those that were handed out came true."""

from __future__ import annotations

import random
from collections.abc import Iterable

from headrace.plan.job_streams import JobStreams
from headrace.plan.prediction import AccessPredictor

from .cases import Bench

PRECISION = "predictions that came true, without a plan"
COVERED = "opens that were predicted, without a plan"
WRONG = "wrong predictions, of all files"


def predicted(bench: Bench) -> None:
    """Three epochs of each kind of job. 32 predictions are asked for before each open, a tenth of the files at most are
    predicted and not opened yet."""
    for name, opens in jobs(bench.files).items():
        predictor = AccessPredictor(bench.files, bench.files // 10)
        count = 0
        for count, file in enumerate(opens, 1):
            predictor.predictions(32)
            predictor.open(file, count * 0.001)
        if predictor.precision_of_issued is not None:
            bench.results.add(PRECISION, name, predictor.precision_of_issued, unit="share")
        bench.results.add(COVERED, name, predictor.right / count, unit="share")
        bench.results.add(WRONG, name, predictor.wrong / bench.files, unit="share")
    for name, both in two_jobs(bench.files).items():
        for contender, is_divided in ((f"{name}, as one", False), (f"{name}, divided", True)):
            streams = JobStreams(lambda: AccessPredictor(bench.files, bench.files // 10), bench.files)
            for count, file in enumerate(both, 1):
                for predictor in streams.predicting:
                    predictor.predictions(32)
                streams.open(file, 1 + count % 2 if is_divided else 0, count * 0.001)
            _, right, wrong = streams.counts
            if right + wrong:
                bench.results.add(PRECISION, contender, right / (right + wrong), unit="share")
            bench.results.add(COVERED, contender, right / len(both), unit="share")
            bench.results.add(WRONG, contender, wrong / bench.files, unit="share")


def two_jobs(files: int) -> dict[str, list[int]]:
    """Return the opens of two jobs that open a file each in turn."""
    walk, order = [*range(files)] * 3, shuffled(files, 1) * 3
    shuffles = [[file for epoch in range(3) for file in shuffled(files, job + epoch)] for job in (10, 20)]
    pairs = {
        "two walks": (walk, walk[files // 2 :] + walk[: files // 2]),
        "a walk and a repeated order": (walk, order),
        "two jobs in shuffled epochs": (shuffles[0], shuffles[1]),
    }
    return {
        name: [file for files_of_both in zip(first, second, strict=True) for file in files_of_both]
        for name, (first, second) in pairs.items()
    }


def jobs(files: int) -> dict[str, Iterable[int]]:
    draws = random.Random(7)
    same = shuffled(files, 1)
    return {
        "walk": [*range(files)] * 3,
        "walk of 4 workers": interleaved(files, workers=4, batch=16) * 3,
        "shuffled epochs": [file for epoch in range(3) for file in shuffled(files, epoch)],
        "shuffled epochs, two thirds of the files": [
            file for epoch in range(3) for file in shuffled(files * 2 // 3, epoch)
        ],
        "repeated order": same * 3,
        "independent draws": [draws.randrange(files) for _ in range(3 * files)],
    }


def shuffled(files: int, seed: int) -> list[int]:
    order = list(range(files))
    random.Random(seed).shuffle(order)
    return order


def interleaved(files: int, *, workers: int, batch: int) -> list[int]:
    """Batches that workers read beside each other, a file each in turn."""
    order: list[int] = []
    for start in range(0, files, workers * batch):
        for index in range(batch):
            numbers = (start + worker * batch + index for worker in range(workers))
            order += [number for number in numbers if number < files]
    return order
