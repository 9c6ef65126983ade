"""Map whole files from the cache, after the node has fetched them as fast as it can.

`open_model_folder` opens a directory, and `ModelFolder.whole` maps one file. Files in a mount of Headrace are
requested from the mount's node, and no byte passes through FUSE or a socket; other files are mapped directly.
Requests for the same file, from all processes of the host, wait for the same reads. Thread-safe but for `close`.
"""

from __future__ import annotations

import mmap
import os
import stat
import threading
from typing import Protocol

from headrace.base.cancel import Cancel
from headrace.base.errors import (
    HeadraceError,
    IsADirectoryPathError,
    NodeUnavailableError,
    StaleIdError,
    UsageError,
    VersionChangedError,
)
from headrace.base.libc import address_of, c_library
from headrace.base.model import FileId, Kind
from headrace.base.os_errors import PLAIN_FILES, translating_os_errors
from headrace.client.discovery import find_node
from headrace.client.node_client import CHANGED_ATTEMPTS, NodeClient, connect
from headrace.vfs.brokered.mounts import SOCKET_ATTRIBUTE, believed_mounts

URL = "headrace://"
PATIENCE_S = 60.0
_MAP_NORESERVE = 0x4000
"""include/uapi/asm-generic/mman.h; Python has no name for it. Without it the kernel reserves memory for the
whole mapping, in each rank, and refuses one that is larger than the host's memory."""


class ModelFolder(Protocol):
    """Lists and reads the files of a directory. Names are relative to it."""

    @property
    def name(self) -> str:
        """Return the name that messages use for it."""

    def names(self) -> list[str]:
        """Return the names of the files in it, sorted."""

    def read(self, name: str) -> bytes:
        """Read a small file. Raise PathNotFoundError."""

    def whole(self, name: str, cancel: Cancel) -> memoryview:
        """Map a whole file; block until all bytes are on this host. Writing to it changes this process's memory only,
        and its content stays when the file is replaced or evicted. Raise the origin's errors, PathNotFoundError, or
        CancelledByUserError during a request to a node."""

    def close(self) -> None: ...


def open_model_folder(where: str, *, socket: str | None = None) -> tuple[ModelFolder, str]:
    """Return the directory that `where` names, with "", or the directory above it with the name of the file.

    where: a path, or `headrace:///PATH` in the namespace of a node: the one at `socket`, else that of the configured
    cache. Raise PathNotFoundError or NodeUnavailableError."""
    if where.startswith(URL):
        return _open_in_namespace(where, socket)
    with translating_os_errors(where, PLAIN_FILES):
        mode = os.stat(where).st_mode
    if stat.S_ISDIR(mode):
        return LocalModelFolder(where), ""
    folder, name = os.path.split(where)
    return LocalModelFolder(folder or "."), name


def _open_in_namespace(url: str, socket: str | None) -> tuple[ModelFolder, str]:
    from urllib.parse import unquote  # the other calls of the library need no URLs

    host, slash, path = url[len(URL) :].partition("/")
    if host or not slash:
        raise UsageError(url, why="not a path of a node", hint=f"write {URL}/FOLDER, with three slashes")
    namespace_path = os.fsencode("/" + unquote(path).strip("/"))
    try:
        client = connect(find_node(socket=socket), patience_s=PATIENCE_S)
    except NodeUnavailableError:
        from headrace.sdk.brokered_model_folder import (
            open_brokered_model_folder,  # not needed if this user's node runs
        )

        brokered_folder = open_brokered_model_folder(namespace_path, socket, patience_s=PATIENCE_S)
        if brokered_folder is None:
            raise
        return brokered_folder
    try:
        if client.resolve(namespace_path).kind is Kind.DIRECTORY:
            return NodeModelFolder(client, namespace_path), ""
        parent, _, name = namespace_path.rpartition(b"/")
        return NodeModelFolder(client, parent or b"/"), os.fsdecode(name)
    except BaseException:
        client.close()
        raise


