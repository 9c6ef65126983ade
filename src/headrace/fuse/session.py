"""Run a session: read requests from /dev/fuse, and reply to each exactly once.

The kernel waits for a reply even when the reader was killed. Rules:

- One hot thread reads the device and answers hits at once. A second one would only contend for the interpreter
  (docs/decisions/0003). In the mode without OPEN the hot thread also begins and finishes small reads.
- Work that may block on the node runs in a pool, each call with a Cancel, which is set when its caller is killed
  (`waiting_calls.py`).
- Work that waits for the disk only has a pool of its own, because an origin that hangs fills the other one.
- Nothing here opens, stats or maps a path below the session's own mountpoint.
"""

from __future__ import annotations

import errno
import logging
import os
import select
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headrace.base.errors import HeadraceError
from headrace.base.garbage_collector import collect_rarely
from headrace.base.model import FileId
from headrace.base.write_modes import WriteModes
from headrace.client.event_stream import EventsLost
from headrace.fuse import abi, codec, device
from headrace.fuse.abi import Opcode
from headrace.fuse.backings import Backings, OwnBackings
from headrace.fuse.client_protocol import ReadingClient
from headrace.fuse.errno_map import errno_of
from headrace.fuse.file_ops import WritableOperations
from headrace.fuse.file_replies import FileReplies
from headrace.fuse.handles import HandleCache
from headrace.fuse.handover_state import HandoverState
from headrace.fuse.io_modes import InodeIoModes
from headrace.fuse.mountpoints import MountpointNames
from headrace.fuse.notify import Notifier
from headrace.fuse.operations import Answer, Deferred, DiskTask, Method, Mode, Operations, PendingRead
from headrace.fuse.waiting_calls import Caller, WaitingCall, WaitingCalls
from headrace.overlay.merged_tree import MergedTree
from headrace.overlay.moves import clear_work
from headrace.overlay.upper import Upper
from headrace.wire.messages import Completed, Evicted, Invalidated, Written

log = logging.getLogger(__name__)

DISK_THREADS = 32
PENDING_READS_MAX = 32
"""Requests that the hot thread reads before it waits for the oldest begun read."""
STACK_DEPTH = 2  # cache files may lie on overlayfs; the kernel then allows no overlayfs on top of the mount
_REQUESTED_FLAGS = (
    *(abi.ASYNC_READ, abi.DO_READDIRPLUS, abi.READDIRPLUS_AUTO, abi.PARALLEL_DIROPS, abi.MAX_PAGES),
    *(abi.EXPLICIT_INVAL_DATA, abi.INIT_EXT, abi.HAS_RESEND),
)
_REQUESTED_FLAGS_WRITABLE = (*_REQUESTED_FLAGS, abi.ATOMIC_O_TRUNC, abi.BIG_WRITES, abi.HANDLE_KILLPRIV_V2)


