"""Count what a job has done, and apply its work to many files at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from headrace.base.errors import CancelledByUserError, HeadraceError
from headrace.base.model import Entry
from headrace.base.printable import path_text, utf8_text
from headrace.jobs.workers import run_workers
from headrace.seal.snapshot import SnapshotEntry
from headrace.wire.messages import JobState

FAILED_SHOWN_MAX = 1000
"""Most failed files that a job names; it counts all of them."""

Result = TypeVar("Result")
FileAction = Callable[[Entry], Awaitable[int]]
"""Does a job's work on one file, and returns the number of bytes that are done then."""


class JobProgress:
    """The counts of a running job. data: the id of the seal whose files it concerns, by its name. is_cancelled: its
    last step must not begin. is_final: that step was done, so the job can be cancelled no longer."""

    def __init__(self) -> None:
        self.files_done = self.files_total = self.bytes_done = self.bytes_total = self.failed_files = 0
        self.failed: list[tuple[str, str]] = []
        self.listing = True
        self.data: dict[str, str] = {}
        self.is_cancelled = self.is_final = False

    def add_failure(self, path: str, reason: str) -> None:
        self.failed_files += 1
        if len(self.failed) < FAILED_SHOWN_MAX:
            self.failed.append((utf8_text(path), utf8_text(reason)))  # as messages are UTF-8

    def cancel(self) -> None:
        self.is_cancelled = True

    def check_cancelled(self) -> None:
        """Raise CancelledByUserError if the job was cancelled: a thread, which nobody can end, calls it."""
        if self.is_cancelled:
            raise CancelledByUserError("the job", why="it was cancelled")

    def finish(self, work: Callable[..., Result], *arguments: object) -> Result:
        """Do the last step of a job, which makes its result, in a thread. Raises CancelledByUserError before it."""
        self.check_cancelled()
        result = work(*arguments)
        self.is_final = True
        return result

    def state(self, *, done: bool) -> JobState:
        return JobState(
            done=done,
            files_done=self.files_done,
            files_total=self.files_total,
            bytes_done=self.bytes_done,
            bytes_total=self.bytes_total,
            failed_files=self.failed_files,
            failed=self.failed if done else [],
            listing=self.listing,
            data=self.data,
        )


def count_verified(progress: JobProgress, entry: SnapshotEntry, why: str) -> None:
    """Count a verified file of a seal. why: what is wrong with it; "" for nothing."""
    if why:
        progress.add_failure(path_text(entry.path), why)
        return
    progress.files_done += 1
    progress.bytes_done += entry.size_bytes


async def each_file(
    files: AsyncIterator[tuple[bytes, Entry]], action: FileAction, progress: JobProgress
) -> None:
    """Apply an action to every file, while the iterator continues. A HeadraceError of the action counts the file as
    failed."""

    async def work(file: tuple[bytes, Entry]) -> None:
        path, entry = file
        try:
            bytes_done = await action(entry)
            progress.bytes_done += bytes_done  # `+= await` would read the sum before the wait
            progress.files_done += 1
        except HeadraceError as error:
            progress.add_failure(path_text(path), str(error))

    await run_workers(files, work)
