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
import fnmatch
import io
import os
import re
import stat as modes
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Literal

import msgspec

from headrace.base.errors import IsADirectoryPathError, UsageError
from headrace.base.model import Entry, Kind
from headrace.client.connection import Connection
from headrace.client.node_client import PATIENCE_S
from headrace.overlay.merged_tree import FileStat
from headrace.overlay.upper import join
from headrace.sdk.bulk_read import BulkReader, OnError, ReadResult, Wanted
from headrace.sdk.mapped_files import mapped
from headrace.vfs.client_registry import open_vfs
from headrace.vfs.local_vfs import LocalVfs
from headrace.vfs.streams import Content, ReadStream, WriteStream
from headrace.vfs.vfs_reader import is_directory, version_text
from headrace.wire.messages import JobStart, JobState

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

READ_MANY_THREADS = 32
PUT_STEP_BYTES = 4 << 20

Kinds = Literal["file", "directory", "link", "other"]


class Stat(msgspec.Struct, frozen=True):
    """Describes a path. mtime_ns: 0 if the origin has no time. version: differs if the bytes differ; "" for anything
    but a file."""

    path: str
    kind: Kinds
    size_bytes: int
    mtime_ns: int
    version: str

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def is_directory(self) -> bool:
        return self.kind == "directory"


def connect(
    nodes: str | None = None,
    *,
    cache: str | None = None,
    socket: str | None = None,
    patience_s: float = PATIENCE_S,
) -> Cache:
    """Connect to the node of this host: the one of the directory `cache` or at `socket`, else the only one that runs.
    If none runs, connect to the nodes of the setting `nodes`.

    nodes: REST APIs of nodes of other hosts, which are used instead (docs/sdk.md). patience_s: how long calls wait
    for a node that is restarting. Raise NodeUnavailableError, NotAllowedError, or UsageError when several nodes run.
    """
    paths = open_vfs(nodes, cache=cache, socket=socket, patience_s=patience_s)
    if isinstance(paths, LocalVfs):
        return Cache(paths)
    from headrace.vfs.brokered.brokered_vfs import (
        BrokeredVfs,  # not needed if this user's node runs
    )

    if isinstance(paths, BrokeredVfs):
        from headrace.sdk.brokered_cache import BrokeredCache

        return BrokeredCache(paths)
    from headrace.sdk.asked_cache import AskedCache

    return AskedCache(paths)


