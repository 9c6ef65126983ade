"""Files that are wanted whole: fetched by the node as fast as it can, then mapped from the cache file.

`files_at` opens a folder, `ModelFolder.whole` brings one file. What lies in a mount of Headrace's is asked of the
mount's node, and no byte passes through the kernel's FUSE or a socket; what lies elsewhere is mapped as it is. All
who ask for one file, of whatever process of the host, wait for the same reads. Thread-safe but for `close`.
"""

from __future__ import annotations

import mmap
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from headrace.base.errors import (
    HeadraceError,
    IsADirectoryPathError,
    NodeUnavailableError,
    NotADirectoryPathError,
    PathNotFoundError,
    StaleIdError,
    StoreError,
    UsageError,
    VersionChangedError,
)
from headrace.base.libc import address_of, c_library
from headrace.base.model import FileId, Kind
from headrace.sdk.brokered.mounts import SOCKET_ATTRIBUTE, believed_mounts
from headrace.sdk.cancel import Cancel
from headrace.sdk.discovery import find_node
from headrace.sdk.node_client import CHANGED_ATTEMPTS, NodeClient, connect

URL = "headrace://"
PATIENCE_S = 60.0
_MAP_NORESERVE = 0x4000
"""include/uapi/asm-generic/mman.h; Python does not name it. Else the kernel counts a mapping as memory that may be
written, for each rank, and refuses one that is larger than the machine's."""


class ModelFolder(Protocol):
    """A folder. Names are relative to it."""

    @property
    def name(self) -> str:
        """What messages call it."""

    def names(self) -> list[str]:
        """Of the files in it, sorted."""

    def read(self, name: str) -> bytes:
        """A small file. PathNotFoundError."""

    def whole(self, name: str, cancel: Cancel) -> memoryview:
        """All of a file, mapped; blocks until all of it is here. Writing to it changes this process's memory only, and
        it stays what it is when the file is replaced or evicted. Errors of the origin; PathNotFoundError;
        CancelledByUserError, where a node is asked."""

    def close(self) -> None: ...


def open_model_folder(where: str, *, socket: str | None = None) -> tuple[ModelFolder, str]:
    """The folder that `where` means, and "" or the name of the one file in it.

    where: a path, or `headrace:///PATH` in the namespace of a node: the one at `socket`, else that of the configured
    cache. PathNotFoundError; NodeUnavailableError.
    """
    if where.startswith(URL):
        return _node_files_at(where, socket)
    with told(where):
        mode = os.stat(where).st_mode
    if stat.S_ISDIR(mode):
        return LocalModelFolder(where), ""
    folder, name = os.path.split(where)
    return LocalModelFolder(folder or "."), name


def _node_files_at(url: str, socket: str | None) -> tuple[ModelFolder, str]:
    from urllib.parse import unquote  # a program that reads by the library needs no URLs

    host, slash, path = url[len(URL) :].partition("/")
    if host or not slash:
        raise UsageError(url, why="not a path of a node", hint=f"write {URL}/FOLDER, with three slashes")
    whole = os.fsencode("/" + unquote(path).strip("/"))
    try:
        client = connect(find_node(socket=socket), patience_s=PATIENCE_S)
    except NodeUnavailableError:
        from headrace.sdk.brokered.model_folder import (
            open_brokered_model_folder,  # not wanted where this user's node runs
        )

        brokered = open_brokered_model_folder(whole, socket, patience_s=PATIENCE_S)
        if brokered is None:
            raise
        return brokered
    try:
        if client.resolve(whole).kind is Kind.DIRECTORY:
            return NodeModelFolder(client, whole), ""
        folder, _, name = whole.rpartition(b"/")
        return NodeModelFolder(client, folder or b"/"), os.fsdecode(name)
    except BaseException:
        client.close()
        raise


