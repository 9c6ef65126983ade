"""Define `Vfs`, the namespace by path, for programs that use no mount.

`LocalVfs` is the namespace of this host's node, and `RemoteVfs` that of nodes of other hosts. `BrokeredVfs` is that of
a node which another user runs, and is read-only. `open_vfs` (sdk/namespace.py) chooses one of them.

Paths are bytes, absolute (b"/a/b"). All calls block. They are thread-safe, and safe after a fork. They raise
HeadraceError in place of the operating system's errors, and PathNotFoundError for what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Protocol

from headrace.overlay.merged_view import FileStat
from headrace.vfs.streams import Content, ReadStream, WriteStream
from headrace.wire.messages import JobStart, JobState


class Vfs(Protocol):
    """Reads and changes the namespace."""

    @property
    def closed(self) -> bool: ...

    @property
    def generation(self) -> int:
        """Return the number of the index whose ids the stats have; 0 where the nodes may have several."""

    def close(self) -> None:
        """Close the connections and the descriptors."""

    # ------------------------------------------------------------ names

    def find(self, path: bytes, *, follow: bool = True) -> tuple[bytes, FileStat | None]:
        """Return the path to which the links of a path lead, and its entry; None if nothing is there. follow: resolve a
        link that is the last name, too."""

    def get(self, path: bytes, *, follow: bool = True) -> tuple[bytes, FileStat]:
        """Resolve a path as `find` does. Raise PathNotFoundError if nothing is there."""

    def exists(self, path: bytes) -> bool:
        """Return whether a path exists. The error of a failed request is raised."""

    def children(self, path: bytes, *, after: bytes = b"") -> Iterator[tuple[bytes, FileStat]]:
        """Yield the names of a directory with their entries, in byte order, starting after a name. Raises
        NotADirectoryPathError."""

    def readlink(self, path: bytes) -> bytes: ...

    # ------------------------------------------------------------ reading

    def content(self, path: bytes) -> Content:
        """Open the file as it is now; the caller closes it. Raise IsADirectoryPathError, or OriginError and its
        subclasses."""

    def content_if_cached(self, path: bytes) -> Content | None:
        """Open a file as `content` does, if this process can determine that all its bytes are on this host's disk."""

    def open(self, path: bytes) -> ReadStream:
        """Open a file as `content` does, as a stream."""

    def read(self, path: bytes, start: int, end: int | None) -> bytes:
        """Return bytes start to end of one version of a file; fewer if it ends before. end: None for all."""

    # ------------------------------------------------------------ changing

    def check_writable(self, path: bytes) -> None:
        """Raise ReadOnlyError if the settings forbid writes at a path. Other hosts report that when they get the
        file."""

    def create(
        self,
        path: bytes,
        *,
        replace: bool,
        parents: bool = False,
        commits: bool = True,
        is_broken_off: Callable[[], bool] = lambda: False,
    ) -> WriteStream:
        """Create a file that appears under its name, complete, when the stream is closed. Raise PathExistsError, at
        once or at close, if it may not replace an existing path; ReadOnlyError, IsADirectoryPathError, or
        PathNotFoundError for the directory.

        parents: create missing directories above it. commits, is_broken_off: as for WriteStream."""

    def append(self, path: bytes, *, is_broken_off: Callable[[], bool] = lambda: False) -> WriteStream:
        """Append to a file in place: other readers see the bytes at once. Only this host's node supports it."""

    def touch(self, path: bytes) -> None:
        """Set the modification time of an existing file to now. Only this host's node supports it."""

    def copy(self, source: bytes, target: bytes, *, parents: bool = False) -> None:
        """Copy a file's bytes; the target is replaced completely or not at all. parents: as for create."""

    def make_directory(self, path: bytes) -> None:
        """Create a directory. Raise PathExistsError, or PathNotFoundError for the directory above."""

    def make_directories(self, path: bytes) -> None:
        """Create a directory and those above it; existing ones are kept."""

    def remove(self, path: bytes) -> None:
        """Delete a file or a link. Raise IsADirectoryPathError."""

    def remove_directory(self, path: bytes) -> None:
        """Delete an empty directory. Raise DirectoryNotEmptyError."""

    def remove_all(self, path: bytes) -> None:
        """Delete a path with everything in it."""

    def rename(self, source: bytes, target: bytes) -> None:
        """Rename a path, and replace an existing file or empty directory."""

    # ------------------------------------------------------------ the cache

    def status(self) -> dict[str, object]:
        """Return the fields of `headrace status --json`."""

    def run_job(self, start: JobStart) -> Generator[JobState, None, None]:
        """Start a job, and yield its states; the last one has done=True. A job of one node is cancelled if the caller
        closes the generator before that."""
