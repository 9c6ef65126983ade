"""What each request means on a mount that can be written: the merged tree under the kernel's ids.

What only the origin has is answered as on a read-only mount (`Operations`). Whatever is in the upper layer, and every
change of names, is done here by system calls on the layer, in the hot thread: they cost less than a hop to another.
What must wait for the node or for the disk (a copy of what is below, a listing) is deferred. A file that was copied up
is another inode: the kernel is answered ESTALE, and looks the name up again. Files: writable_files.py.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Protocol

from headrace.base import failpoint
from headrace.base.beneath import EXCHANGE
from headrace.base.errors import HeadraceError
from headrace.base.model import FILE_ID_MAX, ROOT_ID, Entry, FileId, Kind
from headrace.base.write_modes import WriteMode
from headrace.fuse import abi, codec
from headrace.fuse.client_protocol import WritingClient
from headrace.fuse.errno_map import errno_of
from headrace.fuse.handles import HandleCache
from headrace.fuse.io_modes import NODE_SHIFT, UPPER, InodeIoModes
from headrace.fuse.node_table import NodeTable
from headrace.fuse.operations import (
    Answer,
    Deferred,
    DiskTask,
    Method,
    Mode,
    Operations,
    PendingRead,
)
from headrace.fuse.upper_files import UpperFiles
from headrace.overlay.dirty_throttle import DirtyThrottle
from headrace.overlay.given_mode import as_given
from headrace.overlay.upper import Hidden, join
from headrace.sdk.cancel import Cancel
from headrace.sdk.lease_check import LeaseRequiredError
from headrace.sdk.merged_tree import MergedTree, NeedsContentError, Owner
from headrace.sdk.node_client import MISS, Miss
from headrace.sdk.readdir import merge_listing
from headrace.wire.messages import Written

log = logging.getLogger(__name__)

_MERGED_DIRECTORY_FLAGS = 0  # the kernel keeps no listing: other sessions change it, too


class Kernel(Protocol):
    """What this asks of the session. register: a descriptor to a backing id. name_changed: (parent node, name)."""

    def register(self, fd: int) -> int: ...
    def name_changed(self, parent: int, name: bytes) -> None: ...


class NamespaceOperations(Operations):
    def __init__(
        self,
        client: WritingClient,
        inodes: InodeIoModes,
        files: HandleCache,
        *,
        mode: Mode,
        register: Callable[[str], int],
        send: Callable[[int, int, int, int], int | None],
        kernel: Kernel,
        tree: MergedTree,
    ) -> None:
        super().__init__(client, inodes, files, mode=mode, register=register, send=send)
        self._writer = client
        self._kernel = kernel
        self._tree = tree
        self._upper = tree.upper
        self._nodes = NodeTable(tree.upper, client.path_of)
        self._to_wait_for: list[bytes] = []
        self._pressure = DirtyThrottle(tree.upper.pressure_path)
        tree.on_changed = self._noted
        self._open_files = UpperFiles(inodes, kernel.register)
        self._encode = codec.AttributeEncoder(
            uid=os.getuid(),
            gid=os.getgid(),
            generation=client.generation,
            writable=True,
            numbers=self._nodes.numbers,
        )

    def table(self) -> dict[int, Method]:
        found = super().table()
        for op in (abi.Opcode.TMPFILE, abi.Opcode.COPY_FILE_RANGE):
            found[op] = lambda unique, node, request: errno.ENOSYS
        return {op: _with_errno(method) for op, method in found.items()}

    # ------------------------------------------------------------ names

    def lookup(self, unique: int, node: int, request: bytearray) -> Answer | Deferred:
        name = codec.decode_name(request)
        if len(name) > abi.NAME_BYTES_MAX:
            return errno.ENAMETOOLONG
        directory = self._path(node)
        path = join(directory, name)
        found = self._tree.look(path)
        if isinstance(found, Hidden):
            return self._encode.negative_reply(unique, codec.UPPER_TTL_S)
        if found is not None:
            return self._entered(unique, node, name, path, found)
        parent = self._below_directory(node, directory)
        if isinstance(parent, Miss):
            return lambda cancel: self._lookup_blocking(unique, node, name, cancel)
        if parent is None:
            return self._encode.negative_reply(unique, codec.UPPER_TTL_S)
        below = self._client.lookup_fast(parent, name)
        if isinstance(below, Miss):
            return lambda cancel: self._lookup_blocking(unique, node, name, cancel)
        return self._found_below(unique, (node, name), parent, path, below)

    def _lookup_blocking(self, unique: int, node: int, name: bytes, cancel: Cancel) -> Answer:
        directory = self._path(node)
        path = join(directory, name)
        parent = self._below_directory_blocking(node, directory, cancel)
        below = None if parent is None else self._client.lookup(parent, name, cancel)
        found = self._tree.look(path)  # what happened meanwhile
        if isinstance(found, Hidden):
            return self._encode.negative_reply(unique, codec.UPPER_TTL_S)
        if found is not None:
            return self._entered(unique, node, name, path, found)
        return self._found_below(unique, (node, name), parent or ROOT_ID, path, below)

    def _found_below(
        self, unique: int, place: tuple[int, bytes], parent: FileId, path: bytes, entry: Entry | None
    ) -> bytes:
        if entry is None and self._tree.modes.of(path) is not WriteMode.OFF:
            return self._encode.negative_reply(unique, codec.UPPER_TTL_S)
        if entry is not None and entry.kind is Kind.DIRECTORY:
            self._nodes.learn(entry.id, *place)
        return self._found(unique, parent, entry)

    def _entered(
        self, unique: int, parent: int, name: bytes, path: bytes, found: os.stat_result, *, new: bool = False
    ) -> bytes:
        node = self._nodes.node_of(path, found)
        generation = self._nodes.learn(node, parent, name, new=new)
        return self._encode.stat_entry_reply(unique, node, found, generation)

    def _path(self, node: int) -> bytes:
        """OSError ESTALE: it has no name any more."""
        path = self._nodes.path(node)
        if path is None:
            raise OSError(errno.ESTALE, "no name")
        return path

    def _path_to_change(self, node: int) -> bytes:
        """As `_path`. Of a file that only the origin had when the kernel learnt of it: OSError ESTALE when its name is
        hidden, or something of the upper layer, by now; the kernel then looks up what it was about to change."""
        if node & UPPER or not node >> NODE_SHIFT:
            return self._path(node)
        path = self._path(node & FILE_ID_MAX)
        if self._tree.look(path) is not None:
            raise OSError(errno.ESTALE, "it is another file now")
        return path

    def _below_directory(self, node: int, path: bytes) -> FileId | Miss | None:
        """The index's id of a directory; MISS when the node must be asked whether there is one."""
        if not node & UPPER and self._writer.path_of(FileId(node)) == path:
            return FileId(node)
        id = ROOT_ID
        for name in filter(None, path.split(b"/")):
            entry = self._client.lookup_fast(id, name)
            if isinstance(entry, Miss):
                return MISS
            if entry is None or entry.kind is not Kind.DIRECTORY:
                return None
            id = entry.id
        return id

    def _below_directory_blocking(self, node: int, path: bytes, cancel: Cancel) -> FileId | None:
        if not node & UPPER and self._writer.path_of(FileId(node)) == path:
            return FileId(node)
        id = ROOT_ID
        for name in filter(None, path.split(b"/")):
            found = self._client.lookup_fast(id, name)
            entry = self._client.lookup(id, name, cancel) if isinstance(found, Miss) else found
            if entry is None or entry.kind is not Kind.DIRECTORY:
                return None
            id = entry.id
        return id

    def forget(self, unique: int, node: int, request: bytearray) -> Answer:
        self._nodes.forget(node, abi.FORGET_IN.unpack_from(request, 40)[0])
        return None

    def batch_forget(self, unique: int, node: int, request: bytearray) -> Answer:
        count, _ = abi.BATCH_FORGET_IN.unpack_from(request, 40)
        for at in range(48, 48 + count * abi.FORGET_ONE.size, abi.FORGET_ONE.size):
            self._nodes.forget(*abi.FORGET_ONE.unpack_from(request, at))
        return None

    def getattr(self, unique: int, node: int, request: bytearray) -> Answer:
        with self._open_files.use(node) as file:
            if file is not None:
                return self._encode.stat_attr_reply(unique, node, as_given(os.fstat(file.fd), file.fd))
        if not node & UPPER and node >> 48:  # a file of the index
            return super().getattr(unique, node, request)
        dead = self._nodes.dead(node)
        if dead is not None:
            return self._encode.stat_attr_reply(unique, node, dead)
        path = self._path(node)
        found = self._tree.look(path)
        if isinstance(found, Hidden) or (found is None and node & UPPER):
            return errno.ESTALE
        if found is None:
            return super().getattr(unique, node, request)
        if not stat.S_ISDIR(found.st_mode):
            self._nodes.node_of(path, found)  # after a take-over it is not known which number it shows
        return self._encode.stat_attr_reply(unique, node, found)

    def readlink(self, unique: int, node: int, request: bytearray) -> Answer:
        return codec.data_reply(unique, self._upper.at(self._path(node)).readlink())

    # ------------------------------------------------------------ directories

    def opendir(self, unique: int, node: int, request: bytearray) -> Answer | Deferred:
        directory = self._path(node)
        if not self._tree.modes.any_below(directory):
            return super().opendir(unique, node, request)
        id = self._below_directory(node, directory)
        if not isinstance(id, Miss) and (id is None or self._client.listing_fresh(id)):
            return self._opened(unique, _MERGED_DIRECTORY_FLAGS)
        return lambda cancel: self._opendir_merged(unique, node, directory, cancel)

    def _opendir_merged(self, unique: int, node: int, directory: bytes, cancel: Cancel) -> bytes:
        id = self._below_directory_blocking(node, directory, cancel)
        if id is not None:
            self._client.ensure_listed(id, cancel)
        return self._opened(unique, _MERGED_DIRECTORY_FLAGS)

    def _page(self, unique: int, id: FileId, request: bytearray, *, plus: bool) -> Answer:
        directory = self._path(id)
        if not self._tree.modes.any_below(directory):
            return super()._page(unique, id, request, plus=plus)
        fh, offset, size, _ = abi.READ_IN.unpack_from(request, 40)
        handle = self._directories.get(fh)
        dots = codec.direntplus_bare if plus else codec.dirent
        parts: list[bytes] = []
        if offset == 0:
            handle.above = None
            parts.append(dots(id & FILE_ID_MAX, b".", Kind.DIRECTORY, 1))
        if offset <= 1:
            parts.append(dots(self._parent_node(id) & FILE_ID_MAX, b"..", Kind.DIRECTORY, 2))
        if handle.above is None:
            handle.above = self._tree.names(directory)
        left, at = size - sum(map(len, parts)), max(2, offset)
        given: list[bytes] = []
        after, skip = handle.seek(at)
        for name, below in islice(self._merged(id, directory, handle.above, after), skip, None):
            part = self._row(id, join(directory, name), name, below, at + 1, plus=plus)
            if part is None:
                continue
            if len(part) > left:
                break
            parts.append(part)
            given.append(name)
            left -= len(part)
            at += 1
        handle.note_page(max(2, offset), given)
        return codec.data_reply(unique, b"".join(parts))

    def _merged(
        self, node: int, directory: bytes, above: list[tuple[bytes, bool]], after: bytes
    ) -> Iterator[tuple[bytes, Entry | None]]:
        """Names in byte order, beyond `after`; with the entry of those that only the index has."""
        id = self._below_directory(node, directory)
        if isinstance(id, Miss):
            found = self._tree.below(directory)
            id = None if found is None else found.id
        children = iter(()) if id is None else self._client.children(id, after)
        return merge_listing([row for row in above if row[0] > after], children)

    def _row(
        self, parent: int, path: bytes, name: bytes, below: Entry | None, offset: int, *, plus: bool
    ) -> bytes | None:
        found = self._tree.look(path)
        if isinstance(found, Hidden) or (found is None and below is None):
            return None  # removed since the names were read
        if found is None:
            assert below is not None
            if plus:
                if below.kind is Kind.DIRECTORY:
                    self._nodes.learn(below.id, parent, name)
                return self._direntplus(below, offset, self._client.name_ttl_s(below.parent))
            return codec.dirent(below.id, name, below.kind, offset)
        node = self._nodes.node_of(path, found)
        if not plus:
            return codec.stat_dirent(name, self._encode.number_of(node), found, offset)
        generation = self._nodes.learn(node, parent, name)
        return self._encode.stat_direntplus(name, node, found, generation, offset)

    def _parent_node(self, node: int) -> int:
        path = self._path(node)
        directory = path.rpartition(b"/")[0] or b"/"
        found = self._tree.seen(directory)
        if directory == b"/" or found is None:
            return ROOT_ID
        return found.id if isinstance(found, Entry) else self._nodes.node_of(directory, found)

    # ------------------------------------------------------------ making and removing names

    def mknod(self, unique: int, node: int, request: bytearray) -> Answer | Deferred:
        mode, device, _, _ = abi.MKNOD_IN.unpack_from(request, 40)
        owner = owner_of(request)
        number = codec.decode_device(device)
        return self._make(
            unique,
            node,
            codec.decode_name(request, 56),
            lambda path: self._tree.make_node(path, mode, number, owner),
        )

    def mkdir(self, unique: int, node: int, request: bytearray) -> Answer | Deferred:
        mode, _ = abi.MKDIR_IN.unpack_from(request, 40)
        owner = owner_of(request)
        return self._make(
            unique,
            node,
            codec.decode_name(request, 48),
            lambda path: self._tree.make_directory(path, mode, owner),
        )

    def symlink(self, unique: int, node: int, request: bytearray) -> Answer | Deferred:
        name, target = codec.decode_names(request)
        owner = owner_of(request)
        return self._make(unique, node, name, lambda path: self._tree.symlink(path, target, owner))

    def link(self, unique: int, node: int, request: bytearray) -> Answer | Deferred:
        (old,) = abi.LINK_IN.unpack_from(request, 40)
        return self._make(
            unique,
            node,
            codec.decode_name(request, 48),
            lambda path: self._tree.link(self._path_to_change(old), path),
            new=False,
        )

    def _make(
        self,
        unique: int,
        node: int,
        name: bytes,
        make: Callable[[bytes], None],
        *,
        new: bool = True,
    ) -> Answer | Deferred:
        if len(name) > abi.NAME_BYTES_MAX:
            return errno.ENAMETOOLONG

        def work() -> Answer:
            path = join(self._path(node), name)
            try:
                make(path)
            except FileExistsError:
                if not self._was_done(unique, path):
                    raise
            at = self._upper.at(path)
            return self._entered(unique, node, name, path, as_given(at.lstat(), at), new=new)

        return self._changing(work)

    def unlink(self, unique: int, node: int, request: bytearray) -> Answer | Deferred:
        name = codec.decode_name(request)

        def work() -> Answer:
            path = join(self._path(node), name)
            found = self._tree.look(path)
            try:
                self._tree.remove(path)
            except FileNotFoundError:
                if not self._was_done(unique, path):
                    raise
            if isinstance(found, os.stat_result):
                self._nodes.removed(UPPER | found.st_ino, (node, name))
            return 0

        return self._changing(work)

    def rmdir(self, unique: int, node: int, request: bytearray) -> Answer | Deferred:
        name = codec.decode_name(request)

        def work() -> Answer:
            path = join(self._path(node), name)
            found = self._tree.look(path)
            if self._tree.seen(path) is None and self._was_done(unique, path):
                return 0
            if not isinstance(found, os.stat_result) or not stat.S_ISDIR(found.st_mode):
                below = self._tree.below(path)
                self._tree.remove_directory(path)
                self._nodes.removed(below.id if below is not None else 0, (node, name))
                return 0
            gone = self._nodes.node_of(path, found)
            fd = self._upper.at(path).open(os.O_PATH)
            try:
                self._tree.remove_directory(path)
            except BaseException:
                os.close(fd)
                raise
            self._nodes.directory_removed(gone, (node, name), found, fd)
            return 0

        below = self._tree.below(join(self._path(node), name))
        if below is not None and below.kind is Kind.DIRECTORY and not self._client.listing_fresh(below.id):
            return lambda cancel: self._after_listing(below.id, work, cancel)
        return self._changing(work)

    def _after_listing(self, id: FileId, work: Callable[[], Answer], cancel: Cancel) -> Answer | Deferred:
        self._client.ensure_listed(id, cancel)
        return self._changing(work)

    def rename(self, unique: int, node: int, request: bytearray) -> Answer | Deferred:
        (target,) = abi.RENAME_IN.unpack_from(request, 40)
        return self._rename(unique, (node, target), codec.decode_names(request, 48), 0)

    def rename2(self, unique: int, node: int, request: bytearray) -> Answer | Deferred:
        target, flags, _ = abi.RENAME2_IN.unpack_from(request, 40)
        return self._rename(unique, (node, target), codec.decode_names(request, 56), flags)

    def _rename(
        self, unique: int, parents: tuple[int, int], names: tuple[bytes, bytes], flags: int
    ) -> Answer | Deferred:
        old, new = (parents[0], names[0]), (parents[1], names[1])
        if len(names[1]) > abi.NAME_BYTES_MAX:
            return errno.ENAMETOOLONG

        def work(*, copied: bool) -> Answer:
            source, target = join(self._path(old[0]), old[1]), join(self._path(new[0]), new[1])
            replaced = self._tree.look(target)
            moved = self._tree.look(source)
            if (
                self._tree.seen(source) is None
                and replaced is not None
                and self._was_done(unique, target, source)
            ):
                return 0
            before = self._nodes.node_of(source, moved) if isinstance(moved, os.stat_result) else 0
            there = self._nodes.node_of(target, replaced) if isinstance(replaced, os.stat_result) else 0
            self._tree.rename(source, target, flags, copied=copied)
            if flags & EXCHANGE:
                self._nodes.moved(there, new, old)
            else:
                self._nodes.removed(there, new)
            self._nodes.moved(before, old, new)
            return 0

        def after_copy(cancel: Cancel) -> Answer | Deferred:
            source, target = join(self._path(old[0]), old[1]), join(self._path(new[0]), new[1])
            for path in (source, target) if flags & EXCHANGE else (source,):
                self._tree.copy_up_all(path, cancel)
            there = self._tree.below(target)
            if there is not None and there.kind is Kind.DIRECTORY:
                self._client.ensure_listed(there.id, cancel)
            try:
                answer = self._through(lambda: work(copied=True))
            except NeedsContentError:
                return after_copy  # it changed meanwhile
            for place in (new, old) if flags & EXCHANGE else (new,):
                self._kernel.name_changed(*place)  # what moved is another inode now
            return answer

        try:
            return self._through(lambda: work(copied=False))
        except NeedsContentError:
            return after_copy
        except LeaseRequiredError as needs:
            return self._claimed(needs.folder, lambda: self._rename(unique, parents, names, flags))

    def _was_done(self, unique: int, *paths: bytes) -> bool:
        """A change that can't be made any more is right when the session before made it, and died before it could say
        so: the kernel asks again then."""
        if not unique & abi.RESENT_BIT:
            return False
        self._noted(list(paths))
        return True

    def _noted(self, paths: list[bytes]) -> None:
        """The node hears of it; where the mode promises more than this disk, the answer waits for that."""
        self._writer.changed(paths)
        self._to_wait_for += [
            path for path in paths if self._tree.modes.waits(path) or not self._tree.other_nodes.know(path)
        ]

    def _through(self, work: Callable[[], Answer]) -> Answer | Deferred:
        """The work, under the lock; then, where the mode promises it, what is answered when the origin has it, or
        other nodes."""
        with self._tree.lock:
            self._to_wait_for = []
            answer = work()
            failpoint.hit("fuse.changed")
            paths, self._to_wait_for = self._to_wait_for, []
        if not paths:
            return answer

        def wait(cancel: Cancel) -> Answer:
            for path in paths:
                if self._tree.modes.waits(path):
                    self._writer.secure(path, cancel)
                else:
                    self._tell_others(path, cancel)
            return answer

        return wait

    def _tell_others(self, path: bytes, cancel: Cancel) -> None:
        """It is promised nothing if they can't be told: the node says so, and tells them later."""
        try:
            self._writer.secure(path, cancel)
        except HeadraceError as error:
            log.info("other nodes are told later path=%s reason=%s", os.fsdecode(path), error)

    def _claimed(self, folder: bytes, again: Callable[[], Answer | Deferred]) -> Deferred:
        """After this node has the right to make names there; another one may have it again by then."""

        def after_claim(cancel: Cancel) -> Answer | Deferred:
            try:
                self._writer.claim(folder, cancel)
            except HeadraceError as error:
                log.info("no name is made path=%s reason=%s", os.fsdecode(folder), error)
                return errno_of(error)
            return again()

        return after_claim

    def _slowed(self, answer: Answer | Deferred) -> Answer | Deferred:
        """Persisting is behind: whoever makes or closes a file waits for a moment."""
        pause_s = self._pressure.pause_s
        if not pause_s:
            return answer

        def wait(cancel: Cancel) -> Answer | Deferred:
            cancel.wait(pause_s)
            return answer(cancel) if callable(answer) else answer

        return wait

    def _changing(self, work: Callable[[], Answer], *, stale_after_copy: bool = False) -> Answer | Deferred:
        """The work, at once; or after a copy of what it needs, in the pool. stale_after_copy: the kernel must look the
        name up again then."""
        try:
            return self._through(work)
        except LeaseRequiredError as needs:
            folder = needs.folder
            return self._claimed(folder, lambda: self._changing(work, stale_after_copy=stale_after_copy))
        except NeedsContentError as needs:
            path, content = needs.path, needs.content

        def after_copy(cancel: Cancel) -> Answer | Deferred:
            self._copy_up(path, cancel, content=content)
            if stale_after_copy:
                return errno.ESTALE
            return self._changing(work)

        return after_copy

    def _copy_up(self, path: bytes, cancel: Cancel, *, content: bool) -> None:
        self._tree.copy_up(path, cancel, content=content)
        self.tell_kernel(path)

    def tell_kernel(self, path: bytes) -> None:
        """A name means another inode than the kernel may believe."""
        directory, _, name = path.rpartition(b"/")
        found = self._tree.seen(directory or b"/")
        if not directory:
            self._kernel.name_changed(ROOT_ID, name)
        elif isinstance(found, os.stat_result):
            self._kernel.name_changed(self._nodes.node_of(directory, found), name)
        elif found is not None:
            self._kernel.name_changed(found.id, name)

    def of_others(self, event: Written) -> list[bytes]:
        """The paths of files that this session did not change itself; directories keep their inodes."""
        if event.source == self._writer.source:
            return []
        seen = {path: self._tree.look(path) for path in event.paths}
        return [p for p, f in seen.items() if not (isinstance(f, os.stat_result) and stat.S_ISDIR(f.st_mode))]


def _with_errno(method: Method) -> Method:
    """An OSError of the layer is the answer, as a local file system would give it."""

    def run(unique: int, node: int, request: bytearray) -> Answer | Deferred | DiskTask | PendingRead:
        try:
            answer = method(unique, node, request)
        except HeadraceError:
            raise  # some are OSErrors without a number
        except OSError as error:
            return error.errno or errno.EIO
        if callable(answer):
            deferred = answer
            return lambda cancel: _answer_or_errno(lambda: deferred(cancel))
        if isinstance(answer, DiskTask):
            work = answer.work
            return DiskTask(lambda: _answer_or_errno(work))
        return answer

    return run


def _answer_or_errno(work: Callable[[], Answer | Deferred]) -> Answer | Deferred:
    try:
        answer = work()
    except HeadraceError:
        raise
    except OSError as error:
        return error.errno or errno.EIO
    if callable(answer):
        return lambda cancel: _answer_or_errno(lambda: answer(cancel))
    return answer


def owner_of(request: bytearray) -> Owner:
    uid, gid = abi.IN_HEADER.unpack_from(request)[4:6]
    return Owner(uid, gid)
