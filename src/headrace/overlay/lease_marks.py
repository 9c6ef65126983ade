"""Share with sessions the state that the cluster's records give a directory of the upper layer. A session then need not
call the node.

There are two marks, attributes of the directory. Published: the cluster's records cover the directory's dirty names.
Leased: only this node creates names there exclusively (O_EXCL, mkdir, link). The node sets and clears marks with the
layer's lock held. A session reads them with the lock held, in the same step that changes the directory.

A mark is valid only if its generation is the one in a file beside the layer. A lease also ends at the time in that
file, which the node extends while it is a member of the cluster.
"""

from __future__ import annotations

import xxhash

from headrace.base import boot_clock
from headrace.base.beneath import SafePath
from headrace.overlay.mark_names import MARKS
from headrace.overlay.shared_page import shared_page

_GENERATION, _LEASES_END = 0, 1
"""Words of the page: the generation of the marks, and the end of the leases (CLOCK_BOOTTIME, ns)."""
_FOREVER_S = 1e9
"""Latest end of a lease that the page can hold, in seconds."""


class DirectoryFlags:
    """Hold the marks of one upper layer. path: a file beside the layer. Generation 0 means that there is no cluster and
    that marks are not used."""

    def __init__(self, path: str) -> None:
        self._page = shared_page(path)

    @property
    def generation(self) -> int:
        return self._page[_GENERATION]

    @property
    def is_on(self) -> bool:
        """Return whether sessions must check marks."""
        return self.generation != 0

    def begin(self, generation: int) -> None:
        """Invalidate all earlier marks, and end all leases."""
        self._page[_LEASES_END] = 0
        self._page[_GENERATION] = generation

    def extend_leases(self, until_s: float) -> None:
        """Extend the leases. until_s: CLOCK_BOOTTIME, the clock of all processes of a host."""
        self._page[_LEASES_END] = int(min(max(0.0, until_s), _FOREVER_S) * 1e9)

    def is_published(self, upper_path: SafePath, directory: bytes) -> bool:
        """Return whether the mark `published` is valid. upper_path: the directory in the layer. directory: its path in
        the namespace; a mark that was renamed with its directory is invalid."""
        return self._has(upper_path, directory, MARKS.published)

    def is_leased(self, upper_path: SafePath, directory: bytes) -> bool:
        """Return whether the mark `leased` is valid."""
        is_in_time = boot_clock.now_ns() < self._page[_LEASES_END]
        return is_in_time and self._has(upper_path, directory, MARKS.leased)

    def set(self, upper_path: SafePath, directory: bytes, mark: str) -> bool:
        """Set a mark. Return False if the directory does not exist."""
        try:
            upper_path.setxattr(mark, self._value(directory))
        except OSError:
            return False
        return True

    def clear(self, upper_path: SafePath, mark: str) -> bool:
        """Clear a mark. Return False if it is not there, or can't be cleared."""
        try:
            upper_path.removexattr(mark)
        except OSError:
            return False
        return True

    def close(self) -> None:
        self._page.release()

    def _has(self, upper_path: SafePath, directory: bytes, mark: str) -> bool:
        try:
            return upper_path.getxattr(mark) == self._value(directory)
        except OSError:
            return False

    def _value(self, directory: bytes) -> bytes:
        return b"%x-%x" % (self.generation, xxhash.xxh3_64_intdigest(directory))
