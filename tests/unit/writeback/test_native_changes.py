"""Events of exclusive directories: what the loss of some leaves to later ones."""

from __future__ import annotations

import errno
import os
from typing import Any, cast

import pytest

from headrace.base.fanotify import EventsLostError
from headrace.base.tasks import OwnedTasks
from headrace.testing.waiting import until
from headrace.writeback.native_changes import NativeChanges
from tests.unit.writeback.layer_fixture import LayerFixture


class LosingEvents:
    """A queue that always overflows. fd: always readable."""

    def __init__(self) -> None:
        self.fd, self._writer = os.pipe()
        os.write(self._writer, b"x")

    def read(self) -> list[object]:
        raise EventsLostError

    def close(self) -> None:
        os.close(self.fd)
        os.close(self._writer)


@pytest.mark.expected_warnings("headrace.writeback.native_changes")
async def test_a_scan_that_fails_ends_no_later_one(layer: LayerFixture) -> None:
    scans: list[str] = []

    async def rescan() -> None:
        scans.append("")
        if len(scans) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    async def rescan_below(path: bytes) -> None:
        raise AssertionError

    watch = NativeChanges(layer.layer, changed=lambda _: None, rescan_below=rescan_below, rescan=rescan)
    events = LosingEvents()
    try:
        async with OwnedTasks() as tasks:
            running = tasks.start(watch._run(cast(Any, events)))
            await until(lambda: running.done() or len(scans) >= 3)
            assert not running.done()
    finally:
        events.close()
