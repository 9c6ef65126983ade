"""Provide the merged tree of a host by path, for programs that use no mount, such as fsspec's `headrace://`.

Reads go to cache files and to the upper layer directly, and wait for the node if bytes or names are missing. Writes
go to the upper layer as those of a mount do (`overlay/merged_tree.py`), so that every mount of the host shows them and
the node persists them. All calls block. They are thread-safe, and safe after a fork. They raise HeadraceError in
place of the operating system's errors.

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
from headrace.base.os_errors import read_only as _read_only
from headrace.base.os_errors import translating_os_errors
from headrace.base.write_modes import WriteMode, WriteModes
from headrace.client.node_client import NodeClient
from headrace.overlay.durable_writes import DurableWrites
from headrace.overlay.lease_check import LeaseRequiredError
from headrace.overlay.merged_tree import FileStat, MergedTree, NeedsContentError, Owner
from headrace.overlay.upper import Upper, join, split
from headrace.vfs.streams import WriteStream
from headrace.vfs.vfs_reader import VfsReader, is_directory

TELL_S_MAX = 5.0
COPIES_MAX = 10
"""How often a change copies up a file that disappears again before it fails."""

Result = TypeVar("Result")


class LocalVfs(VfsReader):
    """Reads and changes the namespace of this host's node. client: owned by this object."""

    def __init__(self, client: NodeClient) -> None:
        tree = MergedTree(
            client, Upper(client.upper), WriteModes.parse(client.write), on_changed=self._changed
        )
        super().__init__(client, tree)
        self._unsettled: list[bytes] = []
        self.durable = DurableWrites(os.fsencode(client.upper), lambda: client.local.durable_puts)
        self._umask = _umask()
        alive = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _reset_after_fork(alive()))

    def close(self) -> None:
        """Report the last changes and close the client. A node that does not answer in time finds the changes later,
        by itself."""
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
        is_broken_off: Callable[[], bool] = lambda: False,
        check: Callable[[FileStat | None], None] | None = None,
    ) -> WriteStream:
        """Create a file that appears under its name, complete, when the stream is closed. Raise PathExistsError, at
        once or at close, if it may not replace an existing path; ReadOnlyError, IsADirectoryPathError, or
        PathNotFoundError for the directory.

        parents: create missing directories above it. commits, is_broken_off: as for WriteStream. check: called with
        the stat of the name just before the file gets it, while no process can change it. If it raises, `commit`
        raises that error and nothing has changed."""
        real_path = self._new_path(path, replace=replace, parents=parents)
        with translating_os_errors(path):
            fd, temp_path = self._new_file()
        return WriteStream(
            fd,
            os.fsdecode(path),
            finish=lambda fd: self._publish(
                fd, temp_path, real_path, replace=replace, parents=parents, check=check
            ),
            abandon=lambda _: _unlink(temp_path),
            commits=commits,
            is_broken_off=is_broken_off,
        )

    def append(self, path: bytes, *, is_broken_off: Callable[[], bool] = lambda: False) -> WriteStream:
        """Append to a file in place, as a mount does: other readers see the bytes at once. If the stream is
        abandoned, its bytes are cut off again, unless another writer appended after them."""
        fd, real_path, is_new = self.open_in_place(path, 0)
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
        size_before = os.lseek(fd, 0, os.SEEK_END)

        def finish(fd: int) -> None:
            self.tell(real_path, fd)

        def abandon(fd: int) -> None:
            with contextlib.suppress(FileNotFoundError):
                if is_new and os.fstat(fd).st_size <= os.lseek(fd, 0, os.SEEK_CUR):
                    self.remove(real_path)
                elif os.fstat(fd).st_size <= os.lseek(fd, 0, os.SEEK_CUR):
                    os.ftruncate(fd, size_before)
                    finish(fd)

        return WriteStream(fd, os.fsdecode(path), finish=finish, abandon=abandon, is_broken_off=is_broken_off)

    def open_in_place(self, path: bytes, flags: int) -> tuple[int, bytes, bool]:
        """Open the file to which a path leads. Return a descriptor for reads and writes, the real path, and whether
        the file is new. flags: O_EXCL, O_TRUNC. The caller calls `tell` after its writes. Raise the errors of create.
        """
        real_path, _ = self.find(path)
        self.check_writable(real_path)
        owner = Owner(os.geteuid(), os.getegid())
        mode = 0o666 & ~self._umask
        fd, new = self._change(path, lambda: self.tree.create(real_path, mode, owner, flags), flush=False)
        return fd, real_path, new

    def tell(self, path: bytes, fd: int | None = None) -> None:
        """Report to the node that a file was written in place; in mode `through` the origin has it on return. fd: the
        descriptor that was written, to make its bytes durable too; None: the caller syncs them if it needs to."""
        if fd is not None:
            self._write_back(fd, path)
        self._change(path, lambda: self._changed([path]), flush=fd is not None)
        self._throttle()

    def sync_names(self, path: bytes) -> None:
        """Make creations, renames and removals in a directory of the upper layer durable."""
        real_path, stat = self.get(path)
        if isinstance(stat, os.stat_result):
            with translating_os_errors(path):
                self.tree.upper.at(real_path).sync()

    def copy(self, source: bytes, target: bytes, *, parents: bool = False) -> None:
        """Copy a file's bytes in the kernel; the target is replaced completely or not at all. parents: as in create."""
        content = self.content(source)
        try:
            with self.create(target, replace=True, parents=parents) as stream, translating_os_errors(target):
                content.copy_to(stream.fileno())
        finally:
            content.close()

    def dress(self, path: bytes, work: Callable[[int], object]) -> None:
        """Change the attributes of an existing file, which is then uploaded again. work: called with a descriptor."""
        real_path, _ = self.get(path)
        self._change(path, lambda: self._apply_to_fd(real_path, work))

    def _apply_to_fd(self, path: bytes, work: Callable[[int], object]) -> None:
        fd = self.tree.at_upper(path).open(os.O_RDONLY | os.O_NONBLOCK)
        try:
            work(fd)
        finally:
            os.close(fd)
        self._changed([path])

    def touch(self, path: bytes) -> None:
        """Set the modification time of an existing file to now."""
        self.alter(path, os.utime)

    def alter(self, path: bytes, work: Callable[[bytes], object]) -> None:
        """Change mode, owner, times or attributes of an existing path. work: called under the layer's lock with a
        path for plain system calls, which reaches only that file."""
        real_path, _ = self.get(path)

        def change() -> None:
            with self.tree.at_upper(real_path).pinned() as pin:
                work(pin.proc_path)
            self._changed([real_path])

        self._change(path, change)

    def _new_path(self, path: bytes, *, replace: bool, parents: bool) -> bytes:
        """Return the real path of a new file. Raise in advance the errors that would occur at the end."""
        real_path, stat = self.find(path)
        if stat is not None and not replace:
            raise PathExistsError(os.fsdecode(path), why="the path already exists")
        if stat is not None and is_directory(stat):
            raise IsADirectoryPathError(os.fsdecode(path), why="it is a directory")
        self.check_writable(real_path)
        parent = split(real_path)[0]
        while (parent_stat := self.find(parent)[1]) is None and parents:
            parent = split(parent)[0]
        if parent_stat is None:
            raise PathNotFoundError(os.fsdecode(parent), why="no such file or directory")
        if not is_directory(parent_stat):
            raise NotADirectoryPathError(os.fsdecode(parent), why="it is not a directory")
        return real_path

    def check_writable(self, path: bytes) -> None:
        """Raise ReadOnlyError if the settings forbid writes at a path."""
        self._heed_modes()
        if self.tree.modes.of(path) is WriteMode.OFF:
            raise _read_only(os.fsdecode(path))

    def _new_file(self) -> tuple[int, SafePath | None]:
        """Create a file without a name, of which nothing remains when this process dies. If the file system does not
        support that, create a named one in `work`; the second value is its path."""
        with contextlib.suppress(OSError):
            return self.tree.upper.work.at(b"/").open(os.O_RDWR | os.O_TMPFILE), None
        temp_path = self.tree.upper.new()
        return temp_path.open(os.O_RDWR | os.O_CREAT | os.O_EXCL), temp_path

    def _publish(
        self,
        fd: int,
        temp_path: SafePath | None,
        path: bytes,
        *,
        replace: bool,
        parents: bool,
        check: Callable[[FileStat | None], None] | None,
    ) -> None:
        def put() -> None:
            if check is not None:
                check(self.tree.seen(path))
            self.tree.put_file(source, path, replace=replace)

        source = temp_path or self.tree.upper.new()
        try:
            with translating_os_errors(path):
                if temp_path is None:
                    source.name_open(fd)
                self._write_back(fd, path)
            for attempt in range(COPIES_MAX):
                if parents:
                    self._make_directories(split(path)[0], flush=False)
                # refresh the index: a file that came to the origin meanwhile counts for `replace`
                self.find(path)
                try:
                    self._change(path, put)
                    break
                except PathNotFoundError:  # another process removed the new directory, which was empty
                    if not parents or attempt + 1 == COPIES_MAX:
                        raise
        except BaseException:
            _unlink(source)
            raise
        self._throttle()

    # ------------------------------------------------------------ names

    def make_directory(self, path: bytes) -> None:
        """Create a directory. Raise PathExistsError, or PathNotFoundError for the directory above."""
        self._make_directory(path, flush=True)

    def _make_directory(self, path: bytes, *, flush: bool) -> None:
        real_path, stat = self.find(path)
        if stat is not None:
            raise PathExistsError(os.fsdecode(path), why="the path already exists")
        self.check_writable(real_path)
        self.get(split(real_path)[0])
        self._make_checked(real_path, flush=flush)

    def _make_checked(self, path: bytes, *, flush: bool) -> None:
        owner, mode = Owner(os.geteuid(), os.getegid()), 0o777 & ~self._umask
        self._change(path, lambda: self.tree.make_directory(path, mode, owner), flush=flush)

    def make_directories(self, path: bytes) -> None:
        """Create a directory and those above it; existing ones are kept. Raise NotADirectoryPathError."""
        self._make_directories(path, flush=True)

    def _make_directories(self, path: bytes, *, flush: bool) -> None:
        missing: list[bytes] = []
        real_path, stat = self.find(path)
        while stat is None and real_path != b"/":
            missing.append(real_path)
            real_path, stat = self.find(split(real_path)[0])
        if stat is not None and not is_directory(stat):
            raise PathExistsError(os.fsdecode(path), why="the path exists and is not a directory")
        make_one = self._make_directory
        while missing:
            directory = missing.pop()
            try:
                make_one(directory, flush=flush and not missing)
                make_one = self._make_checked  # a new directory is empty at the origin and here
            except PathExistsError:  # another writer created it first
                if not is_directory(self.get(directory)[1]):
                    raise

    def remove(self, path: bytes) -> None:
        """Delete a file or a link. Raise IsADirectoryPathError."""
        self._remove(path, wait=True)

    def remove_directory(self, path: bytes) -> None:
        """Delete an empty directory. Raise DirectoryNotEmptyError."""
        self._remove_directory(path, wait=True)

    def remove_all(self, path: bytes) -> None:
        """Delete a path with everything in it; in mode `through`, wait for the origin once."""
        real_path, stat = self.get(path, follow=False)
        self.check_writable(real_path)
        self._check_not_the_root(real_path)
        self._remove_all(real_path, stat)
        self._settle([real_path])

    @staticmethod
    def _check_not_the_root(path: bytes) -> None:
        if path == b"/":
            raise NotSupportedError(
                "/", why="the root can't be removed or renamed", hint="name a path below it"
            )

    def _remove_all(self, path: bytes, stat: FileStat) -> None:
        if not is_directory(stat):
            self._remove(path, wait=False)
            return
        directories, pending = [], [path]
        while pending:
            directory = pending.pop()
            directories.append(directory)
            with contextlib.suppress(PathNotFoundError):
                for name, child_stat in list(self.children(directory)):
                    if is_directory(child_stat):
                        pending.append(join(directory, name))
                    else:
                        with contextlib.suppress(PathNotFoundError):
                            self._remove(join(directory, name), wait=False)
        for directory in reversed(directories[1:]):
            with contextlib.suppress(PathNotFoundError):
                self._remove_directory(directory, wait=False)
        self._remove_directory(path, wait=False)

    def _remove(self, path: bytes, *, wait: bool) -> None:
        real_path, _ = self.get(path, follow=False)
        self._change(path, lambda: self.tree.remove(real_path), wait=wait)

    def _remove_directory(self, path: bytes, *, wait: bool) -> None:
        real_path, _ = self.get(path, follow=False)
        self._check_not_the_root(real_path)
        self._refresh_listing(real_path)
        self._change(path, lambda: self.tree.remove_directory(real_path), wait=wait)

    def _refresh_listing(self, path: bytes) -> None:
        entry = self._below(path)
        if entry is not None and entry.kind is Kind.DIRECTORY and not self.client.listing_fresh(entry.id):
            self.client.ensure_listed(entry.id)

    def rename(self, source: bytes, target: bytes, *, replace: bool = True) -> None:
        """Rename a path and replace an existing file or empty directory; raise PathExistsError unless `replace`. Raise
        NotSupportedError between mounts, between write modes, and for a directory with more than tree.MOVED_NAMES_MAX
        names that only its origin has."""
        old, _ = self.get(source, follow=False)
        new, _ = self.find(target, follow=False)
        self.check_writable(new)
        for path in (old, new):
            self._check_not_the_root(path)
        copied = False

        def copy(_: NeedsContentError) -> None:
            nonlocal copied
            self.tree.copy_up_all(old, None)
            self._refresh_listing(new)
            copied = True

        self._change(
            source, lambda: self.tree.rename(old, new, 0 if replace else NOREPLACE, copied=copied), copy
        )

    # ------------------------------------------------------------ apply changes

    def _change(
        self,
        path: bytes,
        work: Callable[[], Result],
        copy: Callable[[NeedsContentError], None] | None = None,
        *,
        wait: bool = True,
        flush: bool = True,
    ) -> Result:
        """Run `work` under the layer's lock, after the files that it needs were copied up. On return the change is
        durable on disk (`durable_puts`) if `flush`, and at the origin in mode `through`. Without `wait` neither
        holds, and the caller calls `_settle`."""
        self._heed_modes()
        if not self.tree.modes.any:  # there is no upper layer, and so no lock
            raise _read_only(os.fsdecode(path))
        for _ in range(COPIES_MAX):
            try:
                with translating_os_errors(path):
                    with self.tree.lock:
                        self._unsettled = []
                        result = work()
                        paths, self._unsettled = self._unsettled, []
                    break
            except NeedsContentError as needs:
                with translating_os_errors(path):
                    if copy is not None:
                        copy(needs)
                    else:
                        self.tree.copy_up(needs.path, None, content=needs.content)
            except LeaseRequiredError as needs:
                self.client.claim(needs.folder)
        else:
            raise StoreError(
                os.fsdecode(path), why=f"it changed during each of {COPIES_MAX} attempts", hint="try again"
            )
        if wait:
            self._settle(paths, flush=flush)
        return result

    def _changed(self, paths: list[bytes]) -> None:
        """Report changed paths to the node, and remember them for `_settle`. The lock is held."""
        self.client.changed(paths)
        self._unsettled += paths

    def _stays_here(self, path: bytes) -> bool:
        """Return whether the write is acknowledged before an origin has it. In mode `through` the node has flushed
        its disk before the origin has it."""
        return self.tree.modes.of(path) is not WriteMode.THROUGH

    def _write_back(self, fd: int, path: bytes) -> None:
        """Start to write a file's bytes to disk before it gets its name, so that a power loss never leaves a part of
        it."""
        if self._stays_here(path):
            with translating_os_errors(path):
                self.durable.write_back(fd)

    def _settle(self, paths: list[bytes], *, flush: bool = True) -> None:
        if flush and any(map(self._stays_here, paths)):
            with translating_os_errors(paths[0]):
                self.durable.flush()
        for path in paths:
            if self.tree.modes.waits(path) or not self.tree.other_nodes.know(path):
                self.client.secure(path)

    def _throttle(self) -> None:
        """Delay a writer for a moment while the node is behind with persisting."""
        if self._pressure is not None and self._pressure.pause_s:
            time.sleep(self._pressure.pause_s)


def _unlink(path: SafePath | None) -> None:
    if path is not None:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def _umask() -> int:
    """Return the umask of this process, from /proc. umask(2) reports it only by a change, which other threads would
    see."""
    with open("/proc/self/status", "rb") as status:
        for line in status:
            if line.startswith(b"Umask:"):
                return int(line.split()[1], 8)
    return 0o022


def _reset_after_fork(vfs: LocalVfs | None) -> None:
    if vfs is not None:
        vfs.tree.lock.reset_after_fork()
        vfs.durable.reset_after_fork()
