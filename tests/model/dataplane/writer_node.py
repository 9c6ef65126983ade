"""A node that writes and a session of it, in one process, over an origin that is slow, fails, and loses answers.

The session runs in a thread of its own: it waits for the node only where a real one does. It is a plain folder to who
calls it, but for what the kernel sees to: a path is looked up name by name before anything is asked of the tree.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from headrace.base.cancel import Cancel
from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError, OriginUnavailableError, StaleIdError
from headrace.base.model import Entry, FileId, Kind, Version
from headrace.base.namespace_path import join, split
from headrace.base.write_modes import WriteModes
from headrace.namespace.mounts import Mount, MountTable
from headrace.namespace.namespace import Namespace
from headrace.node.writing import WriteBackSettings, WriteState, build_write_back
from headrace.origin.local import LocalOrigin, version_of
from headrace.origin.origin import ListPage
from headrace.origin.wrapper import CallName, Result, WrapperOrigin
from headrace.overlay.copy_up import NeedsContentError
from headrace.overlay.merged_listing import merge_listing
from headrace.overlay.merged_tree import MergedTree, Owner
from headrace.overlay.merged_view import FileStat
from headrace.overlay.upper import Upper
from headrace.store.index import Index
from headrace.writeback.sync_journal import SyncJournal
from headrace.writeback.writable_layer import WritableLayer
from headrace.writeback.write_ahead import WriteAhead
from tests.plain_paths import plain

LIMIT_S = 60.0
NEVER_S = 3600.0
RETRY_S = 0.05
"""How long a failed path waits at most, as the origins of these tests fail often."""
COPIES_MAX = 20
Answer = TypeVar("Answer")


class FlakyLocalOrigin(WrapperOrigin):
    """A directory behind a bad network. `failing` is the share of calls that fail, before or after they take place;
    reads never do."""

    def __init__(self, folder: str, chance: random.Random, *, failing: float, slow_s: float) -> None:
        super().__init__(LocalOrigin(folder))
        self._chance = chance
        self.failing = failing
        self._slow_s = slow_s

    async def _delay_or_fail(self, key: str) -> None:
        if self._chance.random() < 0.7:
            await asyncio.sleep(self._chance.random() * self._slow_s)
        if self._chance.random() < self.failing:
            raise OriginUnavailableError(key, why="the test says so")

    async def _forward(
        self, name: CallName, key: str, deadline: Deadline, call: Callable[[], Awaitable[Result]]
    ) -> Result:
        if name == "read":
            return await call()
        await self._delay_or_fail(key)
        result = await call()
        await self._delay_or_fail(key)
        return result

    async def list_directory(self, key: str, *, deadline: Deadline) -> AsyncIterator[ListPage]:
        await self._delay_or_fail(key)
        async for page in super().list_directory(key, deadline=deadline):
            await asyncio.sleep(self._chance.random() * self._slow_s * 5)
            yield page


class NodeFixture:
    """A node as its start builds it, over the directory that earlier nodes left."""

    def __init__(self, folder: str, truth: str, chance: random.Random, *, modes: str = "back") -> None:
        self.loop = asyncio.get_running_loop()
        self.truth = truth
        self.chance = chance
        self.origin = FlakyLocalOrigin(
            truth, chance, failing=chance.choice([0, 0, 0.05, 0.2]), slow_s=chance.choice([0.0, 0.002, 0.01])
        )
        mounts = MountTable()
        self.index = open_index(f"{folder}/index")
        self.namespace = Namespace.build(self.index, mounts, timeout_s=20, on_changed=self._names_changed)
        self.upper = Upper(f"{folder}/upper")
        os.makedirs(f"{folder}/upper", mode=0o700, exist_ok=True)
        self.upper.make()
        self.modes = WriteModes.parse(modes)
        self.threads = ThreadPoolExecutor(8)
        journal = SyncJournal(f"{folder}/upper/known.db")
        write_ahead = WriteAhead(journal.sync, self.threads)
        layer = WritableLayer(self.upper, journal, self.modes, write_ahead, self.threads)
        self.write = build_write_back(
            WriteState.of(self.namespace, layer),
            WriteBackSettings(
                delay_s=chance.choice([0, 0.002, 0.02]),
                timeout_s=20,
                layer_bytes_max=chance.choice([0, 1 << 30]),
            ),
            [],
        )
        self.namespace.mount_points.attach(
            Mount("/", self.origin.url, self.origin, chance.choice([0.001, NEVER_S, NEVER_S])), known=True
        )

    def _names_changed(self, names: list[tuple[FileId, bytes]]) -> None:
        self.write.names_changed(self.namespace.tree.paths_of(names))

    def ask(self, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """Let the node do the work, and wait for it in the session's thread."""

        async def run() -> Answer:
            return await work()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(LIMIT_S)

    async def look_around(self) -> None:
        """Others list folders meanwhile; and the layer is looked over."""
        while self.chance.random() < 0.95:
            await asyncio.sleep(self.chance.random() * 0.02)
            with contextlib.suppress(HeadraceError):
                await self.namespace.listings.refresh_listed(
                    self.chance.choice([b"/", b"/", b"/a", b"/a/a", b"/b"])
                )
            if self.chance.random() < 0.1:
                await self.write.rescan()

    async def settle(self) -> None:
        """All is persisted, and listed anew, on return."""
        self.origin.failing = 0.0
        with contextlib.suppress(OriginUnavailableError):  # of an answer that is lost only now
            await asyncio.wait_for(self.write.persist(b"/"), LIMIT_S)
        self.namespace.changes.expire(b"/")
        await self.namespace.listings.relist_below(b"/")
        await asyncio.wait_for(self.write.persist(b"/"), LIMIT_S)

    async def stop(self) -> None:
        await self.write.stop()
        await self.origin.close()
        self.index.close(clean=False)


