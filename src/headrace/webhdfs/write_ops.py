"""What changes the tree, by the layer that mounts of the host write to. All waiting is the caller's thread's."""

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
from headrace.http.messages import Response
from headrace.overlay.given_mode import give_mode
from headrace.overlay.upper import join, split
from headrace.sdk.local_vfs import LocalVfs
from headrace.sdk.merged_tree import FileStat
from headrace.sdk.os_errors import translating_os_errors
from headrace.sdk.vfs_reader import is_directory
from headrace.webhdfs import responses
from headrace.webhdfs.errors import RemoteError, illegal, not_found, unsupported
from headrace.webhdfs.routes import WebHdfsCall

FILE_MODE, DIRECTORY_MODE = 0o644, 0o755
"""Where the client says none."""
_ACTION = re.compile(r"[r-][w-][x-]")


class WriteOperations:
    def __init__(self, paths: LocalVfs) -> None:
        self.paths = paths
        self._lock = threading.Lock()
        self._appended: set[bytes] = set()

    # ------------------------------------------------------------ bytes

    def create(self, call: WebHdfsCall, pieces: Iterator[bytes]) -> Response:
        """A new file, which gets its name when all bytes are there; at first the client is told where to send them."""
        self.paths.check_writable(call.path)
        if not call.flag("data"):
            return responses.place(call)
        flags = {word.strip().upper() for word in call.text("createflag").split(",") if word.strip()}
        if "APPEND" in flags:
            raise unsupported("createflag=APPEND: use APPEND")
        replace = call.flag("overwrite") or "OVERWRITE" in flags
        mode = call.permission(FILE_MODE)
        parents = call.flag("createparent", default=True)
        with (
            translating_os_errors(call.path),
            self.paths.create(call.path, replace=replace, parents=parents) as stream,
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
        """In place: who reads sees it grow. What came of a body that broke off is cut off again."""
        self._check_file(call)
        self.paths.check_writable(call.path)
        if not call.flag("data"):
            return responses.place(call)
        with (
            self._only_appender(call.path),
            translating_os_errors(call.path),
            self.paths.append(call.path) as stream,
        ):
            for piece in pieces:
                stream.write(piece)
        return responses.done()

    @contextlib.contextmanager
    def _only_appender(self, path: bytes) -> Iterator[None]:
        """AlreadyBeingCreatedException, as HDFS has it: two bodies would be mixed. Of others than this gateway's
        clients nothing is known."""
        with self._lock:
            if path in self._appended:
                raise RemoteError(
                    "AlreadyBeingCreatedException", f"{_text(path)} is being appended to by somebody else"
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
        fd, whole, _ = self.paths.open_in_place(call.path, 0)
        try:
            now = os.fstat(fd).st_size
            if size > now:
                raise illegal(
                    f"Cannot truncate to a larger file size. Current size: {now}, truncate size: {size}."
                )
            with translating_os_errors(call.path):
                os.ftruncate(fd, size)
            self.paths.tell(whole, fd)
        finally:
            os.close(fd)
        return responses.of("boolean", True)

    def _check_file(self, call: WebHdfsCall) -> None:
        if is_directory(self._found(call)):
            raise RemoteError("FileNotFoundException", f"Path is not a file: {_text(call.path)}")

    def _found(self, call: WebHdfsCall) -> FileStat:
        """FileNotFoundException."""
        found = self._seen(call.path)
        if found is None:
            raise not_found(call.path)
        return found

    def _seen(self, path: bytes) -> FileStat | None:
        try:
            return self.paths.find(path)[1]
        except NotADirectoryPathError:
            return None

    # ------------------------------------------------------------ names

    def make_directories(self, call: WebHdfsCall) -> Response:
        """Those above get the usual mode."""
        mode = call.permission(DIRECTORY_MODE)
        found = self._seen(call.path)
        if found is not None and is_directory(found):
            return responses.of("boolean", True)
        self.paths.make_directories(call.path)
        made = self._found(call)
        if isinstance(made, os.stat_result) and made.st_mode & 0o7777 != mode:
            self.paths.alter(call.path, lambda at: give_mode(at, mode))
        return responses.of("boolean", True)

    def delete(self, call: WebHdfsCall) -> Response:
        try:
            path, found = self.paths.find(call.path, follow=False)
        except NotADirectoryPathError:
            found = None
        if found is None:
            return responses.of("boolean", False)
        try:
            if not is_directory(found):
                self.paths.remove(path)
            elif call.flag("recursive"):
                self.paths.remove_all(path)
            else:
                self.paths.remove_directory(path)
        except StaleIdError:
            raise
        except PathNotFoundError:  # somebody was faster
            return responses.of("boolean", False)
        except DirectoryNotEmptyError:
            raise RemoteError(
                "PathIsNotEmptyDirectoryException",
                f"`{_text(call.path)} is non empty': Directory is not empty",
            ) from None
        return responses.of("boolean", True)

    def rename(self, call: WebHdfsCall) -> Response:
        """Without options as FileSystem.rename(src, dst), which answers false; with them as rename(src, dst, options),
        which fails."""
        target = call.path_of("destination")
        if not call.has("renameoptions"):
            return responses.of("boolean", self._rename(call.path, target))
        options = {word.strip().upper() for word in call.text("renameoptions").split(",")}
        self._rename_by_options(call, target, replace="OVERWRITE" in options)
        return responses.done()

    def _rename(self, source: bytes, target: bytes) -> bool:
        """Into a directory that is there; never over anything."""
        there = self._seen(target)
        if there is not None and is_directory(there):
            target = join(target, split(source)[1])
        if source == b"/" or self._seen(source) is None:
            return False
        if target == source:
            return True
        if target.startswith(source + b"/"):
            return False
        try:
            self.paths.rename(source, target, replace=False)
        except StaleIdError:
            raise
        except (PathNotFoundError, PathExistsError, NotADirectoryPathError):
            return False
        return True

    def _rename_by_options(self, call: WebHdfsCall, target: bytes, *, replace: bool) -> None:
        source = call.path
        self._found(call)
        if source == target:
            raise RemoteError(
                "FileAlreadyExistsException",
                f"The source {_text(source)} and destination {_text(target)} are the same",
            )
        if target.startswith(source + b"/"):
            raise RemoteError("IOException", f"Rename destination {_text(target)} is below the source")
        above = split(target)[0]
        found = self._seen(above)
        if found is None:
            raise RemoteError("FileNotFoundException", f"rename destination parent {_text(above)} not found.")
        if not is_directory(found):
            raise RemoteError(
                "ParentNotDirectoryException", f"rename destination parent {_text(above)} is a file."
            )
        self.paths.rename(source, target, replace=replace)

    # ------------------------------------------------------------ attributes

    def set_permission(self, call: WebHdfsCall) -> Response:
        mode = call.permission(DIRECTORY_MODE)
        self._found(call)
        self.paths.alter(call.path, lambda at: give_mode(at, mode))
        return responses.done()

    def set_owner(self, call: WebHdfsCall) -> Response:
        """Names that this host knows."""
        owner, group = call.text("owner"), call.text("group")
        if not owner and not group:
            raise illegal("Both owner and group are empty.")
        uid = _id_of(owner, lambda name: pwd.getpwnam(name).pw_uid, "user")
        gid = _id_of(group, lambda name: grp.getgrnam(name).gr_gid, "group")
        self._found(call)
        self.paths.alter(call.path, lambda at: os.chown(at, uid, gid))
        return responses.done()

    def set_times(self, call: WebHdfsCall) -> Response:
        """In milliseconds; -1 lets one be."""
        modified, accessed = call.number("modificationtime", -1), call.number("accesstime", -1)
        if min(modified, accessed) < -1:
            raise illegal("times can't be negative")
        self._found(call)

        def set_them(at: bytes) -> None:
            now = os.stat(at)
            times = [now.st_atime_ns, now.st_mtime_ns]
            for place, given in enumerate((accessed, modified)):
                if given >= 0:
                    times[place] = given * 1_000_000
            os.utime(at, ns=(times[0], times[1]))

        if max(modified, accessed) >= 0:
            self.paths.alter(call.path, set_them)
        return responses.done()

    def set_replication(self, _: WebHdfsCall) -> Response:
        """How many nodes hold something is the cluster's setting: nothing was set."""
        return responses.of("boolean", False)

    def check_access(self, call: WebHdfsCall) -> Response:
        """Whoever may ask may read everything; what may be written is said by the node's modes."""
        action = call.text("fsaction")
        if not _ACTION.fullmatch(action):
            raise illegal(f'Invalid value for webhdfs parameter "fsaction": {action!r}')
        self._found(call)
        if "w" in action:
            self.paths.check_writable(call.path)
        return responses.done()


def _id_of(name: str, look: Callable[[str], int], kind: str) -> int:
    """-1: leave it."""
    if not name:
        return -1
    try:
        return look(name)
    except KeyError:
        if name.isdecimal():
            return int(name)
        raise illegal(f"this host knows no {kind} {name!r}") from None


def _text(path: bytes) -> str:
    return path.decode("utf-8", "replace")
