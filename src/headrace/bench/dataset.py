"""Data sets of the workloads: which files of which sizes, and making them, in parallel and again after a stop.

A data set is `train/` in a place, and a note beside it (NOTE) of what it is made of. Names are DLIO's, so that DLIO can
read the same one. All follows from the note: each file's size and bytes come from the seed and the file's number.
"""

from __future__ import annotations

import io
import math
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

import msgspec
import numpy as np

from headrace.base.errors import HeadraceError, UsageError
from headrace.bench import formats
from headrace.bench.storage import READ_ERRORS, BenchStorage, Where, open_place
from headrace.bench.workloads import Workload

NOTE = "headrace-bench.json"
NOTE_FORMAT = 1
CLASSES = 100
TASK_BYTES = 64 << 20
"""Of a process at a time: so long that opening a client weighs nothing."""
LARGE_BYTES = 256 << 20
Progress = Callable[[int, int], None]
"""Bytes made, of all."""


class DataSet(msgspec.Struct, frozen=True, kw_only=True):
    """What a data set is made of. sample_bytes, sd_bytes, sigma: as of Workload. samples_a_file: of one file, whatever
    the workload says of its own."""

    workload: str
    format: str
    files: int
    samples_a_file: int
    sample_bytes: float
    sd_bytes: float
    sigma: float
    seed: int
    note_format: int = NOTE_FORMAT

    def name(self, number: int) -> str:
        stem = f"img_{number:0{len(str(self.files))}}_of_{self.files}"
        if self.format == "jpeg":  # a folder for each class, as torchvision's ImageFolder wants it
            return f"train/{number % CLASSES:03}/{stem}.jpeg"
        return f"train/{stem}.{'bin' if self.format == 'tokens' else self.format}"

    def sizes(self, number: int) -> list[int]:
        """Of the samples of a file, in bytes; a file of tokens is one."""
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
            middle = math.log(self.sample_bytes) - self.sigma**2 / 2  # then the mean is sample_bytes
            return max(1, round(random.lognormal(middle, self.sigma)))
        size = self.sample_bytes
        while self.sd_bytes:  # drawn again where it came out below nothing: 1.6 % of unet3d's
            size = random.normal(self.sample_bytes, self.sd_bytes)
            if size >= 1:
                break
        return max(1, round(size))


def data_set(one: Workload, *, steps: int, accelerators: int, seed: int) -> DataSet:
    """As large as so many steps of so many accelerators need it. one: scaled."""
    return DataSet(
        workload=one.name,
        format=one.format,
        files=one.files(steps, accelerators),
        samples_a_file=one.samples_a_file or one.samples(steps, accelerators),
        sample_bytes=one.sample_bytes,
        sd_bytes=one.sd_bytes,
        sigma=one.sigma,
        seed=seed,
    )


def found(place: BenchStorage) -> DataSet | None:
    """Return what is in a place, None where nothing is. HeadraceError or OSError for a note that can't be read."""
    try:
        body = place.get(NOTE)
    except FileNotFoundError:
        return None
    except (HeadraceError, OSError):
        raise
    except READ_ERRORS as error:
        raise HeadraceError(NOTE, why=str(error)) from error
    try:
        return msgspec.json.decode(body, type=DataSet)
    except msgspec.MsgspecError as error:
        raise UsageError(
            NOTE, why=f"not a note of a data set: {error}", hint="choose an empty folder"
        ) from error


def make(target: Where, wanted: DataSet, *, progress: Progress, processes: int = 0) -> DataSet:
    """The data set of that place: the one that is there, where it is of the same kind and large enough, else the wanted
    one, of which what an earlier run made is kept. Blocks until all of it is there and, of a folder, on the disk.
    UsageError where another one is there. HeadraceError."""
    place = open_place(target)
    there = found(place)
    if there is not None:
        check_same(target.root, there, wanted)
        wanted = there
    else:
        with place.create(NOTE) as out:
            out.write(msgspec.json.encode(wanted))
    present = place.names("train")
    left = [number for number in range(wanted.files) if wanted.name(number) not in present]
    done, total = sum(present.values()), wanted.expected_bytes()
    progress(done, total)
    for size in _made(target, wanted, left, processes or min(8, os.cpu_count() or 1)):
        done += size
        progress(done, max(total, done))
    if target.kind == "folder" and left:
        os.sync()
    return wanted


def check_same(root: str, there: DataSet, wanted: DataSet) -> None:
    for name in ("workload", "format", "sample_bytes", "sd_bytes", "sigma", "seed", "note_format"):
        mine, other = getattr(wanted, name), getattr(there, name)
        if mine != other:
            raise UsageError(
                f"{root} has another data set",
                why=f"{name} {other}, not {mine}",
                hint="choose an empty folder",
            )
    if there.files * there.samples_a_file < wanted.files * wanted.samples_a_file:
        raise UsageError(
            f"{root} has a smaller data set",
            why=f"{there.files * there.samples_a_file} samples, {wanted.files * wanted.samples_a_file} are needed",
            hint="choose an empty folder, or fewer steps",
        )


def _made(target: Where, wanted: DataSet, numbers: list[int], processes: int) -> Iterator[int]:
    """Bytes of some files each time, as they are there."""
    each = max(1, TASK_BYTES * wanted.files // max(1, wanted.expected_bytes()))
    tasks = [numbers[start : start + each] for start in range(0, len(numbers), each)]
    if len(tasks) < 2 or processes == 1:
        yield from (make_files(target, wanted, some) for some in tasks)
        return
    context = multiprocessing.get_context("spawn")  # s3fs and obstore have threads
    with ProcessPoolExecutor(min(processes, len(tasks)), mp_context=context) as pool:
        try:
            for one in as_completed([pool.submit(make_files, target, wanted, some) for some in tasks]):
                yield one.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def make_files(target: Where, wanted: DataSet, numbers: list[int]) -> int:
    """Their bytes. HeadraceError."""
    place = open_place(target)
    try:
        return sum(make_file(place, wanted, number) for number in numbers)
    except READ_ERRORS as error:
        raise HeadraceError(f"{target.root} can't be written", why=str(error)) from error


def make_file(place: BenchStorage, wanted: DataSet, number: int) -> int:
    """Its size in bytes. A large file goes out as it is made."""
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
