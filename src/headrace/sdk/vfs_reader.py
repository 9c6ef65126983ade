"""The merged tree of a host by path, for those who look and read; `paths.py` has the changes, and says what all of it
is.

Reads go to cache files and to the upper layer directly, and wait for the node where bytes or names are missing.
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
from headrace.base.write_modes import WriteMode, WriteModes
from headrace.overlay.dirty_throttle import DirtyThrottle
from headrace.overlay.upper import Hidden, join, split
from headrace.sdk.local import LocalCache, WholeFile
from headrace.sdk.merged_tree import FileStat, MergedTree
from headrace.sdk.node_client import CHANGED_ATTEMPTS, Miss, NodeClient
from headrace.sdk.os_errors import translating_os_errors as _told
from headrace.sdk.readdir import merge_listing
from headrace.sdk.streams import Content, ReadStream, read_range

LINKS_MAX = 40
FOLDER_KEPT_S = 1.0
"""So long a folder's id is not looked up again, as a kernel that has a mount does: paths are as old as that at most."""
FOLDERS_MAX = 10_000

_Folder = tuple[FileId, float, LocalCache]
"""One of the origins': id, until when (monotonic), and the cache whose index says so."""


class VfsReader:
    def __init__(self, client: NodeClient, tree: MergedTree) -> None:
        self.client = client
        self.tree = tree
        self._heeded = client.local
        """Whose modes of writing hold here."""
        self._may_write = tree.modes.any
        self._pressure = DirtyThrottle(tree.upper.pressure_path) if tree.modes.any else None
        self._folders: dict[bytes, _Folder] = {}

    # ------------------------------------------------------------ looking

    def find(self, path: bytes, *, follow: bool = True) -> tuple[bytes, FileStat | None]:
        """Where a path leads, links resolved, and what is there; None: nothing. follow: also a link that is the last
        name. NotADirectoryPathError, NotSupportedError for links out of the namespace."""
        names = [name for name in path.split(b"/") if name]
        at, links = b"/", 0
        seen: os.stat_result | None = None
        self._heed_modes()
        while names and self.tree.modes.any:
            if names[0] in (b".", b".."):
                at = split(at)[0] if names.pop(0) == b".." else at
                above = self.tree.look(at)
                seen = above if isinstance(above, os.stat_result) else None
                continue
            here = join(at, names[0])
            found = self.tree.look(here)
            if isinstance(found, Hidden):
                return _down(at, names), None
            if found is None:
                if self.tree.modes.of(here) is not WriteMode.OFF or not self.tree.modes.any_below(here):
                    break  # so there is nothing of the upper layer below either
            elif stat.S_ISLNK(found.st_mode) and (follow or len(names) > 1):
                links += 1
                names = self._target(here, links) + names[1:]
                continue
            elif len(names) > 1 and not stat.S_ISDIR(found.st_mode):
                raise NotADirectoryPathError(os.fsdecode(here), why="it is no directory")
            at, seen = here, found
            del names[0]
        if not names and seen is not None:
            return at, seen
        whole = _down(at, names)
        return whole, self._below(whole)

    def get(self, path: bytes, *, follow: bool = True) -> tuple[bytes, FileStat]:
        """As find. PathNotFoundError."""
        whole, found = self.find(path, follow=follow)
        if found is None:
            raise PathNotFoundError(os.fsdecode(path), why="no such file or directory")
        return whole, found

    def find_cached(self, path: bytes) -> Entry | None:
        """What only its origin has, by listings that are good: waits for nothing. None: that is not enough to say."""
        self._heed_modes()
        tree, client, local = self.tree, self.client, self._heeded
        if tree.modes.of(path) is not WriteMode.OFF:
            at = b""
            for name in path.split(b"/")[1:]:
                at = at + b"/" + name
                look = tree.upper.look(at)
                if look is None:
                    break
                if not isinstance(look, os.stat_result) or not is_directory(look):
                    return None
            else:
                return None
        entry = client.entry(ROOT_ID)
        for name in path.split(b"/")[1:]:
            if entry is None or entry.kind is not Kind.DIRECTORY:
                return None
            found = client.lookup_fast(entry.id, name)
            entry = None if isinstance(found, Miss) else found
        if entry is not None and path != b"/":
            self._keep_folder(split(path)[0], (entry.parent, time.monotonic() + FOLDER_KEPT_S, local))
        return entry

    def exists(self, path: bytes) -> bool:
        """Whether nothing is there is never guessed: what can't be asked is raised."""
        try:
            return self.find(path)[1] is not None
        except NotADirectoryPathError:
            return False

    def children(self, path: bytes, *, after: bytes = b"") -> Iterator[tuple[bytes, FileStat]]:
        """Names of a directory with what they are, in byte order, those after a name. NotADirectoryPathError."""
        whole, found = self.get(path)
        if not is_directory(found):
            raise NotADirectoryPathError(os.fsdecode(path), why="it is no directory")
        below = self._below(whole)
        if below is not None and not self.client.listing_fresh(below.id):
            self.client.ensure_listed(below.id)
        names = self.tree.names(whole) if self.tree.modes.any_below(whole) else []
        above = [row for row in names if row[0] > after] if after else names
        lower = iter(()) if below is None else self.client.children(below.id, after=after)
        for name, entry in merge_listing(above, lower):
            one = self.tree.look(join(whole, name)) if entry is None else entry
            if one is not None and not isinstance(one, Hidden):
                yield name, one

    def readlink(self, path: bytes) -> bytes:
        with _told(path):
            return self.tree.upper.at(self.get(path, follow=False)[0]).readlink()

    def _below(self, path: bytes) -> Entry | None:
        """What the origins have at a path; the node is asked where the index is too old to say."""
        if path == b"/":
            return self.client.entry(ROOT_ID)
        local, until_s = self._heeded, time.monotonic() + FOLDER_KEPT_S  # of before anything is looked up
        folder, id, names = self._nearest_folder(path)
        while True:
            name = names.pop()
            found = self.client.lookup_fast(id, name)
            try:
                entry = self.client.lookup(id, name) if isinstance(found, Miss) else found
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
        """The nearest one above that was looked up just now, or the root; its id; and the names from there, the last
        one first."""
        now_s, local, names = time.monotonic(), self.client.local, []
        while True:
            path, name = split(path)
            names.append(name)
            known = self._folders.get(path)
            if known is not None and now_s < known[1] and known[2] is local:
                return path, known[0], names
            if path == b"/":
                self._keep_folder(path, (ROOT_ID, now_s + FOLDER_KEPT_S, self._heeded))
                return path, ROOT_ID, names

    def _keep_folder(self, folder: bytes, known: _Folder) -> None:
        if len(self._folders) >= FOLDERS_MAX:
            self._folders = {}
        self._folders[folder] = known

    def _target(self, link: bytes, links: int) -> list[bytes]:
        with _told(link):
            target = self.tree.upper.at(link).readlink()
        if links > LINKS_MAX:
            raise NotSupportedError(os.fsdecode(link), why="too many symbolic links")
        if target.startswith(b"/"):
            raise NotSupportedError(
                os.fsdecode(link),
                why=f"a symbolic link to {os.fsdecode(target)}, which is a path of the host",
                hint="read it by a mount",
            )
        return [name for name in target.split(b"/") if name]

    def _heed_modes(self) -> None:
        """A node that was started again may have other settings."""
        local = self.client.local
        if local is not self._heeded:
            self.tree.modes = WriteModes.parse(local.write)
            self._may_write = self.tree.modes.any
            self._heeded = local
            if self._pressure is None and self.tree.modes.any:
                self._pressure = DirtyThrottle(self.tree.upper.pressure_path)

    # ------------------------------------------------------------ reading

    def open_whole(self, path: bytes) -> tuple[int, int] | None:
        """A descriptor of all bytes, and the size, of a file that can be found and read without asking anybody, by the
        shortest way; None: `content` says. The caller closes it."""
        slash = path.rfind(b"/")
        known = self._folder_known(path, slash)
        return None if known is None else known[2].open_whole(known[0], path[slash + 1 :])

    def open_whole_entry(self, path: bytes) -> WholeFile | None:
        """As open_whole, with all that the index says of the file."""
        slash = path.rfind(b"/")
        known = self._folder_known(path, slash)
        return None if known is None else known[2].open_whole_entry(known[0], path[slash + 1 :])

    def _folder_known(self, path: bytes, slash: int) -> _Folder | None:
        """The folder of a path where only its origin has anything, if it was looked up just now. slash: before the
        name."""
        known = self._folders.get(path[:slash] or b"/")
        if known is None or time.monotonic() >= known[1] or known[2] is not self.client.local:
            return None
        return None if self._may_write and not self._is_untouched(path) else known

    def _is_untouched(self, path: bytes) -> bool:
        """Whether the upper layer has nothing above and at a path: the first name where it could is not there."""
        if path[:1] != b"/":
            return False
        top = self.tree.modes.first_written(path)
        return top is None or self.tree.upper.tree.seen(top) is None

    def read(self, path: bytes, start: int, end: int | None) -> bytes:
        """As content, and of that the bytes start..end; fewer where the file ends before."""
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
        """The file as it is now. PathNotFoundError, IsADirectoryPathError, OriginError and its kinds."""
        at_once = self.open_whole(path)
        if at_once is not None:
            return Content(at_once[1], fd=at_once[0])
        for attempt in range(CHANGED_ATTEMPTS):
            whole, found = self.get(path)
            if is_directory(found):
                raise IsADirectoryPathError(os.fsdecode(path), why="it is a directory")
            try:
                return self.content_of(whole, found)
            except (FileNotFoundError, VersionChangedError):
                if attempt + 1 == CHANGED_ATTEMPTS:
                    raise
        raise AssertionError

    def content_of(self, whole: bytes, found: FileStat) -> Content:
        """Of a file that `get` found just now. As content, and FileNotFoundError or VersionChangedError when it has
        been replaced meanwhile: look again."""
        return self._below_content(found) if isinstance(found, Entry) else self._upper_content(whole)

    def content_if_cached(self, path: bytes) -> Content | None:
        """As content, when all bytes are on this host's disk."""
        found = self.content_or_entry(path)
        return found if isinstance(found, Content) else None

    def content_or_entry(self, path: bytes) -> Content | Entry:
        """As content, when all bytes are on this host's disk; else what the origin has there, a folder perhaps."""
        at_once = self.open_whole(path)
        if at_once is not None:
            return Content(at_once[1], fd=at_once[0])
        whole, found = self.get(path)
        if not isinstance(found, Entry):
            return self.content(whole)
        cached = None if is_directory(found) else self.client.complete_path(found.id)
        return (None if cached is None else self._cached_content(found, cached)) or found

    def open(self, path: bytes) -> ReadStream:
        """As content."""
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
        with (
            self.tree.lock,
            _told(path),
        ):  # the lock: else the node may hold a lease on it (dataplane/demotion.py)
            fd = self.tree.upper.at(path).open(os.O_RDONLY | os.O_NONBLOCK)
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            os.close(fd)
            raise NotSupportedError(os.fsdecode(path), why="it is no regular file", hint="read it by a mount")
        return Content(found.st_size, fd=fd, grows=True)


def version_text(found: FileStat) -> str:
    """Of a file: another one where the bytes may be others."""
    if isinstance(found, Entry):
        return found.version.text
    return f"{found.st_ino}-{found.st_size}-{found.st_ctime_ns}"


def is_directory(found: FileStat) -> bool:
    return found.kind is Kind.DIRECTORY if isinstance(found, Entry) else stat.S_ISDIR(found.st_mode)


def _down(at: bytes, names: list[bytes]) -> bytes:
    for name in names:
        at = join(at, name)
    return at
