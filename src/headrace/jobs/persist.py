"""Run `headrace persist`: upload unpersisted changes to their origins now, and report the progress."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

from headrace.base.errors import HeadraceError
from headrace.base.tasks import OwnedTasks
from headrace.wire.messages import JobState
from headrace.writeback.writeback import WriteBack

REPORT_INTERVAL_S = 0.25
"""Seconds between two states."""


async def persist_states(write: WriteBack, path: str) -> AsyncIterator[JobState]:
    """Yield states as `Jobs.run` does. Changes that can't be persisted count as failed, with their reasons; the node
    keeps retrying them."""
    before = write.counts.files_persisted, write.counts.bytes_persisted
    async with OwnedTasks(Exception) as tasks:
        work = tasks.start(_persist(write, os.fsencode(path)))
        while not (await asyncio.wait([work], timeout=REPORT_INTERVAL_S))[0]:
            yield _state(write, path, before, done=False)
        try:
            work.result()
        except HeadraceError:
            if not write.failing(os.fsencode(path)):
                raise
        yield _state(write, path, before, done=True)


async def _persist(write: WriteBack, path: bytes) -> None:
    await write.persist(path)
    await write.flush_journal()


async def persist_begun(write: WriteBack, path: str) -> AsyncIterator[JobState]:
    """Yield the amount of unpersisted data, once."""
    waiting, waiting_bytes = write.waiting(os.fsencode(path))
    yield JobState(
        done=True,
        files_done=0,
        files_total=waiting,
        bytes_done=0,
        bytes_total=waiting_bytes,
        failed_files=0,
        failed=[],
        listing=False,
    )


def _state(write: WriteBack, path: str, before: tuple[int, int], *, done: bool) -> JobState:
    files = write.counts.files_persisted - before[0]
    size = write.counts.bytes_persisted - before[1]
    waiting, waiting_bytes = write.waiting(os.fsencode(path))
    failed = write.failing(os.fsencode(path)) if done else []
    return JobState(
        done=done,
        files_done=files,
        files_total=files + waiting,
        bytes_done=size,
        bytes_total=size + waiting_bytes,
        failed_files=len(failed),
        failed=failed[:1000],
        listing=False,
    )
