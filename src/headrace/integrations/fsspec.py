"""`headrace://` for fsspec, and so for pandas, pyarrow, dask, torch.distributed.checkpoint: docs/fsspec.md.

A file system of this host's running node, without a mount: cached files are read from their cache files, what is
written goes to the upper layer, as through a mount. All that is not fsspec's way of saying things is in
`sdk/local_vfs.py`."""

from __future__ import annotations

import contextlib
import io
import os
import posixpath
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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
from headrace.base.model import Entry
from headrace.integrations.fsspec_async import Coroutines
from headrace.overlay.upper import join, split
from headrace.sdk.client_registry import open_vfs
from headrace.sdk.local_vfs import LocalVfs
from headrace.sdk.merged_tree import FileStat
from headrace.sdk.node_client import PATIENCE_S
from headrace.sdk.streams import ReadStream, WriteStream
from headrace.sdk.vfs_reader import is_directory, version_text

THREADS = 32
"""Of one file system, for many files at once: they wait for the node, or for the disk."""
_MODES = ("rb", "wb", "ab", "xb")
_FRAMES_UP_MAX = 4


class HeadraceFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """cache: a folder, to choose among nodes of this host (else as the command line does, and HEADRACE_CACHE chooses);
    socket: the same, by its socket. nodes: those of other hosts, as of `headrace.connect`. auto_mkdir: folders above a
    new file are made. patience_s: how long calls wait for a node that is away. The node is looked for at the first
    call: NodeUnavailableError, UsageError."""

    protocol = "headrace"
    root_marker = "/"

    def __new__(cls, *_: Any, asynchronous: bool = False, **__: Any) -> HeadraceFileSystem:
        """asynchronous, as fsspec asks for it: with its coroutines, too."""
        made: HeadraceFileSystem = super().__new__(
            AsyncHeadraceFileSystem if asynchronous and cls is HeadraceFileSystem else cls
        )
        return made

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
        self._host: LocalVfs | None = None
        self._many = _Many()

    @property
    def _paths(self) -> LocalVfs:
        host = self._host
        if host is None or host.client.closed:
            chosen = {"cache": self._cache_folder, "socket": self._socket}
            host = self._host = open_vfs(self._nodes, **chosen, patience_s=self._patience_s)
        return host

    @property
    def fsid(self) -> str:
        return f"headrace-{self._paths.client.generation:x}"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        """headrace:///a/b, headrace://a/b and /a/b are the same."""
        if isinstance(path, (list, tuple)):
            return [cls._strip_protocol(one) for one in path]
        text = stringify_path(path)
        for begin in ("headrace://", "headrace::"):
            if text.startswith(begin):
                text = text[len(begin) :]
        return posixpath.normpath("/" + text.lstrip("/"))

    # ------------------------------------------------------------ looking

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        name, asked = self._strip_protocol(path), _bytes(self._strip_protocol(path))
        whole, found = self._paths.find(asked, follow=False)
        if found is None:
            raise PathNotFoundError(name, why="no such file or directory")
        return self._about(name, whole, found)

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        name = self._strip_protocol(path)
        at = _bytes(name)
        try:
            rows = list(self._paths.children(at))
        except NotADirectoryPathError:
            return [self.info(name)] if detail else [name]
        if not detail:
            return [os.fsdecode(join(at, one)) for one, _ in rows]
        return [self._about(os.fsdecode(join(at, one)), join(at, one), found) for one, found in rows]

    def _about(self, name: str, at: bytes, found: FileStat) -> dict[str, Any]:
        if isinstance(found, Entry):
            kind = "directory" if is_directory(found) else "file"
            version = found.version
            times = {} if kind == "directory" else {"mtime": found.mtime_ns / 1e9}
            about = {"name": name, "size": version.size_bytes, "type": kind, "islink": False, **times}
            return about if kind == "directory" else {**about, "version": version_text(found)}
        if stat.S_ISLNK(found.st_mode):
            return self._about_link(name, at)
        kind = "other"
        if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode):
            kind = "directory" if is_directory(found) else "file"
        return {
            "name": name,
            "size": 0 if kind == "directory" else found.st_size,
            "type": kind,
            "islink": False,
            "mtime": found.st_mtime_ns / 1e9,
            "mode": found.st_mode,
            "uid": found.st_uid,
            "gid": found.st_gid,
            "version": version_text(found),
        }

    def _about_link(self, name: str, at: bytes) -> dict[str, Any]:
        """Of what it leads to, as far as that is within the namespace."""
        about = {"name": name, "size": 0, "type": "other", "islink": True}
        about["destination"] = os.fsdecode(self._paths.readlink(at))
        with contextlib.suppress(HeadraceError):
            whole, found = self._paths.get(at)
            return {**about, **self._about(name, whole, found), "islink": True}
        return about

    def exists(self, path: str, **_: Any) -> bool:
        return self._paths.exists(_bytes(self._strip_protocol(path)))

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
        """on_error "omit": what is gone meanwhile is left out; an origin that is away is no empty folder."""
        seen_by = _raise_unless_gone if on_error == "omit" else on_error
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
            for row in super().walk(folder, maxdepth=1, on_error=seen_by, **options):
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
        """Binary: rb, wb, xb, ab. What is written with w or x is there when it is closed, whole; with a in place."""
        if "b" in mode:
            return super().open(path, mode, *arguments, **options)
        words = {word: options.pop(word) for word in ("encoding", "errors", "newline") if word in options}
        below = super().open(path, mode.replace("t", "") + "b", *arguments, **options)
        return _TextStream(below, **words)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **_: Any,
    ) -> ReadStream | WriteStream:
        at = _bytes(path)
        if mode not in _MODES:
            raise NotSupportedError(
                f"mode {mode!r}", why=f"it is none of {', '.join(_MODES)}", hint="use a mount"
            )
        if mode == "rb":
            return self._paths.open(at)
        self._paths.check_writable(at)
        if mode == "ab":
            if not autocommit:
                raise NotSupportedError(path, why="appending is done in place, and not within a transaction")
            if self.auto_mkdir:
                self._paths.make_directories(split(at)[0])
            return self._closing_well(self._paths.append(at))
        replace, parents = mode == "wb", self.auto_mkdir
        return self._closing_well(
            self._paths.create(at, replace=replace, parents=parents, commits=autocommit)
        )

    def _closing_well(self, stream: WriteStream) -> WriteStream:
        stream.is_broken_off = _closed_by_an_exception
        return stream

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        content = self._paths.content(_bytes(self._strip_protocol(path)))
        try:
            return content.read(*_range_of(start, end, content.size_bytes))
        finally:
            content.close()

    def cat(self, path: Any, recursive: bool = False, on_error: str = "raise", **_: Any) -> Any:
        """Of many files those first that are in memory, the others at once in threads."""
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
            paths = [one for one in paths if not self.isdir(one)]
        elif isinstance(path, str) and paths == [self._strip_protocol(path)]:
            return self.cat_file(paths[0])
        found = self._cat_many([(one, None, None) for one in paths], stops=on_error == "raise")
        if on_error == "omit":
            return {one: data for one, data in zip(paths, found, strict=True) if isinstance(data, bytes)}
        return dict(zip(paths, found, strict=True))

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
        wanted = [_as_list(bounds, len(paths)) for bounds in (starts, ends)]
        asked = list(zip(map(self._strip_protocol, paths), *wanted, strict=True))
        return self._cat_many(asked, stops=on_error == "raise")

    def _cat_many(
        self, wanted: list[tuple[str, int | None, int | None]], *, stops: bool
    ) -> list[bytes | Exception]:
        found: list[bytes | Exception | Future[bytes]] = []
        for path, start, end in wanted:
            try:
                found.append(self._cat_here_or_there(path, start, end))
            except Exception as error:
                if stops:
                    raise
                found.append(error)
        return [_result_of(one, stops=stops) if isinstance(one, Future) else one for one in found]

    def _cat_here_or_there(self, path: str, start: int | None, end: int | None) -> bytes | Future[bytes]:
        """At once, where nothing has to be waited for: another thread costs more than that."""
        cached = self._paths.content_if_cached(_bytes(path))
        if cached is None:
            return self._many.submit(self.cat_file, path, start, end)
        if not cached.is_in_memory():
            return self._many.submit(_read_and_close, cached, start, end)
        return _read_and_close(cached, start, end)

    def get_file(
        self, rpath: str, lpath: Any, callback: Any = DEFAULT_CALLBACK, outfile: Any = None, **_: Any
    ) -> None:
        """By the kernel, from the cache file to the local one."""
        if outfile is None and isfilelike(lpath):
            outfile = lpath
        elif outfile is None and self.isdir(rpath):
            os.makedirs(lpath, exist_ok=True)
            return
        source = _bytes(self._strip_protocol(rpath))
        if outfile is not None:
            with self._paths.open(source) as stream:
                callback.set_size(stream.size)
                while data := stream.read(self.blocksize):
                    outfile.write(data)
                    callback.relative_update(len(data))
            return
        os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
        self._many.do(lambda: self._copy_out(source, lpath, callback))

    def _copy_out(self, source: bytes, target: str, callback: Any) -> None:
        content = self._paths.content(source)
        try:
            callback.set_size(content.size_bytes)
            with open(target, "wb") as out:
                content.copy_to(out.fileno(), callback.relative_update)
        finally:
            content.close()

    def get(self, rpath: Any, lpath: Any, *arguments: Any, **options: Any) -> None:
        with self._many.together(_callback_of(arguments, options)):
            super().get(rpath, lpath, *arguments, **options)

    # ------------------------------------------------------------ writing

    def put_file(
        self, lpath: str, rpath: str, callback: Any = DEFAULT_CALLBACK, mode: str = "overwrite", **_: Any
    ) -> None:
        if os.path.isdir(lpath):
            self.makedirs(rpath, exist_ok=True)
            return
        self._many.do(lambda: self._copy_in(lpath, rpath, callback, replaces=mode != "create"))

    def _copy_in(self, source: str, target: str, callback: Any, *, replaces: bool) -> None:
        with open(source, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            callback.set_size(size)
            with self.open(target, "wb" if replaces else "xb") as out:
                while data := file.read(self.blocksize):
                    out.write(data)
                    callback.relative_update(len(data))

    def put(self, lpath: Any, rpath: Any, *arguments: Any, **options: Any) -> None:
        with self._many.together(_callback_of(arguments, options)):
            super().put(lpath, rpath, *arguments, **options)

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **options: Any) -> None:
        def write() -> None:
            with self.open(path, "xb" if mode == "create" else "wb", **options) as out:
                out.write(value)

        self._many.do(write)

    def pipe(self, path: Any, value: Any = None, **options: Any) -> None:
        with self._many.together(DEFAULT_CALLBACK):
            super().pipe(path, value, **options)

    def touch(self, path: str, truncate: bool = True, **options: Any) -> None:
        if truncate or not self.exists(path):
            self.open(path, "wb", **options).close()
        else:
            self._paths.touch(_bytes(self._strip_protocol(path)))

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        source, target = (_bytes(self._strip_protocol(one)) for one in (path1, path2))
        kind = self.info(path1)["type"]
        if kind == "directory":
            self.makedirs(path2, exist_ok=True)
            return
        self._many.do(lambda: self._paths.copy(source, target, parents=self.auto_mkdir))

    def copy(self, path1: Any, path2: Any, *arguments: Any, **options: Any) -> None:
        with self._many.together(DEFAULT_CALLBACK):
            super().copy(path1, path2, *arguments, **options)

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        at = _bytes(self._strip_protocol(path))
        if create_parents:
            self._paths.make_directories(split(at)[0])
        self._paths.make_directory(at)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        at = _bytes(self._strip_protocol(path))
        if not exist_ok and self.exists(path):
            raise PathExistsError(os.fsdecode(at), why="it is there already")
        self._paths.make_directories(at)

    def rmdir(self, path: str) -> None:
        self._paths.remove_directory(_bytes(self._strip_protocol(path)))

    def rm_file(self, path: str) -> None:
        self._paths.remove(_bytes(self._strip_protocol(path)))

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        if maxdepth is not None:
            raise NotSupportedError("rm with maxdepth", why="what is deeper would hold its folders")
        asked = path if isinstance(path, list) else [path]
        for one in dict.fromkeys(match for each in asked for match in self.expand_path(each)):
            at = _bytes(one)
            if recursive:
                self._paths.remove_all(at)
            elif is_directory(self._paths.get(at, follow=False)[1]):
                raise IsADirectoryPathError(one, why="it is a directory", hint="recursive=True")
            else:
                self._paths.remove(at)

    def mv(
        self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **_: Any
    ) -> None:
        """Renames, in one step, over a file that is there; never copies. Into a folder that is there."""
        into = isinstance(path2, str) and (path2.endswith("/") or self.isdir(path2))
        if isinstance(path1, str) and isinstance(path2, str):
            if self._strip_protocol(path1) == self._strip_protocol(path2):
                return
            sources = self.expand_path(path1)
            many = sources != [self._strip_protocol(path1)]
            target = self._strip_protocol(path2)
            targets = other_paths(sources, target, exists=True, flatten=True) if many or into else [target]
        elif isinstance(path1, list) and isinstance(path2, list) and len(path1) == len(path2):
            sources, targets = self._strip_protocol(path1), self._strip_protocol(path2)
        else:
            raise UsageError(
                f"mv of {path1!r} to {path2!r}", why="neither two paths nor two lists of one length"
            )
        for source, target in zip(sources, targets, strict=True):
            self._paths.get(_bytes(source), follow=False)
            if self.auto_mkdir:
                self._paths.make_directories(split(_bytes(target))[0])
            if source != target:
                self._paths.rename(_bytes(source), _bytes(target))


