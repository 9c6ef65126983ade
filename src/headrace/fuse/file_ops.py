"""Serve files and attributes of a writable mount; `namespace_ops.py` serves the names.

All opens of a file of the upper layer share one descriptor (`upper_files.py`). Where the kernel has passthrough, it
reads and writes that descriptor without the session. The session next sees the file at RELEASE, or at FLUSH, and
reports it to the node then.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from functools import partial

from headrace.base.beneath import SafePath
from headrace.base.cancel import Cancel
from headrace.base.model import FILE_ID_MAX, Entry, FileId
from headrace.base.namespace_path import join
from headrace.fuse import abi, codec
from headrace.fuse.namespace_ops import NamespaceOperations
from headrace.fuse.node_ids import UPPER
from headrace.fuse.operations import (
    MOUNTPOINTS_XATTR,
    Answer,
    Deferred,
    DiskTask,
    Mode,
    PendingRead,
    xattr_reply,
)
from headrace.fuse.removed_files import close_last
from headrace.fuse.upper_files import OpenUpper
from headrace.overlay.given_mode import as_given, give_mode
from headrace.overlay.mark_names import HIDDEN_FROM_USERS
from headrace.overlay.merged_tree import empty
from headrace.overlay.syscalls import fallocate

FH_UPPER = 3
_HIDDEN = tuple(prefix.encode() for prefix in HIDDEN_FROM_USERS)
FALLOCATED_AT_ONCE_BYTES = 8 << 20
"""Longest range that the hot thread allocates. A longer one may be many extents, or many pages of a hole to drop."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_TRUNC
_ATTRIBUTES = (
    abi.FATTR_MODE | abi.FATTR_UID | abi.FATTR_GID | abi.FATTR_SIZE | abi.FATTR_ATIME | abi.FATTR_MTIME
)
"""Bits of `valid` that change attributes. The kernel sends a SETATTR without any of them when it wrote or allocated by
itself: the session then drops the set-id bits."""


