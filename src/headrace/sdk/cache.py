"""Provide what a program calls without a mount and without fsspec: `headrace.connect()`.

This is a thin layer over `vfs/local_vfs.py`. The caller's thread reads cached data from the index and the cache
files, and sends the node a request on a miss. Writes go to the upper layer. All calls block; `sdk/cache_async.py` has
calls that don't. A `Cache` is thread-safe, and safe after a fork, so a DataLoader's workers may use their parent's.

Paths are text, of the namespace ("/data/a.bin"); bytes that are not UTF-8 are decoded as by `os.fsdecode`. Errors are
`HeadraceError` and its subclasses, which are also subclasses of Python's own: PathNotFoundError is a
FileNotFoundError.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import IO, Any

from headrace.base.errors import IsADirectoryPathError, UsageError
from headrace.base.namespace_path import join
from headrace.client.node_client import PATIENCE_S
from headrace.sdk.bulk_read import BulkReader, OnError, ReadResult, ThreadedBulkReader, Wanted
from headrace.sdk.glob import matching_paths
from headrace.sdk.local_bulk_read import LocalBulkReader
from headrace.sdk.mapped_files import map_whole
from headrace.sdk.namespace import open_vfs
from headrace.sdk.presence_calls import PresenceCalls
from headrace.sdk.seal_calls import run_to_end
from headrace.sdk.text_stream import TextStream
from headrace.vfs.file_stat import Stat, is_directory, stat_of
from headrace.vfs.local_vfs import LocalVfs
from headrace.vfs.streams import Content, ReadStream, WriteStream
from headrace.vfs.vfs import Vfs
from headrace.wire.messages import JobStart, JobState

__all__ = ["Cache", "Stat", "cache_over", "connect"]
PUT_STEP_BYTES = 4 << 20


def connect(
    nodes: str | None = None,
    *,
    cache: str | None = None,
    socket: str | None = None,
    patience_s: float = PATIENCE_S,
) -> Cache:
    """Connect to the node of this host: the one of the directory `cache` or at `socket`, else the only one that runs.
    If none runs, connect to the nodes of the setting `nodes`.

    nodes: REST APIs of nodes of other hosts, which are used instead (docs/sdk.md). patience_s: seconds that calls wait
    for a node that is restarting. Raise NodeUnavailableError, NotAllowedError, or UsageError when several nodes run.
    """
    return cache_over(open_vfs(nodes, cache=cache, socket=socket, patience_s=patience_s))


def cache_over(vfs: Vfs) -> Cache:
    """Return a cache of a namespace, which stays open when the cache is closed."""
    return Cache(vfs, _bulk_reader_of(vfs))


def _bulk_reader_of(vfs: Vfs) -> BulkReader:
    if isinstance(vfs, LocalVfs):
        return LocalBulkReader(vfs)
    from headrace.vfs.brokered.brokered_vfs import BrokeredVfs  # not needed if this user's node runs

    if isinstance(vfs, BrokeredVfs):
        from headrace.sdk.brokered_bulk_read import BrokeredBulkReader

        return BrokeredBulkReader(vfs)
    from headrace.sdk.remote_bulk_read import RemoteReads  # only for nodes of other hosts

    return ThreadedBulkReader(vfs, begin=RemoteReads)


class Cache(PresenceCalls):
    """Reads and writes the namespace; `connect` creates it. The connection and the descriptors belong to the process
    and last as long as it. Only what `open` returns needs to be closed."""

    def __init__(self, vfs: Vfs, bulk_reader: BulkReader) -> None:
        super().__init__(vfs)
        self._bulk_reader = bulk_reader

    def __enter__(self) -> Cache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the threads of `read_many`. Files that were written remain, and the node persists them."""
        self._bulk_reader.close()

    # ------------------------------------------------------------ reading

    def open(self, path: str, mode: str = "rb", *, encoding: str | None = None) -> IO[Any]:
        """Open a buffered file in mode rb, wb, xb or ab, or as text without the b. A file written with w or x
        appears, complete, when it is closed without an error; missing directories above it are created. An exception
        inside `with` leaves no file. `read`, `readinto` and `seek` work as for any file."""
        if "b" not in mode:
            binary = self.open(path, mode.replace("t", "") + "b")
            return TextStream(binary, encoding=encoding or "utf-8")
        raw_path = os.fsencode(path)
        file: ReadStream | WriteStream
        if mode == "rb":
            file = self._vfs.open(raw_path)
        elif mode in ("wb", "xb"):
            file = self._vfs.create(raw_path, replace=mode == "wb", parents=True)
        elif mode == "ab":
            file = self._vfs.append(raw_path)
        else:
            raise UsageError(f"mode {mode!r}", why="the mode must be r, w, x or a, with b for bytes")
        return file

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """Return bytes start to end; fewer if the file ends before."""
        return self._vfs.read(os.fsencode(path), start, end)

    def content(self, path: str) -> Content:
        """Open a file for reads of ranges: `content.read(start, end)`. The caller closes it."""
        return self._vfs.content(os.fsencode(path))

    def map(self, path: str) -> memoryview:
        """Return a whole file in memory, without a copy of cached bytes. Block until all bytes are on this host.
        Writing to it changes this process's memory only."""
        return map_whole(lambda: self.content(path))

    def read_many(
        self,
        wanted: Iterable[Wanted],
        *,
        ordered: bool = True,
        on_error: OnError = "raise",
    ) -> Iterator[ReadResult]:
        """Read many files, or ranges of files. ordered: in the order of `wanted`; else as they complete. Files in
        memory are read at once and others in threads; small missing files are requested from the node in groups.

        `wanted` may be endless: it is consumed a little ahead of the caller. on_error "return": a read that fails
        yields a ReadResult with its error, and the others continue."""
        return self._bulk_reader.read(wanted, ordered=ordered, on_error=on_error)

    # ------------------------------------------------------------ stat and list

    def stat(self, path: str) -> Stat:
        """Return the stat of a path; a link is not followed. Raise PathNotFoundError."""
        return stat_of(path, self._vfs.get(os.fsencode(path), follow=False)[1])

    def exists(self, path: str) -> bool:
        return self._vfs.exists(os.fsencode(path))

    def list(self, path: str = "/") -> Iterator[Stat]:
        """Yield the entries of a directory in the order of their names. Raise NotADirectoryPathError."""
        directory = os.fsencode(path)
        for name, stat in self._vfs.children(directory):
            yield stat_of(os.fsdecode(join(directory, name)), stat)

    def walk(self, path: str = "/") -> Iterator[tuple[str, builtins.list[str], builtins.list[str]]]:
        """Yield directories as os.walk does: a path, the names of its directories, and all other names. The
        caller may remove directories from the list, to skip them."""
        pending = [path]
        while pending:
            path = pending.pop()
            entries = list(self.list(path))
            folders = [entry.name for entry in entries if entry.is_directory]
            yield path, folders, [entry.name for entry in entries if not entry.is_directory]
            pending += [f"{path.rstrip('/')}/{name}" for name in reversed(folders)]

    def glob(self, pattern: str) -> Iterator[str]:
        """Yield the paths that match a pattern: `*`, `?` and `[…]` within a name, `**` for any number of directories.
        Names that begin with a dot match too."""
        return matching_paths(self._vfs, pattern)

    # ------------------------------------------------------------ writing

    def put(self, path: str, data: bytes | bytearray | memoryview | IO[bytes]) -> None:
        """Write a whole file, from bytes or from an open file. It replaces an earlier one when it is complete. Create
        missing directories above it. Raise ReadOnlyError if the settings forbid writes."""
        with self._vfs.create(os.fsencode(path), replace=True, parents=True) as out:
            if isinstance(data, (bytes, bytearray, memoryview)):
                out.write(data)
                return
            while step := data.read(PUT_STEP_BYTES):
                out.write(step)

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Delete a file or a link. recursive: also a directory with everything in it. Raise IsADirectoryPathError."""
        raw_path = os.fsencode(path)
        if recursive:
            self._vfs.remove_all(raw_path)
        elif is_directory(self._vfs.get(raw_path, follow=False)[1]):
            raise IsADirectoryPathError(path, why="it is a directory", hint="remove it with recursive=True")
        else:
            self._vfs.remove(raw_path)

    def make_directory(self, path: str) -> None:
        """Create a directory and those above it; existing ones are kept."""
        self._vfs.make_directories(os.fsencode(path))

    def rename(self, source: str, target: str) -> None:
        """Rename atomically; an existing target file is replaced."""
        self._vfs.rename(os.fsencode(source), os.fsencode(target))

    # ------------------------------------------------------------ the cache

    def load(
        self, path: str = "/", *, on_progress: Callable[[JobState], None] | None = None, **options: str
    ) -> JobState:
        """Fetch all files below a path into the cache, on all nodes of a cluster. Return the last state of the job;
        its `failed` lists the files that could not be read, and why. options: those of `headrace load` (docs/cli.md),
        as text."""
        return self._run("load", path, options, on_progress)

    def pin(
        self, path: str = "/", *, on_progress: Callable[[JobState], None] | None = None, **options: str
    ) -> JobState:
        """Load the files below a path, and keep them in the cache until `unpin`."""
        return self._run("pin", path, options, on_progress)

    def unpin(self, path: str = "/") -> JobState:
        return self._run("unpin", path, {}, None)

    def free(self, path: str = "/") -> JobState:
        """Drop the cached files below a path from the cache."""
        return self._run("free", path, {}, None)

    def persist(self, path: str = "/") -> JobState:
        """Persist everything written below a path; the origin has it on return."""
        return self._run("persist", path, {}, None)

    def status(self) -> dict[str, object]:
        """Return what `headrace status --json` prints."""
        return self._vfs.status()

    def _run(
        self, kind: str, path: str, options: dict[str, str], on_progress: Callable[[JobState], None] | None
    ) -> JobState:
        return run_to_end(self._vfs, JobStart(kind=kind, path=path, options=options), on_progress)
