"""A checkpoint folder at `headrace://`: of this host's node, without a mount.

Files lie in the upper layer while they are written, as those of any local disk, and go to the origin as the node's mode
of writing says. What left the layer is read by the cache.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator

from headrace.base.boot_clock import boot_id
from headrace.base.errors import (
    CheckpointFailedError,
    CheckpointNoSpaceError,
    DirectoryNotEmptyError,
    HeadraceError,
    NoSpaceError,
    NotADirectoryPathError,
    PathNotFoundError,
    ReadOnlyError,
)
from headrace.checkpoint.foreign_claims import is_abandoned
from headrace.checkpoint.storage import PosixClaim, PosixReader, PosixWriter
from headrace.overlay.upper import join, split
from headrace.sdk.client_registry import HOSTS
from headrace.sdk.discovery import find_node
from headrace.sdk.local_vfs import LocalVfs
from headrace.sdk.node_client import PATIENCE_S
from headrace.sdk.streams import Content

SCHEME = "headrace://"
_KEPT = (PathNotFoundError, NotADirectoryPathError, ReadOnlyError, CheckpointFailedError)


class NodeStorage:
    """url: headrace:///folder. socket: of the node, else found as the command line does: NodeUnavailableError,
    UsageError."""

    def __init__(self, url: str, *, socket: str | None = None) -> None:
        self._folder = os.fsencode("/" + url.removeprefix(SCHEME).strip("/"))
        self._paths: LocalVfs = HOSTS.get(find_node(socket=socket), PATIENCE_S)

    @property
    def name(self) -> str:
        return SCHEME + os.fsdecode(self._folder)

    def create(self, name: str) -> PosixWriter:
        with self._told(name):
            fd, whole, _ = self._paths.open_in_place(self._at(name), os.O_EXCL)
        return _NodeSink(fd, name, self, whole)

    def open(self, name: str) -> PosixReader | _FillingSource:
        with self._told(name):
            content = self._paths.content(self._at(name))
        if content.file is not None:
            return _FillingSource(content, name, self)
        return _NodeSource(content.fd, f"{self.name}/{name}")

    def read(self, name: str, *, bytes_max: int | None = None) -> bytes:
        with self._told(name):
            content = self._paths.content(self._at(name))
            try:
                return content.read(0, content.size_bytes if bytes_max is None else bytes_max)
            finally:
                content.close()

    def size_bytes(self, name: str) -> int:
        with self._told(name):
            content = self._paths.content(self._at(name))
            content.close()
            return content.size_bytes

    def rename(self, name: str, new_name: str) -> None:
        with self._told(new_name):
            self._paths.rename(self._at(name), self._at(new_name))

    def remove(self, name: str) -> None:
        with self._told(name), contextlib.suppress(PathNotFoundError):
            self._paths.remove(self._at(name))

    def make_folder(self, folder: str) -> None:
        with self._told(folder):
            at = self._at(folder)
            if self._paths.find(at)[1] is None:
                self._paths.make_directories(at)
                while at != b"/":
                    at = split(at)[0]
                    self._paths.sync_names(at)

    def remove_folder(self, folder: str) -> None:
        with self._told(folder), contextlib.suppress(DirectoryNotEmptyError, PathNotFoundError):
            self._paths.remove_directory(self._at(folder))

    def sync_folder(self, folder: str) -> None:
        with self._told(folder):
            self._paths.sync_names(self._at(folder))

    def names(self, folder: str) -> list[str]:
        with self._told(folder):
            try:
                return sorted(os.fsdecode(name) for name, _ in self._paths.children(self._at(folder)))
            except PathNotFoundError:
                return []

    def claim(self, name: str, data: bytes) -> PosixClaim:
        """As of PosixStorage: locked under another name first."""
        with self._told(name):
            at = self._at(name)
            fd, _, _ = self._paths.open_in_place(at + b"~", os.O_TRUNC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                os.write(fd, boot_id().encode() + b"\n" + data)
                self._paths.rename(at + b"~", at)
            except BaseException:
                os.close(fd)
                raise
        return PosixClaim(fd)

    def is_claimed(self, name: str) -> bool:
        """A claim of another host came by the origin."""
        with self._told(name):
            try:
                content = self._paths.content(self._at(name))
            except PathNotFoundError:
                return False
            try:
                fd = content.wait(0, content.size_bytes)
                boot, whole, _ = os.pread(fd, 64, 0).partition(b"\n")
                if whole and boot != boot_id().encode():
                    return not is_abandoned(self, name, f"{content.size_bytes}-{self._mtime_ns(name)}")
                try:
                    fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return True
                return False
            finally:
                content.close()

    def _mtime_ns(self, name: str) -> int:
        _, found = self._paths.get(self._at(name))
        return found.st_mtime_ns if isinstance(found, os.stat_result) else found.version.mtime_ns

    def _at(self, name: str) -> bytes:
        return join(self._folder, os.fsencode(name)) if name else self._folder

    @contextlib.contextmanager
    def _told(self, name: str) -> Iterator[None]:
        """What a Place promises to raise."""
        where = f"{self.name}/{name}"
        try:
            yield
        except _KEPT:
            raise
        except NoSpaceError as error:
            raise CheckpointNoSpaceError(where, why=error.why, hint=error.hint) from None
        except HeadraceError as error:
            raise CheckpointFailedError(where, why=str(error)) from None
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            kind = CheckpointNoSpaceError if full else CheckpointFailedError
            raise kind(where, why=(error.strerror or str(error)).lower()) from None


class _NodeSink(PosixWriter):
    """Its file tells the node when it is closed."""

    def __init__(self, fd: int, name: str, place: NodeStorage, at: bytes) -> None:
        super().__init__(fd, f"{place.name}/{name}", direct=stat.S_ISREG(os.fstat(fd).st_mode))
        self._place, self._name, self._at = place, name, at

    def close(self) -> None:
        if self._fd >= 0:
            super().close()
            with self._place._told(self._name):
                self._place._paths.tell(self._at)


class _NodeSource(PosixReader):
    def __init__(self, fd: int, name: str) -> None:
        super().__init__(fd, name, direct=True)


class _FillingSource:
    """A file that the node still fetches."""

    def __init__(self, content: Content, name: str, place: NodeStorage) -> None:
        self._content, self._name, self._place = content, name, place

    def read_into(self, target: memoryview, offset: int) -> None:
        with self._place._told(self._name):
            while target:
                done = self._content.read_into(target, offset)
                if done == 0:
                    raise CheckpointFailedError(self._name, why=f"ends at byte {offset}, more is expected")
                target, offset = target[done:], offset + done

    def map_into(self, target: memoryview, offset: int) -> bool:
        return False

    def close(self) -> None:
        self._content.close()
