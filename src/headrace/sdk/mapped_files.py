"""Map whole files from the cache, after the node has fetched them as fast as it can.

A file in a mount of Headrace is requested from the mount's node, so that no byte passes through FUSE or a socket.
Requests for the same file, from all processes of the host, wait for the same reads.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Callable

from headrace.base.cancel import Cancel
from headrace.base.errors import HeadraceError, NotSupportedError, StaleIdError, VersionChangedError
from headrace.base.libc import address_of, c_library
from headrace.base.model import FileId
from headrace.base.os_errors import PLAIN_FILES, translating_os_errors
from headrace.client.node_client import CHANGED_ATTEMPTS, PATIENCE_S, NodeClient
from headrace.vfs.brokered.mounts import SOCKET_ATTRIBUTE, believed_mounts
from headrace.vfs.client_registry import HOSTS
from headrace.vfs.streams import Content

_MAP_NORESERVE = 0x4000
"""include/uapi/asm-generic/mman.h; Python has no name for it. Without it the kernel reserves memory for the
whole mapping, in each rank, and refuses one that is larger than the host's memory."""


def map_whole(open_content: Callable[[], Content], cancel: Cancel | None = None) -> memoryview:
    """Map a whole file; block until all bytes are on this host. Writing to it changes this process's memory only, and
    its content stays when the file is replaced or evicted. open_content: called again if the file is replaced while
    it is fetched. Raise the origin's errors, or CancelledByUserError during a request to a node."""
    for attempt in range(CHANGED_ATTEMPTS):
        try:
            content = open_content()
            try:
                return map_file(content.wait_whole(cancel), content.size_bytes)
            finally:
                content.close()
        except (StaleIdError, VersionChangedError):
            if attempt + 1 == CHANGED_ATTEMPTS:
                raise
    raise AssertionError


def open_plain(path: str) -> Content:
    """Open a file of this host's file systems. The caller closes it."""
    with translating_os_errors(path, PLAIN_FILES):
        fd = open_regular(path)
        return Content(os.fstat(fd).st_size, fd=fd, grows=True)


def open_regular(path: str, flags: int = os.O_RDONLY | os.O_CLOEXEC) -> int:
    """Open a regular file, and return its descriptor. An open of a pipe would wait for a writer. Raises OSError, and
    NotSupportedError for anything else."""
    fd = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotSupportedError(path, why="it is not a regular file")
    return fd


def open_by_node(path: str, cancel: Cancel) -> Content:
    """Open a file of this host's file systems, by the node that serves it if it is in a mount of Headrace."""
    client = _node_behind(path)
    if client is None:
        return open_plain(path)
    with translating_os_errors(path, PLAIN_FILES):
        status = os.stat(path)
    if not _is_same_file(client, status):
        return open_plain(path)
    id = FileId(status.st_ino)
    client.touch(id)
    return Content(status.st_size, file=client.open(id, cancel))


def _node_behind(path: str) -> NodeClient | None:
    """Return the client of the node that serves a file's mount. Return None for a file outside a mount, and for one
    that was written here and is in no cache. Return None, too, if this process can't reach the node or its cache. The
    mount itself can be read in each case. Only a mount's attribute is trusted: any user can set it on a plain file, and
    the socket that it names would be trusted as a node's."""
    try:
        if not _is_in_a_mount(path):
            return None
        return HOSTS.get(os.fsdecode(os.getxattr(path, SOCKET_ATTRIBUTE)), PATIENCE_S).client
    except (HeadraceError, OSError):
        return None


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


def map_file(fd: int, size_bytes: int) -> memoryview:
    """Map a whole file; pages are copied when they are written to. The descriptor may be closed afterwards."""
    if size_bytes == 0:
        return memoryview(b"")
    flags, protection = mmap.MAP_PRIVATE | _MAP_NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE
    view = memoryview(mmap.mmap(fd, size_bytes, flags=flags, prot=protection))
    # read what is not in memory in one sweep, not page fault by page fault; mmap.madvise would hold the
    # interpreter's lock meanwhile
    c_library().madvise(address_of(view), size_bytes, mmap.MADV_WILLNEED)
    return view
