"""Reads the merged tree of a host by path. `local_vfs.py` adds the changes, and describes the whole.

Reads go to cache files and to the upper layer directly. They wait for the node where bytes or names are missing.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator

from headrace.base.cancel import Cancel
from headrace.base.errors import (
    IsADirectoryPathError,
    NotADirectoryPathError,
    NotSupportedError,
    PathNotFoundError,
    VersionChangedError,
)
from headrace.base.model import Entry
from headrace.base.namespace_path import join, split
from headrace.base.os_errors import translating_os_errors
from headrace.base.write_modes import WriteMode, WriteModes
from headrace.client.local import WholeFile
from headrace.client.node_client import CHANGED_ATTEMPTS, NodeClient
from headrace.overlay.merged_listing import merge_listing
from headrace.overlay.merged_tree import MergedTree
from headrace.overlay.merged_view import FileStat, os_error
from headrace.overlay.upper import Hidden
from headrace.vfs.file_stat import is_directory
from headrace.vfs.lower_paths import LowerPaths, RecentDirectory
from headrace.vfs.sealed_paths import SealedEntry, SealedPaths
from headrace.vfs.streams import Content, ReadStream, read_range

LINKS_MAX = 40


class VfsReader:
    """Resolves paths and opens files. client, tree: of one node; they stay the caller's."""

    def __init__(self, client: NodeClient, tree: MergedTree) -> None:
        self.client = client
        self.tree = tree
        self._modes_of = client.local
        """The cache whose write modes the tree has."""
        self._may_write = tree.modes.any
        self._lower = LowerPaths(client)
        self._directories = self._lower.directories
        self.sealed = SealedPaths(client, self._lower_entry, lambda path: tree.view.lookup_upper(path))

    @property
    def closed(self) -> bool:
        return self.client.closed

    @property
    def generation(self) -> int:
        return self.client.generation

    # ------------------------------------------------------------ looking

    def find(self, path: bytes, *, follow: bool = True) -> tuple[bytes, FileStat | None]:
        """Resolve a path as `Vfs` does. Raise NotADirectoryPathError, or NotSupportedError for links out of the
        namespace."""
        names = [name for name in path.split(b"/") if name]
        resolved, links = b"/", 0
        status: os.stat_result | None = None
        self._refresh_modes()
        sealed = self.sealed.find(path)
        if sealed is not None:
            return sealed
        while names and self.tree.modes.any:
            if names[0] in (b".", b".."):
                resolved, status = _look_upwards(self.tree, resolved, names.pop(0))
                continue
            child = join(resolved, names[0])
            upper_status = self.tree.view.lookup_upper(child)
            if isinstance(upper_status, Hidden):
                return _down(resolved, names), None
            if upper_status is None:
                if _upper_ends_at(self.tree, child):
                    break
            elif stat.S_ISLNK(upper_status.st_mode) and (follow or len(names) > 1):
                links += 1
                names = self._target(child, links) + names[1:]
                continue
            _check_leads_on(child, upper_status, names[1:])
            resolved, status = child, upper_status
            del names[0]
        if not names and status is not None:
            return resolved, status
        full_path = _down(resolved, names)
        return full_path, self._lower_entry(full_path)

    def get(self, path: bytes, *, follow: bool = True) -> tuple[bytes, FileStat]:
        full_path, status = self.find(path, follow=follow)
        if status is None:
            raise PathNotFoundError(os.fsdecode(path), why="no such file or directory")
        return full_path, status

    def find_cached(self, path: bytes) -> Entry | None:
        """Return the entry that only the origin has at a path, by fresh listings. Never waits. None: the listings don't
        suffice."""
        self._refresh_modes()
        tree, local = self.tree, self._modes_of
        if tree.modes.of(path) is not WriteMode.OFF:
            prefix = b""
            for name in path.split(b"/")[1:]:
                prefix = prefix + b"/" + name
                upper_status = tree.upper.lookup(prefix)
                if upper_status is None:
                    break
                if not isinstance(upper_status, os.stat_result) or not is_directory(upper_status):
                    return None
            else:
                return None
        return self._lower.cached_entry(path, local)

    def exists(self, path: bytes) -> bool:
        try:
            return self.find(path)[1] is not None
        except NotADirectoryPathError:
            return False

    def children(self, path: bytes, *, after: bytes = b"") -> Iterator[tuple[bytes, FileStat]]:
        sealed = self.sealed.children(path, after)
        if sealed is not None:
            yield from sealed
            return
        full_path, status = self.get(path)
        if not is_directory(status):
            raise NotADirectoryPathError(os.fsdecode(path), why="it is not a directory")
        below = self._lower_entry(full_path)
        self._lower.refresh_listing(below)
        names = self.tree.view.names(full_path) if self.tree.modes.any_below(full_path) else []
        above = [row for row in names if row[0] > after] if after else names
        lower = iter(()) if below is None else self.client.children(below.id, after=after)
        for name, entry in merge_listing(above, lower):
            # the upper layer may have given the file up since its names were read; then the index has it
            child = self.tree.view.lookup(join(full_path, name)) if entry is None else entry
            if child is not None:
                yield name, child

    def readlink(self, path: bytes) -> bytes:
        with translating_os_errors(path):
            return self.tree.upper.at(self.get(path, follow=False)[0]).readlink()

    def _lower_entry(self, path: bytes) -> Entry | None:
        return self._lower.entry(path, self._modes_of)

    def _target(self, link: bytes, links: int) -> list[bytes]:
        with translating_os_errors(link):
            target = self.tree.upper.at(link).readlink()
        if links > LINKS_MAX:
            raise NotSupportedError(os.fsdecode(link), why="too many symbolic links")
        if target.startswith(b"/"):
            raise NotSupportedError(
                os.fsdecode(link),
                why=f"a symbolic link to {os.fsdecode(target)}, which is a path of the host",
                hint="read it through a mount",
            )
        return [name for name in target.split(b"/") if name]

    def _refresh_modes(self) -> None:
        """Adopt the write modes of a node that restarted with other settings."""
        local = self.client.local
        if local is not self._modes_of:
            self.tree.take_modes(WriteModes.parse(local.write))
            self._may_write = self.tree.modes.any
            self._modes_of = local

    # ------------------------------------------------------------ reading

    def open_whole(self, path: bytes) -> tuple[int, int] | None:
        """Open a file that can be found and read without a request, by the shortest way. Return a descriptor of all
        bytes, which the caller closes, and the size. None: use `content`."""
        slash = path.rfind(b"/")
        directory = self._recent_directory(path, slash)
        return None if directory is None else directory[2].open_whole(directory[0], path[slash + 1 :])

    def open_whole_entry(self, path: bytes) -> WholeFile | None:
        """Open a file as `open_whole` does, and return its entry and its record, too."""
        slash = path.rfind(b"/")
        directory = self._recent_directory(path, slash)
        return None if directory is None else directory[2].open_whole_entry(directory[0], path[slash + 1 :])

    def _recent_directory(self, path: bytes, slash: int) -> RecentDirectory | None:
        """Return the directory of a path that only its origin has, if it was looked up recently. slash: the index of
        the slash before the last name."""
        directory = self._directories.get(path[:slash] or b"/")
        if directory is None or time.monotonic() >= directory[1] or directory[2] is not self.client.local:
            return None
        return None if self._may_write and not self._is_untouched(path) else directory

    def _is_untouched(self, path: bytes) -> bool:
        """Return whether the upper layer has nothing above and at a path: it lacks the first name that is writable."""
        if path[:1] != b"/":
            return False
        top = self.tree.modes.first_written(path)
        return top is None or self.tree.upper.tree.seen(top) is None

    def read(self, path: bytes, start: int, end: int | None) -> bytes:
        whole = self.open_whole(path)
        if whole is None:
            content = self.content(path)
            try:
                return content.read(start, content.size_bytes if end is None else end)
            finally:
                content.close()
        fd, size_bytes = whole
        try:
            return read_range(fd, start, size_bytes if end is None or end > size_bytes else end)
        finally:
            os.close(fd)

    def content(self, path: bytes, cancel: Cancel | None = None) -> Content:
        """Open a file as `Vfs` does. cancel: ends the waits of this call, and of reads of the content."""
        opened = self.open_whole(path)
        if opened is not None:
            return Content(opened[1], fd=opened[0])
        for attempt in range(CHANGED_ATTEMPTS):
            full_path, status = self.get(path)
            if is_directory(status):
                raise IsADirectoryPathError(os.fsdecode(path), why="it is a directory")
            try:
                return self.content_of(full_path, status, cancel)
            except (FileNotFoundError, VersionChangedError):
                if attempt + 1 == CHANGED_ATTEMPTS:
                    raise
        raise AssertionError

    def content_of(self, full_path: bytes, status: FileStat, cancel: Cancel | None = None) -> Content:
        """Open a file that `get` returned just now, as `content` does. Raises FileNotFoundError or VersionChangedError
        when it has been replaced since; then call `get` again."""
        if isinstance(status, SealedEntry):
            return self.sealed.content(full_path, status, lambda entry: self._below_content(entry, cancel))
        if isinstance(status, Entry):
            return self._below_content(status, cancel)
        return self._upper_content(full_path)

    def content_if_cached(self, path: bytes) -> Content | None:
        """Open a file as `content` does, if all its bytes are on this host's disk."""
        content = self.content_or_entry(path)
        return content if isinstance(content, Content) else None

    def content_or_entry(self, path: bytes) -> Content | Entry:
        """Open a file as `content` does, if all its bytes are on this host's disk. Otherwise return the origin's entry,
        which may be a directory."""
        opened = self.open_whole(path)
        if opened is not None:
            return Content(opened[1], fd=opened[0])
        full_path, status = self.get(path)
        if not isinstance(status, Entry):
            return self.content(full_path)
        cached = None if is_directory(status) else self.client.complete_path(status.id)
        if isinstance(status, SealedEntry):
            return status if cached is None else self.content_of(full_path, status)
        return (None if cached is None else self._cached_content(status, cached)) or status

    def open(self, path: bytes) -> ReadStream:
        return ReadStream(self.content(path), os.fsdecode(path))

    def _below_content(self, entry: Entry, cancel: Cancel | None) -> Content:
        cached = self.client.complete_path(entry.id)
        content = None if cached is None else self._cached_content(entry, cached)
        if content is not None:
            return content
        file = self.client.open(entry.id, cancel)
        self.client.touch(entry.id)
        if file.complete:
            fd = os.dup(file.fd)
            file.close()
            return Content(entry.version.size_bytes, fd=fd)
        return Content(entry.version.size_bytes, file=file, cancel=cancel)

    def _cached_content(self, entry: Entry, cached: str) -> Content | None:
        try:
            fd = os.open(cached, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None  # evicted just now
        self.client.touch(entry.id)
        return Content(entry.version.size_bytes, fd=fd)

    def _upper_content(self, path: bytes) -> Content:
        # Without the lock the node may hold a lease on the file (writeback/demotion.py).
        with self.tree.lock, translating_os_errors(path):
            if not isinstance(self.tree.view.lookup_upper(path), os.stat_result):
                raise os_error(
                    errno.ENOENT, path
                )  # it was removed meanwhile, and a whiteout may have the name
            fd = self.tree.upper.at(path).open(os.O_RDONLY | os.O_NONBLOCK)
        return Content.of_upper(fd, path)


def _check_leads_on(path: bytes, status: os.stat_result | None, names: list[bytes]) -> None:
    """Raise NotADirectoryPathError if names follow a path that is no directory."""
    if names and status is not None and not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryPathError(os.fsdecode(path), why="it is not a directory")


def _look_upwards(tree: MergedTree, path: bytes, name: bytes) -> tuple[bytes, os.stat_result | None]:
    """Return the path to which `.` or `..` leads, and the upper layer's entry there."""
    target = split(path)[0] if name == b".." else path
    status = tree.view.lookup_upper(target)
    return target, status if isinstance(status, os.stat_result) else None


def _upper_ends_at(tree: MergedTree, path: bytes) -> bool:
    """Return whether the upper layer, which lacks a path, has nothing below it either."""
    return tree.modes.of(path) is not WriteMode.OFF or not tree.modes.any_below(path)


def _down(path: bytes, names: list[bytes]) -> bytes:
    for name in names:
        path = join(path, name)
    return path
