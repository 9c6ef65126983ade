"""Implement the one line that a training script may add: `headrace.diagnose.watch(model, optimizer, loader)`.

It counts steps and marks whether the trainer is in one, on a page of memory that the sampler finds among the process's
descriptors. So it works with `headrace diagnose` started before, after, or never. A step begins with the model's
forward pass and ends with the optimizer's step. It costs two small writes to memory per step.
"""

from __future__ import annotations

import io
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
    """Hold the contents of the page."""

    process: int
    in_step: bool
    steps: int
    samples: int
    loader: LoaderFacts | None


class StepHook:
    """Write the page of this process; `watch` returns it, and close() removes its hooks."""

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
        """Mark the start of a step, for training loops without a torch module."""
        self._samples += samples
        _IN_STEP.pack_into(self._page, _IN_STEP_AT, 1)

    def step_ends(self) -> None:
        self._steps += 1
        _COUNTS.pack_into(self._page, _COUNTS_AT, self._steps, self._samples)
        _IN_STEP.pack_into(self._page, _IN_STEP_AT, 0)

    def record_loader(self, loader: Any) -> None:
        """Record a torch DataLoader's settings."""
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
        """Remove the hooks; a second call does nothing."""
        while self._undo:
            self._undo.pop()()
        if self._descriptor >= 0:
            self._page.close()
            os.close(self._descriptor)
            self._descriptor = -1


def watch(model: Any = None, optimizer: Any = None, loader: Any = None) -> StepHook:
    """Count the steps of this training for `headrace diagnose`. Linux only.

    model: a torch module, whose first tensor argument has the samples in its first dimension. optimizer: a torch
    optimizer. loader: a torch DataLoader. Each may be left out; without model and optimizer, call step_begins and
    step_ends.
    """
    hook = StepHook()
    if model is not None:

        def begins(module: Any, arguments: tuple[Any, ...]) -> None:
            if getattr(module, "training", True):
                shape = getattr(arguments[0], "shape", None) if arguments else None
                hook.step_begins(int(shape[0]) if shape else 0)

        hook.undo_with(model.register_forward_pre_hook(begins))
    if optimizer is not None:
        hook.undo_with(optimizer.register_step_post_hook(lambda *_: hook.step_ends()))
    if loader is not None:
        hook.record_loader(loader)
    return hook


class MarksReader:
    """Read the page of another process. file: a descriptor of the page, which is closed with the reader. It is not
    mapped: the other process may be another user's, and a read of a page that was cut off would end this one."""

    def __init__(self, file: io.FileIO) -> None:
        self._file = file

    @classmethod
    def find(cls, pid: int) -> MarksReader | None:
        """Return a reader of the process's page; None if it has none, or may not be read."""
        directory = f"/proc/{pid}/fd"
        try:
            for name in os.listdir(directory):
                if os.readlink(f"{directory}/{name}").startswith(f"/memfd:{PAGE_NAME}"):
                    reader = cls(io.FileIO(f"{directory}/{name}", opener=_open_page))
                    if reader.read().process == pid:
                        return reader
                    reader.close()
        except (OSError, ValueError):
            pass
        return None

    def read(self) -> StepMarks:
        """Return the marks; zeros if the page is gone."""
        try:
            page = os.pread(self._file.fileno(), PAGE_BYTES, 0).ljust(PAGE_BYTES, b"\0")
        except OSError:
            page = bytes(PAGE_BYTES)
        magic, process, in_step, steps, samples = _HEAD.unpack_from(page)
        workers, prefetch, batch, persistent, flags = _LOADER.unpack_from(page, _HEAD.size)
        loader = LoaderFacts(workers, prefetch, batch, bool(persistent), bool(flags & 2)) if flags else None
        return StepMarks(process if magic == _MAGIC else 0, bool(in_step), steps, samples, loader)

    def close(self) -> None:
        self._file.close()


def _open_page(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
