"""Provide the merged tree of a host by path, for programs that use no mount, such as fsspec's `headrace://`.

Reads use cache files and the upper layer directly, and wait for the node if bytes or names are missing. Writes change
the upper layer as those of a mount do (`overlay/merged_tree.py`): every mount of the host shows them, and the node
persists them. Symbolic links are followed within the namespace.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref
from collections.abc import Callable, Generator

from headrace.base.beneath import NOREPLACE
from headrace.base.errors import (
    IsADirectoryPathError,
    NotADirectoryPathError,
    NotSupportedError,
    PathExistsError,
    PathNotFoundError,
)
from headrace.base.namespace_path import join, split
from headrace.base.os_errors import read_only, translating_os_errors
from headrace.client.node_client import NodeClient
from headrace.overlay.copy_up import NeedsContentError
from headrace.overlay.merged_tree import Owner
from headrace.overlay.merged_view import FileStat
from headrace.vfs.file_stat import is_directory
from headrace.vfs.staged_file import StagedFile
from headrace.vfs.streams import WriteStream
from headrace.vfs.tree_changes import COPIES_MAX, Result, TreeChanges
from headrace.vfs.vfs_reader import VfsReader
from headrace.wire.messages import JobStart, JobState

REPORT_LIMIT_S = 5.0


class LocalVfs(VfsReader):
    """Reads and changes the namespace of this host's node. client: owned by this object."""

    def __init__(self, client: NodeClient) -> None:
        self._changes = TreeChanges(client)
        super().__init__(client, self._changes.tree)
        self._umask = _umask()
        alive = weakref.ref(self._changes)
        os.register_at_fork(after_in_child=lambda: _reset_after_fork(alive()))

    def close(self) -> None:
        """Report the last changes and close the client. A node that does not answer in time finds the changes later,
        by itself."""
        self._changes.close()
        self.client.stop_reporting(REPORT_LIMIT_S)
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
        """Create a file as `Vfs` defines. check: called with the stat of the name just before the file gets it, while
        no process can change it. If it raises, `commit` raises that error and nothing has changed."""
        real_path = self._new_path(path, replace=replace, parents=parents)
        with translating_os_errors(path):
            file = StagedFile(self.tree.upper.work.at(b"/"), self.tree.upper.new)
        return WriteStream(
            file.fd,
            os.fsdecode(path),
            finish=lambda _: self._publish(file, real_path, replace=replace, parents=parents, check=check),
            abandon=lambda _: file.discard(),
            commits=commits,
            is_broken_off=is_broken_off,
        )

    def append(self, path: bytes, *, is_broken_off: Callable[[], bool] = lambda: False) -> WriteStream:
        """Append as `Vfs` defines. If the stream is abandoned, its bytes are cut off again, unless another writer
        appended in the meantime, whose bytes may be among them."""
        fd, real_path, is_new = self.open_in_place(path, 0)
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
        size_before = os.lseek(fd, 0, os.SEEK_END)

        def finish(fd: int) -> None:
            self.report_change(real_path, fd)

        def abandon(fd: int) -> None:
            with contextlib.suppress(FileNotFoundError):
                if os.fstat(fd).st_size != size_before + stream.written_bytes:
                    finish(fd)
                elif is_new:
                    self.remove(real_path)
                else:
                    os.ftruncate(fd, size_before)
                    finish(fd)

        stream = WriteStream(
            fd, os.fsdecode(path), finish=finish, abandon=abandon, is_broken_off=is_broken_off
        )
        return stream

    def open_in_place(self, path: bytes, flags: int) -> tuple[int, bytes, bool]:
        """Open the file to which a path leads. Return a descriptor for reads and writes, the real path, and whether the
        file is new. flags: O_EXCL, O_TRUNC. The caller calls `report_change` after its writes. Raises the errors of
        create."""
        real_path, stat = self.find(path)
        self.check_writable(real_path)
        if stat is None:
            self._changes.check_new_name(real_path)
        owner = Owner(os.geteuid(), os.getegid())
        mode = 0o666 & ~self._umask
        fd, new = self._change(path, lambda: self.tree.create(real_path, mode, owner, flags), flush=False)
        return fd, real_path, new

    def report_change(self, path: bytes, fd: int | None = None) -> None:
        """Report to the node that a file was written in place; in mode `through` the origin has it on return. fd: the
        descriptor that was written, to make its bytes durable too; None: the caller syncs them if it needs to."""
        if fd is not None:
            self._changes.write_back(fd, path)
        self._change(path, lambda: self._changes.note([path]), flush=fd is not None)
        self._changes.throttle()

    def sync_names(self, path: bytes) -> None:
        """Make creations, renames and removals in a directory of the upper layer durable."""
        real_path, stat = self.get(path)
        if isinstance(stat, os.stat_result):
            with translating_os_errors(path):
                self.tree.upper.at(real_path).sync()

    def copy(self, source: bytes, target: bytes, *, parents: bool = False) -> None:
        content = self.content(source)
        try:
            with self.create(target, replace=True, parents=parents) as stream, translating_os_errors(target):
                content.copy_to(stream.fileno())
        finally:
            content.close()

    def edit_attributes(self, path: bytes, work: Callable[[int], object]) -> None:
        """Change the attributes of an existing file, which is then uploaded again. work: called with a descriptor."""
        real_path, _ = self.get(path)

        def change() -> None:
            fd = self.tree.at_upper(real_path).open(os.O_RDONLY | os.O_NONBLOCK)
            try:
                work(fd)
            finally:
                os.close(fd)
            self._changes.note([real_path])

        self._change(path, change)

    def touch(self, path: bytes) -> None:
        self.edit_entry(path, os.utime)

    def edit_entry(self, path: bytes, work: Callable[[bytes], object]) -> None:
        """Change mode, owner, times or attributes of an existing path. work: called under the layer's lock with a
        path for plain system calls, which reaches only that file."""
        real_path, _ = self.get(path)

        def change() -> None:
            with self.tree.at_upper(real_path).pinned() as pin:
                work(pin.proc_path)
            self._changes.note([real_path])

        self._change(path, change)

    def _new_path(self, path: bytes, *, replace: bool, parents: bool) -> bytes:
        """Return the real path of a new file. Raise in advance the errors that would occur at the end."""
        real_path, stat = self.find(path)
        if stat is not None and not replace:
            raise PathExistsError(os.fsdecode(path), why="the path already exists")
        if stat is not None and is_directory(stat):
            raise IsADirectoryPathError(os.fsdecode(path), why="it is a directory")
        self.check_writable(real_path)
        if stat is None:
            self._changes.check_new_name(real_path)
        parent = split(real_path)[0]
        while (parent_stat := self.find(parent)[1]) is None and parents:
            parent = split(parent)[0]
        if parent_stat is None:
            raise PathNotFoundError(os.fsdecode(parent), why="no such file or directory")
        if not is_directory(parent_stat):
            raise NotADirectoryPathError(os.fsdecode(parent), why="it is not a directory")
        return real_path

    def check_writable(self, path: bytes) -> None:
        self._refresh_modes()
        if not self.tree.modes.takes_changes(path) or self.sealed.owns(path):
            raise read_only(os.fsdecode(path))

    def _publish(
        self,
        file: StagedFile,
        path: bytes,
        *,
        replace: bool,
        parents: bool,
        check: Callable[[FileStat | None], None] | None,
    ) -> None:
        def put() -> None:
            if check is not None:
                check(self.tree.view.lookup(path))
            self.tree.put_file(file.path(), path, replace=replace)

        try:
            with translating_os_errors(path):
                file.path()
            self._changes.write_back(file.fd, path)
            for attempt in range(COPIES_MAX):
                if parents:
                    self.make_directories(split(path)[0], flush=False)
                # refresh the index: a file that came to the origin meanwhile counts for `replace`
                self.find(path)
                try:
                    self._change(path, put)
                    break
                except PathNotFoundError:  # another process removed the new directory, which was empty
                    if not parents or attempt + 1 == COPIES_MAX:
                        raise
        except BaseException:
            file.discard()
            raise
        self._changes.throttle()

    # ------------------------------------------------------------ names

    def make_directory(self, path: bytes, *, flush: bool = True) -> None:
        """Create a directory as `Vfs` defines. flush: make it durable."""
        real_path, stat = self.find(path)
        if stat is not None:
            raise PathExistsError(os.fsdecode(path), why="the path already exists")
        self.check_writable(real_path)
        self._changes.check_new_name(real_path)
        self.get(split(real_path)[0])
        self._make_checked(real_path, flush=flush)

    def _make_checked(self, path: bytes, *, flush: bool = True) -> None:
        owner, mode = Owner(os.geteuid(), os.getegid()), 0o777 & ~self._umask
        self._change(path, lambda: self.tree.make_directory(path, mode, owner), flush=flush)

    def make_directories(self, path: bytes, *, flush: bool = True) -> None:
        """Create a directory and those above it as `Vfs` defines. flush: make them durable. Raises
        NotADirectoryPathError."""
        missing: list[bytes] = []
        real_path, stat = self.find(path)
        while stat is None and real_path != b"/":
            self._changes.check_new_name(real_path)
            missing.append(real_path)
            real_path, stat = self.find(split(real_path)[0])
        if stat is not None and not is_directory(stat):
            raise PathExistsError(os.fsdecode(path), why="the path exists and is not a directory")
        make = self.make_directory
        while missing:
            directory = missing.pop()
            try:
                make(directory, flush=flush and not missing)
                make = self._make_checked  # a new directory is empty at the origin and here
            except PathExistsError:  # another writer created it first
                if not is_directory(self.get(directory)[1]):
                    raise

    def remove(
        self,
        path: bytes,
        *,
        wait: bool = True,
        check: Callable[[FileStat | None], None] | None = None,
    ) -> None:
        """Delete a file or a link. wait: as for TreeChanges.apply. check: as for `create`. Raise
        IsADirectoryPathError."""
        real_path, _ = self.get(path, follow=False)

        def remove() -> None:
            if check is not None:
                check(self.tree.view.lookup(real_path))
            self.tree.remove(real_path)

        self._change(path, remove, wait=wait)

    def remove_directory(self, path: bytes, *, wait: bool = True) -> None:
        """Delete an empty directory. wait: as for TreeChanges.apply. Raise DirectoryNotEmptyError."""
        real_path, _ = self.get(path, follow=False)
        _check_not_the_root(real_path)
        self._lower.refresh_listing(self._lower_entry(real_path))

        self._change(path, lambda: self.tree.remove_directory(real_path), wait=wait)

    def remove_all(self, path: bytes) -> None:
        """Delete a path with everything in it; in mode `through`, wait for the origin once."""
        real_path, stat = self.get(path, follow=False)
        self.check_writable(real_path)
        _check_not_the_root(real_path)
        self._remove_all(real_path, stat)
        self._changes.settle([real_path])

    def _remove_all(self, path: bytes, stat: FileStat) -> None:
        if not is_directory(stat):
            self.remove(path, wait=False)
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
                            self.remove(join(directory, name), wait=False)
        for directory in reversed(directories[1:]):
            with contextlib.suppress(PathNotFoundError):
                self.remove_directory(directory, wait=False)
        self.remove_directory(path, wait=False)

    def rename(self, source: bytes, target: bytes, *, replace: bool = True) -> None:
        """Rename a path and replace an existing file or empty directory; raise PathExistsError unless `replace`. Raise
        NotSupportedError between mounts, between write modes, and for a directory with more than tree.MOVED_NAMES_MAX
        names that only its origin has."""
        old, _ = self.get(source, follow=False)
        new, _ = self.find(target, follow=False)
        self.check_writable(new)
        self._changes.check_new_name(new)
        for path in (old, new):
            _check_not_the_root(path)
        copied = False

        def copy(_: NeedsContentError) -> None:
            nonlocal copied
            self.tree.copies.copy_up_all(old, None)
            self._lower.refresh_listing(self._lower_entry(new))
            copied = True

        def rename() -> None:
            self.tree.rename(old, new, 0 if replace else NOREPLACE, copied=copied)

        self._change(source, rename, copy)

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
        """Run `work` as `TreeChanges.apply` does, by the write modes that hold now."""
        self._refresh_modes()
        return self._changes.apply(path, work, copy, wait=wait, flush=flush)

    # ------------------------------------------------------------ the cache

    def status(self) -> dict[str, object]:
        return self.client.status()

    def run_job(self, start: JobStart) -> Generator[JobState, None, None]:
        yield from self.client.run_job(start)


def _check_not_the_root(path: bytes) -> None:
    if path == b"/":
        raise NotSupportedError("/", why="the root can't be removed or renamed", hint="name a path below it")


def _umask() -> int:
    """Return the umask of this process, from /proc. umask(2) reports it only by a change, which other threads would
    see."""
    with open("/proc/self/status", "rb") as status:
        for line in status:
            if line.startswith(b"Umask:"):
                return int(line.split()[1], 8)
    return 0o022


def _reset_after_fork(changes: TreeChanges | None) -> None:
    if changes is not None:
        changes.reset_after_fork()