class WritableOperations(NamespaceOperations):
    """Answers all requests of a writable mount: names by its base class, files and attributes here."""

    # ------------------------------------------------------------ files

    def create(self, unique: int, node: int, request: bytearray) -> Answer | Deferred:
        flags, mode, _, open_flags = abi.CREATE_IN.unpack_from(request, 40)
        name = codec.decode_name(request, 56)
        owner = self._owner_of(request)
        if unique & abi.RESENT_BIT:
            flags &= ~os.O_EXCL  # the earlier session may have created it, and died before its reply

        def work() -> Answer:
            directory, folder = self._upper_of(node)
            path = join(directory, name)
            folder = folder if isinstance(folder, os.stat_result) and stat.S_ISDIR(folder.st_mode) else None
            fd, new = self._tree.create(path, mode, owner, flags, folder)
            if open_flags & abi.OPEN_KILL_SUIDGID and not new:
                _drop_set_ids(fd)
            file_stat = as_given(os.fstat(fd), fd)
            file_node, generation = self._nodes.remember(
                self._inodes.generations.node_of(file_stat.st_ino), node, name, file=fd, new=new
            )
            if not self._tree.other_nodes.is_published(path):
                self._awaited_paths.append(path)
            opened = self._opened_upper(file_node, fd, flags, new=new)
            return self._encode.create_reply(unique, file_node, file_stat, generation, opened)

        return self._throttled(self._changing(work))

    def open(self, unique: int, node: int, request: bytearray) -> Answer | Deferred | DiskTask:
        flags, open_flags = abi.OPEN_IN.unpack_from(request, 40)
        if node & UPPER:
            drop = bool(open_flags & abi.OPEN_KILL_SUIDGID)
            open_upper = partial(self._open_upper, unique, node, flags, drop_set_ids=drop)
            work = partial(self._do_or_copy, open_upper)
            return self._shortened.before_open(node, work) if flags & os.O_TRUNC else work()
        if not flags & _WRITES:
            return super().open(unique, node, request)
        path = self._path_to_change(node)
        if not self._tree.modes.takes_changes(path):
            return errno.EROFS
        return partial(self._copy_then_stale, path, content=not flags & os.O_TRUNC)

    def _open_upper(self, unique: int, node: int, flags: int, *, drop_set_ids: bool) -> Answer | Deferred:
        with self._tree.lock:
            if flags & _WRITES:
                self._check_exclusive(node)
            with self._open_files.use(node) as file:
                if file is not None:
                    if flags & os.O_TRUNC:
                        empty(file.fd)
                    if drop_set_ids:
                        _drop_set_ids(file.fd)
                    fh, open_flags, backing_id = self._opened_upper(node, file.fd, flags)
                    return abi.OPEN_REPLY.pack(32, 0, unique, fh, open_flags, backing_id)
            path = (
                self._path_to_change(node, content=not flags & os.O_TRUNC)
                if flags & _WRITES
                else self._path(node)
            )
            fd = self._tree.open(path, flags)
            if not self._nodes.is_node(node, os.fstat(fd)):
                os.close(fd)
                return errno.ESTALE
            self._nodes.opened(node, fd)
            if drop_set_ids:
                _drop_set_ids(fd)
            fh, open_flags, backing_id = self._opened_upper(node, fd, flags, new=bool(flags & os.O_TRUNC))
            answer = abi.OPEN_REPLY.pack(32, 0, unique, fh, open_flags, backing_id)
            if not flags & _WRITES or self._tree.other_nodes.is_published(path):
                return answer

        def publish(cancel: Cancel) -> Answer:
            self._publish(path, cancel)
            return answer

        return publish

    def _check_exclusive(self, node: int) -> None:
        """Raise EROFS in an exclusive directory: only programs change it that the kernel serves."""
        if self._tree.modes.exclusive_tops:
            self._tree.view.check_writable(self._path(node))

    def _opened_upper(self, node: int, fd: int, flags: int, *, new: bool = False) -> tuple[int, int, int]:
        """Count one more open of the node. Return the file handle, the flags of the reply and the backing id, or 0."""
        if self._inodes.inherits and self._tree.modes.any_waits:
            new = True  # who opened it through an earlier session may have changed it, and waits for that at close
        backing_id = self._open_files.add(node, fd, passthrough=self.mode is Mode.PASSTHROUGH, new=new)
        reply_flags = abi.FOPEN_PASSTHROUGH if backing_id else 0
        if not flags & (os.O_WRONLY | os.O_RDWR) or not self._tree.modes.any_waits:
            # nothing waits for the close; the session reports to the node at RELEASE, for which no program waits
            reply_flags |= abi.FOPEN_NOFLUSH
        elif self._tree.modes.copies_max > 1:
            path = self._nodes.path(node)
            if path is not None and self._tree.modes.copies(path) > 1:
                self._writer.writing(path)
        return FH_UPPER, reply_flags, backing_id

    def release(self, unique: int, node: int, request: bytearray) -> Answer | DiskTask:
        if not node & UPPER:
            return super().release(unique, node, request)
        with self._open_files.use(node) as file:
            status = None if file is None else self._report_change(node, file)
        fd = self._open_files.release(node, unique)
        return 0 if fd < 0 else close_last(fd, status or os.fstat(fd))

    def flush(self, unique: int, node: int, request: bytearray) -> Answer | Deferred:
        with self._open_files.use(node) as file:
            if file is not None:
                return self._answer_when_durable(node, file)
        if not node & UPPER or not self._tree.modes.any_waits:
            return 0
        return lambda cancel: self._secure_inherited(node, cancel)

    def _secure_inherited(self, node: int, cancel: Cancel) -> Answer:
        """Answer when a file that was opened through an earlier session has the durability that its mode promises. What
        that session reported is not known, so all of it counts as changed."""
        path = self._nodes.path(node)
        if path is not None and self._tree.modes.waits(path):
            self._writer.changed([path])
            self._writer.secure(path, cancel)
        return 0

    def _report_change(self, node: int, file: OpenUpper) -> os.stat_result:
        """Report the file to the node if it changed since the last report. Return its status."""
        status = os.fstat(file.fd)
        ctime = status.st_ctime_ns
        path = None if ctime == file.reported_ctime_ns else self._nodes.path(node)
        if path is not None:
            file.reported_ctime_ns = ctime
            self._writer.changed([path])
        return status

    def _answer_when_durable(self, node: int, file: OpenUpper) -> Answer | Deferred:
        """Answer when the file has the durability that its mode promises; at once if it had that since its last
        change."""
        self._report_change(node, file)
        ctime, path = file.reported_ctime_ns, self._nodes.path(node)
        if path is None or ctime == file.durable_ctime_ns or not self._tree.modes.waits(path):
            return 0

        def ensure_durable(cancel: Cancel) -> Answer:
            self._writer.secure(path, cancel)
            file.durable_ctime_ns = ctime
            return 0

        return ensure_durable

    def fsync(self, unique: int, node: int, request: bytearray) -> Answer | DiskTask:
        if not node & UPPER:
            return 0
        _, flags, _ = abi.FSYNC_IN.unpack_from(request, 40)
        return DiskTask(lambda: self._fsync(node, data_only=bool(flags & abi.FSYNC_DATA_ONLY)))

    def _fsync(self, node: int, *, data_only: bool) -> Answer | Deferred:
        with self._open_files.use(node) as file:
            if file is None:
                self._upper.at(self._path(node)).sync()
                return partial(self._secure_inherited, node) if self._tree.modes.any_waits else 0
            (os.fdatasync if data_only else os.fsync)(file.fd)
            return self._answer_when_durable(node, file)

    def fsyncdir(self, unique: int, node: int, request: bytearray) -> Answer | DiskTask:
        path, upper = self._upper_of(node)
        if not isinstance(upper, os.stat_result):
            return 0
        directory = self._upper.at(path)
        return DiskTask(lambda: _sync_directory(directory))

    def read(self, unique: int, node: int, request: bytearray) -> DiskTask | PendingRead:
        if not node & UPPER:
            return super().read(unique, node, request)
        _, offset, size, _ = abi.READ_IN.unpack_from(request, 40)
        size = min(size, abi.READ_BYTES_MAX)  # the kernel asks for no more, as INIT says
        return DiskTask(
            lambda: self._with_fd(node, lambda fd: codec.data_reply(unique, os.pread(fd, size, offset)))
        )

    def write(self, unique: int, node: int, request: bytearray) -> Answer | DiskTask:
        """Write to the shared descriptor. The kernel sends WRITE only where it has no passthrough."""
        _, offset, size, write_flags, *_ = abi.WRITE_IN.unpack_from(request, 40)
        data = bytes(memoryview(request)[80 : 80 + size])
        if len(data) != size:
            return errno.EINVAL

        def work(fd: int) -> bytes:
            if write_flags & abi.WRITE_KILL_SUIDGID:
                _drop_set_ids(fd)
            done = 0
            while done < size:
                done += os.pwrite(fd, memoryview(data)[done:], offset + done)
            return abi.WRITE_REPLY.pack(abi.WRITE_REPLY.size, 0, unique, size, 0)

        return DiskTask(lambda: self._with_fd(node, work))

    def fallocate(self, unique: int, node: int, request: bytearray) -> Answer | DiskTask:
        _, offset, length, mode, _ = abi.FALLOCATE_IN.unpack_from(request, 40)

        def work(fd: int) -> int:
            fallocate(fd, mode, offset, length)
            return 0

        if length <= FALLOCATED_AT_ONCE_BYTES:
            return self._with_fd(node, work)
        return DiskTask(lambda: self._with_fd(node, work))

    def lseek(self, unique: int, node: int, request: bytearray) -> Answer:
        """Serve SEEK_DATA and SEEK_HOLE at once: a change of threads costs twice the call (docs/decisions/0026)."""
        _, offset, whence, _ = abi.LSEEK_IN.unpack_from(request, 40)
        if not node & UPPER:
            return _seek_lower(unique, self._client.entry(FileId(node & FILE_ID_MAX)), offset, whence)

        def work(fd: int) -> bytes:
            return _lseek_reply(unique, os.lseek(fd, offset, whence))

        return self._with_fd(node, work)

    def _with_fd(self, node: int, work: Callable[[int], Answer]) -> Answer:
        """Run the work on the node's shared descriptor, or after a takeover on one that is opened for this call."""
        try:
            with self._open_files.use(node) as file:
                if file is not None:
                    return work(file.fd)
            fd = self._upper.at(self._path(node)).open(os.O_RDWR | os.O_NONBLOCK)
            try:
                if not self._nodes.is_node(node, os.fstat(fd)):
                    return errno.ESTALE  # another process of the host replaced the file
                return work(fd)
            finally:
                os.close(fd)
        except OSError as error:
            return error.errno or errno.EIO

    # ------------------------------------------------------------ attributes

    def setattr(self, unique: int, node: int, request: bytearray) -> Answer | Deferred | DiskTask:
        fields = abi.SETATTR_IN.unpack_from(request, 40)

        def work() -> Answer:
            self._check_exclusive(node)
            with self._open_files.use(node) as file:
                if file is not None:
                    _set_attributes(file.fd, fields)
                    self._report_change(node, file)
                    return self._encode.stat_attr_reply(unique, node, as_given(os.fstat(file.fd), file.fd))
            path = self._path_to_change(node)
            empties = bool(fields[0] & abi.FATTR_SIZE) and fields[3] == 0
            with self._tree.at_upper(path, content=not empties).pinned() as pin:
                if not self._nodes.is_node(node, pin.fstat()):
                    return errno.ESTALE  # another process of the host replaced the file
                _set_attributes(pin.proc_path, fields)
                self._record_changes([path])
                return self._encode.stat_attr_reply(unique, node, as_given(pin.fstat(), pin.proc_path))

        change = partial(self._changing, work, stale_after_copy=True)
        valid, size_bytes = fields[0], fields[3]
        return self._shortened.before(node, size_bytes, change) if valid & abi.FATTR_SIZE else change()

    def getxattr(self, unique: int, node: int, request: bytearray) -> Answer | Deferred:
        size, _ = abi.XATTR_IN.unpack_from(request, 40)
        name = codec.decode_name(request, 48)

        def read(target: SafePath | int) -> Answer:
            if not _is_visible_xattr(name):
                return errno.ENODATA
            value = os.getxattr(target, name) if isinstance(target, int) else target.getxattr(name)
            return xattr_reply(unique, value, size)

        answer = None if name == MOUNTPOINTS_XATTR else self._read_upper(node, read)
        return super().getxattr(unique, node, request) if answer is None else answer

    def listxattr(self, unique: int, node: int, request: bytearray) -> Answer:
        size, _ = abi.XATTR_IN.unpack_from(request, 40)

        def read(target: SafePath | int) -> Answer:
            raw_names = os.listxattr(target) if isinstance(target, int) else target.listxattr()
            names = [os.fsencode(name) for name in raw_names]
            shown = b"".join(name + b"\0" for name in names if _is_visible_xattr(name))
            return xattr_reply(unique, shown, size)

        answer = self._read_upper(node, read)
        return super().listxattr(unique, node, request) if answer is None else answer

    def setxattr(self, unique: int, node: int, request: bytearray) -> Answer | Deferred:
        size, flags = abi.SETXATTR_IN.unpack_from(request, 40)
        name = codec.decode_name(request, 48)
        begin = 48 + len(name) + 1
        value = bytes(request[begin : begin + size])
        if name.startswith(b"user.headrace."):
            return errno.EPERM
        if not _is_visible_xattr(name) or name.startswith(b"system."):
            return errno.ENOTSUP
        return self._change_xattr(node, lambda target: os.setxattr(target, name, value, flags))

    def removexattr(self, unique: int, node: int, request: bytearray) -> Answer | Deferred:
        name = codec.decode_name(request)
        if not _is_visible_xattr(name):
            return errno.ENODATA
        return self._change_xattr(node, lambda target: os.removexattr(target, name))

    def _change_xattr(self, node: int, change: Callable[[bytes | int], None]) -> Answer | Deferred:
        def work() -> Answer:
            self._check_exclusive(node)
            with self._open_files.use(node) as file:
                if file is not None:
                    change(file.fd)
                    return 0
            path = self._path_to_change(node)
            upper_path = self._tree.at_upper(path)
            if not node & UPPER and node >> 48:
                return errno.ESTALE
            with upper_path.pinned() as pin:
                if not self._nodes.is_node(node, pin.fstat()):
                    return errno.ESTALE
                change(pin.proc_path)
            return 0

        return self._changing(work, stale_after_copy=True)

    def _read_upper(self, node: int, read: Callable[[SafePath | int], Answer]) -> Answer:
        """Return the answer of `read`, which gets the shared descriptor or the path of a node; None for a node that
        only the origin has. The descriptor stays open meanwhile: another thread may end the last use of it."""
        if not node & UPPER and node >> 48:
            return None
        with self._open_files.use(node) as file:
            if file is not None:
                return read(file.fd)
        path, upper = self._upper_of(node)
        return read(self._upper.at(path)) if isinstance(upper, os.stat_result) else None


