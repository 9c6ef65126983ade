"""Serve the operations that change the tree, in the upper layer of the host's mounts. The caller's thread waits."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import re
import threading
from collections.abc import Callable, Iterator

from headrace.base.errors import (
    DirectoryNotEmptyError,
    NotADirectoryPathError,
    PathExistsError,
    PathNotFoundError,
    StaleIdError,
)
from headrace.base.namespace_path import join, split
from headrace.base.os_errors import translating_os_errors
from headrace.http.messages import Response
from headrace.overlay.given_mode import give_mode
from headrace.overlay.merged_view import FileStat
from headrace.vfs.file_stat import is_directory
from headrace.vfs.local_vfs import LocalVfs
from headrace.webhdfs import responses
from headrace.webhdfs.errors import RemoteError, illegal, not_found, path_text, unsupported
from headrace.webhdfs.routes import WebHdfsCall

FILE_MODE, DIRECTORY_MODE = 0o644, 0o755
"""Modes of new files and directories for which the client names none."""
ID_MAX = 2**32 - 2
"""Greatest id of a user or group: the next number means that the id stays as it is."""
_ACTION = re.compile(r"[r-][w-][x-]")


class WriteOperations:
    """Answers the operations that change files, names and attributes."""

    def __init__(self, vfs: LocalVfs) -> None:
        self.vfs = vfs
        self._lock = threading.Lock()
        self._appended: set[bytes] = set()

    # ------------------------------------------------------------ bytes

    def create(self, call: WebHdfsCall, pieces: Iterator[bytes]) -> Response:
        """Create a file, which gets its name with all its bytes. A first request gets the location to send them to."""
        self.vfs.check_writable(call.path)
        if not call.flag("data"):
            return responses.location(call)
        flags = {word.strip().upper() for word in call.text("createflag").split(",") if word.strip()}
        if "APPEND" in flags:
            raise unsupported("createflag=APPEND: use APPEND")
        replace = call.flag("overwrite") or "OVERWRITE" in flags
        mode = call.permission(FILE_MODE)
        parents = call.flag("createparent", default=True)
        with (
            translating_os_errors(call.path),
            self.vfs.create(call.path, replace=replace, parents=parents) as stream,
        ):
            for piece in pieces:
                stream.write(piece)
            give_mode(stream.fileno(), mode)
        host = call.request.header("host")
        return responses.done(
            201,
            headers=[
                ("Location", f"{'s' * call.is_secure}webhdfs://{host}{call.path.decode('utf-8', 'replace')}")
            ],
        )

    def append(self, call: WebHdfsCall, pieces: Iterator[bytes]) -> Response:
        """Append in place: readers see the file grow. The bytes of an interrupted body are removed again."""
        self._check_file(call)
        self.vfs.check_writable(call.path)
        if not call.flag("data"):
            return responses.location(call)
        with (
            self._only_appender(call.path),
            translating_os_errors(call.path),
            self.vfs.append(call.path) as stream,
        ):
            for piece in pieces:
                stream.write(piece)
        return responses.done()

    @contextlib.contextmanager
    def _only_appender(self, path: bytes) -> Iterator[None]:
        """Raise AlreadyBeingCreatedException, as HDFS does, while another client of this gateway appends: their bytes
        would be mixed. Writers outside this gateway are not noticed."""
        with self._lock:
            if path in self._appended:
                raise RemoteError(
                    "AlreadyBeingCreatedException", f"another client is appending to {path_text(path)}"
                )
            self._appended.add(path)
        try:
            yield
        finally:
            with self._lock:
                self._appended.discard(path)

    def truncate(self, call: WebHdfsCall) -> Response:
        size = call.at_least_zero("newlength", -1)
        self._check_file(call)
        fd, resolved, _ = self.vfs.open_in_place(call.path, 0)
        try:
            current = os.fstat(fd).st_size
            if size > current:
                raise illegal(
                    f"Cannot truncate to a larger file size. Current size: {current}, truncate size: {size}."
                )
            with translating_os_errors(call.path):
                os.ftruncate(fd, size)
            self.vfs.report_change(resolved, fd)
        finally:
            os.close(fd)
        return responses.of("boolean", True)

    def _check_file(self, call: WebHdfsCall) -> None:
        if is_directory(self._stat(call)):
            raise RemoteError("FileNotFoundException", f"Path is not a file: {path_text(call.path)}")

    def _stat(self, call: WebHdfsCall) -> FileStat:
        """Return the file stat of the path. Raises FileNotFoundException."""
        file_stat = self._stat_or_none(call.path)
        if file_stat is None:
            raise not_found(call.path)
        return file_stat

    def _stat_or_none(self, path: bytes) -> FileStat | None:
        try:
            return self.vfs.find(path)[1]
        except NotADirectoryPathError:
            return None

    # ------------------------------------------------------------ names

    def make_directories(self, call: WebHdfsCall) -> Response:
        """Create a directory and those above it, which get the default mode."""
        mode = call.permission(DIRECTORY_MODE)
        existing = self._stat_or_none(call.path)
        if existing is not None and is_directory(existing):
            return responses.of("boolean", True)
        self.vfs.make_directories(call.path)
        created = self._stat(call)
        if isinstance(created, os.stat_result) and created.st_mode & 0o7777 != mode:
            self.vfs.edit_entry(call.path, lambda target: give_mode(target, mode))
        return responses.of("boolean", True)

    def delete(self, call: WebHdfsCall) -> Response:
        try:
            path, file_stat = self.vfs.find(call.path, follow=False)
        except NotADirectoryPathError:
            file_stat = None
        if file_stat is None:
            return responses.of("boolean", False)
        try:
            if not is_directory(file_stat):
                self.vfs.remove(path)
            elif call.flag("recursive"):
                self.vfs.remove_all(path)
            else:
                self.vfs.remove_directory(path)
        except StaleIdError:
            raise
        except PathNotFoundError:  # removed meanwhile
            return responses.of("boolean", False)
        except DirectoryNotEmptyError:
            raise RemoteError(
                "PathIsNotEmptyDirectoryException",
                f"`{path_text(call.path)} is non empty': Directory is not empty",
            ) from None
        return responses.of("boolean", True)

    def rename(self, call: WebHdfsCall) -> Response:
        """Rename a path. Without options the answer is that of FileSystem.rename(src, dst), which returns false on
        failure; with options that of rename(src, dst, options), which raises."""
        target = call.path_of("destination")
        if not call.has("renameoptions"):
            return responses.of("boolean", self._rename(call.path, target))
        options = {word.strip().upper() for word in call.text("renameoptions").split(",")}
        self._rename_by_options(call, target, replace="OVERWRITE" in options)
        return responses.done()

    def _rename(self, source: bytes, target: bytes) -> bool:
        """Rename a path, also into an existing directory; never replace a name. Return False where that can't be
        done."""
        existing = self._stat_or_none(target)
        if existing is not None and is_directory(existing):
            target = join(target, split(source)[1])
        if source == b"/" or self._stat_or_none(source) is None:
            return False
        if target == source:
            return True
        if target.startswith(source + b"/"):
            return False
        try:
            self.vfs.rename(source, target, replace=False)
        except StaleIdError:
            raise
        except (PathNotFoundError, PathExistsError, NotADirectoryPathError):
            return False
        return True

    def _rename_by_options(self, call: WebHdfsCall, target: bytes, *, replace: bool) -> None:
        source = call.path
        self._stat(call)
        if source == target:
            raise RemoteError(
                "FileAlreadyExistsException",
                f"The source {path_text(source)} and destination {path_text(target)} are the same",
            )
        if target.startswith(source + b"/"):
            raise RemoteError("IOException", f"Rename destination {path_text(target)} is below the source")
        parent = split(target)[0]
        parent_stat = self._stat_or_none(parent)
        if parent_stat is None:
            why = f"rename destination parent {path_text(parent)} not found."
            raise RemoteError("FileNotFoundException", why)
        if not is_directory(parent_stat):
            why = f"rename destination parent {path_text(parent)} is a file."
            raise RemoteError("ParentNotDirectoryException", why)
        self.vfs.rename(source, target, replace=replace)

    # ------------------------------------------------------------ attributes

    def set_permission(self, call: WebHdfsCall) -> Response:
        mode = call.permission(DIRECTORY_MODE)
        self._stat(call)
        self.vfs.edit_entry(call.path, lambda target: give_mode(target, mode))
        return responses.done()

    def set_owner(self, call: WebHdfsCall) -> Response:
        """Set owner and group, by names that this host knows."""
        owner, group = call.text("owner"), call.text("group")
        if not owner and not group:
            raise illegal("Both owner and group are empty.")
        uid = _id_of(owner, lambda name: pwd.getpwnam(name).pw_uid, "user")
        gid = _id_of(group, lambda name: grp.getgrnam(name).gr_gid, "group")
        self._stat(call)
        self.vfs.edit_entry(call.path, lambda target: os.chown(target, uid, gid))
        return responses.done()

    def set_times(self, call: WebHdfsCall) -> Response:
        """Set times in milliseconds; -1 keeps a time."""
        modified, accessed = call.number("modificationtime", -1), call.number("accesstime", -1)
        if min(modified, accessed) < -1:
            raise illegal("times can't be negative")
        self._stat(call)

        def set_both(target: bytes) -> None:
            file_stat = os.stat(target)
            times = [file_stat.st_atime_ns, file_stat.st_mtime_ns]
            for index, time_ms in enumerate((accessed, modified)):
                if time_ms >= 0:
                    times[index] = time_ms * 1_000_000
            os.utime(target, ns=(times[0], times[1]))

        if max(modified, accessed) >= 0:
            self.vfs.edit_entry(call.path, set_both)
        return responses.done()

    def set_replication(self, _: WebHdfsCall) -> Response:
        """Answer that nothing was set: the number of copies is a setting of the cluster."""
        return responses.of("boolean", False)

    def check_access(self, call: WebHdfsCall) -> Response:
        """Check the access of a client: it may read everything, and the node's modes say what it may write."""
        action = call.text("fsaction")
        if not _ACTION.fullmatch(action):
            raise illegal(f'Invalid value for webhdfs parameter "fsaction": {action!r}')
        self._stat(call)
        if "w" in action:
            self.vfs.check_writable(call.path)
        return responses.done()


def _id_of(name: str, lookup: Callable[[str], int], kind: str) -> int:
    """Return the id of a user or group; -1 for no name, which keeps the id."""
    if not name:
        return -1
    try:
        return lookup(name)
    except (KeyError, ValueError):  # the second: of a name with a zero byte
        if name.isascii() and name.isdecimal() and len(name) <= len(str(ID_MAX)) and int(name) <= ID_MAX:
            return int(name)
        raise illegal(f"this host knows no {kind} {name!r}") from None
