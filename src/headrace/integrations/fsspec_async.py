"""What `headrace://` has more for a program with an event loop: fsspec's coroutines, `_cat_file`, `_info`, …

Each is the call of the same name in one of the file system's threads: the loop never waits. Calls for many files are
one such call, which has its own threads. One that is cancelled ends in its thread, unseen.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

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
    """Of a file system whose calls may wait: its class comes before this one."""

    mirror_sync_methods = False
    """The calls that wait stay what they are, and need no loop."""
    _threads: tuple[int, ThreadPoolExecutor] | None = None

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
        """A folder at a time: the caller may leave some of its folders out."""
        found = self.walk(path, *arguments, **options)
        while (one := await self._do(next, found, _END)) is not _END:
            yield one

    async def open_async(self, path: str, mode: str = "rb", **options: Any) -> AsyncStream:
        """As `open`, binary; what is written is there when it is closed."""
        if "b" not in mode or options.get("compression"):
            raise ValueError("open_async is for bytes as they are: mode with b, and no compression")
        return AsyncStream(await self._do(self.open, path, mode, **options), self._do)

    async def _do(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if self._threads is None or self._threads[0] != os.getpid():
            self._threads = os.getpid(), ThreadPoolExecutor(THREADS, thread_name_prefix="headrace-fsspec")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads[1], lambda: call(*arguments, **options))


class AsyncStream:
    """stream: an open file. do: has a call done by a thread. One call at a time."""

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

    def seek(self, at: int, whence: int = os.SEEK_SET) -> int:
        place: int = self.stream.seek(at, whence)
        return place

    def tell(self) -> int:
        place: int = self.stream.tell()
        return place
