"""Keys of a bucket in S3's order: byte order of whole keys, page by page, of a tree of folders.

A folder's names come in byte order; as keys they sort otherwise, since the keys below a folder `a` begin with `a/`, and
`a-b` and `a.txt` come before them. A folder that is empty, or was put as `key/`, is shown as the key `key/`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace.base.errors import HeadraceError, NotADirectoryPathError, PathNotFoundError
from headrace.base.namespace_path import check_name
from headrace.overlay.upper import join
from headrace.s3.object_attributes import ObjectAttributes, facts_of, is_file, is_marked
from headrace.s3.routes import KEY_BYTES_MAX
from headrace.sdk.local_vfs import LocalVfs
from headrace.sdk.merged_tree import FileStat
from headrace.sdk.vfs_reader import is_directory

_NAME_BYTES_MAX = 255


@dataclass(frozen=True, slots=True)
class ListedKey:
    """facts None: a folder, whose key ends in a slash."""

    key: bytes
    facts: ObjectAttributes | None


@dataclass(slots=True)
class Page:
    """next_key: after which the next page begins; b"" at the end."""

    rows: list[ListedKey] = field(default_factory=list)
    prefixes: list[bytes] = field(default_factory=list)
    next_key: bytes = b""


class ObjectListing:
    """bucket: its path."""

    def __init__(self, paths: LocalVfs, bucket: bytes) -> None:
        self._paths = paths
        self._bucket = bucket

    def page(self, prefix: bytes, delimiter: bytes, after: bytes, count: int) -> Page:
        """Keys and common prefixes greater than `after`, so many at most together."""
        page = Page()
        if count == 0 or not _is_prefix(prefix):
            return page
        seen = after if delimiter and after.startswith(prefix) and after.endswith(delimiter) else b""
        last, rows = b"", 0
        for row in self._rows(prefix, after, flat=delimiter == b"/"):
            group = _group(row.key, prefix, delimiter)
            if group and (group == seen or group <= after):
                continue
            if rows == count:
                page.next_key = last
                return page
            if group:
                page.prefixes.append(group)
                seen = last = group
            else:
                page.rows.append(row)
                last = row.key
            rows += 1
        return page

    def _rows(self, prefix: bytes, after: bytes, *, flat: bool) -> Iterator[ListedKey]:
        """flat: folders are not entered, but for that of the prefix."""
        folder, _, name = prefix.rpartition(b"/")
        at = folder + b"/" if folder or prefix.startswith(b"/") else b""
        try:
            if at and at == prefix and at > after and self._is_shown(self._path(folder), at):
                yield ListedKey(at, None)
            yield from self._walk(at, name, after, flat=flat)
        except (PathNotFoundError, NotADirectoryPathError):
            return

    def _walk(self, at: bytes, prefix: bytes, after: bytes, *, flat: bool) -> Iterator[ListedKey]:
        """The keys below a folder whose key is `at`, of names that begin with prefix."""
        levels = [self._level(at, prefix, after)]
        while levels:
            try:
                entry = next(levels[-1], None)
            except (PathNotFoundError, NotADirectoryPathError):
                if len(levels) == 1:
                    raise
                entry = None  # removed meanwhile
            if entry is None:
                levels.pop()
                continue
            key, path, seen = entry
            if not is_directory(seen):
                row = self._file(key, path, seen)
                if row is not None and key > after:
                    yield row
            elif flat:
                if not after.startswith(key):
                    yield ListedKey(key, None)
            else:
                if key > after and self._is_shown(path, key):
                    yield ListedKey(key, None)
                levels.append(self._level(key, b"", after))

    def _level(self, at: bytes, prefix: bytes, after: bytes) -> Iterator[tuple[bytes, bytes, FileStat]]:
        """Of one folder: (key, path, what is there) in the order of keys; that of a folder ends in a slash."""
        folder = self._path(at.rstrip(b"/"))
        resume = after[len(at) :].partition(b"/")[0] if after.startswith(at) else b""
        if after > at and not after.startswith(at):
            return  # all of it comes before
        waiting: list[tuple[bytes, bytes, FileStat]] = []
        begin = max(_before(prefix), _before(resume)) if resume or prefix else b""
        earlier = self._folders_that_sort_later(folder, resume) if resume > prefix else []
        for name, found in earlier:
            if name.startswith(prefix) and name <= begin:
                heapq.heappush(waiting, (at + name + b"/", join(folder, name), found))
        for name, found in self._paths.children(folder or b"/", after=begin):
            while waiting and waiting[0][0] <= at + name:
                yield heapq.heappop(waiting)
            if not name.startswith(prefix):
                if name > prefix:
                    break
                continue
            key = at + name + (b"/" if is_directory(found) else b"")
            heapq.heappush(waiting, (key, join(folder, name), found))
        while waiting:
            yield heapq.heappop(waiting)

    def _folders_that_sort_later(self, folder: bytes, resume: bytes) -> list[tuple[bytes, FileStat]]:
        """Folders whose name is the beginning of the one to go on at, and whose keys come after it all the same."""
        found = []
        for end in range(1, len(resume)):
            if resume[end] < 0x2F and _is_name(resume[:end]):  # the slash
                one = self._paths.find(join(folder or b"/", resume[:end]))[1]
                if one is not None and is_directory(one):
                    found.append((resume[:end], one))
        return found

    def _file(self, key: bytes, path: bytes, found: FileStat) -> ListedKey | None:
        """None for what is no file: links to folders, sockets, links to nothing."""
        try:
            if not is_file(found):
                path, linked = self._paths.get(path)
                if is_directory(linked) or not is_file(linked):
                    return None
                found = linked
        except HeadraceError:
            return None
        return ListedKey(key, facts_of(found, self._paths.tree.upper.at(path)))

    def _is_shown(self, folder: bytes, key: bytes) -> bool:
        """As a key of its own."""
        if not key:
            return False
        if is_marked(self._paths.tree.upper.at(folder)):
            return True
        try:
            return next(iter(self._paths.children(folder)), None) is None
        except (PathNotFoundError, NotADirectoryPathError):
            return False  # removed meanwhile

    def _path(self, key: bytes) -> bytes:
        return join(self._bucket, key) if key else self._bucket


def _is_prefix(prefix: bytes) -> bool:
    """Whether a key may begin so: the names before its last slash are names of folders."""
    *names, rest = prefix.split(b"/")
    return len(prefix) <= KEY_BYTES_MAX and all(map(_is_name, names)) and b"\0" not in rest


def _is_name(name: bytes) -> bool:
    try:
        check_name(name)
    except ValueError:
        return False
    return True


def _group(key: bytes, prefix: bytes, delimiter: bytes) -> bytes:
    """The common prefix that a key is shown as; b"" where it is shown itself."""
    if not delimiter:
        return b""
    end = key.find(delimiter, len(prefix))
    return key[: end + len(delimiter)] if end >= 0 else b""


def _before(name: bytes) -> bytes:
    """Greater than nearly all names that are less than this one, and less than it."""
    if not name or name[-1] == 0:
        return b""
    return name[:-1] + bytes([name[-1] - 1]) + b"\xff" * (_NAME_BYTES_MAX - len(name))
