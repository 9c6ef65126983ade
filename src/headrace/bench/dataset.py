"""Create the data sets of the workloads, in parallel. A run that was stopped continues.

A data set is a directory `train/` and a note beside it (NOTE) that describes it. Names are DLIO's, so that DLIO can
read the same data set. The note determines everything: size and bytes of a file follow from the seed and its number.
"""

from __future__ import annotations

import io
import math
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

import msgspec
import numpy as np

from headrace.base.decoding import decode_json
from headrace.base.errors import HeadraceError, UsageError
from headrace.base.uninterrupted import uninterrupted
from headrace.bench import formats
from headrace.bench.storage import READ_ERRORS, BenchStorage, Where, open_place
from headrace.bench.workloads import Workload

NOTE = "headrace-bench.json"
"""File name of the note."""
NOTE_FORMAT = 1
CLASSES = 100
"""Number of directories for JPEGs that are not flat."""
TASK_BYTES = 64 << 20
"""Bytes that a process creates per task, so many that opening a client does not matter."""
LARGE_BYTES = 256 << 20
"""Size from which a file is written while it is generated, not from memory."""
Progress = Callable[[int, int], None]
"""A callback with the bytes created so far and the bytes of all files."""


class DataSet(msgspec.Struct, frozen=True, kw_only=True):
    """Describe a data set. sample_bytes, sd_bytes, sigma: those of Workload. samples_a_file: never 0, unlike
    Workload's. flat: all files are in one directory, as DLIO's are."""

    workload: str
    format: str
    files: int
    samples_a_file: int
    sample_bytes: float
    sd_bytes: float
    sigma: float
    seed: int
    flat: bool = False
    note_format: int = NOTE_FORMAT

    def name(self, number: int) -> str:
        stem = f"img_{number:0{len(str(self.files))}}_of_{self.files}"
        if (
            self.format == "jpeg" and not self.flat
        ):  # a directory for each class, as torchvision's ImageFolder wants it
            return f"train/{number % CLASSES:03}/{stem}.jpeg"
        return f"train/{stem}.{'bin' if self.format == 'tokens' else self.format}"

    def sizes(self, number: int) -> list[int]:
        """Return the size of each sample of a file; a file of tokens is one sample."""
        random = self.random(number)
        if self.format == "tokens":
            return [self.samples_a_file * round(self.sample_bytes)]
        return [self._size(random) for _ in range(self.samples_a_file)]

    def random(self, number: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, number])

    def expected_bytes(self) -> int:
        return round(self.files * self.samples_a_file * self.sample_bytes)

    def _size(self, random: np.random.Generator) -> int:
        if self.sigma:
            middle = math.log(self.sample_bytes) - self.sigma**2 / 2  # so that the mean is sample_bytes
            return max(1, round(random.lognormal(middle, self.sigma)))
        size = self.sample_bytes
        while self.sd_bytes:  # draw again if the size is below 1: 1.6 % of unet3d's
            size = random.normal(self.sample_bytes, self.sd_bytes)
            if size >= 1:
                break
        return max(1, round(size))


def data_set(scaled: Workload, *, steps: int, accelerators: int, seed: int) -> DataSet:
    """Describe the data set that the steps of all accelerators need."""
    return DataSet(
        workload=scaled.name,
        format=scaled.format,
        files=scaled.files(steps, accelerators),
        samples_a_file=scaled.samples_a_file or scaled.samples(steps, accelerators),
        sample_bytes=scaled.sample_bytes,
        sd_bytes=scaled.sd_bytes,
        sigma=scaled.sigma,
        seed=seed,
        flat=scaled.flat,
    )


def read_note(place: BenchStorage) -> DataSet | None:
    """Return the data set of a place; None if there is none. Raises HeadraceError or OSError if the note can't be
    read."""
    try:
        body = place.get(NOTE)
    except FileNotFoundError:
        return None
    except (HeadraceError, OSError):
        raise
    except READ_ERRORS as error:
        raise HeadraceError(NOTE, why=str(error)) from error
    try:
        return decode_json(body, DataSet)
    except msgspec.MsgspecError as error:
        raise UsageError(
            NOTE, why=f"not a note of a data set: {error}", hint="choose an empty directory"
        ) from error


