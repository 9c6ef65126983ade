"""Store checkpoints at `headrace://`, in the namespace of this host's node, without a mount.

New files are in the upper layer, written like those of a local disk. The node's write mode decides when they reach the
origin. Demoted files are read through the cache.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

from headrace.base.errors import (
    CheckpointFailedError,
    CheckpointNoSpaceError,
    CorruptCheckpointError,
    DirectoryNotEmptyError,
    HeadraceError,
    IsADirectoryPathError,
    NoSpaceError,
    NotADirectoryPathError,
    NotSupportedError,
    PathNotFoundError,
    ReadOnlyError,
)
from headrace.base.os_errors import translating_os_errors
from headrace.checkpoint.claim_owner import is_owner_alive, write_claim
from headrace.checkpoint.posix_storage import STORAGE_ERRORS, PosixReader, PosixWriter
from headrace.checkpoint.storage import SaveClaim
from headrace.sdk.namespace import Content, join, open_local_vfs, split, stat_of

SCHEME = "headrace://"
_PASSED_ON = (
    PathNotFoundError,
    NotADirectoryPathError,
    ReadOnlyError,
    CheckpointFailedError,
    CorruptCheckpointError,
)


class NodeStorage:
    """Store checkpoints in a directory of a node's namespace.

    url: headrace:///DIRECTORY. socket: the node's socket; without it the node is found as on the command line. Raises
    NodeUnavailableError or UsageError.
    """

    def __init__(self, url: str, *, socket: str | None = None) -> None:
        self._folder = os.fsencode("/" + url.removeprefix(SCHEME).strip("/"))
        self._vfs = open_local_vfs(socket=socket)

    @property
    def name(self) -> str:
        return SCHEME + os.fsdecode(self._folder)

    def create(self, name: str) -> PosixWriter:
        with self._translating_errors(name):
            fd, real_path, _ = self._vfs.open_in_place(self._path(name), os.O_EXCL)
        return _NodeWriter(fd, name, self, real_path)

    def open(self, name: str) -> PosixReader | _FillingReader:
        with self._translating_errors(name):
            content = self._vfs.content(self._path(name))
        if content.file is not None:
            return _FillingReader(content, name, self)
        return PosixReader(content.fd, f"{self.name}/{name}", direct=True)

    def read(self, name: str, *, bytes_max: int) -> bytes:
        with self._translating_errors(name):
            content = self._content(name)
            try:
                return content.read(0, min(bytes_max, content.size_bytes))
            finally:
                content.close()

    def size_bytes(self, name: str) -> int:
        with self._translating_errors(name):
            content = self._content(name)
            content.close()
            return content.size_bytes

    def _content(self, name: str) -> Content:
        try:
            return self._vfs.content(self._path(name))
        except (IsADirectoryPathError, NotSupportedError):  # a directory; a link, a pipe
            raise CorruptCheckpointError(f"{self.name}/{name}", why="it is not a regular file") from None

    def rename(self, name: str, new_name: str) -> None:
        with self._translating_errors(new_name):
            self._vfs.rename(self._path(name), self._path(new_name))

    def remove(self, name: str) -> None:
        with self._translating_errors(name), contextlib.suppress(PathNotFoundError):
            self._vfs.remove(self._path(name))

    def make_folder(self, folder: str) -> None:
        with self._translating_errors(folder):
            path = self._path(folder)
            if self._vfs.find(path)[1] is None:
                self._vfs.make_directories(path)
                while path != b"/":
                    path = split(path)[0]
                    self._vfs.sync_names(path)

    def remove_folder(self, folder: str) -> None:
        with self._translating_errors(folder), contextlib.suppress(DirectoryNotEmptyError, PathNotFoundError):
            self._vfs.remove_directory(self._path(folder))

    def sync_folder(self, folder: str) -> None:
        with self._translating_errors(folder):
            self._vfs.sync_names(self._path(folder))

    def names(self, folder: str) -> list[str]:
        with self._translating_errors(folder):
            try:
                return sorted(os.fsdecode(name) for name, _ in self._vfs.children(self._path(folder)))
            except PathNotFoundError:
                return []

    def claim(self, name: str, data: bytes) -> SaveClaim:
        """Write and lock the claim under a temporary name, then rename it, as PosixStorage does."""
        with self._translating_errors(name):
            path = self._path(name)
            fd, _, _ = self._vfs.open_in_place(path + b"~", os.O_TRUNC)
            claim = SaveClaim(fd)
            try:
                write_claim(fd, data)
                self._vfs.rename(path + b"~", path)
            except BaseException:
                claim.release()
                raise
        return claim

    def is_claimed(self, name: str) -> bool:
        """Return whether the owner lives. A claim of another host arrives through the origin."""
        with self._translating_errors(name):
            try:
                content = self._content(name)
            except (PathNotFoundError, CorruptCheckpointError):
                return False
            try:
                fd = content.wait(0, content.size_bytes)
                return is_owner_alive(self, name, fd, lambda: f"{content.size_bytes}-{self._mtime_ns(name)}")
            finally:
                content.close()

    def _mtime_ns(self, name: str) -> int:
        return stat_of(name, self._vfs.get(self._path(name))[1]).mtime_ns

    def _path(self, name: str) -> bytes:
        return join(self._folder, os.fsencode(name)) if name else self._folder

    @contextlib.contextmanager
    def _translating_errors(self, name: str) -> Iterator[None]:
        """Raise foreign errors as the errors that CheckpointStorage promises."""
        where = f"{self.name}/{name}"
        try:
            with translating_os_errors(where, STORAGE_ERRORS):
                yield
        except _PASSED_ON:
            raise
        except NoSpaceError as error:
            raise CheckpointNoSpaceError(where, why=error.why, hint=error.hint) from None
        except HeadraceError as error:
            raise CheckpointFailedError(where, why=str(error)) from None


class _NodeWriter(PosixWriter):
    """Write a file and report it to the node when it is closed."""

    def __init__(self, fd: int, name: str, storage: NodeStorage, path: bytes) -> None:
        super().__init__(fd, f"{storage.name}/{name}", direct=stat.S_ISREG(os.fstat(fd).st_mode))
        self._storage, self._name, self._real_path = storage, name, path

    def close(self) -> None:
        if self._fd >= 0:
            super().close()
            with self._storage._translating_errors(self._name):
                self._storage._vfs.report_change(self._real_path)


class _FillingReader:
    """Read a file that the node is still fetching."""

    def __init__(self, content: Content, name: str, storage: NodeStorage) -> None:
        self._content, self._name, self._storage = content, name, storage

    def read_into(self, target: memoryview, offset: int) -> None:
        with self._storage._translating_errors(self._name):
            while target:
                count = self._content.read_into(target, offset)
                if count == 0:
                    raise CheckpointFailedError(
                        self._name, why=f"it ends at byte {offset}, but more bytes are expected"
                    )
                target, offset = target[count:], offset + count

    def map_into(self, target: memoryview, offset: int) -> bool:
        return False

    def close(self) -> None:
        self._content.close()
