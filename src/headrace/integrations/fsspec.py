"""Implement `headrace://` for fsspec, and so for pandas, pyarrow, dask and torch.distributed.checkpoint.

The file system reaches this host's running node without a mount: it reads cached files from their cache files, and
writes to the upper layer, as a mount does. This module only translates to fsspec's interface; a `Vfs` does the work.
docs/fsspec.md is the guide.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from datetime import UTC, datetime
from typing import Any

from headrace.base.missing_extras import needs_extra

with needs_extra(__name__):
    from fsspec.callbacks import DEFAULT_CALLBACK
    from fsspec.core import OpenFile
    from fsspec.spec import AbstractFileSystem
    from fsspec.utils import isfilelike, other_paths, stringify_path

from headrace.base.errors import (
    HeadraceError,
    IsADirectoryPathError,
    NotADirectoryPathError,
    NotSupportedError,
    PathExistsError,
    PathNotFoundError,
    UsageError,
)
from headrace.base.fork_safe_pool import ForkSafePool
from headrace.base.model import Entry
from headrace.integrations.fsspec_async import Coroutines
from headrace.sdk.namespace import (
    PATIENCE_S,
    FileStat,
    ReadStream,
    Vfs,
    WriteStream,
    is_directory,
    join,
    open_vfs,
    split,
    version_text,
)
from headrace.sdk.text_stream import TextStream

THREADS = 32
"""Threads of one file system for calls on many files. They mostly wait for the node or the disk."""
_MODES = ("rb", "wb", "ab", "xb")
_FRAMES_UP_MAX = 4


class HeadraceFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Open files of this host's node by fsspec's interface, without a mount.

    cache: a directory that selects one of the nodes on this host; without it, HEADRACE_CACHE or the only running node
    counts, as on the command line. socket: selects the node by its socket. nodes: nodes of other hosts, as in
    `headrace.connect`. auto_mkdir: create missing parents of a new file. patience_s: seconds that a call waits for a
    node that does not respond. The first call connects; it raises NodeUnavailableError or UsageError.
    """

    protocol = "headrace"
    root_marker = "/"

    def __new__(cls, *_: Any, asynchronous: bool = False, **__: Any) -> HeadraceFileSystem:
        """Return the variant with coroutines where fsspec requests it with `asynchronous`."""
        filesystem: HeadraceFileSystem = super().__new__(
            AsyncHeadraceFileSystem if asynchronous and cls is HeadraceFileSystem else cls
        )
        return filesystem

    def __init__(
        self,
        cache: str | None = None,
        *,
        socket: str | None = None,
        nodes: str | None = None,
        auto_mkdir: bool = True,
        patience_s: float = PATIENCE_S,
        **options: Any,
    ) -> None:
        if self._cached:
            return
        super().__init__(cache=cache, socket=socket, nodes=nodes, auto_mkdir=auto_mkdir, **options)
        self._cache_folder, self._socket, self._nodes = cache, socket, nodes
        self.auto_mkdir = auto_mkdir
        self._patience_s = patience_s
        self._connection: Vfs | None = None
        self._file_threads = _FileThreads()

    @property
    def _vfs(self) -> Vfs:
        vfs = self._connection
        if vfs is None or vfs.closed:
            selection = {"cache": self._cache_folder, "socket": self._socket}
            vfs = self._connection = open_vfs(self._nodes, **selection, patience_s=self._patience_s)
        return vfs

    @property
    def fsid(self) -> str:
        return f"headrace-{self._vfs.generation:x}"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        """Return the absolute path: headrace:///a/b, headrace://a/b and /a/b are the same."""
        if isinstance(path, (list, tuple)):
            return [cls._strip_protocol(each_path) for each_path in path]
        text = stringify_path(path)
        for prefix in ("headrace://", "headrace::"):
            if text.startswith(prefix):
                text = text[len(prefix) :]
        return posixpath.normpath("/" + text.lstrip("/"))

    # ------------------------------------------------------------ metadata

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        name = self._strip_protocol(path)
        real_path, file_stat = self._vfs.find(_bytes(name), follow=False)
        if file_stat is None:
            raise PathNotFoundError(name, why="no such file or directory")
        return self._describe(name, real_path, file_stat)

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        name = self._strip_protocol(path)
        directory = _bytes(name)
        try:
            rows = list(self._vfs.children(directory))
        except NotADirectoryPathError:
            return [self.info(name)] if detail else [name]
        if not detail:
            return [os.fsdecode(join(directory, child)) for child, _ in rows]
        paths = [(join(directory, child), file_stat) for child, file_stat in rows]
        return [self._describe(os.fsdecode(child), child, file_stat) for child, file_stat in paths]

    def _describe(self, name: str, path: bytes, file_stat: FileStat) -> dict[str, Any]:
        if isinstance(file_stat, Entry):
            kind = "directory" if is_directory(file_stat) else "file"
            version = file_stat.version
            times = {} if kind == "directory" else {"mtime": file_stat.mtime_ns / 1e9}
            description = {"name": name, "size": version.size_bytes, "type": kind, "islink": False, **times}
            return description if kind == "directory" else {**description, "version": version_text(file_stat)}
        if stat.S_ISLNK(file_stat.st_mode):
            return self._describe_link(name, path)
        kind = "other"
        if stat.S_ISREG(file_stat.st_mode) or stat.S_ISDIR(file_stat.st_mode):
            kind = "directory" if is_directory(file_stat) else "file"
        return {
            "name": name,
            "size": 0 if kind == "directory" else file_stat.st_size,
            "type": kind,
            "islink": False,
            "mtime": file_stat.st_mtime_ns / 1e9,
            "mode": file_stat.st_mode,
            "uid": file_stat.st_uid,
            "gid": file_stat.st_gid,
            "version": version_text(file_stat),
        }

    def _describe_link(self, name: str, path: bytes) -> dict[str, Any]:
        """Describe the link by its target, as far as that is within the namespace."""
        description = {"name": name, "size": 0, "type": "other", "islink": True}
        description["destination"] = os.fsdecode(self._vfs.readlink(path))
        with contextlib.suppress(HeadraceError):
            real_path, file_stat = self._vfs.get(path)
            return {**description, **self._describe(name, real_path, file_stat), "islink": True}
        return description

    def exists(self, path: str, **_: Any) -> bool:
        return self._vfs.exists(_bytes(self._strip_protocol(path)))

    def isdir(self, path: str) -> bool:
        return self._type_of(path) == "directory"

    def isfile(self, path: str) -> bool:
        return self._type_of(path) == "file"

    def _type_of(self, path: str) -> str:
        try:
            return str(self.info(path)["type"])
        except (PathNotFoundError, NotADirectoryPathError):
            return ""

    def walk(
        self,
        path: str,
        maxdepth: int | None = None,
        topdown: bool = True,
        on_error: Any = "omit",
        **options: Any,
    ) -> Iterator[Any]:
        """Yield (directory, subdirectories, files), as fsspec does.

        With on_error "omit", entries that disappear meanwhile are left out. Other errors are raised, so that an
        unreachable origin does not look like an empty directory.
        """
        on_error_of_level = _raise_unless_gone if on_error == "omit" else on_error
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        folders: Iterator[str] = iter([self._strip_protocol(path)])
        levels: list[tuple[Iterator[str], Any]] = [(folders, None)]
        while levels:
            folders, row = levels[-1]
            folder = next(folders, None)
            if folder is None:
                levels.pop()
                if row is not None and not topdown:
                    yield row
                continue
            for row in super().walk(folder, maxdepth=1, on_error=on_error_of_level, **options):
                if topdown:
                    yield row
                names = row[1] if maxdepth is None or len(levels) < maxdepth else ()
                levels.append((iter([f"{folder.rstrip('/')}/{name}" for name in names]), row))

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(self.info(path).get("mtime", 0.0), UTC)

    def checksum(self, path: str) -> int:
        return int(self.ukey(path), 16)

    # ------------------------------------------------------------ reading

    def open(self, path: str, mode: str = "rb", *arguments: Any, **options: Any) -> Any:
        """Open a file; binary modes are rb, wb, xb and ab, and text modes wrap them.

        A file written with w or x appears complete when it is closed; `a` appends in place.
        """
        if "b" in mode:
            return super().open(path, mode, *arguments, **options)
        text_options = {
            name: options.pop(name) for name in ("encoding", "errors", "newline") if name in options
        }
        binary = super().open(path, mode.replace("t", "") + "b", *arguments, **options)
        return TextStream(binary, **text_options)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **_: Any,
    ) -> ReadStream | WriteStream:
        file_path = _bytes(path)
        if mode not in _MODES:
            raise NotSupportedError(
                f"mode {mode!r}", why=f"only {', '.join(_MODES)} are supported", hint="use a mount"
            )
        if mode == "rb":
            return self._vfs.open(file_path)
        self._vfs.check_writable(file_path)
        if mode == "ab":
            if not autocommit:
                raise NotSupportedError(
                    path, why="files are appended to in place, so a transaction cannot undo it"
                )
            if self.auto_mkdir:
                self._vfs.make_directories(split(file_path)[0])
            return self._vfs.append(file_path, is_broken_off=_closed_by_an_exception)
        replace, parents = mode == "wb", self.auto_mkdir
        return self._vfs.create(
            file_path,
            replace=replace,
            parents=parents,
            commits=autocommit,
            is_broken_off=_closed_by_an_exception,
        )

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        content = self._vfs.content(_bytes(self._strip_protocol(path)))
        try:
            return content.read(*_range_of(start, end, content.size_bytes))
        finally:
            content.close()

    def cat(self, path: Any, recursive: bool = False, on_error: str = "raise", **_: Any) -> Any:
        """Return the contents: files in memory are read first, the others in parallel by threads."""
        if (
            isinstance(path, str)
            and not recursive
            and "*" not in path
            and "?" not in path
            and "[" not in path
        ):
            return self.cat_file(path)
        paths = self.expand_path(path, recursive=recursive)
        if recursive:
            paths = [each for each in paths if not self.isdir(each)]
        elif isinstance(path, str) and paths == [self._strip_protocol(path)]:
            return self.cat_file(paths[0])
        results = self._cat_many([(each, None, None) for each in paths], stops=on_error == "raise")
        if on_error == "omit":
            return {each: data for each, data in zip(paths, results, strict=True) if isinstance(data, bytes)}
        return dict(zip(paths, results, strict=True))

    def cat_ranges(
        self,
        paths: Sequence[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        on_error: str = "return",
        **_: Any,
    ) -> list[bytes | Exception]:
        if not isinstance(paths, list):
            raise TypeError("paths must be a list")
        bounds_of_paths = [_as_list(bounds, len(paths)) for bounds in (starts, ends)]
        ranges = list(zip(map(self._strip_protocol, paths), *bounds_of_paths, strict=True))
        return self._cat_many(ranges, stops=on_error == "raise")

    def _cat_many(
        self, ranges: list[tuple[str, int | None, int | None]], *, stops: bool
    ) -> list[bytes | Exception]:
        results: list[bytes | Exception | Future[bytes]] = []
        for path, start, end in ranges:
            try:
                results.append(self._cat_or_submit(path, start, end))
            except Exception as error:
                if stops:
                    raise
                results.append(error)
        return [
            _result_of(result, stops=stops) if isinstance(result, Future) else result for result in results
        ]

    def _cat_or_submit(self, path: str, start: int | None, end: int | None) -> bytes | Future[bytes]:
        """Return the bytes if they are in memory, else a future: a thread costs more than such a read."""
        cached = self._vfs.content_if_cached(_bytes(path))
        if cached is None:
            return self._file_threads.submit(self.cat_file, path, start, end)
        if not cached.is_in_memory():
            return self._file_threads.submit(_read_and_close, cached, start, end)
        return _read_and_close(cached, start, end)

    def get_file(
        self, rpath: str, lpath: Any, callback: Any = DEFAULT_CALLBACK, outfile: Any = None, **_: Any
    ) -> None:
        """Download a file; the kernel copies from the cache file to the local file."""
        if outfile is None and isfilelike(lpath):
            outfile = lpath
        elif outfile is None and self.isdir(rpath):
            os.makedirs(lpath, exist_ok=True)
            return
        source = _bytes(self._strip_protocol(rpath))
        if outfile is not None:
            with self._vfs.open(source) as stream:
                callback.set_size(stream.size)
                while data := stream.read(self.blocksize):
                    outfile.write(data)
                    callback.relative_update(len(data))
            return
        os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
        self._file_threads.do(lambda: self._copy_out(source, lpath, callback))

    def _copy_out(self, source: bytes, target: str, callback: Any) -> None:
        content = self._vfs.content(source)
        try:
            callback.set_size(content.size_bytes)
            with open(target, "wb") as out:
                content.copy_to(out.fileno(), callback.relative_update)
        finally:
            content.close()

    def get(self, rpath: Any, lpath: Any, *arguments: Any, **options: Any) -> None:
        with self._file_threads.batch(_callback_of(arguments, options)):
            super().get(rpath, lpath, *arguments, **options)

    # ------------------------------------------------------------ writing

    def put_file(
        self, lpath: str, rpath: str, callback: Any = DEFAULT_CALLBACK, mode: str = "overwrite", **_: Any
    ) -> None:
        if os.path.isdir(lpath):
            self.makedirs(rpath, exist_ok=True)
            return
        self._file_threads.do(lambda: self._copy_in(lpath, rpath, callback, replaces=mode != "create"))

    def _copy_in(self, source: str, target: str, callback: Any, *, replaces: bool) -> None:
        with open(source, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            callback.set_size(size)
            with self.open(target, "wb" if replaces else "xb") as out:
                while data := file.read(self.blocksize):
                    out.write(data)
                    callback.relative_update(len(data))

    def put(self, lpath: Any, rpath: Any, *arguments: Any, **options: Any) -> None:
        with self._file_threads.batch(_callback_of(arguments, options)):
            super().put(lpath, rpath, *arguments, **options)

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **options: Any) -> None:
        def write() -> None:
            with self.open(path, "xb" if mode == "create" else "wb", **options) as out:
                out.write(value)

        self._file_threads.do(write)

    def pipe(self, path: Any, value: Any = None, **options: Any) -> None:
        with self._file_threads.batch(DEFAULT_CALLBACK):
            super().pipe(path, value, **options)

    def touch(self, path: str, truncate: bool = True, **options: Any) -> None:
        if truncate or not self.exists(path):
            self.open(path, "wb", **options).close()
        else:
            self._vfs.touch(_bytes(self._strip_protocol(path)))

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        source, target = (_bytes(self._strip_protocol(each_path)) for each_path in (path1, path2))
        kind = self.info(path1)["type"]
        if kind == "directory":
            self.makedirs(path2, exist_ok=True)
            return
        self._file_threads.do(lambda: self._vfs.copy(source, target, parents=self.auto_mkdir))

    def copy(self, path1: Any, path2: Any, *arguments: Any, **options: Any) -> None:
        with self._file_threads.batch(DEFAULT_CALLBACK):
            super().copy(path1, path2, *arguments, **options)

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        directory = _bytes(self._strip_protocol(path))
        if create_parents:
            self._vfs.make_directories(split(directory)[0])
        self._vfs.make_directory(directory)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        directory = _bytes(self._strip_protocol(path))
        if not exist_ok and self.exists(path):
            raise PathExistsError(os.fsdecode(directory), why="it already exists")
        self._vfs.make_directories(directory)

    def rmdir(self, path: str) -> None:
        self._vfs.remove_directory(_bytes(self._strip_protocol(path)))

    def rm_file(self, path: str) -> None:
        self._vfs.remove(_bytes(self._strip_protocol(path)))

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        if maxdepth is not None:
            raise NotSupportedError("rm with maxdepth", why="deeper files would keep their directories")
        patterns = path if isinstance(path, list) else [path]
        for name in dict.fromkeys(match for pattern in patterns for match in self.expand_path(pattern)):
            target = _bytes(name)
            if recursive:
                self._vfs.remove_all(target)
            elif is_directory(self._vfs.get(target, follow=False)[1]):
                raise IsADirectoryPathError(name, why="it is a directory", hint="use recursive=True")
            else:
                self._vfs.remove(target)

    def mv(
        self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **_: Any
    ) -> None:
        """Rename in one step, without a copy; an existing file is replaced.

        An existing directory as the target receives the source.
        """
        is_into_directory = isinstance(path2, str) and (path2.endswith("/") or self.isdir(path2))
        if isinstance(path1, str) and isinstance(path2, str):
            if self._strip_protocol(path1) == self._strip_protocol(path2):
                return
            sources = self.expand_path(path1)
            has_matches = sources != [self._strip_protocol(path1)]
            target = self._strip_protocol(path2)
            targets = (
                other_paths(sources, target, exists=True, flatten=True)
                if has_matches or is_into_directory
                else [target]
            )
        elif isinstance(path1, list) and isinstance(path2, list) and len(path1) == len(path2):
            sources, targets = self._strip_protocol(path1), self._strip_protocol(path2)
        else:
            raise UsageError(
                f"mv of {path1!r} to {path2!r}", why="give two paths, or two lists of the same length"
            )
        for source, target in zip(sources, targets, strict=True):
            self._vfs.get(_bytes(source), follow=False)
            if self.auto_mkdir:
                self._vfs.make_directories(split(_bytes(target))[0])
            if source != target:
                self._vfs.rename(_bytes(source), _bytes(target))


class AsyncHeadraceFileSystem(HeadraceFileSystem, Coroutines):
    """Add fsspec's coroutines, for a program with an event loop."""


class _FileThreads:
    """Run calls for many files in threads. Within `batch`, `do` does not wait."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._pool = ForkSafePool(THREADS, "headrace-files")

    def submit(self, work: Callable[..., bytes], *arguments: Any) -> Future[bytes]:
        return self._pool.executor().submit(work, *arguments)

    def do(self, work: Callable[[], None]) -> None:
        calls: list[Future[None]] | None = getattr(self._local, "calls", None)
        if calls is None:
            work()
        else:
            calls.append(self._pool.executor().submit(work))

    @contextlib.contextmanager
    def batch(self, callback: Any) -> Iterator[None]:
        """Wait on exit for all calls of the block; raise the first error once no call is running.

        Ctrl-C, or an exception of the block itself, cancels the calls that wait for a thread. With a callback, which
        follows each file, the calls run one after the other.
        """
        if callback is not DEFAULT_CALLBACK or getattr(self._local, "calls", None) is not None:
            yield
            return
        calls: list[Future[None]] = []
        self._local.calls = calls
        try:
            yield
            wait(calls)
        except BaseException:
            for call in calls:
                call.cancel()
            raise
        finally:
            self._local.calls = None
            wait(calls)
        errors = [error for call in calls if (error := call.exception()) is not None]
        if errors:
            raise errors[0]


def _closed_by_an_exception() -> bool:
    """Return whether an exception ends the `with fsspec.open(...)` that is closing this file.

    fsspec closes the files without passing the exception on, so this looks for the arguments of its `__exit__` in the
    frames above.
    """
    frame = sys._getframe(1)
    for _ in range(_FRAMES_UP_MAX):
        above = frame.f_back
        if above is None:
            return False
        frame = above
        if frame.f_code is OpenFile.__exit__.__code__:
            return any(argument is not None for argument in frame.f_locals.get("args", ()))
    return False


def _callback_of(arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Return the callback of get or put, whose arguments after the two paths are (recursive, callback)."""
    return arguments[1] if len(arguments) > 1 else options.get("callback", DEFAULT_CALLBACK)


def _bytes(path: str) -> bytes:
    return os.fsencode(path)


def _as_list(bounds: Any, count: int) -> list[int | None]:
    values = list(bounds) if isinstance(bounds, (list, tuple)) else [bounds] * count
    if len(values) != count:
        raise ValueError(f"{count} paths but {len(values)} range bounds")
    return values


def _range_of(start: int | None, end: int | None, size: int) -> tuple[int, int]:
    """Return the range as slices have it: negative bounds count from the end."""
    first, last, _ = slice(start, end).indices(size)
    return first, last


def _read_and_close(content: Any, start: int | None, end: int | None) -> bytes:
    try:
        return bytes(content.read(*_range_of(start, end, content.size_bytes)))
    finally:
        content.close()


def _result_of(future: Future[bytes], *, stops: bool) -> bytes | Exception:
    error = future.exception()
    if error is None:
        return future.result()
    if stops or not isinstance(error, Exception):
        raise error
    return error


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise error