def make(target: Where, wanted: DataSet, *, progress: Progress, processes: int = 0) -> DataSet:
    """Create the data set, or keep an existing one of the same kind that is large enough. Return it.

    Files of an earlier run are kept. Blocks until all files exist; those of a directory are then on the disk. Raises
    UsageError if the place has another data set, HeadraceError.
    """
    place = open_place(target)
    existing = read_note(place)
    if existing is not None:
        check_same(target.root, existing, wanted)
        wanted = existing
    else:
        with place.create(NOTE) as out:
            out.write(msgspec.json.encode(wanted))
    present = place.names("train")
    left = [number for number in range(wanted.files) if wanted.name(number) not in present]
    done, total = sum(present.values()), wanted.expected_bytes()
    progress(done, total)
    for size in _make_all(target, wanted, left, processes or min(8, os.cpu_count() or 1)):
        done += size
        progress(done, max(total, done))
    if target.kind == "folder" and left:
        os.sync()
    return wanted


def check_same(root: str, existing: DataSet, wanted: DataSet) -> None:
    """Raise UsageError unless the existing data set is of the same kind and large enough."""
    for name in ("workload", "format", "sample_bytes", "sd_bytes", "sigma", "seed", "flat", "note_format"):
        mine, other = getattr(wanted, name), getattr(existing, name)
        if mine != other:
            raise UsageError(
                f"{root} has another data set",
                why=f"{name} {other}, not {mine}",
                hint="choose an empty directory",
            )
    if existing.files * existing.samples_a_file < wanted.files * wanted.samples_a_file:
        raise UsageError(
            f"{root} has a smaller data set",
            why=f"{existing.files * existing.samples_a_file} samples, "
            f"{wanted.files * wanted.samples_a_file} are needed",
            hint="choose an empty directory, or fewer steps",
        )


def _make_all(target: Where, wanted: DataSet, numbers: list[int], processes: int) -> Iterator[int]:
    """Create the files, and yield the bytes of each group when it is complete."""
    each = max(1, TASK_BYTES * wanted.files // max(1, wanted.expected_bytes()))
    tasks = [numbers[start : start + each] for start in range(0, len(numbers), each)]
    if len(tasks) < 2 or processes == 1:
        yield from (make_files(target, wanted, some) for some in tasks)
        return
    context = multiprocessing.get_context("spawn")  # s3fs and obstore have threads
    with ProcessPoolExecutor(min(processes, len(tasks)), context, _end_silently) as pool:
        try:
            with uninterrupted():  # processes that begin inherit it: ^C would print a trace of each
                futures = [pool.submit(make_files, target, wanted, some) for some in tasks]
            for task in as_completed(futures):
                yield task.result()
        except BaseException:
            # waits: Python prints a trace if it exits while a pool is ending
            pool.shutdown(cancel_futures=True)
            raise


def _end_silently() -> None:
    """Have ^C end this process at once. The process that started it reports the end."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))


def make_files(target: Where, wanted: DataSet, numbers: list[int]) -> int:
    """Create files and return their bytes. Raises HeadraceError."""
    place = open_place(target)
    try:
        return sum(make_file(place, wanted, number) for number in numbers)
    except READ_ERRORS as error:
        raise HeadraceError(f"{target.root} can't be written", why=str(error)) from error


def make_file(place: BenchStorage, wanted: DataSet, number: int) -> int:
    """Create a file and return its size in bytes. A large file is written while it is generated."""
    random = wanted.random(number)
    sizes = wanted.sizes(number)
    name = wanted.name(number)
    if sum(sizes) > LARGE_BYTES:
        with place.create(name) as out:
            formats.write(out, wanted.format, sizes, random)
        return sum(sizes)
    body = io.BytesIO()
    formats.write(body, wanted.format, sizes, random)
    with place.create(name) as out:
        out.write(body.getbuffer())
    return body.tell()