class AsyncHeadraceFileSystem(HeadraceFileSystem, Coroutines):
    """The same for a program with an event loop."""


class _Many:
    """Calls for many files, in threads. Within `together`, `do` does not wait."""

    def __init__(self) -> None:
        self._here = threading.local()
        self._pool: ThreadPoolExecutor | None = None
        self._process = 0

    def submit(self, work: Callable[..., bytes], *arguments: Any) -> Future[bytes]:
        return self._executor().submit(work, *arguments)

    def do(self, work: Callable[[], None]) -> None:
        batch: list[Future[None]] | None = getattr(self._here, "batch", None)
        if batch is None:
            work()
        else:
            batch.append(self._executor().submit(work))

    @contextlib.contextmanager
    def together(self, callback: Any) -> Iterator[None]:
        """All is done on return, or what failed is raised, when nothing is under way any more. Who wants to be told of
        each file gets them one by one."""
        if callback is not DEFAULT_CALLBACK or getattr(self._here, "batch", None) is not None:
            yield
            return
        batch: list[Future[None]] = []
        self._here.batch = batch
        try:
            yield
        finally:
            self._here.batch = None
            errors = [error for one in batch if (error := one.exception()) is not None]
        if errors:
            raise errors[0]

    def _executor(self) -> ThreadPoolExecutor:
        if self._pool is None or self._process != os.getpid():
            self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="headrace-files")
            self._process = os.getpid()
        return self._pool


