"""The merged tree of a host by path: what a program calls that has no mount, such as fsspec's `headrace://`.

Reads go to cache files and to the upper layer directly, and wait for the node where bytes or names are missing. Writes
go to the upper layer as those of a mount do (`sdk/merged_tree.py`), so that every mount of the host shows them and
the node persists them. All calls block; thread-safe, and safe after a fork. Foreign errors become ours here.

Paths are bytes, absolute (b"/a/b"). Symbolic links are followed within the namespace.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import weakref
from collections.abc import Callable
from typing import TypeVar

from headrace.base.beneath import NOREPLACE, SafePath
from headrace.base.errors import (
    IsADirectoryPathError,
    NotADirectoryPathError,
    NotSupportedError,
    PathExistsError,
    PathNotFoundError,
    StoreError,
)
from headrace.base.model import Kind
from headrace.base.write_modes import WriteMode, WriteModes
from headrace.overlay.durable_writes import DurableWrites
from headrace.overlay.upper import Upper, join, split
from headrace.sdk.lease_check import LeaseRequiredError
from headrace.sdk.merged_tree import FileStat, MergedTree, NeedsContentError, Owner
from headrace.sdk.node_client import NodeClient
from headrace.sdk.os_errors import read_only as _read_only
from headrace.sdk.os_errors import translating_os_errors as _told
from headrace.sdk.streams import WriteStream
from headrace.sdk.vfs_reader import VfsReader, is_directory

TELL_S_MAX = 5.0
COPIES_MAX = 10
"""So often what a change needs is copied up and gone again before it gives up."""

Result = TypeVar("Result")


class LocalVfs(VfsReader):
    """client: belongs to this from now on."""

    def __init__(self, client: NodeClient) -> None:
        tree = MergedTree(
            client, Upper(client.upper), WriteModes.parse(client.write), on_changed=self._changed
        )
        super().__init__(client, tree)
        self._to_wait_for: list[bytes] = []
        self.durable = DurableWrites(os.fsencode(client.upper), lambda: client.local.durable_puts)
        self._umask = _umask()
        alive = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _reset_after_fork(alive()))

    def close(self) -> None:
        """The node has heard what was written on return, if it is there; else it finds it by itself, later."""
        if self._pressure is not None:
            self._pressure.close()
        self.tree.upper.close()
        self.client.end_telling(TELL_S_MAX)
        self.client.close()

    # ------------------------------------------------------------ files

    def create(
        self,
        path: bytes,
        *,
        replace: bool,
        parents: bool = False,
        commits: bool = True,
        check: Callable[[FileStat | None], None] | None = None,
    ) -> WriteStream:
        """A new file that gets its name, whole, when it is closed. PathExistsError, now or then, when it may not
        replace what is there; ReadOnlyError, IsADirectoryPathError, PathNotFoundError for the folder. parents: folders
        above are made with it. commits: as of WriteStream. check: called with what the name is just before the file
        gets it, while nobody can change that; what it raises, `commit` raises, and nothing has changed."""
        whole = self._to_make(path, replace=replace, parents=parents)
        with _told(path):
            fd, made = self._new_file()
        return WriteStream(
            fd,
            os.fsdecode(path),
            finish=lambda fd: self._publish(fd, made, whole, replace=replace, parents=parents, check=check),
            abandon=lambda _: _unlink(made),
            commits=commits,
        )

    def append(self, path: bytes) -> WriteStream:
        """In place, as by a mount: others see what is written at once. What is abandoned is cut off again, unless
        somebody else has written behind it."""
        fd, whole, new = self.open_in_place(path, 0)
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
        begin = os.lseek(fd, 0, os.SEEK_END)

        def finish(fd: int) -> None:
            self.tell(whole, fd)

        def abandon(fd: int) -> None:
            with contextlib.suppress(FileNotFoundError):
                if new and os.fstat(fd).st_size <= os.lseek(fd, 0, os.SEEK_CUR):
                    self.remove(whole)
                elif os.fstat(fd).st_size <= os.lseek(fd, 0, os.SEEK_CUR):
                    os.ftruncate(fd, begin)
                    finish(fd)

        return WriteStream(fd, os.fsdecode(path), finish=finish, abandon=abandon)

    def open_in_place(self, path: bytes, flags: int) -> tuple[int, bytes, bool]:
        """A descriptor for reading and writing, where the path leads, and whether the file is new. flags: O_EXCL,
        O_TRUNC. Who has written calls `tell`. Errors as of create."""
        whole, _ = self.find(path)
        self.check_writable(whole)
        owner = Owner(os.geteuid(), os.getegid())
        mode = 0o666 & ~self._umask
        fd, new = self._change(path, lambda: self.tree.create(whole, mode, owner, flags), flush=False)
        return fd, whole, new

    def tell(self, path: bytes, fd: int | None = None) -> None:
        """A file was written in place: the node hears of it; in mode `through` the origin has it on return.
        fd: by which it was written, where the disk is to have it, too; None: the caller syncs what must be."""
        if fd is not None:
            self._write_back(fd, path)
        self._change(path, lambda: self._changed([path]), flush=fd is not None)
        self._slow()

    def sync_names(self, path: bytes) -> None:
        """What was made, renamed and removed in a directory here survives a power loss on return."""
        whole, found = self.get(path)
        if isinstance(found, os.stat_result):
            with _told(path):
                self.tree.upper.at(whole).sync()

    def copy(self, source: bytes, target: bytes, *, parents: bool = False) -> None:
        """A file's bytes, by the kernel; the target is replaced whole, or not at all. parents: as of create."""
        content = self.content(source)
        try:
            with self.create(target, replace=True, parents=parents) as stream, _told(target):
                content.copy_to(stream.fileno())
        finally:
            content.close()

    def dress(self, path: bytes, work: Callable[[int], object]) -> None:
        """work: changes attributes of a file that is there, by a descriptor. It is put to its origin anew."""
        whole, _ = self.get(path)
        self._change(path, lambda: self._dress(whole, work))

    def _dress(self, path: bytes, work: Callable[[int], object]) -> None:
        fd = self.tree.at_upper(path).open(os.O_RDONLY | os.O_NONBLOCK)
        try:
            work(fd)
        finally:
            os.close(fd)
        self._changed([path])

    def touch(self, path: bytes) -> None:
        """The time of modification is now; the file must be there."""
        self.alter(path, os.utime)

    def alter(self, path: bytes, work: Callable[[bytes], object]) -> None:
        """Mode, owner, times or attributes of what is there. work: called with a path for plain calls, which reach that
        and nothing else, under the layer's lock."""
        whole, _ = self.get(path)

        def change() -> None:
            with self.tree.at_upper(whole).pinned() as pin:
                work(pin.proc_path)
            self._changed([whole])

        self._change(path, change)

    def _to_make(self, path: bytes, *, replace: bool, parents: bool) -> bytes:
        """Says beforehand what would fail at the end."""
        whole, found = self.find(path)
        if found is not None and not replace:
            raise PathExistsError(os.fsdecode(path), why="it is there already")
        if found is not None and is_directory(found):
            raise IsADirectoryPathError(os.fsdecode(path), why="it is a directory")
        self.check_writable(whole)
        above = split(whole)[0]
        while (there := self.find(above)[1]) is None and parents:
            above = split(above)[0]
        if there is None:
            raise PathNotFoundError(os.fsdecode(above), why="no such file or directory")
        if not is_directory(there):
            raise NotADirectoryPathError(os.fsdecode(above), why="it is no directory")
        return whole

    def check_writable(self, path: bytes) -> None:
        """ReadOnlyError where the settings let nothing be written."""
        self._heed_modes()
        if self.tree.modes.of(path) is WriteMode.OFF:
            raise _read_only(os.fsdecode(path))

    def _new_file(self) -> tuple[int, SafePath | None]:
        """A file without a name, of which nothing stays when this process dies; where the file system has none such,
        one with a name in `work`, which is the second value."""
        with contextlib.suppress(OSError):
            return self.tree.upper.work.at(b"/").open(os.O_RDWR | os.O_TMPFILE), None
        made = self.tree.upper.new()
        return made.open(os.O_RDWR | os.O_CREAT | os.O_EXCL), made

    def _publish(
        self,
        fd: int,
        made: SafePath | None,
        path: bytes,
        *,
        replace: bool,
        parents: bool,
        check: Callable[[FileStat | None], None] | None,
    ) -> None:
        def put() -> None:
            if check is not None:
                check(self.tree.seen(path))
            self.tree.put_file(named, path, replace=replace)

        named = made or self.tree.upper.new()
        try:
            with _told(path):
                if made is None:
                    named.name_open(fd)
                self._write_back(fd, path)
            for attempt in range(COPIES_MAX):
                if parents:
                    self._make_directories(split(path)[0], flush=False)
                self.find(path)  # the index is fresh: what came to the origin meanwhile is replaced, or not
                try:
                    self._change(path, put)
                    break
                except PathNotFoundError:  # somebody removed the folder that was just made, as it was empty
                    if not parents or attempt + 1 == COPIES_MAX:
                        raise
        except BaseException:
            _unlink(named)
            raise
        self._slow()

    # ------------------------------------------------------------ names

    def make_directory(self, path: bytes) -> None:
        """PathExistsError, PathNotFoundError for the folder above."""
        self._make_directory(path, flush=True)

    def _make_directory(self, path: bytes, *, flush: bool) -> None:
        whole, found = self.find(path)
        if found is not None:
            raise PathExistsError(os.fsdecode(path), why="it is there already")
        self.check_writable(whole)
        self.get(split(whole)[0])
        self._make_checked(whole, flush=flush)

    def _make_checked(self, path: bytes, *, flush: bool) -> None:
        owner, mode = Owner(os.geteuid(), os.getegid()), 0o777 & ~self._umask
        self._change(path, lambda: self.tree.make_directory(path, mode, owner), flush=flush)

    def make_directories(self, path: bytes) -> None:
        """With those above; those that are there are let be. NotADirectoryPathError."""
        self._make_directories(path, flush=True)

    def _make_directories(self, path: bytes, *, flush: bool) -> None:
        missing: list[bytes] = []
        whole, found = self.find(path)
        while found is None and whole != b"/":
            missing.append(whole)
            whole, found = self.find(split(whole)[0])
        if found is not None and not is_directory(found):
            raise PathExistsError(os.fsdecode(path), why="it is there, and is no directory")
        make = self._make_directory
        while missing:
            directory = missing.pop()
            try:
                make(directory, flush=flush and not missing)
                make = self._make_checked  # within a new one neither an origin nor anybody else has anything
            except PathExistsError:  # somebody was faster
                if not is_directory(self.get(directory)[1]):
                    raise

    def remove(self, path: bytes) -> None:
        """A file, or a link. IsADirectoryPathError."""
        self._remove(path, wait=True)

    def remove_directory(self, path: bytes) -> None:
        """DirectoryNotEmptyError."""
        self._remove_directory(path, wait=True)

    def remove_all(self, path: bytes) -> None:
        """With all that is in it; in mode `through` the origin is waited for once."""
        whole, found = self.get(path, follow=False)
        self.check_writable(whole)
        self._check_not_the_root(whole)
        self._remove_all(whole, found)
        self._settle([whole])

    @staticmethod
    def _check_not_the_root(path: bytes) -> None:
        if path == b"/":
            raise NotSupportedError("/", why="the root stays where it is", hint="name what is in it")

    def _remove_all(self, path: bytes, found: FileStat) -> None:
        if not is_directory(found):
            self._remove(path, wait=False)
            return
        folders, pending = [], [path]
        while pending:
            folder = pending.pop()
            folders.append(folder)
            with contextlib.suppress(PathNotFoundError):
                for name, one in list(self.children(folder)):
                    if is_directory(one):
                        pending.append(join(folder, name))
                    else:
                        with contextlib.suppress(PathNotFoundError):
                            self._remove(join(folder, name), wait=False)
        for folder in reversed(folders[1:]):
            with contextlib.suppress(PathNotFoundError):
                self._remove_directory(folder, wait=False)
        self._remove_directory(path, wait=False)

    def _remove(self, path: bytes, *, wait: bool) -> None:
        whole, _ = self.get(path, follow=False)
        self._change(path, lambda: self.tree.remove(whole), wait=wait)

    def _remove_directory(self, path: bytes, *, wait: bool) -> None:
        whole, _ = self.get(path, follow=False)
        self._check_not_the_root(whole)
        self._list_below(whole)
        self._change(path, lambda: self.tree.remove_directory(whole), wait=wait)

    def _list_below(self, path: bytes) -> None:
        below = self._below(path)
        if below is not None and below.kind is Kind.DIRECTORY and not self.client.listing_fresh(below.id):
            self.client.ensure_listed(below.id)

    def rename(self, source: bytes, target: bytes, *, replace: bool = True) -> None:
        """Over a file, or an empty folder, that is there; PathExistsError unless `replace`. NotSupportedError between
        mounts, between modes of writing, and for a folder of more names than tree.MOVED_NAMES_MAX that only its origin
        has."""
        old, _ = self.get(source, follow=False)
        new, _ = self.find(target, follow=False)
        self.check_writable(new)
        for one in (old, new):
            self._check_not_the_root(one)
        copied = False

        def copy(_: NeedsContentError) -> None:
            nonlocal copied
            self.tree.copy_up_all(old, None)
            self._list_below(new)
            copied = True

        self._change(
            source, lambda: self.tree.rename(old, new, 0 if replace else NOREPLACE, copied=copied), copy
        )

    # ------------------------------------------------------------ changes

    def _change(
        self,
        path: bytes,
        work: Callable[[], Result],
        copy: Callable[[NeedsContentError], None] | None = None,
        *,
        wait: bool = True,
        flush: bool = True,
    ) -> Result:
        """The work, under the layer's lock, after what it needs was copied up; on return the disk has it
        (`durable_puts`), if `flush`, and the origin in mode `through`. Neither, unless `wait`: the caller settles."""
        self._heed_modes()
        if not self.tree.modes.any:  # there is no layer, and no lock of it
            raise _read_only(os.fsdecode(path))
        for _ in range(COPIES_MAX):
            try:
                with _told(path):
                    with self.tree.lock:
                        self._to_wait_for = []
                        result = work()
                        paths, self._to_wait_for = self._to_wait_for, []
                    break
            except NeedsContentError as needs:
                with _told(path):
                    if copy is not None:
                        copy(needs)
                    else:
                        self.tree.copy_up(needs.path, None, content=needs.content)
            except LeaseRequiredError as needs:
                self.client.claim(needs.folder)
        else:
            raise StoreError(os.fsdecode(path), why="it changes again and again", hint="try again")
        if wait:
            self._settle(paths, flush=flush)
        return result

    def _changed(self, paths: list[bytes]) -> None:
        """The lock is held."""
        self.client.changed(paths)
        self._to_wait_for += paths

    def _stays_here(self, path: bytes) -> bool:
        """Whether it is answered before an origin has it. For one that has it, the node flushed its disk before."""
        return self.tree.modes.of(path) is not WriteMode.THROUGH

    def _write_back(self, fd: int, path: bytes) -> None:
        """A file's bytes are on their way to the disk before it has its name, so that no power loss shows a part."""
        if self._stays_here(path):
            with _told(path):
                self.durable.write_back(fd)

    def _settle(self, paths: list[bytes], *, flush: bool = True) -> None:
        if flush and any(map(self._stays_here, paths)):
            with _told(paths[0]):
                self.durable.flush()
        for path in paths:
            if self.tree.modes.waits(path) or not self.tree.other_nodes.know(path):
                self.client.secure(path)

    def _slow(self) -> None:
        """Persisting is behind: who makes a file waits for a moment."""
        if self._pressure is not None and self._pressure.pause_s:
            time.sleep(self._pressure.pause_s)


def _unlink(made: SafePath | None) -> None:
    if made is not None:
        with contextlib.suppress(FileNotFoundError):
            made.unlink()


def _umask() -> int:
    """Of this process. Only setting it would tell it otherwise, and that is seen by other threads."""
    with open("/proc/self/status", "rb") as status:
        for line in status:
            if line.startswith(b"Umask:"):
                return int(line.split()[1], 8)
    return 0o022


def _reset_after_fork(paths: LocalVfs | None) -> None:
    if paths is not None:
        paths.tree.lock.reset_after_fork()
        paths.durable.reset_after_fork()