def open_index(folder: str) -> Index:
    index = Index.open(folder, writable=True)
    index.state.checkpoint()
    return index


class OfTheOrigin:
    """A file that only the origin has: the bytes of the version that the index names, or ESTALE."""

    def __init__(self, path: str, version: Version) -> None:
        self._version = version
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise OSError(errno.ESTALE, "it is gone") from error

    def wait(self, start: int, end: int, cancel: Cancel | None = None) -> int:
        if version_of(os.fstat(self._file)) != self._version:
            raise OSError(errno.ESTALE, "another version")
        return self._file

    def close(self) -> None:
        os.close(self._file)


class StaleFolderError(OSError):
    """The kernel looks its path up again then."""


class Lower:
    """The session's side of the index."""

    def __init__(self, here: NodeFixture) -> None:
        self._here = here
        self._index = here.index

    def lookup_stale(self, parent: FileId, name: bytes) -> Entry | None:
        return self._index.lookup(parent, name)

    def entry(self, id: FileId) -> Entry | None:
        return self._index.entry(id)

    def children(self, directory: FileId, after: bytes = b"") -> Iterator[Entry]:
        return self._index.children(directory, after=after)

    def ensure_listed(self, directory: FileId, cancel: Cancel | None = None) -> None:
        for _ in range(COPIES_MAX):
            try:
                self._here.ask(lambda: self._here.namespace.listings.list(directory))
                return
            except OriginUnavailableError:
                continue
            except StaleIdError as error:
                raise StaleFolderError(errno.ESTALE, "no such folder any more") from error
        raise OSError(errno.EHOSTUNREACH, "the origin is away")

    def listing_fresh(self, directory: FileId) -> bool:
        return self._here.ask(lambda: _as_awaitable(self._here.namespace.tree.is_fresh(directory)))

    def mount_of(self, path: bytes) -> str:
        return "/"

    def key_fits(self, path: bytes) -> bool:
        return True

    def open(self, id: FileId, cancel: Cancel | None = None) -> OfTheOrigin:
        entry, path = self._index.entry(id), self._index.path_of(id)
        if entry is None or path is None:
            raise OSError(errno.ESTALE, "no such id")
        return OfTheOrigin(self._here.truth + os.fsdecode(path), entry.version)


async def _as_awaitable(value: Answer) -> Answer:
    return value


