"""What a program calls, without a mount and without fsspec: `headrace.connect()`.

A thin layer over `sdk/local_vfs.py`: what is cached is read from index and cache files in the caller's thread, the
node is asked on a miss; what is written goes to the upper layer. All calls block (`sdk/cache_async.py` has those
that don't); a `Cache` is thread-safe, and safe after a fork, so a DataLoader's workers may use their parent's.

Paths are text, of the namespace ("/data/a.bin"); bytes that are no UTF-8 are as `os.fsdecode` says. Errors are
`HeadraceError` and its kinds, which are Python's own too: PathNotFoundError is a FileNotFoundError.
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
from headrace.overlay.upper import join
from headrace.sdk.bulk_read import BulkReader, OnError, ReadResult, Wanted
from headrace.sdk.client_registry import open_vfs
from headrace.sdk.connection import Connection
from headrace.sdk.local_vfs import LocalVfs
from headrace.sdk.mapped_files import mapped
from headrace.sdk.merged_tree import FileStat
from headrace.sdk.node_client import PATIENCE_S
from headrace.sdk.streams import Content, ReadStream, WriteStream
from headrace.sdk.vfs_reader import is_directory, version_text
from headrace.wire.messages import JobStart, JobState

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

READ_MANY_THREADS = 32
PUT_STEP_BYTES = 4 << 20

Kinds = Literal["file", "directory", "link", "other"]


class Stat(msgspec.Struct, frozen=True):
    """mtime_ns: 0 where the origin knows none. version: differs where the bytes do; "" of what is no file."""

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
    """The node of this host: the one of the folder `cache`, or at `socket`; else the only one that runs; where none
    runs, those of the setting `nodes`. nodes: nodes of other hosts instead, by their REST APIs (docs/sdk.md).
    patience_s: how long calls wait for a node that is being restarted. NodeUnavailableError, UsageError where several
    run, NotAllowedError."""
    paths = open_vfs(nodes, cache=cache, socket=socket, patience_s=patience_s)
    if isinstance(paths, LocalVfs):
        return Cache(paths)
    from headrace.sdk.brokered.brokered_vfs import (
        BrokeredVfs,  # none of these is wanted where there is a node
    )

    if isinstance(paths, BrokeredVfs):
        from headrace.sdk.brokered.cache import BrokeredCache

        return BrokeredCache(paths)
    from headrace.sdk.asked_cache import AskedCache

    return AskedCache(paths)


class Cache:
    """`connect` makes it. Connection and descriptors belong to the process, and last as long: there is nothing to be
    closed but what `open` gives; `close` waits until the node has heard what was written."""

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
        """The threads of `read_many` end. What was written stays, and is persisted by the node."""
        if self._pool is not None and self._process == os.getpid():
            self._pool.shutdown()
        self._pool = None

    # ------------------------------------------------------------ reading

    def open(self, path: str, mode: str = "rb", *, encoding: str | None = None) -> IO[Any]:
        """A buffered file: rb, wb, xb, ab, or text without the b. What is written with w or x is there, whole, when it
        is closed without an error; folders above it are made. `read`, `readinto`, `seek` as of any file."""
        if "b" not in mode:
            binary = self.open(path, mode.replace("t", "") + "b")
            return io.TextIOWrapper(binary, encoding=encoding or "utf-8")
        at = os.fsencode(path)
        found: ReadStream | WriteStream
        if mode == "rb":
            found = self._paths.open(at)
        elif mode in ("wb", "xb"):
            found = self._paths.create(at, replace=mode == "wb", parents=True)
        elif mode == "ab":
            found = self._paths.append(at)
        else:
            raise UsageError(f"mode {mode!r}", why="it is none of r, w, x, a, with b for bytes")
        return found

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """Bytes start..end; fewer where the file ends before."""
        return self._paths.read(os.fsencode(path), start, end)

    def content(self, path: str) -> Content:
        """For ranges of a file that is held open: `content.read(start, end)`. The caller closes it."""
        return self._paths.content(os.fsencode(path))

    def map(self, path: str) -> memoryview:
        """All of a file in memory, without a copy of what is cached: blocks until all of it is here. Writing to it
        changes this process's memory only."""
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
        """Many files, or ranges of files. ordered: as they were asked for; else as they come. What is in memory is read
        at once, the rest in threads; the node is asked for small ones in groups. `wanted` may be endless: it is read a
        little ahead of what the caller takes. on_error "return": one that can't be read is a ReadResult with its
        error, and the others go on."""
        reads = BulkReader(self._paths, self._threads)
        return reads.all(wanted, ordered=ordered, on_error=on_error)

    def _threads(self) -> ThreadPoolExecutor:
        if (
            self._pool is None or self._process != os.getpid()
        ):  # a fork's child has none of its parent's threads
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(READ_MANY_THREADS, thread_name_prefix="headrace")
            self._process = os.getpid()
        return self._pool

    # ------------------------------------------------------------ looking

    def stat(self, path: str) -> Stat:
        """Of a link itself. PathNotFoundError."""
        return stat_of(path, self._paths.get(os.fsencode(path), follow=False)[1])

    def exists(self, path: str) -> bool:
        return self._paths.exists(os.fsencode(path))

    def list(self, path: str = "/") -> Iterator[Stat]:
        """What is in a directory, by name. NotADirectoryPathError."""
        at = os.fsencode(path)
        for name, found in self._paths.children(at):
            yield stat_of(os.fsdecode(join(at, name)), found)

    def walk(self, path: str = "/") -> Iterator[tuple[str, builtins.list[str], builtins.list[str]]]:
        """As os.walk: a folder, the names of folders in it, those of all else. Folders may be taken out of the list."""
        pending = [path]
        while pending:
            path = pending.pop()
            entries = list(self.list(path))
            folders = [entry.name for entry in entries if entry.is_directory]
            yield path, folders, [entry.name for entry in entries if not entry.is_directory]
            pending += [f"{path.rstrip('/')}/{name}" for name in reversed(folders)]

    def glob(self, pattern: str) -> Iterator[str]:
        """Paths that match, by name: `*`, `?`, `[…]` within a name, `**` for any folders. Names that begin with
        a dot are no exception."""
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
        """Paths that match the first word, each with the words that are left for it, in the order of names."""
        word, rest = words[0], words[1:]
        if not re.search(r"[*?[]", word):
            below = f"{path.rstrip('/')}/{word}"
            return [(below, rest)] if self.exists(below) else []
        matches = [(path, rest or ["*"])] if word == "**" else []
        if not self._paths_is_directory(path):
            return matches
        is_match = re.compile(fnmatch.translate(word)).match
        for entry in self.list(path):
            if word == "**":
                matches += [(entry.path, words)] if entry.is_directory else []
            elif is_match(entry.name):
                matches.append((entry.path, rest))
        return matches

    def _paths_is_directory(self, path: str) -> bool:
        found = self._paths.find(os.fsencode(path))[1]
        return found is not None and is_directory(found)

    # ------------------------------------------------------------ changing

    def put(self, path: str, data: bytes | bytearray | memoryview | IO[bytes]) -> None:
        """A whole file, of bytes or of an open file's; what was there is replaced when all is written. Folders above
        it are made. ReadOnlyError where the settings let nothing be written."""
        with self._paths.create(os.fsencode(path), replace=True, parents=True) as out:
            if isinstance(data, (bytes, bytearray, memoryview)):
                out.write(data)
                return
            while step := data.read(PUT_STEP_BYTES):
                out.write(step)

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """A file or a link; recursive: a folder too, with all that is in it. IsADirectoryPathError."""
        at = os.fsencode(path)
        if recursive:
            self._paths.remove_all(at)
        elif is_directory(self._paths.get(at, follow=False)[1]):
            raise IsADirectoryPathError(path, why="it is a directory", hint="remove it with recursive=True")
        else:
            self._paths.remove(at)

    def make_directory(self, path: str) -> None:
        """With those above; one that is there is let be."""
        self._paths.make_directories(os.fsencode(path))

    def rename(self, source: str, target: str) -> None:
        """In one step, over a file that is there."""
        self._paths.rename(os.fsencode(source), os.fsencode(target))

    # ------------------------------------------------------------ the cache

    def load(
        self, path: str = "/", *, on_progress: Callable[[JobState], None] | None = None, **options: str
    ) -> JobState:
        """All below a path is fetched into the cache, of all nodes of a cluster; the job's last state on return:
        `failed` says what could not be read, and why. options: as of `headrace load` (docs/cli.md), as text."""
        return self._run("load", path, options, on_progress)

    def pin(
        self, path: str = "/", *, on_progress: Callable[[JobState], None] | None = None, **options: str
    ) -> JobState:
        """As load; what is below stays until `unpin`."""
        return self._run("pin", path, options, on_progress)

    def unpin(self, path: str = "/") -> JobState:
        return self._run("unpin", path, {}, None)

    def free(self, path: str = "/") -> JobState:
        """What is cached below a path is dropped from the cache."""
        return self._run("free", path, {}, None)

    def persist(self, path: str = "/") -> JobState:
        """What was written below is at the origin on return."""
        return self._run("persist", path, {}, None)

    def status(self) -> dict[str, object]:
        """What `headrace status --json` prints."""
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


def stat_of(path: str, found: FileStat) -> Stat:
    if isinstance(found, Entry):
        folder = found.kind is Kind.DIRECTORY
        version = found.version
        token = "" if folder else version_text(found)
        return Stat(path, "directory" if folder else "file", version.size_bytes, version.mtime_ns, token)
    kinds: dict[int, Kinds] = {modes.S_IFREG: "file", modes.S_IFDIR: "directory", modes.S_IFLNK: "link"}
    kind = kinds.get(modes.S_IFMT(found.st_mode), "other")
    token = version_text(found) if kind == "file" else ""
    return Stat(path, kind, found.st_size if kind != "directory" else 0, found.st_mtime_ns, token)
