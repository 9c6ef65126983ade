"""A client with true semantics and no node: a folder tree is the origin, temporary files are the cache.

Loaded in the session process through `--client`; the "socket path" is the path of a state folder:
`source/` the origin's tree; `cache/` complete cache files by id; `partial/` sparse ones. While a file `stuck`
is there, nothing is filled or looked up anew; while `stuck-opens`, nothing is opened anew; while `broken`, filling
fails; `order-*` files are events, see `_watch`. Ids come from inode numbers: every session gives the same ones.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from headrace.base.cancel import Cancel
from headrace.base.errors import (
    CancelledByUserError,
    IsADirectoryPathError,
    OriginUnavailableError,
    PathNotFoundError,
)
from headrace.base.model import BLOCK_SIZE_BYTES, ROOT_ID, Entry, FileId, Kind, Version, block_range
from headrace.client.node_client import MISS, Miss
from headrace.wire.messages import Completed, Evicted, Invalidated

SMALL_BYTES = BLOCK_SIZE_BYTES
SYS_EXIT = {"x86_64": 60, "aarch64": 93}
"""The numbers of the system call that ends one thread."""


class MemoryFile:
    """A partial cache file; `wait` copies the blocks from the origin, slowly when the state says so."""

    def __init__(self, client: MemoryClient, id: FileId) -> None:
        self._client = client
        self._id = id
        path = client.complete_path(id)
        self.complete = path is not None
        self.fd = os.open(path or client.partial(id), os.O_RDONLY)

    def present(self, start: int, end: int) -> bool:
        done = self._client.filled.setdefault(self._id, set())
        return self.complete or all(block in done for block in block_range(start, end))

    def wait(self, start: int, end: int, cancel: Cancel | None = None) -> int:
        for block in block_range(start, end):
            if not self.complete and block not in self._client.filled.setdefault(self._id, set()):
                self._client.fill(self._id, block, cancel)
        return self.fd

    def close(self) -> None:
        os.close(self.fd)


class MemoryClient:
    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.generation = 1
        self.filled: dict[FileId, set[int]] = {}
        self._entries: dict[int, Entry] = {
            ROOT_ID: Entry(ROOT_ID, ROOT_ID, b"", Kind.DIRECTORY, Version(0, 10**18))
        }
        self._paths: dict[int, bytes] = {ROOT_ID: os.fsencode(f"{folder}/source")}
        self._children: dict[int, dict[bytes, Entry]] = {ROOT_ID: {}}
        self._asked: set[tuple[int, bytes]] = set()
        self._load(ROOT_ID)
        self.options: dict[str, Any] = {"ttl_s": 3600.0, "slow_s": 0.0, "miss": False}
        if os.path.exists(f"{folder}/options.json"):
            with open(f"{folder}/options.json") as file:
                self.options |= json.load(file)

    def _load(self, parent: FileId) -> None:
        path = self._paths[parent]
        for name in sorted(os.listdir(path)):
            child = path + b"/" + name
            status = os.lstat(child)
            is_directory = os.path.isdir(child)
            kind = Kind.DIRECTORY if is_directory else Kind.FILE
            version = Version(0 if is_directory else status.st_size, status.st_mtime_ns, f'"{status.st_ino}"')
            entry = Entry(FileId(status.st_ino & 0xFFFFFFFF | 1 << 32), parent, name, kind, version)
            self._entries[entry.id], self._paths[entry.id] = entry, child
            self._children[parent][name] = entry
            if is_directory:
                self._children[entry.id] = {}
                self._load(entry.id)

    def partial(self, id: FileId) -> str:
        path = f"{self.folder}/partial/{id:x}"
        fd = os.open(path, os.O_CREAT | os.O_RDWR)
        os.ftruncate(fd, self._entries[id].version.size_bytes)
        os.close(fd)
        return path

    def fill(self, id: FileId, block: int, cancel: Cancel | None) -> None:
        self._wait(cancel, "stuck")
        if os.path.exists(f"{self.folder}/broken"):
            raise OriginUnavailableError("fill", why="asked for by the test")
        with open(self._paths[id], "rb") as source, open(self.partial(id), "r+b") as target:
            data = os.pread(source.fileno(), BLOCK_SIZE_BYTES, block * BLOCK_SIZE_BYTES)
            os.pwrite(target.fileno(), data, block * BLOCK_SIZE_BYTES)
        self.filled.setdefault(id, set()).add(block)

    def _wait(self, cancel: Cancel | None, sign: str) -> None:
        """Wait as long as the state says, and as long as a file of that name is there."""
        limit_s = time.monotonic() + float(self.options["slow_s"])
        while time.monotonic() < limit_s or os.path.exists(f"{self.folder}/{sign}"):
            if cancel is not None and cancel.is_set():
                raise CancelledByUserError("a call of the client")
            time.sleep(0.005)

    def lookup_fast(self, parent: FileId, name: bytes) -> Entry | Miss | None:
        if name == b"main-thread-ends":
            self._end_main_thread()
        if self.options["miss"] and (parent, name) not in self._asked:
            return MISS
        return self._children.get(parent, {}).get(name)

    def _end_main_thread(self) -> None:
        """Once. The other threads go on: a process that was killed and can't end looks like that from outside."""
        with contextlib.suppress(FileExistsError):
            os.close(os.open(f"{self.folder}/ended", os.O_CREAT | os.O_EXCL))
            ctypes.CDLL(None).syscall(SYS_EXIT[os.uname().machine], 0)

    def lookup(self, parent: FileId, name: bytes, cancel: Cancel | None = None) -> Entry | None:
        self._wait(cancel, "stuck")
        self._asked.add((parent, name))
        return self._children.get(parent, {}).get(name)

    def entry(self, id: FileId) -> Entry | None:
        return self._entries.get(id)

    def name_ttl_s(self, parent: FileId) -> float:
        return float(self.options["ttl_s"])

    def listing_fresh(self, directory: FileId) -> bool:
        return not self.options["miss"]

    def ensure_listed(self, directory: FileId, cancel: Cancel | None = None) -> None:
        self._wait(cancel, "stuck")

    def children(self, directory: FileId, after: bytes = b"") -> Iterator[Entry]:
        children = self._children.get(directory, {})
        names = sorted(children)
        for name in names[bisect.bisect_right(names, after) :]:
            yield children[name]

    def complete_path(self, id: FileId) -> str | None:
        path = f"{self.folder}/cache/{id:x}"
        return path if os.path.exists(path) else None

    def open(self, id: FileId, cancel: Cancel | None = None) -> MemoryFile:
        if id not in self._entries:
            raise PathNotFoundError(f"{id:x}")
        if id in self._children:
            raise IsADirectoryPathError(f"{id:x}")
        self._wait(cancel, "stuck-opens")
        if self._entries[id].version.size_bytes <= SMALL_BYTES and not os.path.exists(f"{self.folder}/stuck"):
            self.complete(id)
        return MemoryFile(self, id)

    def complete(self, id: FileId) -> None:
        part = f"{self.folder}/cache/.{id:x}-{threading.get_native_id()}"
        with open(self._paths[id], "rb") as source, open(part, "wb") as target:
            target.write(source.read())
        os.rename(part, f"{self.folder}/cache/{id:x}")

    def touch(self, id: FileId, pid: int = 0) -> None:
        pass

    def acknowledge(self, receipt: int) -> None:
        pass

    def subscribe(
        self, on_event: Callable[[Any], None], *, on_subscribed: Callable[[], None] = lambda: None
    ) -> None:
        on_subscribed()
        threading.Thread(target=self._watch, args=(on_event,), daemon=True).start()

    def _watch(self, on_event: Callable[[Any], None]) -> None:
        """Orders of the test: files named `order-*` in the folder, JSON [kind, ids or names]; removed when
        done."""
        while True:
            for name in sorted(os.listdir(self.folder)):
                if name.startswith("order-"):
                    self._obey(f"{self.folder}/{name}", on_event)
            time.sleep(0.01)

    def _obey(self, path: str, on_event: Callable[[Any], None]) -> None:
        with open(path) as file:
            kind, ids = json.load(file)
        if kind == "complete":
            for id in ids:
                self.complete(FileId(id))
            on_event(Completed(ids=ids))
        elif kind == "evict":
            for id in ids:
                os.unlink(f"{self.folder}/cache/{id:x}")
            on_event(Evicted(ids=ids))
        elif kind == "replace":
            for id in ids:
                for block in list(self.filled[FileId(id)]):
                    self.fill(FileId(id), block, None)
            on_event(Evicted(ids=ids, damaged=True))
        elif kind == "rename":
            parent, old, new = ids[0], os.fsencode(ids[1]), os.fsencode(ids[2])
            children = self._children[parent]
            children[new] = msgspec.structs.replace(children.pop(old), name=new)
            on_event(Invalidated(names=[(parent, old), (parent, new)]))
        os.unlink(path)

    def file_state(self, id: FileId) -> dict[str, str]:
        token = self._entries[id].version.token
        return {"cached": "yes" if self.complete_path(id) else "no", "version": token, "origin": "memory://"}

    def statistics(self) -> tuple[int, int, int]:
        return 1 << 30, 1 << 29, len(self._entries)


def connect(folder: str) -> MemoryClient:
    return MemoryClient(folder)
