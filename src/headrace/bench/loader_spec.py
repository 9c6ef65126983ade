"""Define the plans of a run's processes: which process reads which samples, in which order."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from headrace.bench.dataset import DataSet
from headrace.bench.storage import Where

TORCH, TENSORFLOW = LOADERS = ("torch", "tensorflow")


class LoaderSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Describe the share of a data set that an accelerator reads.

    files: number of files of the data set that are used. loader: one of LOADERS. as_bytes: npz are not decoded.
    prefetch: batches that a loader worker prepares ahead.
    """

    where: Where
    data: DataSet
    files: int
    samples: int
    rank: int
    world: int
    batch: int
    readers: int
    steps: int
    handed_bytes: int
    shuffle: bool
    seed: int
    loader: str = TORCH
    as_bytes: bool = False
    prefetch: int = 2

    def order(self, epoch: int) -> np.ndarray[Any, Any]:
        """Return the numbers of this rank's samples in the epoch; numbers of files if tfrecords have many samples."""
        count = self.files if self.streams else self.samples
        numbers = np.arange(count)
        if self.shuffle:
            np.random.default_rng([self.seed, epoch]).shuffle(numbers)
        each = count // self.world
        if self.streams:
            return numbers[self.rank :: self.world][:each]
        return numbers[self.rank * each : (self.rank + 1) * each]

    @property
    def streams(self) -> bool:
        """Return whether files have many samples and are read sequentially."""
        return self.data.format == "tfrecord" and self.data.samples_a_file > 1


class RankPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Describe the work of all accelerators of one host.

    meet: HOST:PORT of the first of all accelerators; unused if there is only one. first: number of this host's first
    accelerator among all. out: path of the file for all measurements, on host 0.
    """

    feed: LoaderSpec
    epochs: int
    compute_s: float
    meet: str
    first: int
    out: str
