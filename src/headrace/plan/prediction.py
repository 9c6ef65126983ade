"""Predict the reads of a job that no plan describes, from the files that it opens.

Three models watch the same opens: a sequential walk, an order that repeats an earlier epoch, and a shuffled epoch that
reads each file once. Each model is measured against what happens, also while its predictions are not used. It is
switched on when its precision is high, and off when it is low. No I/O and no clock: the caller passes the times.

Files are numbers from 0: their places among the sorted paths of the data set. Memory: at most 9 bytes a file of a
recorded epoch; twice as much for a job that reads files twice, and 1 bit where nothing is recorded.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Protocol

from headrace.plan.orders import KnownEpoch

ON_AT = 0.8
OFF_AT = 0.5
"""The precision at which a model is switched on and off."""

FILES_RECORDED_MAX = 16_000_000
_SAMPLES_LEAST = 16
_SAMPLES_KEPT = 256
_WINDOW = 64  # opens of several workers that read ahead differ by this much from an order
_REPEATS_EXPECTED_LEAST = 3.0
_EPOCH_SHARE = 0.9
_REPEATS_AT_THE_END = 8
_REPEATS_OF_AN_EPOCH = 32
_GAP_S_MAX = 60.0


class Score:
    """Measures a model: which share of its recent predictions came true."""

    def __init__(self) -> None:
        self._right = self._wrong = 0.0
        self.is_on = False

    @property
    def precision(self) -> float | None:
        """Return None before enough predictions were measured."""
        count = self._right + self._wrong
        return self._right / count if count >= _SAMPLES_LEAST else None

    @property
    def is_hopeless(self) -> bool:
        precision = self.precision
        return precision is not None and precision < OFF_AT / 2

    def add(self, *, is_right: bool) -> None:
        self._right += is_right
        self._wrong += not is_right
        if self._right + self._wrong >= _SAMPLES_KEPT:
            self._right, self._wrong = self._right / 2, self._wrong / 2
        self.is_on = switched(self.precision, is_on=self.is_on)


def switched(precision: float | None, *, is_on: bool) -> bool:
    """Return whether a model is used, given its precision and whether it was used before."""
    if precision is None:
        return is_on
    return precision >= (OFF_AT if is_on else ON_AT)


class PredictionModel(Protocol):
    """Predicts the next files of a job."""

    @property
    def is_on(self) -> bool: ...
    @property
    def precision(self) -> float | None: ...
    @property
    def run(self) -> int:
        """Return a number that changes when the job leaves the order that was expected."""

    def open(self, file: int) -> None:
        """Note that the job opened a file."""

    def upcoming(self) -> Iterator[int]:
        """Yield the files that are expected next, in order if it is known: each once, also over several calls, until
        `run` changes."""


class SequentialWalk:
    """Expects the files that follow in the order of their paths: walks of directories, shards in order.

    Several workers may read beside each other, so an open near the front is a part of the walk. Any other open is a
    wrong prediction, and begins a new walk.
    """

    def __init__(self, file_count: int) -> None:
        self._file_count = file_count
        self._score = Score()
        self._front = -1
        self._near_count = self._cursor = 0
        self.run = 0

    @property
    def is_on(self) -> bool:
        return self._score.is_on

    @property
    def precision(self) -> float | None:
        return self._score.precision

    def open(self, file: int) -> None:
        is_near = self._front - _WINDOW <= file <= self._front + _WINDOW
        self._score.add(is_right=is_near)
        self._front = max(self._front, file) if is_near else file
        self._near_count = self._near_count + 1 if is_near else 0
        self._cursor = max(self._cursor if is_near else 0, self._front + 1)
        self.run += not is_near

    def upcoming(self) -> Iterator[int]:
        # as a kernel's readahead: a walk that has just begun is trusted for little
        end = min(self._file_count, self._front + 1 + 2 * self._near_count)
        while self._cursor < end:
            self._cursor += 1
            yield self._cursor - 1


class RepeatedOrder:
    """Records the first epoch, and expects its order again. The record of a job that does not repeat it is dropped."""

    def __init__(self, file_count: int) -> None:
        self._score = Score()
        self._recording: array[int] | None = array("I") if file_count <= FILES_RECORDED_MAX else None
        self._file_count = file_count
        self._epoch: KnownEpoch | None = None
        self._position = self._near_count = self._cursor = 0
        self.run = 0

    @property
    def is_on(self) -> bool:
        return self._epoch is not None and self._score.is_on

    @property
    def precision(self) -> float | None:
        return self._score.precision

    def open(self, file: int) -> None:
        if self._epoch is None:
            if self._recording is not None and len(self._recording) < 2 * self._file_count:
                self._recording.append(file)
        elif self._epoch.step():
            self._compare(self._epoch, file)

    def end_epoch(self, begun: int) -> None:
        """Note that another epoch began with the last `begun` opens."""
        if self._recording:
            del self._recording[len(self._recording) - begun :]
            self._epoch, self._recording = KnownEpoch(0, self._recording), None
        elif self._epoch is not None:
            self._epoch = KnownEpoch(0, self._epoch.order)
        self._position = self._cursor = 0

    def upcoming(self) -> Iterator[int]:
        order = self._epoch.order if self._epoch is not None else array("I")
        end = min(len(order), self._position + 2 * self._near_count)
        while self._cursor < end:
            self._cursor += 1
            yield order[self._cursor - 1]

    def _compare(self, epoch: KnownEpoch, file: int) -> None:
        least = max(0, self._position - _WINDOW)
        position = epoch.find(file, least)
        is_near = position is not None and position <= self._position + _WINDOW
        self._score.add(is_right=is_near)
        if position is not None:
            # the front of several workers; a far position is a jump, as of a resumed run
            self._position = max(self._position, position + 1) if is_near else position + 1
        self._near_count = self._near_count + 1 if is_near else 0
        self._cursor = max(self._cursor if is_near else 0, self._position)
        self.run += not is_near
        if self._score.is_hopeless:
            self._epoch = None


class ShuffledEpoch:
    """Expects each file once an epoch, in an unknown order: all that was not read yet.

    Its precision compares the repeated reads with those of independent draws. After reading a share r of all files, an
    independent draw repeats a file with probability r. The files of the job are all, and from its second epoch on those
    that it has read.
    """

    def __init__(self, file_count: int) -> None:
        self._all_count = self._job_count = file_count
        self._job_files: bytearray | None = None
        self._read = bytearray(-(-file_count // 8))
        self._read_count = self._repeats = 0
        self._repeats_expected = 0.0
        self._run: list[int] = []
        self._cursor = 0
        self.is_on = False
        self.run = 0

    @property
    def precision(self) -> float | None:
        if self._repeats_expected < _REPEATS_EXPECTED_LEAST:
            return None
        return max(0.0, 1 - self._repeats / self._repeats_expected)

    @property
    def position(self) -> int:
        """Return how many files the job has read in this epoch."""
        return self._read_count

    def has_read(self, file: int) -> bool:
        return _has(self._read, file)

    def ends_with(self, file: int) -> int | None:
        """Return how many opens before this one were of the next epoch, if there is a next epoch; else None.

        It has begun if all files were read, or after a series of repeated ones.
        """
        if self._read_count >= self._job_count:
            return 0
        is_nearly_read = self._read_count >= _EPOCH_SHARE * self._job_count
        least = _REPEATS_AT_THE_END if is_nearly_read else _REPEATS_OF_AN_EPOCH
        return len(self._run) if len(self._run) >= least and self.has_read(file) else None

    def open(self, file: int) -> None:
        self._repeats_expected += self._read_count / max(1, self._job_count)
        if self._job_files is not None and not _has(self._job_files, file):
            _add(self._job_files, file)
            self._job_count += 1
        if self.has_read(file):
            self._repeats += 1
            self._run.append(file)
        else:
            self._run.clear()
            _add(self._read, file)
            self._read_count += 1
        self.is_on = switched(self.precision, is_on=self.is_on)

    def end_epoch(self) -> None:
        """Begin another epoch with the series of repeats. What was learnt of the job stays, with half its weight."""
        run = dict.fromkeys(self._run)
        self._job_files, self._job_count = self._read, self._read_count
        self._repeats = max(0, self._repeats - len(self._run)) // 2
        self._repeats_expected /= 2
        self._read, self._read_count = bytearray(len(self._read)), len(run)
        for file in run:
            _add(self._read, file)
        self._run.clear()
        self.rewind()

    def rewind(self) -> None:
        """Let `upcoming` begin with the first file again."""
        self._cursor = 0

    def upcoming(self) -> Iterator[int]:
        """Yield the files that the job was not seen to read, each once, also over several calls."""
        while self._cursor < self._all_count:
            file = self._cursor
            self._cursor += 1
            if not self.has_read(file) and (self._job_files is None or _has(self._job_files, file)):
                yield file


def _has(bitmap: bytearray, number: int) -> bool:
    return bool(bitmap[number >> 3] >> (number & 7) & 1)


def _add(bitmap: bytearray, number: int) -> None:
    bitmap[number >> 3] |= 1 << (number & 7)


def _is_any(_: int) -> bool:
    return True


def _ignore(_: int) -> None:
    pass


class AccessPredictor:
    """Predicts the files of one data set that one job opens next.

    file_count: of the data set. outstanding_max: predictions that were handed out and not opened yet; this bounds what
    wrong predictions cost. on_given_up: called with each one that is counted as wrong.
    """

    def __init__(
        self, file_count: int, outstanding_max: int, on_given_up: Callable[[int], object] = _ignore
    ) -> None:
        self._file_count, self._outstanding_max = file_count, outstanding_max
        self._on_given_up = on_given_up
        self.sequential = SequentialWalk(file_count)
        self.repeated = RepeatedOrder(file_count)
        self.shuffled = ShuffledEpoch(file_count)
        self._outstanding: dict[int, int] = {}  # by file, the count of opens at which it is given up
        self._issuer: tuple[PredictionModel, int] | None = None
        self._last_file, self._opens = -1, 0
        self._opened_at_s: float | None = None
        self.files_s = 0.0
        """The files that the job opens a second: a mean over about 64 opens."""
        self.right = self.wrong = 0
        """Predictions that were handed out: opened; given up without an open."""
        self.has_more = False
        """True if the last call of `predictions` looked at as many files as it might."""
        self.epochs = 0
        """Epochs that have ended."""

    @property
    def issued(self) -> int:
        """Return how many predictions were handed out."""
        return self.right + self.wrong + len(self._outstanding)

    @property
    def precision_of_issued(self) -> float | None:
        """Return the share of the predictions handed out that came true; None: there were none."""
        return self.right / (self.right + self.wrong) if self.right + self.wrong else None

    @property
    def model(self) -> PredictionModel | None:
        """Return the model that predicts now: the one that knows most of the order."""
        for model in self._models():
            if model.is_on:
                return model
        return None

    @property
    def has_order(self) -> bool:
        """Return whether the model that predicts now knows the order of the files."""
        return self.model not in (None, self.shuffled)

    @property
    def model_name(self) -> str:
        """Return "sequential", "repeated" or "shuffled"; "" while no model predicts."""
        names = ("sequential", "repeated", "shuffled")
        return next((name for name, model in zip(names, self._models(), strict=True) if model.is_on), "")

    def open(self, file: int, now_s: float) -> None:
        """Note that the job opened a file. A number that the data set does not have changes nothing, and neither does a
        second open of the same file."""
        if not 0 <= file < self._file_count or file == self._last_file:
            return
        self._last_file, self._opens = file, self._opens + 1
        self._measure(now_s)
        begun = self.shuffled.ends_with(file)
        if begun is not None:
            self._give_up()
            self.epochs += 1
            self.shuffled.end_epoch()
            self.repeated.end_epoch(begun)
        for model in self._models():
            model.open(file)
        if self._outstanding.pop(file, None) is not None:
            self.right += 1
        issuer = self._issuer_now()
        if self._issuer is not None and self._issuer != issuer:
            # what a shuffled epoch has not read is read in any order that is known since
            if issuer is None or self._issuer[0] is not self.shuffled:
                self._give_up()
        elif self.model is not self.shuffled:
            self._expire()

    def predictions(
        self, limit: int, is_wanted: Callable[[int], bool] = _is_any, *, scan_max: int | None = None
    ) -> list[int]:
        """Return up to `limit` files that will be opened soon, none of which is outstanding.

        Those of a sequential walk and of a repeated order come in their order; those of a shuffled epoch in that of
        their paths. Empty while no model is on, and while too many predictions have not come true. A file that is not
        wanted, as it is cached, is passed over. scan_max: most files that are looked at.
        """
        self._issuer = self._issuer_now()
        limit = min(limit, self._outstanding_max - len(self._outstanding))
        self.has_more = False
        files: list[int] = []
        if self._issuer is None or limit <= 0:
            return files
        is_ordered = self._issuer[0] is not self.shuffled
        kept = 4 * (self._outstanding_max + _WINDOW) if is_ordered else self._file_count
        scanned = 0
        for file in islice(self._issuer[0].upcoming(), scan_max):
            scanned += 1
            if file not in self._outstanding and not self.shuffled.has_read(file) and is_wanted(file):
                files.append(file)
                self._outstanding[file] = self._opens + kept
                if len(files) == limit:
                    break
        self.has_more = scanned == scan_max
        return files

    def close(self) -> None:
        """Count what was predicted and not opened as wrong: no open follows."""
        self._give_up()

    def _issuer_now(self) -> tuple[PredictionModel, int] | None:
        model = self.model
        return None if model is None else (model, model.run)

    def _models(self) -> tuple[PredictionModel, ...]:
        return self.sequential, self.repeated, self.shuffled

    def _give_up(self) -> None:
        """Count what was predicted and not opened as wrong, and begin again."""
        self.wrong += len(self._outstanding)
        for file in self._outstanding:
            self._on_given_up(file)
        self._outstanding.clear()
        self._issuer = None
        self.shuffled.rewind()

    def _expire(self) -> None:
        """Give up predictions of an order that the job has passed."""
        while self._outstanding:
            file = next(iter(self._outstanding))
            if self._outstanding[file] >= self._opens:
                return
            del self._outstanding[file]
            self.wrong += 1
            self._on_given_up(file)

    def _measure(self, now_s: float) -> None:
        if self._opened_at_s is not None:
            gap_s = min(max(1e-6, now_s - self._opened_at_s), _GAP_S_MAX)
            mean_s = 1 / self.files_s if self.files_s else gap_s
            self.files_s = 1 / (mean_s + (gap_s - mean_s) / 64)
        self._opened_at_s = now_s
