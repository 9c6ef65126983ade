"""Copy files and directories of the origins to the upper layer, where they can be changed."""

from __future__ import annotations

import errno
import os
import stat

from headrace.base.beneath import NOREPLACE, SafePath
from headrace.base.cancel import Cancel
from headrace.base.model import Entry, Kind
from headrace.base.namespace_path import join, split
from headrace.overlay.given_mode import apply_attributes, has_other_owner
from headrace.overlay.hiding import defer_removal
from headrace.overlay.mark_names import MARKS
from headrace.overlay.marks import set_base
from headrace.overlay.merged_view import Lower, MergedView, os_error
from headrace.overlay.upper import Hidden, Upper

COPY_STEP_BYTES = 16 << 20
"""Bytes that a copy waits for at a time."""
MOVED_NAMES_MAX = 10_000
"""A directory of the origin with more names is not renamed: the call fails with EXDEV, and `mv` copies it."""
SHORT_PATH_BYTES = 512
"""Longest path that is not checked: every store accepts a key of this length with a prefix before it."""


class NeedsContentError(Exception):
    """Report that an operation needs a copy of the origin's file. The caller calls `copy_up`, which may wait, and then
    retries."""

    def __init__(self, path: bytes, *, content: bool = True) -> None:
        self.path, self.content = path, content


class CopyUp:
    """Copy names up, and prepare directories of the upper layer for new names. A caller holds the layer's lock, except
    for `copy_up` and `copy_up_all`."""

    def __init__(self, view: MergedView, lower: Lower, upper: Upper) -> None:
        self._view = view
        self._lower = lower
        self._upper = upper

    def ensure_directory(self, path: bytes) -> os.stat_result:
        """Create a visible directory in the upper layer, if it is missing, and return its status."""
        missing: list[bytes] = []
        while (status := self._upper_directory(path)) is None:
            missing.append(path)
            path = split(path)[0]
        while missing:
            status = self._make_like_lower(missing.pop())
        return status

    def folder_for(self, path: bytes, folder: os.stat_result | None = None) -> os.stat_result:
        """Create the directory of a new name in the upper layer, as `ensure_directory` does, and return its status.
        folder: the status, if the caller has it. Raises ENAMETOOLONG if the store can't have an object of that name:
        without it, only the log would report that later."""
        if len(path) > SHORT_PATH_BYTES and self._view.is_put(path) and not self._lower.key_fits(path):
            raise os_error(errno.ENAMETOOLONG, path)
        return folder or self.ensure_directory(split(path)[0])

    def _upper_directory(self, path: bytes) -> os.stat_result | None:
        """Return the status of a directory in the upper layer; None if only the origin may have it."""
        if path in (b"/", b""):
            return self._upper.at(b"/").lstat()
        status = self._upper.lookup(path)
        if isinstance(status, Hidden):
            raise os_error(errno.ENOENT, path)
        if status is not None and not stat.S_ISDIR(status.st_mode):
            raise os_error(errno.ENOTDIR, path)
        return status

    def _make_like_lower(self, path: bytes) -> os.stat_result:
        """Create a directory of the origin in the upper layer."""
        entry = self._view.lookup_lower(path)
        if entry is None:
            raise os_error(errno.ENOENT, path)
        if entry.kind is not Kind.DIRECTORY:
            raise os_error(errno.ENOTDIR, path)
        directory = self._upper.new()
        directory.mkdir(0o755)
        directory.setxattr(MARKS.lower_id, b"%d" % entry.id)
        if not self._upper.place(directory, path):
            directory.rmdir()
        return self._upper.at(path).lstat()

    def copy_up(self, path: bytes, cancel: Cancel | None, *, content: bool = True) -> None:
        """Copy a file or a directory of the origin to the upper layer. Blocks until the node has the bytes. A Cancel
        leaves no partial copy. content: False creates an empty file, for a caller that truncates it next."""
        entry = self._view.lookup_lower(path)
        if self._view.lookup_upper(path) is not None or entry is None:
            return  # another thread copied or removed it: the caller looks it up again
        if MARKS.single_owner and has_other_owner(entry.attributes):
            raise os_error(errno.EPERM, path)
        if entry.kind is Kind.DIRECTORY:
            with self._upper.lock:
                self.ensure_directory(path)
            return
        copy: SafePath | None = self._upper.new()
        assert copy is not None
        fd = copy.open(os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            if content:
                self._copy_content(entry, fd, cancel)
                os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))
            apply_attributes(fd, entry.attributes)
            set_base(copy, path, entry.version)
            os.setxattr(fd, MARKS.lower_id, b"%d" % entry.id)
            with self._upper.lock:
                self.ensure_directory(split(path)[0])
                if self._view.lookup_lower(path) == entry and self._upper.lookup(path) is None:
                    copy.rename(self._upper.at(path), NOREPLACE)
                    copy = None
        except FileExistsError:
            pass
        finally:
            os.close(fd)
            if copy is not None:
                copy.unlink()

    def _copy_content(self, entry: Entry, fd: int, cancel: Cancel | None) -> None:
        size = entry.version.size_bytes
        if size == 0:
            return
        file = self._lower.open(entry.id, cancel)
        try:
            offset = 0
            while offset < size:
                end = min(size, offset + COPY_STEP_BYTES)
                source = file.wait(offset, end, cancel)
                while offset < end:
                    copied = os.copy_file_range(source, fd, end - offset, offset, offset)
                    if copied == 0:
                        raise os_error(errno.EIO, b"")
                    offset += copied
        finally:
            file.close()

    def copy_up_all(self, path: bytes, cancel: Cancel | None) -> None:
        """Copy a directory with everything below it to the upper layer. Raises EXDEV if it has too many names for a
        rename."""
        pending, names = [path], 0
        while pending:
            directory = pending.pop()
            entry = self._view.lookup_lower(directory)
            self.copy_up(directory, cancel)
            if entry is None or entry.kind is not Kind.DIRECTORY:
                continue
            self._lower.ensure_listed(entry.id, cancel)
            for child in self._lower.children(entry.id):
                names += 1
                if names > MOVED_NAMES_MAX:
                    raise os_error(errno.EXDEV, path)
                child_path = join(directory, child.name)
                status = self._upper.lookup(child_path)
                if status is None and child.kind is Kind.FILE:
                    self.copy_up(child_path, cancel)
                elif child.kind is Kind.DIRECTORY and (
                    status is None or (isinstance(status, os.stat_result) and stat.S_ISDIR(status.st_mode))
                ):
                    pending.append(child_path)

    def clear_removed_directory(self, path: bytes) -> None:
        """Move a removed directory from its place, with the whiteouts in it, because a file can't replace it by a
        rename."""
        if isinstance(self._upper.lookup(path), Hidden) and self._upper.at(path).is_directory():
            defer_removal(self._upper, path)
