"""Reads the merged tree of a host by path. `local_vfs.py` adds the changes, and describes the whole.

Reads go to cache files and to the upper layer directly. They wait for the node where bytes or names are missing.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator

from headrace.base.errors import (
    IsADirectoryPathError,
    NotADirectoryPathError,
    NotSupportedError,
    PathNotFoundError,
    StaleIdError,
    VersionChangedError,
)
from headrace.base.model import ROOT_ID, Entry, FileId, Kind
from headrace.base.os_errors import translating_os_errors
from headrace.base.write_modes import WriteMode, WriteModes
from headrace.client.local import LocalCache, WholeFile
from headrace.client.node_client import CHANGED_ATTEMPTS, Miss, NodeClient
from headrace.overlay.dirty_throttle import DirtyThrottle
from headrace.overlay.merged_listing import merge_listing
from headrace.overlay.merged_tree import FileStat, MergedTree
from headrace.overlay.upper import Hidden, join, split
from headrace.vfs.streams import Content, ReadStream, read_range

LINKS_MAX = 40
FOLDER_KEPT_S = 1.0
"""A folder's id is kept for this long, like a kernel keeps names of a mount. Paths are at most this old."""
FOLDERS_MAX = 10_000

_Folder = tuple[FileId, float, LocalCache]
"""A folder of an origin: its id, its expiry (monotonic), and the cache whose index has it."""