class Cache:
    """Reads and writes the namespace; `connect` creates it. The connection and the descriptors belong to the process
    and last as long as it. Only what `open` returns needs to be closed."""

    def __init__(self, paths: LocalVfs) -> None:
        self._paths = paths
        self._pool: ThreadPoolExecutor | None = None
        self._process = 0

    def __enter__(self) -> Cache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the threads of `read_many`. Files that were written remain, and the node persists them."""
        if self._pool is not None and self._process == os.getpid():
            self._pool.shutdown()
        self._pool = None

    # ------------------------------------------------------------ reading

    def open(self, path: str, mode: str = "rb", *, encoding: str | None = None) -> IO[Any]:
        """Open a buffered file in mode rb, wb, xb or ab, or as text without the b. A file written with w or x
        appears, complete, when it is closed without an error; missing directories above it are created. `read`,
        `readinto` and `seek` work as for any file."""
        if "b" not in mode:
            binary = self.open(path, mode.replace("t", "") + "b")
            return io.TextIOWrapper(binary, encoding=encoding or "utf-8")
        raw_path = os.fsencode(path)
        file: ReadStream | WriteStream
        if mode == "rb":
            file = self._paths.open(raw_path)
        elif mode in ("wb", "xb"):
            file = self._paths.create(raw_path, replace=mode == "wb", parents=True)
        elif mode == "ab":
            file = self._paths.append(raw_path)
        else:
            raise UsageError(f"mode {mode!r}", why="the mode must be r, w, x or a, with b for bytes")
        return file

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """Return bytes start to end; fewer if the file ends before."""
        return self._paths.read(os.fsencode(path), start, end)

    def content(self, path: str) -> Content:
        """Open a file for reads of ranges: `content.read(start, end)`. The caller closes it."""
        return self._paths.content(os.fsencode(path))

    def map(self, path: str) -> memoryview:
        """Return a whole file in memory, without a copy of cached bytes. Block until all bytes are on this host.
        Writing to it changes this process's memory only."""
        content = self._paths.content(os.fsencode(path))
        try:
            return mapped(content.wait_whole(), content.size_bytes)
        finally:
            content.close()

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
        reads = BulkReader(self._paths, self._threads)
        return reads.all(wanted, ordered=ordered, on_error=on_error)

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None or self._process != os.getpid():  # a child has no threads of its parent
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(READ_MANY_THREADS, thread_name_prefix="headrace")
            self._process = os.getpid()
        return self._pool

    # ------------------------------------------------------------ stat and list

    def stat(self, path: str) -> Stat:
        """Return the stat of a path; a link is not followed. Raise PathNotFoundError."""
        return stat_of(path, self._paths.get(os.fsencode(path), follow=False)[1])

    def exists(self, path: str) -> bool:
        return self._paths.exists(os.fsencode(path))

    def list(self, path: str = "/") -> Iterator[Stat]:
        """Yield the entries of a directory in the order of their names. Raise NotADirectoryPathError."""
        directory = os.fsencode(path)
        for name, stat in self._paths.children(directory):
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
        pending = [("/", [word for word in pattern.split("/") if word])]
        while pending:
            path, words = pending.pop()
            if words:
                pending += reversed(self._next_matches(path, words))
            else:
                yield path

    def _next_matches(
        self, path: str, words: builtins.list[str]
    ) -> builtins.list[tuple[str, builtins.list[str]]]:
        """Return the paths that match the first word, each with its remaining words, in the order of names."""
        word, rest = words[0], words[1:]
        if not re.search(r"[*?[]", word):
            child = f"{path.rstrip('/')}/{word}"
            return [(child, rest)] if self.exists(child) else []
        matches = [(path, rest or ["*"])] if word == "**" else []
        if not self._is_directory(path):
            return matches
        is_match = re.compile(fnmatch.translate(word)).match
        for entry in self.list(path):
            if word == "**":
                matches += [(entry.path, words)] if entry.is_directory else []
            elif is_match(entry.name):
                matches.append((entry.path, rest))
        return matches

    def _is_directory(self, path: str) -> bool:
        stat = self._paths.find(os.fsencode(path))[1]
        return stat is not None and is_directory(stat)

    # ------------------------------------------------------------ writing

    def put(self, path: str, data: bytes | bytearray | memoryview | IO[bytes]) -> None:
        """Write a whole file, from bytes or from an open file. It replaces an earlier one when it is complete. Create
        missing directories above it. Raise ReadOnlyError if the settings forbid writes."""
        with self._paths.create(os.fsencode(path), replace=True, parents=True) as out:
            if isinstance(data, (bytes, bytearray, memoryview)):
                out.write(data)
                return
            while step := data.read(PUT_STEP_BYTES):
                out.write(step)

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Delete a file or a link. recursive: also a directory with everything in it. Raise IsADirectoryPathError."""
        raw_path = os.fsencode(path)
        if recursive:
            self._paths.remove_all(raw_path)
        elif is_directory(self._paths.get(raw_path, follow=False)[1]):
            raise IsADirectoryPathError(path, why="it is a directory", hint="remove it with recursive=True")
        else:
            self._paths.remove(raw_path)

    def make_directory(self, path: str) -> None:
        """Create a directory and those above it; existing ones are kept."""
        self._paths.make_directories(os.fsencode(path))

    def rename(self, source: str, target: str) -> None:
        """Rename atomically; an existing target file is replaced."""
        self._paths.rename(os.fsencode(source), os.fsencode(target))

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
        return self._paths.client.status()

    def _run(
        self, kind: str, path: str, options: dict[str, str], on_progress: Callable[[JobState], None] | None
    ) -> JobState:
        connection = Connection(self._paths.client.socket, role="sdk")
        last: JobState | None = None
        try:
            for state in connection.stream(JobStart(kind=kind, path=path, options=options)):
                assert isinstance(state, JobState)
                last = state
                if on_progress is not None:
                    on_progress(state)
        finally:
            connection.close()
        assert last is not None
        return last


def stat_of(path: str, stat: FileStat) -> Stat:
    if isinstance(stat, Entry):
        is_dir = stat.kind is Kind.DIRECTORY
        version = stat.version
        token = "" if is_dir else version_text(stat)
        return Stat(path, "directory" if is_dir else "file", version.size_bytes, version.mtime_ns, token)
    kinds: dict[int, Kinds] = {modes.S_IFREG: "file", modes.S_IFDIR: "directory", modes.S_IFLNK: "link"}
    kind = kinds.get(modes.S_IFMT(stat.st_mode), "other")
    token = version_text(stat) if kind == "file" else ""
    return Stat(path, kind, stat.st_size if kind != "directory" else 0, stat.st_mtime_ns, token)
