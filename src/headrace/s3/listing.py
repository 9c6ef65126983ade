"""List the keys of a bucket in S3's order, the byte order of whole keys, page by page, from a tree of directories.

The names in a directory are listed in byte order. As keys they sort differently: keys below a directory `a` begin with
`a/`, and `a-b` and `a.txt` sort before them. An empty directory, or one put as `key/`, is listed as `key/`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace.base.errors import HeadraceError, NotADirectoryPathError, PathNotFoundError
from headrace.base.namespace_path import NAME_BYTES_MAX, check_name, join
from headrace.overlay.merged_view import FileStat
from headrace.s3.object_attributes import ObjectAttributes, attributes_of, is_file, is_marked
from headrace.s3.routes import KEY_BYTES_MAX
from headrace.vfs.file_stat import is_directory
from headrace.vfs.local_vfs import LocalVfs


@dataclass(frozen=True, slots=True)
class ListedKey:
    """Holds one listed key. `attributes` is None for a directory, whose key ends in a slash."""

    key: bytes
    attributes: ObjectAttributes | None


@dataclass(slots=True)
class Page:
    """Holds one page of a listing. The next page begins after `next_key`; b"" at the end."""

    rows: list[ListedKey] = field(default_factory=list)
    prefixes: list[bytes] = field(default_factory=list)
    next_key: bytes = b""


class ObjectListing:
    """Lists the keys of one bucket, whose path is `bucket`."""

    def __init__(self, vfs: LocalVfs, bucket: bytes) -> None:
        self._vfs = vfs
        self._bucket = bucket

    def page(self, prefix: bytes, delimiter: bytes, after: bytes, count: int) -> Page:
        """Return the keys and common prefixes greater than `after`, at most `count` together."""
        page = Page()
        if count == 0 or not _is_prefix(prefix):
            return page
        last_group = after if delimiter and after.startswith(prefix) and after.endswith(delimiter) else b""
        last, rows = b"", 0
        for row in self._rows(prefix, after, flat=delimiter == b"/"):
            group = _group(row.key, prefix, delimiter)
            if group and (group == last_group or group <= after):
                continue
            if rows == count:
                page.next_key = last
                return page
            if group:
                page.prefixes.append(group)
                last_group = last = group
            else:
                page.rows.append(row)
                last = row.key
            rows += 1
        return page

    def _rows(self, prefix: bytes, after: bytes, *, flat: bool) -> Iterator[ListedKey]:
        """Yield the keys that begin with the prefix. `flat` enters no directory but that of the prefix."""
        directory, _, name = prefix.rpartition(b"/")
        base = directory + b"/" if directory or prefix.startswith(b"/") else b""
        try:
            if base and base == prefix and base > after and self._is_shown(self._path(directory), base):
                yield ListedKey(base, None)
            yield from self._walk(base, name, after, flat=flat)
        except (PathNotFoundError, NotADirectoryPathError):
            return

    def _walk(self, base: bytes, prefix: bytes, after: bytes, *, flat: bool) -> Iterator[ListedKey]:
        """Yield the keys below the directory whose key is `base`, of names that begin with the prefix."""
        levels = [self._level(base, prefix, after)]
        while levels:
            try:
                entry = next(levels[-1], None)
            except (PathNotFoundError, NotADirectoryPathError):
                if len(levels) == 1:
                    raise
                entry = None  # the directory was removed meanwhile
            if entry is None:
                levels.pop()
                continue
            key, path, file_stat = entry
            if not is_directory(file_stat):
                row = self._file(key, path, file_stat)
                if row is not None and key > after:
                    yield row
            elif flat:
                if not after.startswith(key):
                    yield ListedKey(key, None)
            else:
                if key > after and self._is_shown(path, key):
                    yield ListedKey(key, None)
                levels.append(self._level(key, b"", after))

    def _level(self, base: bytes, prefix: bytes, after: bytes) -> Iterator[tuple[bytes, bytes, FileStat]]:
        """Yield (key, path, file stat) of the names in a directory, in key order; a directory's key ends in a slash."""
        if after > base and not after.startswith(base):
            return  # all keys of the directory sort before `after`
        directory = self._path(base.rstrip(b"/"))
        resume = after[len(base) :].partition(b"/")[0] if after.startswith(base) else b""
        waiting: list[tuple[bytes, bytes, FileStat]] = []
        for name, file_stat in self._names(directory, prefix, resume):
            while waiting and waiting[0][0] <= base + name:
                yield heapq.heappop(waiting)
            key = base + name + (b"/" if is_directory(file_stat) else b"")
            heapq.heappush(waiting, (key, join(directory, name), file_stat))
        while waiting:
            yield heapq.heappop(waiting)

    def _names(self, directory: bytes, prefix: bytes, resume: bytes) -> Iterator[tuple[bytes, FileStat]]:
        """Yield the names that begin with the prefix, in byte order from `resume` on, and earlier directories whose
        keys sort after it."""
        first = max(_before(prefix), _before(resume)) if resume or prefix else b""
        if resume > prefix:
            for name, file_stat in self._directories_that_sort_later(directory, resume):
                if name.startswith(prefix) and name <= first:
                    yield name, file_stat
        for name, file_stat in self._vfs.children(directory or b"/", after=first):
            if name.startswith(prefix):
                yield name, file_stat
            elif name > prefix:
                return

    def _directories_that_sort_later(self, directory: bytes, resume: bytes) -> list[tuple[bytes, FileStat]]:
        """Return the directories whose name is a prefix of the name to resume at, although their keys sort after it."""
        rows = []
        for end in range(1, len(resume)):
            if resume[end] < 0x2F and _is_name(resume[:end]):  # sorts before a slash
                file_stat = self._vfs.find(join(directory or b"/", resume[:end]))[1]
                if file_stat is not None and is_directory(file_stat):
                    rows.append((resume[:end], file_stat))
        return rows

    def _file(self, key: bytes, path: bytes, file_stat: FileStat) -> ListedKey | None:
        """Return the row of a file; None for other types: links to directories, sockets, dangling links."""
        try:
            if not is_file(file_stat):
                path, linked = self._vfs.get(path)
                if is_directory(linked) or not is_file(linked):
                    return None
                file_stat = linked
        except HeadraceError:
            return None
        return ListedKey(key, attributes_of(file_stat, self._vfs.tree.upper.at(path)))

    def _is_shown(self, path: bytes, key: bytes) -> bool:
        """Return whether a directory is listed as a key of its own."""
        if not key:
            return False
        if is_marked(self._vfs.tree.upper.at(path)):
            return True
        try:
            return next(iter(self._vfs.children(path)), None) is None
        except (PathNotFoundError, NotADirectoryPathError):
            return False  # removed meanwhile

    def _path(self, key: bytes) -> bytes:
        return join(self._bucket, key) if key else self._bucket


def _is_prefix(prefix: bytes) -> bool:
    """Return whether a key can begin so: the names before its last slash must be valid names of directories."""
    *names, rest = prefix.split(b"/")
    return len(prefix) <= KEY_BYTES_MAX and all(map(_is_name, names)) and b"\0" not in rest


def _is_name(name: bytes) -> bool:
    try:
        check_name(name)
    except ValueError:
        return False
    return True


def _group(key: bytes, prefix: bytes, delimiter: bytes) -> bytes:
    """Return the common prefix under which a key is listed; b"" where the key itself is listed."""
    if not delimiter:
        return b""
    end = key.find(delimiter, len(prefix))
    return key[: end + len(delimiter)] if end >= 0 else b""


def _before(name: bytes) -> bytes:
    """Return a name that is less than this one, and greater than nearly all names that are less than this one."""
    if not name or name[-1] == 0:
        return b""
    return name[:-1] + bytes([name[-1] - 1]) + b"\xff" * (NAME_BYTES_MAX - len(name))
