"""Receive programs' changes in exclusive directories from fanotify, and mark the changed paths as dirty.

An event is only a hint: the planner compares the path with the journal. Events may be lost, and the kernel sends none
for a store into a mapping, or for `truncate` of a path. The scan of the layer finds those. Calls are on the node's
loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable

from headrace.base.errors import UsageError
from headrace.base.fanotify import (
    CREATE,
    DELETE,
    MOVED_FROM,
    MOVED_TO,
    ON_DIRECTORY,
    ChangeEvents,
    EventsLostError,
    FileEvent,
    path_of_handle,
)
from headrace.base.tasks import OwnedTasks
from headrace.overlay.upper import Upper
from headrace.writeback.writable_layer import WritableLayer
from headrace.writeback.writeback import WriteBack

log = logging.getLogger(__name__)

GATHERED_S = 0.2
"""Seconds for which events wait in the kernel, which joins those of one entry."""
READS_MAX = 4
"""Reads of the queue before other tasks of the loop run."""
HANDLES_MAX = 100_000
"""Most directories whose path is remembered."""
_MOVES = MOVED_FROM | MOVED_TO | DELETE
_NAMES = _MOVES | CREATE


class NativeChanges:
    """Watch the exclusive directories of a layer. changed: called with changed paths. rescan_below: marks everything
    dirty at and below a path. rescan: marks everything dirty."""

    def __init__(
        self,
        layer: WritableLayer,
        *,
        changed: Callable[[list[bytes]], None],
        rescan_below: Callable[[bytes], Awaitable[None]],
        rescan: Callable[[], Awaitable[object]],
    ) -> None:
        self._layer = layer
        self._tops = [top for top in layer.modes.exclusive_tops if layer.persists(top)]
        self._changed = changed
        self._rescan_below = rescan_below
        self._rescan = rescan
        self._paths = HandlePaths(layer.upper)
        self._events: ChangeEvents | None = None
        self._tasks = OwnedTasks()
        self._ready = asyncio.Event()

    def start(self) -> None:
        """Begin to collect events. A later scan of the layer finds all earlier changes. Raises UsageError if the file
        system reports no events."""
        if not self._tops:
            return
        try:
            self._events = ChangeEvents(self._paths.open())
        except OSError as error:
            raise UsageError(
                f"exclusive directory {os.fsdecode(self._tops[0])}",
                why=f"the file system of {self._layer.upper.at(b'/')!r} reports no changes: {error.strerror}",
                hint="put the cache on ext4 or XFS, or leave out exclusive",
            ) from error
        self._tasks.start(self._run(self._events))

    async def stop(self) -> None:
        await self._tasks.close()
        if self._events is not None:
            asyncio.get_running_loop().remove_reader(self._events.fd)
            self._events.close()
            self._events = None
        self._paths.close()

    async def _run(self, events: ChangeEvents) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._ready.clear()
            loop.add_reader(events.fd, self._ready.set)
            await self._ready.wait()
            loop.remove_reader(events.fd)
            await asyncio.sleep(GATHERED_S)
            try:
                await self._drain(events)
            except EventsLostError:
                log.info("events of exclusive directories were lost, the layer is scanned")
                await self._find_lost()
            except Exception:
                log.exception("events of exclusive directories were not read")
                await self._find_lost()

    async def _find_lost(self) -> None:
        """Scan the layer for changes whose events were lost. If that fails, the next scan of write-back finds them; the
        next events must still be read."""
        self._paths.forget()
        try:
            await self._rescan()
        except Exception:
            log.exception("the layer was not scanned after events of exclusive directories were lost")

    async def _drain(self, events: ChangeEvents) -> None:
        while True:
            batch: list[FileEvent] = []
            for _ in range(READS_MAX):
                read = events.read()
                batch += read
                if not read:
                    break
            if not batch:
                return
            await self._note(batch)
            await asyncio.sleep(0)

    async def _note(self, batch: list[FileEvent]) -> None:
        paths: dict[bytes, bool] = {}
        for event in batch:
            if event.pid == os.getpid():
                continue  # this node's own change, which it has noted
            path = self._path_of(event)
            if path is not None:
                is_moved = bool(event.mask & ON_DIRECTORY and event.mask & _MOVES)
                paths[path] = paths.get(path, False) or is_moved
        if paths:
            self._changed(list(paths))
        for path, is_moved in paths.items():
            if is_moved:
                await self._rescan_below(path)

    def _path_of(self, event: FileEvent) -> bytes | None:
        """Return the path that an event is about; None outside the exclusive directories, and for such a directory
        itself."""
        directory = self._paths.path_of(event.handle)
        if event.mask & ON_DIRECTORY and event.mask & _NAMES:
            self._paths.forget()
        if directory is None:
            return None
        path = (
            directory
            if event.name in (b"", b".")
            else (directory if directory != b"/" else b"") + b"/" + event.name
        )
        if path in self._tops or not self._layer.is_exclusive(path):
            return None
        return path


def native_changes_of(write: WriteBack) -> NativeChanges:
    """Return the watch of the exclusive directories that a node persists."""
    return NativeChanges(
        write.layer,
        changed=write.programs.changed,
        rescan_below=write.programs.rescan_below,
        rescan=write.rescan,
    )


class HandlePaths:
    """Hold the paths of a layer's directories by their handles."""

    def __init__(self, upper: Upper) -> None:
        self._upper = upper
        self._fd = -1
        self._top = b""
        self._known: dict[bytes, bytes | None] = {}

    def open(self) -> int:
        """Open the layer's tree, and return its descriptor."""
        self._fd = self._upper.at(b"/").open(os.O_RDONLY | os.O_DIRECTORY)
        self._top = os.readlink(b"/proc/self/fd/%d" % self._fd)
        return self._fd

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def forget(self) -> None:
        """Forget all paths: a directory may have been moved or removed."""
        self._known.clear()

    def path_of(self, handle: bytes) -> bytes | None:
        """Return the path of a directory in the namespace; None if it lies elsewhere or was removed."""
        if handle not in self._known:
            if len(self._known) >= HANDLES_MAX:
                self.forget()
            self._known[handle] = self._find(handle)
        return self._known[handle]

    def _find(self, handle: bytes) -> bytes | None:
        path = path_of_handle(self._fd, handle)
        if path == self._top:
            return b"/"
        if path is None or not path.startswith(self._top + b"/"):
            return None
        return path[len(self._top) :]
