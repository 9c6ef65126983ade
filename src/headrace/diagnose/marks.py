"""The one line a training script may add: `headrace.diagnose.watch(model, optimizer, loader)`.

It counts steps and says when the trainer is in one, on a page of memory that the sampler finds among the process's
descriptors; so it works with `headrace diagnose` started before, after, or never. A step begins with the model's
forward pass and ends with the optimizer's step. Its cost is two small writes to memory a step.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.diagnose.recording import LoaderFacts

PAGE_NAME = "headrace-diagnose"
PAGE_BYTES = 4096
_HEAD = struct.Struct("<8sIIQQ")  # magic, process, whether in a step, steps, samples
_LOADER = struct.Struct("<IIIII")
_MAGIC = b"headrac1"
_IN_STEP = struct.Struct("<I")
_IN_STEP_AT = 12
_COUNTS = struct.Struct("<QQ")
_COUNTS_AT = 16


@dataclass(frozen=True, slots=True)
class StepMarks:
    """What the page says."""

    process: int
    in_step: bool
    steps: int
    samples: int
    loader: LoaderFacts | None


class StepHook:
    """What `watch` returns; close() takes the hooks away again."""

    def __init__(self) -> None:
        descriptor = os.memfd_create(PAGE_NAME)
        os.ftruncate(descriptor, PAGE_BYTES)
        self._descriptor = descriptor
        self._page = mmap.mmap(descriptor, PAGE_BYTES)
        self._steps = 0
        self._samples = 0
        self._undo: list[Callable[[], None]] = []
        _HEAD.pack_into(self._page, 0, _MAGIC, os.getpid(), 0, 0, 0)

    def step_begins(self, samples: int = 0) -> None:
        """For training loops without a torch module."""
        self._samples += samples
        _IN_STEP.pack_into(self._page, _IN_STEP_AT, 1)

    def step_ends(self) -> None:
        self._steps += 1
        _COUNTS.pack_into(self._page, _COUNTS_AT, self._steps, self._samples)
        _IN_STEP.pack_into(self._page, _IN_STEP_AT, 0)

    def tell_loader(self, loader: Any) -> None:
        """A torch DataLoader's settings."""
        _LOADER.pack_into(
            self._page,
            _HEAD.size,
            int(getattr(loader, "num_workers", 0) or 0),
            int(getattr(loader, "prefetch_factor", 0) or 0),
            int(getattr(loader, "batch_size", 0) or 0),
            int(bool(getattr(loader, "persistent_workers", False))),
            1 | int(bool(getattr(loader, "pin_memory", False))) << 1,
        )

    def undo_with(self, handle: Any) -> None:
        self._undo.append(handle.remove)

    def close(self) -> None:
        """Takes the hooks away; calling it again does nothing."""
        while self._undo:
            self._undo.pop()()
        if self._descriptor >= 0:
            self._page.close()
            os.close(self._descriptor)
            self._descriptor = -1


def watch(model: Any = None, optimizer: Any = None, loader: Any = None) -> StepHook:
    """model: a torch module, whose first tensor argument has the samples along its first dimension. optimizer: a torch
    optimizer. loader: a torch DataLoader. Any of them may be left out; without model and optimizer call step_begins and
    step_ends. Linux only."""
    watching = StepHook()
    if model is not None:

        def begins(module: Any, arguments: tuple[Any, ...]) -> None:
            if getattr(module, "training", True):
                shape = getattr(arguments[0], "shape", None) if arguments else None
                watching.step_begins(int(shape[0]) if shape else 0)

        watching.undo_with(model.register_forward_pre_hook(begins))
    if optimizer is not None:
        watching.undo_with(optimizer.register_step_post_hook(lambda *_: watching.step_ends()))
    if loader is not None:
        watching.tell_loader(loader)
    return watching


class MarksReader:
    """The page of another process."""

    def __init__(self, page: mmap.mmap) -> None:
        self._page = page

    @classmethod
    def find(cls, pid: int) -> MarksReader | None:
        """None when the process has none, or may not be looked at."""
        folder = f"/proc/{pid}/fd"
        try:
            for name in os.listdir(folder):
                if os.readlink(f"{folder}/{name}").startswith(f"/memfd:{PAGE_NAME}"):
                    with open(f"{folder}/{name}", "rb") as file:
                        reader = cls(mmap.mmap(file.fileno(), PAGE_BYTES, access=mmap.ACCESS_READ))
                    if reader.read().process == pid:
                        return reader
        except (OSError, ValueError):
            pass
        return None

    def read(self) -> StepMarks:
        magic, process, in_step, steps, samples = _HEAD.unpack_from(self._page)
        workers, prefetch, batch, persistent, flags = _LOADER.unpack_from(self._page, _HEAD.size)
        loader = LoaderFacts(workers, prefetch, batch, bool(persistent), bool(flags & 2)) if flags else None
        return StepMarks(process if magic == _MAGIC else 0, bool(in_step), steps, samples, loader)
