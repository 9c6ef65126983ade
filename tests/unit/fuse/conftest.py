"""Mounts without /dev/fuse: requests are encoded as the kernel encodes them, and the origin is a directory."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.fuse import handover_state
from headrace.fuse.handover_state import HandoverState
from headrace.fuse.operations import Mode
from tests.unit.fuse.memory_mount import MemoryMount, WritingMemoryClient

BIG = random.Random(1).randbytes((3 << 20) + 7)
OpenClient = Callable[..., WritingMemoryClient]
OpenMount = Callable[..., MemoryMount]


@pytest.fixture
def origin(tmp_path: Path) -> dict[str, bytes]:
    """Return what the origin has, by path; `big` has several blocks."""
    files = {
        "small": b"0123456789",
        "empty": b"",
        "big": BIG,
        "dir/inner": b"inner bytes",
        "dir/sub/deep": b"deep bytes",
    }
    for folder in ("cache", "partial"):
        (tmp_path / folder).mkdir()
    for path, data in files.items():
        target = tmp_path / "source" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return files


@pytest.fixture
def handover() -> HandoverState:
    """An empty state."""
    fd = handover_state.create()
    try:
        return HandoverState(fd)
    finally:
        os.close(fd)


@pytest.fixture
def open_client(origin: dict[str, bytes], tmp_path: Path) -> OpenClient:
    """Call with the write modes."""
    return lambda write="": WritingMemoryClient(str(tmp_path), write=write)


@pytest.fixture
def open_mount(open_client: OpenClient, handover: HandoverState) -> Iterator[OpenMount]:
    """Call with the I/O mode, and with write modes for a writable mount."""
    mounts: list[MemoryMount] = []

    def open_one(mode: Mode = Mode.SPLICE, *, write: str = "") -> MemoryMount:
        mounts.append(MemoryMount(open_client(write), handover, mode=mode))
        return mounts[-1]

    yield open_one
    for mount in mounts:
        mount.close()


@pytest.fixture
def mount(open_mount: OpenMount) -> MemoryMount:
    """A read-only mount."""
    return open_mount()


@pytest.fixture
def writable(open_mount: OpenMount) -> MemoryMount:
    return open_mount(write="back")
