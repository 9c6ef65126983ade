"""Add fsspec's coroutines (`_cat_file`, `_info`, …) to `headrace://`, for a program with an event loop.

Each coroutine runs the blocking call of the same name in one of the process's threads, so the loop never waits. A
call on many files is one such call, with threads of its own. A cancelled call still ends in its thread, and its result
is discarded.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from types import TracebackType
from typing import Any

from headrace.base.fork_safe_pool import ForkSafePool
from headrace.base.missing_extras import needs_extra

with needs_extra(__name__):
    from fsspec.asyn import AsyncFileSystem


THREADS = 32
_END = object()

Call = Callable[..., Coroutine[Any, Any, Any]]


def _in_thread(name: str) -> Call:
    async def call(self: Coroutines, *arguments: Any, **options: Any) -> Any:
        return await self._do(getattr(self, name), *arguments, **options)

    call.__name__ = call.__qualname__ = f"_{name}"
    return call


class Coroutines(AsyncFileSystem):  # type: ignore[misc]
    """Add coroutines to a file system with blocking calls, whose class must precede this one among the bases."""

    mirror_sync_methods = False
    """The blocking calls stay as they are and need no loop."""
    _threads = ForkSafePool(THREADS, "headrace-fsspec")
    """All file systems of a process share them."""

    _info = _in_thread("info")
    _ls = _in_thread("ls")
    _exists = _in_thread("exists")
    _isdir = _in_thread("isdir")
    _isfile = _in_thread("isfile")
    _size = _in_thread("size")
    _sizes = _in_thread("sizes")
    _modified = _in_thread("modified")
    _checksum = _in_thread("checksum")
    _find = _in_thread("find")
    _glob = _in_thread("glob")
    _du = _in_thread("du")
    _expand_path = _in_thread("expand_path")

    _cat_file = _in_thread("cat_file")
    _cat = _in_thread("cat")
    _cat_ranges = _in_thread("cat_ranges")
    _get_file = _in_thread("get_file")
    _get = _in_thread("get")

    _pipe_file = _in_thread("pipe_file")
    _pipe = _in_thread("pipe")
    _put_file = _in_thread("put_file")
    _put = _in_thread("put")
    _cp_file = _in_thread("cp_file")
    _copy = _in_thread("copy")
    _mv_file = _in_thread("mv")
    _mv = _in_thread("mv")
    _touch = _in_thread("touch")
    _rm_file = _in_thread("rm_file")
    _rm = _in_thread("rm")
    _rmdir = _in_thread("rmdir")
    _mkdir = _in_thread("mkdir")
    _makedirs = _in_thread("makedirs")

    async def _walk(self, path: str, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        """Yield one directory at a time: the caller may remove subdirectories that are not to be walked."""
        rows = self.walk(path, *arguments, **options)
        while (row := await self._do(next, rows, _END)) is not _END:
            yield row

    async def open_async(self, path: str, mode: str = "rb", **options: Any) -> AsyncStream:
        """Open a file as `open` does, in a binary mode; a written file appears when it is closed."""
        if "b" not in mode or options.get("compression"):
            raise ValueError("open_async reads and writes plain bytes: use a binary mode and no compression")
        return AsyncStream(await self._do(self.open, path, mode, **options), self._do)

    async def _do(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads.executor(), lambda: call(*arguments, **options))


class AsyncStream:
    """Read or write an open file by coroutines, one call at a time. do: runs a call in a thread."""

    def __init__(self, stream: Any, do: Call) -> None:
        self.stream = stream
        self._do = do

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._do(self.stream.__exit__, kind, error, trace)

    async def read(self, length: int = -1) -> bytes:
        data: bytes = await self._do(self.stream.read, length)
        return data

    async def write(self, data: Any) -> int:
        count: int = await self._do(self.stream.write, data)
        return count

    async def flush(self) -> None:
        await self._do(self.stream.flush)

    async def close(self) -> None:
        await self._do(self.stream.close)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        position: int = self.stream.seek(offset, whence)
        return position

    def tell(self) -> int:
        position: int = self.stream.tell()
        return position
