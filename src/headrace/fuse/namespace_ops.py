"""Serve the names of a writable mount: the merged tree under the kernel's node ids.

A request for a name that only the origin has is answered as on a read-only mount (`Operations`). The hot thread
serves the upper layer, and makes every change of names, by system calls: they cost less than a change of threads.
Work that must wait for the node or for the disk is deferred: a copy up, a listing. A file that was copied up is
another inode: the session answers ESTALE, and the kernel looks the name up again. `file_ops.py` serves the files.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Protocol

from headrace.base import failpoint
from headrace.base.beneath import EXCHANGE
from headrace.base.cancel import Cancel
from headrace.base.errors import HeadraceError
from headrace.base.model import FILE_ID_MAX, ROOT_ID, Entry, FileId, Kind, Version
from headrace.base.namespace_path import join
from headrace.base.write_modes import WriteMode
from headrace.client.node_client import MISS, Miss
from headrace.fuse import abi, codec
from headrace.fuse.client_protocol import WritingClient
from headrace.fuse.errno_map import errno_of
from headrace.fuse.handles import HandleCache
from headrace.fuse.io_modes import InodeIoModes
from headrace.fuse.mountpoints import MountpointNames
from headrace.fuse.node_ids import NODE_SHIFT, UPPER
from headrace.fuse.node_table import NodeTable, ReplacedError
from headrace.fuse.operations import (
    Answer,
    Deferred,
    DiskTask,
    Method,
    Mode,
    Operations,
    with_errno,
)
from headrace.fuse.owners import owner_of, single_owner_of
from headrace.fuse.removed_files import RemovedFiles
from headrace.fuse.shortened_files import ShortenedFiles
from headrace.fuse.upper_files import UpperFiles
from headrace.overlay.copy_up import NeedsContentError
from headrace.overlay.dirty_throttle import DirtyThrottle
from headrace.overlay.given_mode import as_given
from headrace.overlay.lease_check import LeaseRequiredError
from headrace.overlay.mark_names import MARKS
from headrace.overlay.merged_listing import merge_listing
from headrace.overlay.merged_tree import MergedTree
from headrace.overlay.upper import Hidden
from headrace.wire.messages import Written

log = logging.getLogger(__name__)

_MERGED_DIRECTORY_FLAGS = 0  # the kernel must not cache the listing, because other sessions change it


class Kernel(Protocol):
    """Registers descriptors for passthrough, returning backing ids, and invalidates (parent node, name) in the
    kernel."""

    def register(self, fd: int) -> int: ...
    def name_changed(self, parent: int, name: bytes) -> None: ...


OnChanged = Callable[[list[bytes]], None]


class NamespaceOperations(Operations):
    """Answers the requests that look up, list, create, rename or remove names of a writable mount.

    build_tree: builds the merged tree. Its argument is the function that the tree calls with the paths of a change.
    """

    def __init__(
        self,
        client: WritingClient,
        inodes: InodeIoModes,
        files: HandleCache,
        *,
        mode: Mode,
        register: Callable[[str], int],
        send: Callable[[int, int, int, int], int | None],
        mountpoints: MountpointNames,
        kernel: Kernel,
        build_tree: Callable[[OnChanged], MergedTree],
    ) -> None:
        super().__init__(
            client, inodes, files, mode=mode, register=register, send=send, mountpoints=mountpoints
        )
        self._writer, self._kernel = client, kernel
        self._tree = tree = build_tree(self._record_changes)
        self._upper = tree.upper
        self._nodes = NodeTable(tree.upper, client.path_of, inodes.generations)
        self._awaited_paths: list[bytes] = []
        self._throttle = DirtyThrottle(tree.upper.pressure_path)
        self._owner_of = single_owner_of if MARKS.single_owner else owner_of
        self._open_files = UpperFiles(inodes, kernel.register)
        self._shortened = ShortenedFiles(tree, self._nodes, self._open_files, self._path)
        self._encode = codec.AttributeEncoder(
            uid=os.getuid(),
            gid=os.getgid(),
            generation=self._generation,
            writable=True,
            numbers=self._nodes.numbers,
        )

    @property
    def tree(self) -> MergedTree:
        return self._tree

    def table(self) -> dict[int, Method]:
        methods = super().table()
        for op in (abi.Opcode.TMPFILE, abi.Opcode.COPY_FILE_RANGE):
            methods[op] = lambda unique, node, request: errno.ENOSYS
        return {op: with_errno(method) for op, method in methods.items()}

    # ------------------------------------------------------------ names

    def lookup(self, unique: int, node: int, request: bytearray) -> Answer | Deferred:
        name = codec.decode_name(request)
        if len(name) > abi.NAME_BYTES_MAX:
            return errno.ENAMETOOLONG
        directory = self._path(node)
        path = join(directory, name)
        upper = self._tree.view.lookup_upper(path)
        if isinstance(upper, Hidden):
            return self._encode.negative_reply(unique, codec.UPPER_TTL_S)
        if upper is not None:
            return self._upper_found(unique, node, name, path, upper)
        parent = self._lower_directory(node, directory)
        if isinstance(parent, Miss):
            return partial(self._lookup_blocking, unique, node, name)
        lower = None if parent is None else self._client.lookup_fast(parent, name)
        if isinstance(lower, Miss):
            return partial(self._lookup_blocking, unique, node, name)
        return self._lower_entry_reply(unique, (node, name), parent, path, lower)

    def _lookup_blocking(self, unique: int, node: int, name: bytes, cancel: Cancel) -> Answer | Deferred:
        directory = self._path(node)
        path = join(directory, name)
        parent = self._lower_directory_blocking(node, directory, cancel)
        lower = None if parent is None else self._lookup_lower((node, name), parent, cancel)
        upper = self._tree.view.lookup_upper(path)  # the name may have changed meanwhile
        if isinstance(upper, Hidden):
            return self._encode.negative_reply(unique, codec.UPPER_TTL_S)
        if upper is not None:
            return self._upper_found(unique, node, name, path, upper)
        return self._lower_entry_reply(unique, (node, name), parent, path, lower)

    def _upper_found(
        self, unique: int, node: int, name: bytes, path: bytes, upper: os.stat_result
    ) -> Answer | Deferred:
        try:
            return self._upper_entry_reply(unique, node, name, path, upper)
        except ReplacedError:
            return partial(self._lookup_blocking, unique, node, name)

    def _lower_entry_reply(
        self, unique: int, place: tuple[int, bytes], parent: FileId | None, path: bytes, entry: Entry | None
    ) -> bytes:
        entry = self._mountpoints.answer(*place, entry)
        if entry is None and (parent is None or self._tree.modes.of(path) is not WriteMode.OFF):
            return self._encode.negative_reply(unique, codec.UPPER_TTL_S)
        if entry is not None and entry.kind is Kind.DIRECTORY:
            self._nodes.remember(entry.id, *place)
        return self._entry_reply(unique, parent or ROOT_ID, entry)

    def _resolved(self, parent: FileId, path: bytes, cancel: Cancel) -> Entry | None:
        directory, _, name = path.rpartition(b"/")
        upper = self._tree.view.lookup_upper(path)
        if isinstance(upper, os.stat_result):
            kind = Kind.DIRECTORY if stat.S_ISDIR(upper.st_mode) else Kind.FILE
            return Entry(FileId(self._nodes.node_of(path, upper)), parent, name, kind, Version(0, 0))
        lower = None if upper else self._lower_directory_blocking(parent, directory or b"/", cancel)
        return None if lower is None else super()._resolved(lower, path, cancel)

    def _upper_entry_reply(
        self, unique: int, parent: int, name: bytes, path: bytes, upper: os.stat_result, *, new: bool = False
    ) -> bytes:
        node = self._nodes.node_of(path, upper)
        node, generation = self._nodes.remember(node, parent, name, file=path, new=new)
        return self._encode.stat_entry_reply(unique, node, upper, generation)

    def _path(self, node: int) -> bytes:
        """Return the path of a node. Raises ESTALE if it no longer has a name."""
        path = self._nodes.path(node) or self._mountpoints.path(node)
        if path is None:
            raise OSError(errno.ESTALE, "the node has no name")
        return path

    def _upper_of(self, node: int) -> tuple[bytes, os.stat_result | Hidden | None]:
        """Return the path of a node, and what the upper layer has there. Raises ESTALE as `_path` does. Most often the
        status under the newest name proves that path, so that one system call does for both."""
        if node & UPPER and (path := self._nodes.newest_path(node)) is not None:
            upper = self._tree.view.lookup_upper(path)
            if isinstance(upper, os.stat_result) and self._nodes.is_node(node, upper):
                return path, upper
        path = self._path(node)
        return path, self._tree.view.lookup_upper(path)

    def _path_to_change(self, node: int, *, content: bool = True) -> bytes:
        """Return the path of a node that is to be changed. Raises ESTALE if it no longer has a name. Raises ESTALE,
        too, for a file that only the origin had at the kernel's lookup, if the upper layer has or hides its name by
        now. The kernel then looks the name up again, but only once in a call.

        Raises NeedsContentError for a file that was demoted since the lookup: the kernel must find a copy the next
        time. content: whether the call needs the bytes."""
        if node & UPPER:
            path = self._nodes.newest_path(node)
            if path is not None and self._was_demoted(path):
                raise NeedsContentError(path, content=content)
            return self._path(node)
        if not node >> NODE_SHIFT:
            return self._path(node)
        path = self._path(node & FILE_ID_MAX)
        if self._tree.view.lookup_upper(path) is not None:
            raise OSError(errno.ESTALE, "the name is another file now")
        return path

    def _was_demoted(self, path: bytes) -> bool:
        """Return whether a path of the upper layer is a file of the origin alone now."""
        if self._upper.at(path).exists():
            return False
        entry = self._tree.view.lookup_lower(path)
        return entry is not None and entry.kind is Kind.FILE

    def _lower_directory(self, node: int, path: bytes) -> FileId | Miss | None:
        """Return the index's id of a directory, None if the origin lacks it, or MISS if only the node can decide."""
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

    def _lower_directory_blocking(self, node: int, path: bytes, cancel: Cancel) -> FileId | None:
        if not node & UPPER and self._writer.path_of(FileId(node)) == path:
            return FileId(node)
        id = ROOT_ID
        for name in filter(None, path.split(b"/")):
            cached = self._client.lookup_fast(id, name)
            entry = self._client.lookup(id, name, cancel) if isinstance(cached, Miss) else cached
            if entry is None or entry.kind is not Kind.DIRECTORY:
                return None
            id = entry.id
        return id

    def forget(self, unique: int, node: int, request: bytearray) -> Answer:
        self._nodes.forget(node, abi.FORGET_IN.unpack_from(request, 40)[0])
        return None

    def batch_forget(self, unique: int, node: int, request: bytearray) -> Answer:
        count, _ = abi.BATCH_FORGET_IN.unpack_from(request, 40)
        for offset in range(48, 48 + count * abi.FORGET_ITEM.size, abi.FORGET_ITEM.size):
            self._nodes.forget(*abi.FORGET_ITEM.unpack_from(request, offset))
        return None

    def getattr(self, unique: int, node: int, request: bytearray) -> Answer:
        with self._open_files.use(node) as file:
            if file is not None:
                return self._encode.stat_attr_reply(unique, node, as_given(os.fstat(file.fd), file.fd))
        if not node & UPPER and node >> 48:  # a file of the index
            return super().getattr(unique, node, request)
        removed = self._nodes.removed_directory(node)
        if removed is not None:
            return self._encode.stat_attr_reply(unique, node, removed)
        path, upper = self._upper_of(node)
        if isinstance(upper, Hidden) or (upper is None and node & UPPER):
            return errno.ESTALE
        if upper is None:
            return super().getattr(unique, node, request)
        if not stat.S_ISDIR(upper.st_mode):
            self._nodes.node_of(path, upper)  # after a takeover: records which inode number the file shows
        return self._encode.stat_attr_reply(unique, node, upper)

    def readlink(self, unique: int, node: int, request: bytearray) -> Answer:
        return codec.data_reply(unique, self._upper.at(self._path(node)).readlink())

    # ------------------------------------------------------------ directories

    def opendir(self, unique: int, node: int, request: bytearray) -> Answer | Deferred:
        directory = self._path(node)
        if not self._tree.modes.any_below(directory):
            return super().opendir(unique, node, request)
        id = self._lower_directory(node, directory)
        if not isinstance(id, Miss) and (id is None or self._client.listing_fresh(id)):
            return self._opened(unique, FileId(node), _MERGED_DIRECTORY_FLAGS)
        return lambda cancel: self._opendir_merged(unique, node, directory, cancel)

    def _opendir_merged(self, unique: int, node: int, directory: bytes, cancel: Cancel) -> bytes:
        id = self._lower_directory_blocking(node, directory, cancel)
        if id is not None:
            self._client.ensure_listed(id, cancel)
        return self._opened(unique, FileId(node), _MERGED_DIRECTORY_FLAGS)

    def _page(self, unique: int, id: FileId, request: bytearray, *, plus: bool) -> Answer:
        directory = self._path(id)
        if not self._tree.modes.any_below(directory):
            return super()._page(unique, id, request, plus=plus)
        fh, offset, size, _ = abi.READ_IN.unpack_from(request, 40)
        handle = self._directories.get(fh)
        dots = codec.direntplus_bare if plus else codec.dirent
        parts: list[bytes] = []
        if offset == 0:
            handle.rewind()
            parts.append(dots(id & FILE_ID_MAX, b".", Kind.DIRECTORY, 1))
        if offset <= 1:
            parts.append(dots(self._parent_node(id) & FILE_ID_MAX, b"..", Kind.DIRECTORY, 2))
        if handle.upper_rows is None:
            handle.upper_rows = self._tree.view.names(directory)
        remaining, position = size - sum(map(len, parts)), max(2, offset)
        names: list[bytes] = []
        after, skip = handle.seek(position)
        for name, lower in islice(self._merged(id, directory, handle.upper_rows, after), skip, None):
            part = self._row(id, join(directory, name), name, lower, position + 1, plus=plus)
            if part is None:
                continue
            if len(part) > remaining:
                break
            parts.append(part)
            names.append(name)
            remaining -= len(part)
            position += 1
        handle.record_page(max(2, offset), names)
        return codec.data_reply(unique, b"".join(parts))

    def _merged(
        self, node: int, directory: bytes, upper_rows: list[tuple[bytes, bool]], after: bytes
    ) -> Iterator[tuple[bytes, Entry | None]]:
        """Yield the names beyond `after` in byte order, each with its entry of the index if only that has it."""
        id = self._lower_directory(node, directory)
        if isinstance(id, Miss):
            entry = self._tree.view.lookup_lower(directory)
            id = None if entry is None else entry.id
        children = iter(()) if id is None else self._client.children(id, after)
        children = self._mountpoints.merged(FileId(node), children, after)
        return merge_listing([row for row in upper_rows if row[0] > after], children)

    def _row(
        self, parent: int, path: bytes, name: bytes, lower: Entry | None, offset: int, *, plus: bool
    ) -> bytes | None:
        upper = self._tree.view.lookup_upper(path)
        if isinstance(upper, Hidden):
            return None
        if upper is None:
            # the upper layer may have given it up just now
            lower = lower or self._tree.view.lookup_lower(path)
            if lower is None:
                return None  # removed since the names were read
            if plus:
                if lower.kind is Kind.DIRECTORY:
                    self._nodes.remember(lower.id, parent, name)
                return self._direntplus(lower, offset, self._client.name_ttl_s(lower.parent))
            return codec.dirent(lower.id, name, lower.kind, offset)
        node = self._nodes.node_of(path, upper)
        if not plus:
            return codec.stat_dirent(name, self._encode.number_of(node), upper, offset)
        try:
            node, generation = self._nodes.remember(node, parent, name, file=path)
        except ReplacedError:
            return self._row(parent, path, name, lower, offset, plus=True)
        return self._encode.stat_direntplus(name, node, upper, generation, offset)

    def _parent_node(self, node: int) -> int:
        path = self._path(node)
        directory = path.rpartition(b"/")[0] or b"/"
        parent = self._tree.view.lookup(directory)
        if directory == b"/" or parent is None:
            return ROOT_ID
        return parent.id if isinstance(parent, Entry) else self._nodes.node_of(directory, parent)

    # ------------------------------------------------------------ creating and removing names

    def mknod(self, unique: int, node: int, request: bytearray) -> Answer | Deferred:
        mode, device, _, _ = abi.MKNOD_IN.unpack_from(request, 40)
        owner = self._owner_of(request)
        number = codec.decode_device(device)
        return self._make(
            unique,
            node,
            codec.decode_name(request, 56),
            lambda path: self._tree.make_node(path, mode, number, owner),
        )

    def mkdir(self, unique: int, node: int, request: bytearray) -> Answer | Deferred:
        mode, _ = abi.MKDIR_IN.unpack_from(request, 40)
        owner = self._owner_of(request)
        return self._make(
            unique,
            node,
            codec.decode_name(request, 48),
            lambda path: self._tree.make_directory(path, mode, owner),
        )

    def symlink(self, unique: int, node: int, request: bytearray) -> Answer | Deferred:
        name, target = codec.decode_names(request)
        owner = self._owner_of(request)
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
                if not self._is_applied_resend(unique, path):
                    raise
            created = self._upper.at(path)
            upper = as_given(created.lstat(), created)
            return self._upper_entry_reply(unique, node, name, path, upper, new=new)

        return self._changing(work)

    def unlink(self, unique: int, node: int, request: bytearray) -> Answer | Deferred | DiskTask:
        name = codec.decode_name(request)
        removed = RemovedFiles()

        def work() -> Answer:
            path = join(self._path(node), name)
            upper = self._tree.view.lookup_upper(path)
            removed_node = self._nodes.node_of(path, upper) if isinstance(upper, os.stat_result) else 0
            try:
                removed.hold(self._upper.at(path), upper, lambda: self._tree.remove(path))
            except FileNotFoundError:
                if not self._is_applied_resend(unique, path):
                    raise
            self._nodes.removed(removed_node, (node, name), upper)
            return 0

        return removed.free_before_answer(lambda: self._changing(work))

    def rmdir(self, unique: int, node: int, request: bytearray) -> Answer | Deferred:
        name = codec.decode_name(request)

        def work() -> Answer:
            path = join(self._path(node), name)
            upper = self._tree.view.lookup_upper(path)
            if self._tree.view.lookup(path) is None and self._is_applied_resend(unique, path):
                return 0
            if not isinstance(upper, os.stat_result) or not stat.S_ISDIR(upper.st_mode):
                entry = self._tree.view.lookup_lower(path)
                self._tree.remove_directory(path)
                self._nodes.removed(entry.id if entry is not None else 0, (node, name))
                return 0
            removed_node = self._nodes.node_of(path, upper)
            self._tree.remove_directory(path)
            self._nodes.directory_removed(removed_node, (node, name), upper)
            return 0

        lower = self._tree.view.lookup_lower(join(self._path(node), name))
        if lower is not None and lower.kind is Kind.DIRECTORY and not self._client.listing_fresh(lower.id):
            return lambda cancel: self._after_listing(lower.id, work, cancel)
        return self._changing(work)

    def _after_listing(self, id: FileId, work: Callable[[], Answer], cancel: Cancel) -> Answer | Deferred:
        self._client.ensure_listed(id, cancel)
        return self._changing(work)

    def rename(self, unique: int, node: int, request: bytearray) -> Answer | Deferred | DiskTask:
        (target,) = abi.RENAME_IN.unpack_from(request, 40)
        return self._rename(unique, (node, target), codec.decode_names(request, 48), 0)

    def rename2(self, unique: int, node: int, request: bytearray) -> Answer | Deferred | DiskTask:
        target, flags, _ = abi.RENAME2_IN.unpack_from(request, 40)
        return self._rename(unique, (node, target), codec.decode_names(request, 56), flags)

    def _rename(
        self, unique: int, parents: tuple[int, int], names: tuple[bytes, bytes], flags: int
    ) -> Answer | Deferred | DiskTask:
        old, new = (parents[0], names[0]), (parents[1], names[1])
        if len(names[1]) > abi.NAME_BYTES_MAX:
            return errno.ENAMETOOLONG
        removed = RemovedFiles()
        once = partial(self._rename_once, unique, old, new, flags, removed=removed)

        def after_copy(cancel: Cancel) -> Answer | Deferred:
            source, target = join(self._path(old[0]), old[1]), join(self._path(new[0]), new[1])
            for path in (source, target) if flags & EXCHANGE else (source,):
                self._tree.copies.copy_up_all(path, cancel)
            lower = self._tree.view.lookup_lower(target)
            if lower is not None and lower.kind is Kind.DIRECTORY:
                self._client.ensure_listed(lower.id, cancel)
            try:
                answer = self._apply(partial(once, copied=True))
            except NeedsContentError:
                return after_copy  # the source changed meanwhile
            except LeaseRequiredError as error:
                return self._after_lease(error.folder, lambda: after_copy)
            for place in (new, old) if flags & EXCHANGE else (new,):
                self._kernel.name_changed(*place)  # the name is another inode now
            return answer

        def work() -> Answer | Deferred:
            try:
                return self._apply(partial(once, copied=False))
            except NeedsContentError:
                return after_copy
            except LeaseRequiredError as error:
                return self._after_lease(error.folder, work)

        return removed.free_before_answer(work)

    def _rename_once(
        self,
        unique: int,
        old: tuple[int, bytes],
        new: tuple[int, bytes],
        flags: int,
        *,
        copied: bool,
        removed: RemovedFiles,
    ) -> int:
        """Rename between two (directory, name) pairs, under the layer's lock, and record which nodes moved."""
        source, target = join(self._path(old[0]), old[1]), join(self._path(new[0]), new[1])
        if self._inodes.exchanges.is_repeated(unique) and self._is_applied_resend(unique, target, source):
            for place in (new, old):
                self._kernel.name_changed(*place)  # as after a copy, which the first call may have made
            return 0
        replaced = self._tree.view.lookup_upper(target)
        moved = self._tree.view.lookup_upper(source)
        if (
            self._tree.view.lookup(source) is None
            and replaced is not None
            and self._is_applied_resend(unique, target, source)
        ):
            return 0
        source_node = self._nodes.node_of(source, moved) if isinstance(moved, os.stat_result) else 0
        target_node = self._nodes.node_of(target, replaced) if isinstance(replaced, os.stat_result) else 0
        removed.hold(
            self._upper.at(target),
            None if flags & EXCHANGE else replaced,
            lambda: self._tree.rename(source, target, flags, copied=copied),
        )
        if flags & EXCHANGE:
            self._inodes.exchanges.record(unique)
            self._nodes.moved(target_node, new, old)
        else:
            self._nodes.removed(target_node, new, replaced)
        self._nodes.moved(source_node, old, new)
        return 0

    def _is_applied_resend(self, unique: int, *paths: bytes) -> bool:
        """Return whether the kernel resent a request that the earlier session may have applied before it died, and
        report its paths. A change that is impossible now is then correct: it was made already."""
        if not unique & abi.RESENT_BIT:
            return False
        self._record_changes(list(paths))
        return True

    def _record_changes(self, paths: list[bytes]) -> None:
        """Report changed paths to the node, and collect those whose reply must wait for more than this disk."""
        self._writer.changed(paths)
        self._awaited_paths += [
            path
            for path in paths
            if self._tree.modes.waits(path) or not self._tree.other_nodes.is_published(path)
        ]

    def _apply(self, work: Callable[[], Answer]) -> Answer | Deferred:
        """Do the work under the tree's lock. Where the mode promises it, defer the reply until others have the
        change."""
        with self._tree.lock:
            self._awaited_paths = []
            answer = work()
            failpoint.hit("fuse.changed")
            paths, self._awaited_paths = self._awaited_paths, []
        if not paths:
            return answer

        def wait(cancel: Cancel) -> Answer:
            for path in paths:
                if self._tree.modes.waits(path):
                    self._writer.secure(path, cancel)
                else:
                    self._publish(path, cancel)
            return answer

        return wait

    def _publish(self, path: bytes, cancel: Cancel) -> None:
        """Publish a changed path to other nodes before the reply. The mode promises nothing here: if it fails, the
        node logs that and publishes later."""
        try:
            self._writer.secure(path, cancel)
        except HeadraceError as error:
            log.info("the name is published later path=%s reason=%s", os.fsdecode(path), error)

    def _after_lease(self, directory: bytes, retry: Callable[[], Answer | Deferred]) -> Deferred:
        """Acquire the directory lease, then retry. Another node may hold the lease again by then."""

        def acquire_and_retry(cancel: Cancel) -> Answer | Deferred:
            try:
                self._writer.acquire_lease(directory, cancel)
            except HeadraceError as error:
                log.info("directory lease not acquired path=%s reason=%s", os.fsdecode(directory), error)
                return errno_of(error)
            return retry()

        return acquire_and_retry

    def _throttled(self, answer: Answer | Deferred) -> Answer | Deferred:
        """Delay the reply while persisting is behind, so that callers create and close files more slowly."""
        pause_s = self._throttle.pause_s
        if not pause_s:
            return answer

        def wait(cancel: Cancel) -> Answer | Deferred:
            cancel.wait(pause_s)
            return answer(cancel) if callable(answer) else answer

        return wait

    def _changing(self, work: Callable[[], Answer], *, stale_after_copy: bool = False) -> Answer | Deferred:
        """Apply the work at once, or in the pool after a copy up that it needs. With `stale_after_copy` the answer is
        then ESTALE, so that the kernel looks the name up again."""
        try:
            return self._apply(work)
        except LeaseRequiredError as error:
            retry = partial(self._changing, work, stale_after_copy=stale_after_copy)
            return self._after_lease(error.folder, retry)
        except NeedsContentError as error:
            path, content = error.path, error.content

        def after_copy(cancel: Cancel) -> Answer | Deferred:
            self._copy_up(path, cancel, content=content)
            if stale_after_copy:
                return errno.ESTALE
            return self._changing(work)

        return after_copy

    def _copy_up(self, path: bytes, cancel: Cancel, *, content: bool) -> None:
        self._tree.copies.copy_up(path, cancel, content=content)
        self.invalidate_name(path)

    def _do_or_copy(self, work: Callable[[], Answer | Deferred]) -> Answer | Deferred:
        """Do the work, or make the copy that it needs."""
        try:
            return work()
        except NeedsContentError as error:
            return partial(self._copy_then_stale, error.path, content=error.content)

    def _copy_then_stale(self, path: bytes, cancel: Cancel, *, content: bool) -> Answer:
        """Copy a file up, and answer ESTALE, so that the kernel looks the name up again and finds the copy."""
        self._copy_up(path, cancel, content=content)
        return errno.ESTALE

    def invalidate_name(self, path: bytes) -> None:
        """Invalidate a name that is another inode than the kernel may have cached."""
        directory, _, name = path.rpartition(b"/")
        parent = self._tree.view.lookup(directory or b"/")
        if not directory:
            self._kernel.name_changed(ROOT_ID, name)
        elif isinstance(parent, os.stat_result):
            self._kernel.name_changed(self._nodes.node_of(directory, parent), name)
        elif parent is not None:
            self._kernel.name_changed(parent.id, name)

    def changes_of_others(self, event: Written) -> list[bytes]:
        """Return the paths that other sessions changed, but for directories, which keep their inodes."""
        if event.source == self._writer.source:
            return []
        uppers = {path: self._tree.view.lookup_upper(path) for path in event.paths}
        return [
            p for p, s in uppers.items() if not (isinstance(s, os.stat_result) and stat.S_ISDIR(s.st_mode))
        ]
