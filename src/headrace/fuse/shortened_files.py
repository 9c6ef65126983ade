"""Free the bytes that large files lose when a call shortens them outside the hot thread, and without the layer's lock.

The file is shortened in the pool for work of the disk, by a descriptor of its own. Then the call does all of its work
there, and finds little left to free. A session that dies in between loses nothing: the kernel resends the call.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from headrace.fuse.node_table import NodeTable
from headrace.fuse.operations import Answer, Deferred, DiskTask
from headrace.fuse.removed_files import loses_many_bytes
from headrace.fuse.upper_files import UpperFiles
from headrace.overlay.copy_up import NeedsContentError
from headrace.overlay.merged_tree import MergedTree

Work = Callable[[], Answer | Deferred]


class ShortenedFiles:
    """Finds the large files that calls shorten. path_of: returns the path of a node, or raises ESTALE."""

    def __init__(
        self, tree: MergedTree, nodes: NodeTable, open_files: UpperFiles, path_of: Callable[[int], bytes]
    ) -> None:
        self._tree = tree
        self._nodes = nodes
        self._open_files = open_files
        self._path_of = path_of

    def before_open(self, node: int, work: Work) -> Answer | Deferred | DiskTask:
        """Do the work of an open that empties a file. If the file is large, return what empties it first."""
        with self._tree.lock:
            fd = self._open_file(node, 0)
            if fd < 0:
                fd = self._closed_file(node)
        return work() if fd < 0 else _shortened(fd, 0, work)

    def before(self, node: int, size_bytes: int, work: Work) -> Answer | Deferred | DiskTask:
        """Do the work of a call that sets the size of a file. If the file is open, and loses many bytes, return what
        shortens it first."""
        fd = self._open_file(node, size_bytes)
        return work() if fd < 0 else _shortened(fd, size_bytes, work)

    def _open_file(self, node: int, size_bytes: int) -> int:
        """Return a descriptor of an open file that loses many bytes; -1 for any other."""
        with self._open_files.use(node) as file:
            if file is None or not loses_many_bytes(os.fstat(file.fd), size_bytes):
                return -1
            try:
                if self._tree.modes.exclusive_tops:
                    self._tree.view.check_writable(self._path_of(node))
            except OSError:
                return -1  # as the work of the call will find
            return os.dup(file.fd)

    def _closed_file(self, node: int) -> int:
        """Return a descriptor for writing of a large file; -1 for any other, and where the open will fail. While it is
        open, the node does not take the file for the cache."""
        try:
            path = self._path_of(node)
            status = self._tree.view.lookup_upper(path)
            if not isinstance(status, os.stat_result) or not loses_many_bytes(status, 0):
                return -1
            fd = self._tree.open(path, os.O_RDWR)
        except (OSError, NeedsContentError):
            return -1
        if self._nodes.is_node(node, os.fstat(fd)):
            return fd
        os.close(fd)
        return -1


def _shortened(fd: int, size_bytes: int, work: Work) -> DiskTask:
    """Return what shortens a file and closes the descriptor, and then does the work."""

    def shorten() -> Answer | Deferred:
        try:
            os.ftruncate(fd, size_bytes)
        finally:
            os.close(fd)
        return work()

    return DiskTask(shorten)