class VfsReader:
    def __init__(self, client: NodeClient, tree: MergedTree) -> None:
        self.client = client
        self.tree = tree
        self._heeded = client.local
        """The cache whose modes of writing apply."""
        self._may_write = tree.modes.any
        self._pressure = DirtyThrottle(tree.upper.pressure_path) if tree.modes.any else None
        self._folders: dict[bytes, _Folder] = {}

    # ------------------------------------------------------------ looking

    def find(self, path: bytes, *, follow: bool = True) -> tuple[bytes, FileStat | None]:
        """Resolve the links of a path, and return the path that it leads to and what is there; None: nothing. follow:
        resolve a link that is the last name, too. NotADirectoryPathError, NotSupportedError for links out of the
        namespace."""
        names = [name for name in path.split(b"/") if name]
        resolved, links = b"/", 0
        status: os.stat_result | None = None
        self._heed_modes()
        while names and self.tree.modes.any:
            if names[0] in (b".", b".."):
                resolved = split(resolved)[0] if names.pop(0) == b".." else resolved
                above = self.tree.look(resolved)
                status = above if isinstance(above, os.stat_result) else None
                continue
            child = join(resolved, names[0])
            upper_status = self.tree.look(child)
            if isinstance(upper_status, Hidden):
                return _down(resolved, names), None
            if upper_status is None:
                if self.tree.modes.of(child) is not WriteMode.OFF or not self.tree.modes.any_below(child):
                    break  # the upper layer has nothing below it either
            elif stat.S_ISLNK(upper_status.st_mode) and (follow or len(names) > 1):
                links += 1
                names = self._target(child, links) + names[1:]
                continue
            elif len(names) > 1 and not stat.S_ISDIR(upper_status.st_mode):
                raise NotADirectoryPathError(os.fsdecode(child), why="it is not a directory")
            resolved, status = child, upper_status
            del names[0]
        if not names and status is not None:
            return resolved, status
        full_path = _down(resolved, names)
        return full_path, self._below(full_path)

    def get(self, path: bytes, *, follow: bool = True) -> tuple[bytes, FileStat]:
        """Resolve a path as `find` does. PathNotFoundError where nothing is there."""
        full_path, status = self.find(path, follow=follow)
        if status is None:
            raise PathNotFoundError(os.fsdecode(path), why="no such file or directory")
        return full_path, status

    def find_cached(self, path: bytes) -> Entry | None:
        """Return what only the origin has at a path, by fresh listings; never waits. None: the listings don't
        suffice."""
        self._heed_modes()
        tree, client, local = self.tree, self.client, self._heeded
        if tree.modes.of(path) is not WriteMode.OFF:
            prefix = b""
            for name in path.split(b"/")[1:]:
                prefix = prefix + b"/" + name
                upper_status = tree.upper.look(prefix)
                if upper_status is None:
                    break
                if not isinstance(upper_status, os.stat_result) or not is_directory(upper_status):
                    return None
            else:
                return None
        entry = client.entry(ROOT_ID)
        for name in path.split(b"/")[1:]:
            if entry is None or entry.kind is not Kind.DIRECTORY:
                return None
            child = client.lookup_fast(entry.id, name)
            entry = None if isinstance(child, Miss) else child
        if entry is not None and path != b"/":
            self._keep_folder(split(path)[0], (entry.parent, time.monotonic() + FOLDER_KEPT_S, local))
        return entry

    def exists(self, path: bytes) -> bool:
        """Return whether a path exists. This is never a guess: the error of a failed request is raised."""
        try:
            return self.find(path)[1] is not None
        except NotADirectoryPathError:
            return False

    def children(self, path: bytes, *, after: bytes = b"") -> Iterator[tuple[bytes, FileStat]]:
        """Yield the names of a directory and what they are, in byte order, starting after a name.
        NotADirectoryPathError."""
        full_path, status = self.get(path)
        if not is_directory(status):
            raise NotADirectoryPathError(os.fsdecode(path), why="it is not a directory")
        below = self._below(full_path)
        if below is not None and not self.client.listing_fresh(below.id):
            self.client.ensure_listed(below.id)
        names = self.tree.names(full_path) if self.tree.modes.any_below(full_path) else []
        above = [row for row in names if row[0] > after] if after else names
        lower = iter(()) if below is None else self.client.children(below.id, after=after)
        for name, entry in merge_listing(above, lower):
            child = self.tree.look(join(full_path, name)) if entry is None else entry
            if child is not None and not isinstance(child, Hidden):
                yield name, child

    def readlink(self, path: bytes) -> bytes:
        with translating_os_errors(path):
            return self.tree.upper.at(self.get(path, follow=False)[0]).readlink()

    def _below(self, path: bytes) -> Entry | None:
        """Return what the origins have at a path. The node answers where the index is too old."""
        if path == b"/":
            return self.client.entry(ROOT_ID)
        local, until_s = self._heeded, time.monotonic() + FOLDER_KEPT_S  # taken before any lookup
        folder, id, names = self._nearest_folder(path)
        while True:
            name = names.pop()
            child = self.client.lookup_fast(id, name)
            try:
                entry = self.client.lookup(id, name) if isinstance(child, Miss) else child
            except StaleIdError:
                if self._folders.pop(folder, None) is None:
                    raise
                folder, id, names = self._nearest_folder(path)  # the name means another folder by now
                continue
            if not names:
                return entry
            if entry is None or entry.kind is not Kind.DIRECTORY:
                return None
            folder, id = join(folder, name), entry.id
            self._keep_folder(folder, (id, until_s, local))

    def _nearest_folder(self, path: bytes) -> tuple[bytes, FileId, list[bytes]]:
        """Return the nearest ancestor that was looked up recently, or the root; its id; and the names from there, the
        last one first."""
        now_s, local, names = time.monotonic(), self.client.local, []
        while True:
            path, name = split(path)
            names.append(name)
            folder = self._folders.get(path)
            if folder is not None and now_s < folder[1] and folder[2] is local:
                return path, folder[0], names
            if path == b"/":
                self._keep_folder(path, (ROOT_ID, now_s + FOLDER_KEPT_S, self._heeded))
                return path, ROOT_ID, names

    def _keep_folder(self, folder: bytes, cached: _Folder) -> None:
        if len(self._folders) >= FOLDERS_MAX:
            self._folders = {}
        self._folders[folder] = cached

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

    def _heed_modes(self) -> None:
        """Adopt the modes of writing of a node that restarted with other settings."""
        local = self.client.local
        if local is not self._heeded:
            self.tree.modes = WriteModes.parse(local.write)
            self._may_write = self.tree.modes.any
            self._heeded = local
            if self._pressure is None and self.tree.modes.any:
                self._pressure = DirtyThrottle(self.tree.upper.pressure_path)

    # ------------------------------------------------------------ reading

    def open_whole(self, path: bytes) -> tuple[int, int] | None:
        """Open a file that can be found and read without a request, by the shortest way. Return a descriptor of all
        bytes, which the caller closes, and the size. None: use `content`."""
        slash = path.rfind(b"/")
        folder = self._cached_folder(path, slash)
        return None if folder is None else folder[2].open_whole(folder[0], path[slash + 1 :])

    def open_whole_entry(self, path: bytes) -> WholeFile | None:
        """Open a file as `open_whole` does, and return all that the index says of it."""
        slash = path.rfind(b"/")
        folder = self._cached_folder(path, slash)
        return None if folder is None else folder[2].open_whole_entry(folder[0], path[slash + 1 :])

    def _cached_folder(self, path: bytes, slash: int) -> _Folder | None:
        """Return the folder of a path that only its origin has, if it was looked up recently. slash: the index of the
        slash before the last name."""
        folder = self._folders.get(path[:slash] or b"/")
        if folder is None or time.monotonic() >= folder[1] or folder[2] is not self.client.local:
            return None
        return None if self._may_write and not self._is_untouched(path) else folder

    def _is_untouched(self, path: bytes) -> bool:
        """Return whether the upper layer has nothing above and at a path: it lacks the first name that is writable."""
        if path[:1] != b"/":
            return False
        top = self.tree.modes.first_written(path)
        return top is None or self.tree.upper.tree.seen(top) is None

    def read(self, path: bytes, start: int, end: int | None) -> bytes:
        """Read bytes start..end of a file as `content` gives them, fewer where the file ends before."""
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

    def content(self, path: bytes) -> Content:
        """Open the file as it is now. PathNotFoundError, IsADirectoryPathError, OriginError and its kinds."""
        opened = self.open_whole(path)
        if opened is not None:
            return Content(opened[1], fd=opened[0])
        for attempt in range(CHANGED_ATTEMPTS):
            full_path, status = self.get(path)
            if is_directory(status):
                raise IsADirectoryPathError(os.fsdecode(path), why="it is a directory")
            try:
                return self.content_of(full_path, status)
            except (FileNotFoundError, VersionChangedError):
                if attempt + 1 == CHANGED_ATTEMPTS:
                    raise
        raise AssertionError

    def content_of(self, full_path: bytes, status: FileStat) -> Content:
        """Open a file that `get` returned just now, as `content` does. FileNotFoundError or VersionChangedError when
        it has been replaced since; then call `get` again."""
        return self._below_content(status) if isinstance(status, Entry) else self._upper_content(full_path)

    def content_if_cached(self, path: bytes) -> Content | None:
        """Open a file as `content` does, if all its bytes are on this host's disk."""
        content = self.content_or_entry(path)
        return content if isinstance(content, Content) else None

    def content_or_entry(self, path: bytes) -> Content | Entry:
        """Open a file as `content` does, if all its bytes are on this host's disk. Otherwise return what the origin
        has there, which may be a folder."""
        opened = self.open_whole(path)
        if opened is not None:
            return Content(opened[1], fd=opened[0])
        full_path, status = self.get(path)
        if not isinstance(status, Entry):
            return self.content(full_path)
        cached = None if is_directory(status) else self.client.complete_path(status.id)
        return (None if cached is None else self._cached_content(status, cached)) or status

    def open(self, path: bytes) -> ReadStream:
        """Open a file as `content` does, as a stream."""
        return ReadStream(self.content(path), os.fsdecode(path))

    def _below_content(self, entry: Entry) -> Content:
        cached = self.client.complete_path(entry.id)
        content = None if cached is None else self._cached_content(entry, cached)
        if content is not None:
            return content
        file = self.client.open(entry.id)
        self.client.touch(entry.id)
        if file.complete:
            fd = os.dup(file.fd)
            file.close()
            return Content(entry.version.size_bytes, fd=fd)
        return Content(entry.version.size_bytes, file=file)

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
            fd = self.tree.upper.at(path).open(os.O_RDONLY | os.O_NONBLOCK)
        return Content.of_upper(fd, path)


def version_text(status: FileStat) -> str:
    """Return a text that changes when the bytes of a file may have changed."""
    if isinstance(status, Entry):
        return status.version.text
    return f"{status.st_ino}-{status.st_size}-{status.st_ctime_ns}"


def is_directory(status: FileStat) -> bool:
    return status.kind is Kind.DIRECTORY if isinstance(status, Entry) else stat.S_ISDIR(status.st_mode)


def _down(path: bytes, names: list[bytes]) -> bytes:
    for name in names:
        path = join(path, name)
    return path
