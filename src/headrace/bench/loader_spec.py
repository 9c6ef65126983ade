"""What the processes of a run are told: who reads what, in which order."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from headrace.bench.dataset import DataSet
from headrace.bench.storage import Where

TORCH, TENSORFLOW = LOADERS = ("torch", "tensorflow")


class LoaderSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What an accelerator reads: its share of a data set. files: of the data set, the first so many are used. loader:
    of LOADERS."""

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

    def order(self, epoch: int) -> np.ndarray[Any, Any]:
        """Numbers of samples (of files, for tfrecords of many samples) of this rank in this epoch."""
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
        return self.data.format == "tfrecord" and self.data.samples_a_file > 1


class RankPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Of all accelerators of one host. meet: HOST:PORT of the first accelerator of all; not needed where there is only
    one. first: number of this host's first accelerator among all. out: a file for what all measured, of host 0."""

    feed: LoaderSpec
    epochs: int
    compute_s: float
    meet: str
    first: int
    out: str
