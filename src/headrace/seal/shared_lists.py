"""Keep the content lists that programs of this host look paths up in, unpacked, in `seals/.shared/`: of this node's
seals, and of those that it fetched from origins. The next start removes them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from headrace.base.errors import NoSpaceError
from headrace.base.private_folder import make_private, private
from headrace.seal.catalogue import Catalogue

KEPT_MAX = 16
KEPT_BYTES_MAX = 1 << 30
"""The newest list is kept, whatever its size is."""


class SharedLists:
    """The unpacked lists, by their ids. Every method blocks for the disk."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.folder = os.path.join(catalogue.folder, ".shared")

    def path(self, id: str) -> str:
        return os.path.join(self.folder, id)

    def has(self, id: str) -> bool:
        return os.path.exists(self.path(id))

    def check_room(self, size_bytes: int) -> None:
        """Raise NoSpaceError for a list that needs more than half of the disk's free space: whoever may write to the
        origin decides how large it is."""
        make_private(self.folder)
        disk = os.statvfs(self.folder)
        room_bytes = disk.f_bavail * disk.f_frsize // 2
        if size_bytes > room_bytes:
            raise NoSpaceError(
                "the content list of a seal",
                why=f"it has {size_bytes >> 20} MiB, and may take {room_bytes >> 20} MiB of the disk",
                hint=f"free space at {self.folder}",
            )

    @contextmanager
    def create(self, id: str) -> Iterator[BinaryIO]:
        """Give a file that becomes the list of an id at the end, unless an error is raised. The oldest lists are
        removed where there are many: whoever reads one has mapped it."""
        make_private(self.folder)
        draft = f"{self.path(id)}.{os.getpid()}.{os.urandom(4).hex()}"
        try:
            with open(draft, "w+b", opener=private) as out:
                yield out
            os.rename(draft, self.path(id))
        finally:
            if os.path.lexists(draft):
                os.unlink(draft)
        self._remove_old()

    def _remove_old(self) -> None:
        files = (
            file for file in Path(self.folder).iterdir() if "." not in file.name
        )  # no drafts of other lists
        rows = sorted(((file.stat(), file) for file in files), key=_age, reverse=True)
        kept_bytes = 0
        for number, (status, file) in enumerate(rows):
            kept_bytes += status.st_size
            if number >= KEPT_MAX or (number > 0 and kept_bytes > KEPT_BYTES_MAX):
                file.unlink(missing_ok=True)


def _age(row: tuple[os.stat_result, Path]) -> int:
    return row[0].st_mtime_ns
