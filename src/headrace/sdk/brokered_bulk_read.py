"""Read many files of a node that another user runs. One request opens many files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import islice

from headrace.sdk.bulk_read import OnError, ReadResult, Wanted, read_content, read_file
from headrace.vfs.brokered.brokered_vfs import BrokeredVfs, Opened, plain
from headrace.vfs.streams import STEP_BYTES
from headrace.wire.broker_messages import NAMES_MAX

GROUP = 32


class BrokeredBulkReader:
    """Reads in groups, in the caller's thread. vfs: stays the caller's."""

    def __init__(self, vfs: BrokeredVfs) -> None:
        self._vfs = vfs

    def read(self, wanted: Iterable[Wanted], *, ordered: bool, on_error: OnError) -> Iterator[ReadResult]:
        numbered = enumerate(wanted)
        while group := list(islice(numbered, GROUP)):
            for result in self._read_group(group):
                if result.error is not None and on_error == "raise":
                    raise result.error
                yield result

    def _read_group(self, group: list[tuple[int, Wanted]]) -> list[ReadResult]:
        requests = [(number, *((item, 0, None) if isinstance(item, str) else item)) for number, item in group]
        paths = [plain(os.fsencode(path)) for _, path, _, _ in requests]
        if sum(path.count(b"/") for path in paths) > NAMES_MAX:
            return [read_file(self._vfs.read, *request) for request in requests]
        opened = self._vfs.open_many(paths, 0, STEP_BYTES)
        results: list[ReadResult] = []
        try:
            for (number, path, start, end), plain_path in zip(requests, paths, strict=True):
                results.append(self._read_opened(number, path, plain_path, opened.pop(0), start, end))
        finally:
            for _, fd in opened:
                if fd >= 0:
                    os.close(fd)
        return results

    def _read_opened(
        self, number: int, path: str, plain_path: bytes, opened: Opened, start: int, end: int | None
    ) -> ReadResult:
        return read_content(number, path, lambda: self._vfs.content_of(plain_path, opened), start, end)

    def close(self) -> None:
        """Do nothing: there are no threads."""