def _set_attributes(target: bytes | int, fields: tuple[int, ...]) -> None:
    """Apply a struct fuse_setattr_in, `fields`. `target` is a descriptor, or the path of a Pin, which leads to a
    symbolic link itself. A link has no mode and no size."""
    valid, _, _, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, _, uid, gid, _ = fields
    if valid & abi.FATTR_SIZE:
        os.truncate(target, size)
    if valid & abi.FATTR_KILL_SUIDGID or not valid & _ATTRIBUTES:
        _drop_set_ids(target)
    if valid & (abi.FATTR_UID | abi.FATTR_GID):
        new_uid = uid if valid & abi.FATTR_UID else -1
        new_gid = gid if valid & abi.FATTR_GID else -1
        _drop_set_ids(target)  # as chown(2) does
        os.chown(target, new_uid, new_gid)
    if valid & abi.FATTR_MODE:
        give_mode(target, stat.S_IMODE(mode))
    if valid & (abi.FATTR_ATIME | abi.FATTR_MTIME):
        file_stat = os.stat(target)
        times = [file_stat.st_atime_ns, file_stat.st_mtime_ns]
        if valid & abi.FATTR_ATIME:
            times[0] = _ns(atime, atime_ns)
        if valid & abi.FATTR_MTIME:
            times[1] = _ns(mtime, mtime_ns)
        os.utime(target, ns=(times[0], times[1]))