class LocalModelFolder:
    """A folder of this host's file systems, mounts of ours among them."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._clients: dict[str, NodeClient | None] = {}
        self._connecting = threading.Lock()

    @property
    def name(self) -> str:
        return self._folder

    def names(self) -> list[str]:
        with told(self._folder):
            return sorted(one.name for one in os.scandir(self._folder) if one.is_file())

    def read(self, name: str) -> bytes:
        path = os.path.join(self._folder, name)
        with told(path), open(path, "rb") as file:
            return file.read()

    def whole(self, name: str, cancel: Cancel) -> memoryview:
        path = os.path.join(self._folder, name)
        for attempt in range(CHANGED_ATTEMPTS):
            client = self._client_of(path)
            if client is None:
                break
            with told(path):
                found = os.stat(path)
            if not _is_it(client, found):
                break
            try:
                return _fetched(client, FileId(found.st_ino), found.st_size, cancel)
            except (StaleIdError, VersionChangedError):  # replaced since: the name means another file now
                if attempt + 1 == CHANGED_ATTEMPTS:
                    raise
        with told(path):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return mapped(fd, os.fstat(fd).st_size)
            finally:
                os.close(fd)

    def _client_of(self, path: str) -> NodeClient | None:
        """None for a file of no mount, for one that was written here and lies in no cache, and where this process
        can't reach the node or its cache: the mount itself can be read in any case. Nobody but a mount is believed: any
        user can give a plain file the attribute, and what listens there would be trusted as a node."""
        try:
            if not _is_in_a_mount(path):
                return None
            socket = os.fsdecode(os.getxattr(path, SOCKET_ATTRIBUTE))
        except OSError:
            return None
        with self._connecting:
            if socket not in self._clients:
                try:
                    self._clients[socket] = connect(socket, patience_s=PATIENCE_S)
                except (HeadraceError, OSError):
                    self._clients[socket] = None
            return self._clients[socket]

    def close(self) -> None:
        for client in self._clients.values():
            if client is not None:
                client.close()
        self._clients.clear()


class NodeModelFolder:
    """A folder in the namespace of a node: what the origins hold. Closes the client at its end."""

    def __init__(self, client: NodeClient, folder: bytes) -> None:
        self._client = client
        self._folder = folder

    @property
    def name(self) -> str:
        return URL + os.fsdecode(self._folder)

    def names(self) -> list[str]:
        found = self._client.list_path(self._folder)
        return sorted(os.fsdecode(one.name) for one in found if one.kind is Kind.FILE)

    def read(self, name: str) -> bytes:
        return b"".join(self._client.read(self._path(name)))

    def whole(self, name: str, cancel: Cancel) -> memoryview:
        for attempt in range(CHANGED_ATTEMPTS):
            found = self._client.resolve(self._path(name))
            if found.kind is Kind.DIRECTORY:
                raise IsADirectoryPathError(f"{self.name}/{name}", why="it is a directory")
            try:
                return _fetched(self._client, found.id, found.version.size_bytes, cancel)
            except (StaleIdError, VersionChangedError):
                if attempt + 1 == CHANGED_ATTEMPTS:
                    raise
        raise AssertionError

    def _path(self, name: str) -> bytes:
        return self._folder.rstrip(b"/") + b"/" + os.fsencode(name)

    def close(self) -> None:
        self._client.close()


def _is_in_a_mount(path: str) -> bool:
    """Tell whether a file is on a mount of Headrace's that root or this user made. OSError."""
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    return any(mount.device == number for mount in believed_mounts())


def _is_it(client: NodeClient, found: os.stat_result) -> bool:
    """Whether an inode of a mount is what the node knows by its number, and no copy that kept the attribute."""
    entry = client.entry(FileId(found.st_ino))
    if entry is None:
        return False
    return (entry.version.size_bytes, entry.mtime_ns) == (found.st_size, found.st_mtime_ns)


def _fetched(client: NodeClient, id: FileId, size_bytes: int, cancel: Cancel) -> memoryview:
    client.touch(id)
    file = client.open(id, cancel)
    try:
        return mapped(file.wait_whole(size_bytes, cancel), size_bytes)
    finally:
        file.close()


def mapped(fd: int, size_bytes: int) -> memoryview:
    """The whole file, copied page by page where it is written to. The descriptor may be closed afterwards."""
    if size_bytes == 0:
        return memoryview(b"")
    flags, protection = mmap.MAP_PRIVATE | _MAP_NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE
    view = memoryview(mmap.mmap(fd, size_bytes, flags=flags, prot=protection))
    # what is not in memory comes from the disk in one sweep, else page fault by page fault: not by mmap.madvise, which
    # keeps the interpreter's lock meanwhile
    c_library().madvise(address_of(view), size_bytes, mmap.MADV_WILLNEED)
    return view


@contextmanager
def told(path: str) -> Iterator[None]:
    """Errors of the operating system become ours, with the path."""
    try:
        yield
    except HeadraceError:
        raise
    except FileNotFoundError as error:
        raise PathNotFoundError(path, why=(error.strerror or str(error)).lower()) from None
    except NotADirectoryError as error:
        raise NotADirectoryPathError(path, why=(error.strerror or str(error)).lower()) from None
    except OSError as error:
        raise StoreError(path, why=(error.strerror or str(error)).lower()) from None