class Session:
    """Is what a program sees. All calls block, and raise OSErrors as of a plain folder."""

    def __init__(self, here: NodeFixture) -> None:
        self._here = here
        self._lower = Lower(here)
        self._upper = Upper(os.path.dirname(os.fsdecode(here.upper.tree.path)))
        self._tree = MergedTree(self._lower, self._upper, here.modes, on_changed=self._changed)
        self._tree.take_umask()
        self._owner = Owner(0, 0)
        self._held: list[int] = []

    def _changed(self, paths: list[bytes]) -> None:
        delay_s = self._here.chance.choice([0.0, 0.0, 0.003])
        batch = list(paths)
        loop = self._here.loop
        loop.call_soon_threadsafe(lambda: loop.call_later(delay_s, self._here.write.changed, batch, 1))

    # ------------------------------------------------------------ looking

    def look(self, path: bytes) -> FileStat | None:
        """Look a path up as the kernel does, name by name."""
        status: FileStat | None = None
        prefix = b"/"
        parts = [part for part in path.split(b"/") if part]
        for number, name in enumerate(parts):
            self._listed(prefix)
            prefix = join(prefix, name)
            with self._tree.lock:
                status = self._tree.view.lookup(prefix)
            if status is None and number + 1 < len(parts):
                raise OSError(errno.ENOENT, "no such folder")
            if number + 1 < len(parts) and not is_directory(status):
                raise OSError(errno.ENOENT if is_link(status) else errno.ENOTDIR, "no folder")
        return status

    def _listed(self, folder: bytes) -> None:
        for _ in range(COPIES_MAX):
            entry = self._tree.view.lookup_lower(folder)
            if entry is None or entry.kind is not Kind.DIRECTORY or self._lower.listing_fresh(entry.id):
                return
            with contextlib.suppress(StaleFolderError):
                self._lower.ensure_listed(entry.id)
                return
        raise OSError(errno.ESTALE, "again and again")

    def tree(self) -> dict[str, str]:
        """Path → "dir", "link", or the bytes of a file as hex."""
        tree: dict[str, str] = {}
        pending = [b"/"]
        while pending:
            folder = pending.pop()
            for name, status in self._names(folder):
                path = join(folder, name)
                if is_directory(status):
                    tree[os.fsdecode(path)] = "dir"
                    pending.append(path)
                elif isinstance(status, os.stat_result) and stat.S_ISLNK(status.st_mode):
                    tree[os.fsdecode(path)] = "link"
                else:
                    tree[os.fsdecode(path)] = self.read(path).hex()
        return tree

    def _names(self, folder: bytes) -> list[tuple[bytes, FileStat]]:
        self._listed(folder)
        with self._tree.lock:
            entry = self._tree.view.lookup_lower(folder)
            children = (
                iter(())
                if entry is None or entry.kind is not Kind.DIRECTORY
                else self._lower.children(entry.id)
            )
            rows = [
                (n, self._tree.view.lookup(join(folder, n)))
                for n, _ in merge_listing(self._tree.view.names(folder), children)
            ]
        return [(name, status) for name, status in rows if status is not None]

    def read(self, path: bytes) -> bytes:
        for _ in range(COPIES_MAX):
            status = self.look(path)
            if status is None:
                raise OSError(errno.ENOENT, "nothing there")
            if is_directory(status) or is_link(status):
                raise OSError(errno.EISDIR if is_directory(status) else errno.ELOOP, "no file")
            try:
                if not isinstance(status, Entry):
                    with open(plain(self._upper.at(path)), "rb") as file:
                        return file.read()
                return self._read_below(path, status.version)
            except OSError as error:
                if error.errno not in (errno.ESTALE, errno.ENOENT):
                    raise
                self._look_again(path)
        raise OSError(errno.ESTALE, "again and again")

    def _read_below(self, path: bytes, version: Version) -> bytes:
        file = OfTheOrigin(self._here.truth + os.fsdecode(path), version)
        try:
            return os.pread(file.wait(0, version.size_bytes), version.size_bytes, 0)
        finally:
            file.close()

    def _look_again(self, path: bytes) -> None:
        """The index is behind the origin, as a fill finds out by If-Match."""
        self._here.ask(lambda: _quietly(self._here.namespace.listings.refresh_listed(split(path)[0])))

    # ------------------------------------------------------------ changing

    def change(self, work: Callable[[], Answer], *paths: bytes) -> Answer:
        for path in paths:
            self.look(path)
        for _ in range(COPIES_MAX):
            try:
                with self._tree.lock:
                    return work()
            except NeedsContentError as needs:
                try:
                    self._tree.copies.copy_up(needs.path, None, content=needs.content)
                except OSError as error:
                    if error.errno != errno.ESTALE:
                        raise
                    self._look_again(needs.path)
        raise OSError(errno.ESTALE, "again and again")

    def put_bytes(self, path: bytes, data: bytes, flags: int, *, hold: bool = False) -> None:
        """flags: O_TRUNC or O_APPEND, O_EXCL."""
        status = self.look(path)
        if is_link(status):
            raise OSError(errno.ELOOP, "a link")
        fd, _ = self.change(lambda: self._created(path, flags), path)
        try:
            if flags & os.O_APPEND:
                os.lseek(fd, 0, os.SEEK_END)
            os.write(fd, data)
        finally:
            if hold:
                self._held.append(os.dup(fd))
            os.close(fd)
        self._changed([path])

    def _created(self, path: bytes, flags: int) -> tuple[int, bool]:
        fd, new = self._tree.create(path, 0o644, self._owner, flags & ~os.O_APPEND)
        self._changed([path])
        return fd, new

    def write_held(self, data: bytes) -> int:
        """Into a file that was held open, wherever it is by now: its inode number; 0: none is."""
        if not self._held:
            return 0
        fd = self._held.pop(0)
        os.pwrite(fd, data, 0)
        inode = os.fstat(fd).st_ino
        self._changed([path for path, status in self._upper.walk() if status.st_ino == inode])
        os.close(fd)
        return inode

    def drop_held(self) -> None:
        while self._held:
            os.close(self._held.pop())

    def truncate(self, path: bytes, size: int) -> None:
        status = self.look(path)
        if status is None:
            raise OSError(errno.ENOENT, "nothing there")
        if is_directory(status):
            raise OSError(errno.EISDIR, "a folder")
        if is_link(status):
            raise OSError(errno.ELOOP, "a link")
        fd = self.change(lambda: self._tree.open(path, 0), path)
        os.ftruncate(fd, size)
        os.close(fd)
        self._changed([path])

    def replace(self, path: bytes, data: bytes) -> None:
        """Replace a file as fsspec's door does: a file of `work` gets the name."""
        self.look(path)
        source = self._upper.new()
        with open(source.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.write(data)
        try:
            self.change(lambda: self._tree.put_file(source, path, replace=True), path)
        except OSError:
            source.unlink()
            raise

    def chmod(self, path: bytes, mode: int) -> None:
        if self.look(path) is None:
            raise OSError(errno.ENOENT, "nothing there")
        self.change(lambda: self._tree.at_upper(path).chmod(mode), path)
        self._changed([path])

    def mkdir(self, path: bytes) -> None:
        self.change(lambda: self._tree.make_directory(path, 0o755, self._owner), path)

    def symlink(self, path: bytes) -> None:
        self.change(lambda: self._tree.symlink(path, b"nowhere", self._owner), path)

    def unlink(self, path: bytes) -> None:
        self.change(lambda: self._tree.remove(path), path)

    def rmdir(self, path: bytes) -> None:
        status = self.look(path)
        if status is not None and is_directory(status):
            self._listed(path)
        self.change(lambda: self._tree.remove_directory(path), path)

    def rename(self, source: bytes, target: bytes, flags: int) -> None:
        """Rename as the kernel's session does: at once, or after a copy of all that is in it."""
        self.look(split(target)[0])
        if self.look(source) is None:
            raise OSError(errno.ENOENT, "nothing there")
        if source == target:
            return
        if target.startswith(source + b"/"):
            raise OSError(errno.EINVAL, "into itself")
        there = self.look(target)
        if source.startswith(target + b"/"):
            raise OSError(errno.ENOTEMPTY, "over its own parent")
        if flags & 2 and there is None:
            raise OSError(errno.ENOENT, "nothing there")
        for _ in range(COPIES_MAX):
            try:
                with self._tree.lock:
                    self._tree.rename(source, target, flags, copied=False)
                    return
            except NeedsContentError:
                pass
            try:
                for path in (source, target) if flags & 2 else (source,):
                    self._tree.copies.copy_up_all(path, None)
                self._listed(target)
                with self._tree.lock:
                    self._tree.rename(source, target, flags, copied=True)
                    return
            except NeedsContentError:
                continue
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise
                self._look_again(source)
                self._look_again(target)
        raise OSError(errno.ESTALE, "again and again")


def is_directory(status: FileStat | None) -> bool:
    if isinstance(status, Entry):
        return status.kind is Kind.DIRECTORY
    return status is not None and stat.S_ISDIR(status.st_mode)


def is_link(status: FileStat | None) -> bool:
    return isinstance(status, os.stat_result) and stat.S_ISLNK(status.st_mode)


async def _quietly(call: Awaitable[None]) -> None:
    try:
        await call
    except HeadraceError:
        pass
