"""The failures that a job of one node reports, by path."""

from __future__ import annotations

import stat
from collections.abc import AsyncIterator

from headrace.base.errors import OriginError
from headrace.base.model import Entry, FileId, Kind, Version
from headrace.jobs.progress import JobProgress, count_verified, each_file
from headrace.seal.snapshot import SnapshotEntry
from headrace.wire import frame


async def test_a_name_that_is_not_utf8_is_among_the_failed_files() -> None:
    """The job ended as an internal error, and named no file that failed."""
    entry = Entry(FileId(7), FileId(1), b"a\xff", Kind.FILE, Version(1, 0, ""))

    async def files() -> AsyncIterator[tuple[bytes, Entry]]:
        yield b"/d/a\xff", entry

    async def fail(_: Entry) -> int:
        raise OriginError("s3://b/a\udcff", why="it is denied")

    progress = JobProgress()
    await each_file(files(), fail, progress)
    count_verified(progress, SnapshotEntry(b"b\xfe", stat.S_IFREG), "its bytes differ")
    progress.add_failure("/d\udcfd", "listing d\udcfd: denied")
    state = frame.decode_answer(frame.encode(progress.state(done=True))[frame.HEADER_BYTES :])
    assert state == progress.state(done=True) and progress.failed_files == 3
    assert progress.failed == [
        (r"/d/a\xff", r"s3://b/a\xff: it is denied"),
        (r"b\xfe", "its bytes differ"),
        (r"/d\xfd", r"listing d\xfd: denied"),
    ]