class _TextStream(io.TextIOWrapper):
    def __exit__(self, kind: Any, *rest: Any) -> None:
        if kind is not None and isinstance(self.buffer, WriteStream):
            self.buffer.discard()
        super().__exit__(kind, *rest)


def _closed_by_an_exception() -> bool:
    """`with fsspec.open(...)` closes its files at the end without saying whether an exception brought it there; what it
    was told itself is found some frames up."""
    frame = sys._getframe(1)
    for _ in range(_FRAMES_UP_MAX):
        above = frame.f_back
        if above is None:
            return False
        frame = above
        if frame.f_code is OpenFile.__exit__.__code__:
            return any(one is not None for one in frame.f_locals.get("args", ()))
    return False


def _callback_of(arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Of get and put, after the two paths: recursive, callback."""
    return arguments[1] if len(arguments) > 1 else options.get("callback", DEFAULT_CALLBACK)


def _bytes(path: str) -> bytes:
    return os.fsencode(path)


def _as_list(bounds: Any, count: int) -> list[int | None]:
    found = list(bounds) if isinstance(bounds, (list, tuple)) else [bounds] * count
    if len(found) != count:
        raise ValueError(f"{count} paths, and {len(found)} bounds of ranges")
    return found


def _range_of(start: int | None, end: int | None, size: int) -> tuple[int, int]:
    """As slices have it: negative ones count from the end."""
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