def _drop_set_ids(target: bytes | int) -> None:
    """Drop the set-id bits as the kernel does when a user other than root changes a file
    (setattr_should_drop_suidgid), and as chown(2) does for every caller. The bits of a device are in an extended
    attribute, and are dropped there."""
    mode = as_given(os.stat(target), target).st_mode
    kept = mode & ~(stat.S_ISUID | stat.S_ISGID if mode & stat.S_IXGRP else stat.S_ISUID)
    if kept != mode and not stat.S_ISDIR(mode):
        give_mode(target, stat.S_IMODE(kept))


def _ns(seconds: int, rest: int) -> int:
    """Convert a time of the protocol to nanoseconds. Its seconds are unsigned on the wire, and signed in meaning."""
    return (seconds - (1 << 64) if seconds >> 63 else seconds) * 1_000_000_000 + rest


def _seek_lower(unique: int, entry: Entry | None, offset: int, whence: int) -> Answer:
    """Answer for a file that only the origin has: it is data up to its end. After ENOSYS the kernel would send no LSEEK
    on this mount any more, and files of the upper layer would lose their holes."""
    if entry is None:
        return errno.ESTALE
    if offset >= entry.version.size_bytes:
        return errno.ENXIO
    return _lseek_reply(unique, offset if whence == os.SEEK_DATA else entry.version.size_bytes)


def _lseek_reply(unique: int, position: int) -> bytes:
    return abi.LSEEK_REPLY.pack(abi.LSEEK_REPLY.size, 0, unique, position)


def _is_visible_xattr(name: bytes) -> bool:
    return not name.startswith(_HIDDEN)


def _sync_directory(directory: SafePath) -> Answer:
    directory.sync()
    return 0
