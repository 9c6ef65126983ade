"""Serve the operations that describe files and directories: statuses, listings, attributes, totals. The caller's thread
does all waiting."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Iterator
from typing import Any

from headrace.base.errors import HeadraceError, NotADirectoryPathError, PathNotFoundError
from headrace.base.model import Entry
from headrace.base.namespace_path import join
from headrace.base.os_errors import translating_os_errors
from headrace.http.messages import Response
from headrace.overlay.mark_names import HIDDEN_FROM_USERS
from headrace.overlay.merged_view import FileStat
from headrace.vfs.file_stat import is_directory
from headrace.vfs.local_vfs import LocalVfs
from headrace.webhdfs import responses
from headrace.webhdfs.errors import RemoteError, illegal, not_found, path_text
from headrace.webhdfs.file_status import file_status, is_link, link_status
from headrace.webhdfs.routes import WebHdfsCall

BATCH = 1000
"""Most names of one LISTSTATUS_BATCH, as in HDFS, and most remaining names that it counts."""


def find(vfs: LocalVfs, call: WebHdfsCall) -> tuple[bytes, FileStat]:
    """Return the path, with its links resolved, and its file stat. Raises FileNotFoundException."""
    try:
        path, file_stat = vfs.find(call.path)
    except NotADirectoryPathError:
        file_stat = None
    if file_stat is None:
        raise not_found(call.path)
    return path, file_stat


class StatusOperations:
    """Answers the operations that describe paths."""

    def __init__(self, vfs: LocalVfs) -> None:
        self.vfs = vfs

    # ------------------------------------------------------------ statuses

    def get_status(self, call: WebHdfsCall) -> Response:
        return responses.of("FileStatus", self._status(find(self.vfs, call)[1], b""))

    def get_status_cached(self, call: WebHdfsCall) -> Response | None:
        """Answer as `get_status` does. None: the answer may have to wait for the node."""
        entry = self.vfs.find_cached(call.path)
        return None if entry is None else responses.of("FileStatus", self._status(entry, b""))

    def get_link_status(self, call: WebHdfsCall) -> Response:
        path, file_stat = self._unfollowed(call)
        if is_link(file_stat):
            assert isinstance(file_stat, os.stat_result)
            return responses.of("FileStatus", link_status(file_stat, b"", self.vfs.readlink(path)))
        return responses.of("FileStatus", self._status(file_stat, b""))

    def get_link_target(self, call: WebHdfsCall) -> Response:
        path, file_stat = self._unfollowed(call)
        if not is_link(file_stat):
            raise RemoteError("IOException", f"{path_text(call.path)} is not a symbolic link")
        return responses.of("Path", path_text(self.vfs.readlink(path)))

    def _unfollowed(self, call: WebHdfsCall) -> tuple[bytes, FileStat]:
        path, file_stat = self.vfs.find(call.path, follow=False)
        if file_stat is None:
            raise not_found(call.path)
        return path, file_stat

    def list_status(self, call: WebHdfsCall) -> Response:
        """List a directory. A long listing is sent while it is read, so that its rows are never all in memory."""
        batches = self._batches(self._children(call, b""))
        rows, more = next(batches, []), next(batches, [])
        if not more or not call.request.takes_chunks:
            rest = itertools.chain.from_iterable(batches)
            return responses.of("FileStatuses", {"FileStatus": [*rows, *more, *rest]})
        return responses.of_rows("FileStatuses", "FileStatus", itertools.chain([rows, more], batches))

    def list_batch(self, call: WebHdfsCall) -> Response:
        children = self._children(call, call.text("startafter").encode("utf-8", "surrogateescape"))
        rows = next(self._batches(itertools.islice(children, BATCH)), [])
        remaining = sum(1 for _ in itertools.islice(children, BATCH))
        listing = {"partialListing": {"FileStatuses": {"FileStatus": rows}}, "remainingEntries": remaining}
        return responses.of("DirectoryListing", listing)

    def _children(self, call: WebHdfsCall, after: bytes) -> Iterator[tuple[bytes, bytes, FileStat]]:
        """Yield (directory, name, file stat) of the names in a directory; for a file only itself, without a name."""
        path, file_stat = find(self.vfs, call)
        if is_directory(file_stat):
            for name, child in self.vfs.children(path, after=after):
                yield path, name, child
        elif not after:
            yield path, b"", file_stat

    def _batches(self, children: Iterator[tuple[bytes, bytes, FileStat]]) -> Iterator[list[dict[str, Any]]]:
        """Yield the statuses of at most BATCH names at a time, and no empty list. Links that were removed since the
        directory was read are left out."""
        while batch := list(itertools.islice(children, BATCH)):
            rows = []
            for child in batch:
                with contextlib.suppress(PathNotFoundError):
                    rows.append(self._row(*child))
            if rows:
                yield rows

    def _row(self, directory: bytes, name: bytes, file_stat: FileStat) -> dict[str, Any]:
        """Return the status of a name; of a link, the status of its target, if that is a path here. Raises
        PathNotFoundError for a link that was removed."""
        if not is_link(file_stat):
            return self._status(file_stat, name)
        assert isinstance(file_stat, os.stat_result)
        path = join(directory, name)
        try:
            return self._status(self.vfs.get(path)[1], name)
        except HeadraceError:
            return link_status(file_stat, name, self.vfs.readlink(path))

    def _status(self, file_stat: FileStat, name: bytes) -> dict[str, Any]:
        return file_status(file_stat, name, writable=self.vfs.tree.modes.any)

    def get_acl(self, call: WebHdfsCall) -> Response:
        status = self._status(find(self.vfs, call)[1], b"")
        fields = {name: status[name] for name in ("owner", "group", "permission")}
        sticky = int(status["permission"], 8) & 0o1000 != 0
        return responses.of("AclStatus", {**fields, "entries": [], "stickyBit": sticky})

    def get_xattrs(self, call: WebHdfsCall) -> Response:
        """Return extended attributes that a mount set. Only files of the upper layer have them."""
        names = [value for name, value in call.request.query if name.lower() == "xattr.name"]
        encoding = call.text("encoding", "hex").lower()
        if encoding not in responses.ENCODINGS:
            raise illegal(f'Invalid value for webhdfs parameter "encoding": {encoding!r}')
        attributes = self._attributes(call)
        missing = [name for name in names if name not in attributes]
        if missing:
            raise RemoteError(
                "IOException", f"At least one of the attributes provided was not found: {missing[0]}"
            )
        rows = [
            {"name": name, "value": responses.ENCODINGS[encoding](value)}
            for name, value in attributes.items()
            if name in names or not names
        ]
        return responses.of("XAttrs", rows)

    def list_xattrs(self, call: WebHdfsCall) -> Response:
        names = json.dumps(list(self._attributes(call)))  # LISTXATTRS has JSON within JSON
        return responses.of("XAttrNames", names)

    def _attributes(self, call: WebHdfsCall) -> dict[str, bytes]:
        path, file_stat = find(self.vfs, call)
        if isinstance(file_stat, Entry):
            return {}
        with translating_os_errors(call.path), self.vfs.tree.upper.at(path).pinned() as pin:
            names = [name for name in os.listxattr(pin.proc_path) if name.startswith("user.")]
            shown = [name for name in names if not name.startswith(HIDDEN_FROM_USERS)]
            return {name: os.getxattr(pin.proc_path, name) for name in shown}

    # ------------------------------------------------------------ sums

    def get_summary(self, call: WebHdfsCall) -> Response:
        files, directories, size = self._sum(call)
        counts = {"fileCount": files, "directoryCount": directories, "length": size}
        return responses.of("ContentSummary", {**counts, **_no_quota(size)})

    def get_quota(self, call: WebHdfsCall) -> Response:
        files, directories, size = self._sum(call)
        return responses.of("QuotaUsage", {"fileAndDirectoryCount": files + directories, **_no_quota(size)})

    def _sum(self, call: WebHdfsCall) -> tuple[int, int, int]:
        """Return the numbers of files, of directories (with the requested one) and of bytes. Lists all below the
        path."""
        path, file_stat = find(self.vfs, call)
        files = directories = size = 0
        for item in self._walk(path, file_stat):
            if is_directory(item):
                directories += 1
            else:
                files += 1
                size += item.version.size_bytes if isinstance(item, Entry) else item.st_size
        return files, directories, size

    def _walk(self, top: bytes, file_stat: FileStat) -> Iterator[FileStat]:
        yield file_stat
        pending = [top] if is_directory(file_stat) else []
        while pending:
            directory = pending.pop()
            try:
                for name, child in self.vfs.children(directory):
                    yield child
                    if is_directory(child):
                        pending.append(join(directory, name))
            except PathNotFoundError:
                continue  # the directory was removed meanwhile


def _no_quota(size_bytes: int) -> dict[str, Any]:
    return {"quota": -1, "spaceConsumed": size_bytes, "spaceQuota": -1, "typeQuota": {}}