class LocalModelFolder:
    """Maps files of this host's file systems, including mounts of Headrace."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._clients: dict[str, NodeClient | None] = {}
        self._connecting = threading.Lock()

    @property
    def name(self) -> str:
        return self._folder

    def names(self) -> list[str]:
        with translating_os_errors(self._folder, PLAIN_FILES):
            return sorted(entry.name for entry in os.scandir(self._folder) if entry.is_file())

    def read(self, name: str) -> bytes:
        path = os.path.join(self._folder, name)
        with translating_os_errors(path, PLAIN_FILES), open(path, "rb") as file:
            return file.read()

    def whole(self, name: str, cancel: Cancel) -> memoryview:
        path = os.path.join(self._folder, name)
        for attempt in range(CHANGED_ATTEMPTS):
            client = self._client_of(path)
            if client is None:
                break
            with translating_os_errors(path, PLAIN_FILES):
                status = os.stat(path)
            if not _is_same_file(client, status):
                break
            try:
                return _fetch_and_map(client, FileId(status.st_ino), status.st_size, cancel)
            except (StaleIdError, VersionChangedError):  # replaced: the name now means another file
                if attempt + 1 == CHANGED_ATTEMPTS:
                    raise
        with translating_os_errors(path, PLAIN_FILES):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return mapped(fd, os.fstat(fd).st_size)
            finally:
                os.close(fd)

    def _client_of(self, path: str) -> NodeClient | None:
        """Return the client of the node that serves a file's mount. Return None for a file outside a mount, for one
        that was written here and is in no cache, and if this process can't reach the node or its cache. The mount
        itself can be read in each case. Only a mount's attribute is trusted: any user can set it on a plain file, and
        the socket that it names would be trusted as a node's."""
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
    """Maps files of a directory in a node's namespace, as the origins have them. `close` closes the client."""

    def __init__(self, client: NodeClient, folder: bytes) -> None:
        self._client = client
        self._folder = folder

    @property
    def name(self) -> str:
        return URL + os.fsdecode(self._folder)

    def names(self) -> list[str]:
        entries = self._client.list_path(self._folder)
        return sorted(os.fsdecode(entry.name) for entry in entries if entry.kind is Kind.FILE)

    def read(self, name: str) -> bytes:
        return b"".join(self._client.read(self._path(name)))

    def whole(self, name: str, cancel: Cancel) -> memoryview:
        for attempt in range(CHANGED_ATTEMPTS):
            entry = self._client.resolve(self._path(name))
            if entry.kind is Kind.DIRECTORY:
                raise IsADirectoryPathError(f"{self.name}/{name}", why="it is a directory")
            try:
                return _fetch_and_map(self._client, entry.id, entry.version.size_bytes, cancel)
            except (StaleIdError, VersionChangedError):
                if attempt + 1 == CHANGED_ATTEMPTS:
                    raise
        raise AssertionError

    def _path(self, name: str) -> bytes:
        return self._folder.rstrip(b"/") + b"/" + os.fsencode(name)

    def close(self) -> None:
        self._client.close()


def _is_in_a_mount(path: str) -> bool:
    """Return whether a file is on a mount of Headrace that root or this user mounted. Raise OSError."""
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    return any(mount.device == number for mount in believed_mounts())


def _is_same_file(client: NodeClient, status: os.stat_result) -> bool:
    """Return whether an inode of a mount is the file that the node has under its number, and not a copy that kept the
    attribute."""
    entry = client.entry(FileId(status.st_ino))
    if entry is None:
        return False
    return (entry.version.size_bytes, entry.mtime_ns) == (status.st_size, status.st_mtime_ns)


def _fetch_and_map(client: NodeClient, id: FileId, size_bytes: int, cancel: Cancel) -> memoryview:
    client.touch(id)
    file = client.open(id, cancel)
    try:
        return mapped(file.wait_whole(size_bytes, cancel), size_bytes)
    finally:
        file.close()


def mapped(fd: int, size_bytes: int) -> memoryview:
    """Map a whole file; pages are copied when they are written to. The descriptor may be closed afterwards."""
    if size_bytes == 0:
        return memoryview(b"")
    flags, protection = mmap.MAP_PRIVATE | _MAP_NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE
    view = memoryview(mmap.mmap(fd, size_bytes, flags=flags, prot=protection))
    # read what is not in memory in one sweep, not page fault by page fault; mmap.madvise would hold the
    # interpreter's lock meanwhile
    c_library().madvise(address_of(view), size_bytes, mmap.MADV_WILLNEED)
    return view