class Session:
    """Serves one mount until it is unmounted. A `handover` state that an earlier session saved makes this one take
    over, without INIT. `backings` registers files for passthrough; by default this process does. `mountpoints`
    returns the paths that other file systems are mounted at, or will be."""

    def __init__(
        self,
        fd: int,
        handover: HandoverState,
        client: ReadingClient,
        *,
        mode: Mode,
        backings: Backings | None = None,
        mountpoints: Callable[[], Iterable[bytes]] = tuple,
    ) -> None:
        self._fd = fd
        self._backings = backings or OwnBackings(fd)
        self._handover = handover
        self._client = client
        self._taking_over = handover.init_flags != 0
        self._inodes = InodeIoModes(handover, self._backings.close)
        if self._taking_over:
            mode = Mode(handover.mode)
        self._files = HandleCache(client, reports_use=mode is Mode.NOOPEN)
        self._notifier = Notifier(fd)
        self._mountpoints = MountpointNames(client, handover, mountpoints)
        self.operations = self._build_operations(mode)
        self._tree = self.operations.tree if isinstance(self.operations, WritableOperations) else None
        self.operations.start_handles_at(handover.incarnation << 40 | 1)
        self._pending_reads: dict[int, PendingRead] = {}
        """Begun reads by `unique`, oldest first. Only the hot thread uses it."""
        self._disk = ThreadPoolExecutor(DISK_THREADS, thread_name_prefix="disk")
        self._waiting = WaitingCalls(self._run, self._disk)
        self._table: dict[int, Method] = self.operations.table()
        self._table[Opcode.INTERRUPT] = _refuse_interrupts

    def _build_operations(self, mode: Mode) -> Operations:
        send = FileReplies(self._fd).send
        client: Any = self._client
        modes = WriteModes.parse(getattr(client, "write", ""))
        if not modes.any:  # nothing can be written
            return Operations(
                *(self._client, self._inodes, self._files),
                mode=mode,
                register=self._register,
                send=send,
                mountpoints=self._mountpoints,
            )
        return WritableOperations(
            client,
            self._inodes,
            self._files,
            mode=mode,
            register=self._register,
            send=send,
            mountpoints=self._mountpoints,
            kernel=self,
            build_tree=lambda on_changed: MergedTree(
                client, Upper(client.upper), modes, on_changed=on_changed
            ),
        )

    def register(self, fd: int) -> int:
        """Register a file of the upper layer for passthrough, by its descriptor. Return the backing id."""
        return self._backings.open(fd)

    def name_changed(self, parent: int, name: bytes) -> None:
        self._notifier.name_changed(parent, name, expire=(parent, name) in self._mountpoints)

    def start(self) -> None:
        """Answer INIT, which blocks until the kernel sends it, or take over from an earlier session."""
        if self._taking_over:
            self._finish_interrupted_work()
            if self._handover.init_flags & abi.HAS_RESEND:
                self._notifier.resend()
        else:
            self._answer_init()
        self._client.subscribe(self._on_event, on_subscribed=self._follow_inherited)

    def _finish_interrupted_work(self) -> None:
        """Complete the changes that the earlier session left half done, before the kernel resends its requests."""
        if self._tree is not None:
            moved = clear_work(self._tree.upper)
            if moved:
                self._tree.on_changed(moved)

    def serve(self) -> None:
        """Serve requests until the mount is gone."""
        if self._tree is not None:
            self._tree.take_umask()
        collect_rarely()
        self._loop()

    def _answer_init(self) -> None:
        request = os.read(self._fd, abi.REQUEST_BYTES_MAX)
        _, opcode, unique, *_ = abi.IN_HEADER.unpack_from(request)
        if opcode != Opcode.INIT:
            raise RuntimeError(f"the first request of the kernel is not INIT, its opcode is {opcode}")
        offered = codec.decode_init(request)
        requested = _REQUESTED_FLAGS if self._tree is None else _REQUESTED_FLAGS_WRITABLE
        flags = sum(flag for flag in requested if offered.flags & flag)
        depth = 0
        if self.operations.mode is Mode.PASSTHROUGH and offered.flags & abi.PASSTHROUGH:
            flags, depth = flags | abi.PASSTHROUGH, STACK_DEPTH
        elif self.operations.mode is Mode.PASSTHROUGH:
            self.operations.mode = Mode.SPLICE
        if self.operations.mode is Mode.NOOPEN:
            flags |= offered.flags & abi.NO_OPEN_SUPPORT
        readahead = max(offered.max_readahead_bytes, device.READ_AHEAD_KB * 1024)
        os.write(
            self._fd,
            codec.init_reply(
                unique,
                flags=flags,
                stack_depth=depth,
                readahead_bytes=readahead,
                write_bytes_max=abi.PAGE_BYTES if self._tree is None else abi.WRITE_BYTES_MAX,
            ),
        )
        self._handover.save(init_flags=flags, mode=self.operations.mode)

    def _register(self, path: str) -> int:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return self._backings.open(fd)
        finally:
            os.close(fd)

    # ------------------------------------------------------------ requests

    def _loop(self) -> None:
        fd, read, write = self._fd, os.readv, os.write
        unpack, table = abi.HOT_HEADER.unpack_from, self._table
        length = abi.REQUEST_BYTES_MAX if self._tree is None else abi.WRITABLE_REQUEST_BYTES_MAX
        # Each page is written once, because a process that is killed while the kernel copies a request to a page that
        # it must allocate fails that request with EIO. It is reused: methods keep no part of it beyond their call.
        request = bytearray(b"\0") * length
        buffers = [request]
        unknown, pending, poller = _unknown, self._pending_reads, select.poll()
        poller.register(fd, select.POLLIN)
        accepted = 0  # requests since a read was begun: new requests come first, but not without limit
        while True:
            if not pending:
                accepted = 0
            elif accepted >= PENDING_READS_MAX or not poller.poll(0):
                self._finish_oldest()
                accepted -= 1
                continue
            accepted += 1
            try:
                read(fd, buffers)
            except OSError as error:
                if error.errno in (errno.ENODEV, errno.EBADF):
                    return
                continue  # ENOENT, EINTR, EAGAIN: the request was withdrawn
            opcode, unique, node = unpack(request)
            answer: Answer | Deferred | DiskTask | PendingRead = None
            try:
                answer = table.get(opcode, unknown)(unique, node, request)
                if type(answer) is bytes:
                    write(fd, answer)
                    continue
            except Exception as error:  # noqa: BLE001 - a loop of an interface: logged, and the request is answered
                if answer is not None:
                    continue  # the write failed: the caller has ended
                answer = _failed(opcode, error)
            if isinstance(answer, PendingRead):
                pending[unique] = answer
            elif isinstance(answer, DiskTask):
                self._disk.submit(self._run_on_disk, opcode, unique, _caller(request), answer)
            elif callable(answer):
                self._waiting.submit(WaitingCall(opcode, unique, _caller(request), answer))
            else:
                self._send(unique, answer)

    def _finish_oldest(self) -> None:
        """Finish the oldest begun read. Blocks on the disk while the bytes are still being read."""
        unique = next(iter(self._pending_reads))
        answer: Answer
        try:
            answer = self._pending_reads.pop(unique).finish()
        except Exception as error:  # noqa: BLE001 - as in _loop
            answer = _failed(Opcode.READ, error)
        self._send(unique, answer)

    def _run_on_disk(self, opcode: int, unique: int, caller: Caller, work: DiskTask) -> None:
        answer: Answer | Deferred
        try:
            answer = work.work()
        except Exception as error:  # noqa: BLE001 - as in _loop
            answer = _failed(opcode, error)
        if callable(answer):
            self._waiting.submit(WaitingCall(opcode, unique, caller, answer))
        else:
            self._send(unique, answer)

    def _run(self, call: WaitingCall) -> None:
        answer: Answer | Deferred
        try:
            answer = call.work(call.cancel)
        except Exception as error:  # noqa: BLE001 - as in _loop
            answer = _failed(call.opcode, error)
        if callable(answer):
            call.work = answer
            self._waiting.submit(call)
            return
        self._waiting.end(call)
        self._send(call.unique, answer)

    def _send(self, unique: int, answer: Any) -> None:
        try:
            if type(answer) is int:
                os.write(self._fd, codec.error_reply(unique, answer))
            elif answer is not None:
                os.write(self._fd, answer)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                log.error("the kernel refused a reply unique=%d reason=%s", unique, error)

    # ------------------------------------------------------------ events

    def _on_event(self, event: object) -> None:
        if isinstance(event, Invalidated):
            for parent, name in event.names:
                self.name_changed(parent, name)
            for parent in dict.fromkeys(parent for parent, _ in event.names):
                self._notifier.listing_changed(parent)
        elif isinstance(event, Written):
            self._written(event)
        elif isinstance(event, Evicted):
            self._evicted(event)
        elif isinstance(event, Completed):
            self._forget_files(event.ids)
        elif isinstance(event, EventsLost):
            self._catch_up()

    def _evicted(self, event: Evicted) -> None:
        nodes = self._inodes.damage(event.ids) if event.damaged else []
        self._inodes.evict(event.ids)
        self._forget_files(event.ids)
        for node in nodes:  # pages that are being read now belong to these, and are dropped after that
            self._notifier.pages_changed(node)
        if event.receipt:
            self._notifier.flush()
            self._client.acknowledge(event.receipt)

    def _written(self, event: Written) -> None:
        """Invalidate names that another session changed."""
        operations = self.operations
        if isinstance(operations, WritableOperations):
            for path in operations.changes_of_others(event):
                operations.invalidate_name(path)

    def _catch_up(self) -> None:
        """Drop all backing ids and handles after lost events. An evicted file would otherwise keep its space, and its
        bytes may have been wrong. Names expire by themselves."""
        self._inodes.evict(self._inodes.ids())
        self._forget_files(self._files.ids())

    def _follow_inherited(self) -> None:
        """Catch up with the events that came after the death of an earlier session: its files may be evicted, or found
        damaged."""
        if self._taking_over:
            self._catch_up()

    def _forget_files(self, ids: list[int]) -> None:
        for id in ids:
            self._files.drop(FileId(id))


def _unknown(unique: int, node: int, request: bytearray) -> Answer:
    return errno.ENOSYS


def _refuse_interrupts(unique: int, node: int, request: bytearray) -> Answer:
    """Tell the kernel that calls are not interrupted. It then stops INTERRUPT on this mount, and only kills wake
    callers."""
    return errno.ENOSYS


def _caller(request: bytearray) -> Caller:
    return Caller(*abi.CALLER.unpack_from(request))


def _failed(opcode: int, error: Exception) -> int:
    if isinstance(error, HeadraceError):
        log.info("request failed opcode=%d reason=%s", opcode, error)
        return errno_of(error)
    if isinstance(error, OSError) and error.errno:  # of a disk
        log.error("request failed opcode=%d reason=%s", opcode, error)
        return error.errno
    log.error("request failed opcode=%d", opcode, exc_info=error)
    return errno.EIO
