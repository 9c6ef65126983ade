"""The loop: requests from /dev/fuse in, answers out.

Rules. One hot thread reads the device and answers hits at once: a second one would only contend for the
interpreter (docs/decisions/0003). What may block runs in a pool, each with a Cancel, which is set when its caller
is killed (waiting_calls.py). What waits for the disk only has a pool of its own: an origin that hangs fills the
other one. Small reads of a mount without open are begun and answered by the hot thread itself. The kernel waits for
an answer even when the reader was killed, so each request is answered exactly once. Nothing here opens, stats
or maps anything below the own mountpoint.
"""

from __future__ import annotations

import errno
import gc
import logging
import os
import select
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headrace.base.errors import HeadraceError
from headrace.base.write_modes import WriteModes
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
from headrace.fuse.notify import Notifier
from headrace.fuse.operations import Answer, Deferred, DiskTask, Method, Mode, Operations, PendingRead
from headrace.fuse.waiting_calls import Caller, WaitingCall, WaitingCalls
from headrace.overlay.upper import Upper
from headrace.sdk.merged_tree import MergedTree
from headrace.sdk.node_client import EventsLost
from headrace.wire.messages import Completed, Evicted, Invalidated, Written

log = logging.getLogger(__name__)

DISK_THREADS = 32
BEGUN_MAX = 32
"""Requests that are taken, the disk being asked for some of them, before the first of those is waited for."""
STACK_DEPTH = 2  # cache files may lie on overlayfs; nobody can then stack overlayfs on the mount
_WANTED = (
    *(abi.ASYNC_READ, abi.DO_READDIRPLUS, abi.READDIRPLUS_AUTO, abi.PARALLEL_DIROPS, abi.MAX_PAGES),
    *(abi.EXPLICIT_INVAL_DATA, abi.INIT_EXT, abi.HAS_RESEND),
)
_WANTED_WRITABLE = (*_WANTED, abi.ATOMIC_O_TRUNC, abi.BIG_WRITES, abi.HANDLE_KILLPRIV_V2)


class Session:
    """ledger: already saved by an earlier session → this one takes over, without INIT. backings: who registers files;
    None: this process."""

    def __init__(
        self,
        fd: int,
        ledger: HandoverState,
        client: ReadingClient,
        *,
        mode: Mode,
        backings: Backings | None = None,
    ) -> None:
        self._fd = fd
        self._backings = backings or OwnBackings(fd)
        self._ledger = ledger
        self._client = client
        self._taking_over = ledger.init_flags != 0
        self._inodes = InodeIoModes(ledger, self._backings.close)
        self._files = HandleCache(client)
        if self._taking_over:
            mode = Mode(ledger.mode)
        self._notifier = Notifier(fd)
        self._tree = _tree_of(client)
        self.operations = self._build_operations(mode)
        self.operations.start_handles_at(ledger.incarnation << 40 | 1)
        self._begun: dict[int, PendingRead] = {}
        """By the request, oldest first; of the hot thread alone."""
        self._disk = ThreadPoolExecutor(DISK_THREADS, thread_name_prefix="disk")
        self._waiting = WaitingCalls(self._run, self._disk)
        self._table: dict[int, Method] = self.operations.table()
        self._table[Opcode.INTERRUPT] = _refuse_interrupts

    def _build_operations(self, mode: Mode) -> Operations:
        send = FileReplies(self._fd).send
        if self._tree is None:
            return Operations(
                self._client, self._inodes, self._files, mode=mode, register=self._register, send=send
            )
        client: Any = self._client
        return WritableOperations(
            client,
            self._inodes,
            self._files,
            mode=mode,
            register=self._register,
            send=send,
            kernel=self,
            tree=self._tree,
        )

    def register(self, fd: int) -> int:
        """A file of the upper layer, by its descriptor."""
        return self._backings.open(fd)

    def name_changed(self, parent: int, name: bytes) -> None:
        self._notifier.name_changed(parent, name)

    def start(self) -> None:
        """Answers INIT (blocks until the kernel sends it), or takes over."""
        if self._taking_over:
            self._clear_work()
            if self._ledger.init_flags & abi.HAS_RESEND:
                self._notifier.resend()
        else:
            self._answer_init()
        self._client.subscribe(self._on_event)

    def _clear_work(self) -> None:
        """What the session before had half done is done, before its requests come again."""
        if self._tree is not None:
            moved = self._tree.upper.clear_work()
            if moved:
                self._tree.on_changed(moved)

    def serve(self) -> None:
        """Returns when the mount is gone."""
        if self._tree is not None:
            self._tree.take_umask()
        gc.collect()
        gc.freeze()
        self._loop()

    def _answer_init(self) -> None:
        request = os.read(self._fd, abi.REQUEST_BYTES_MAX)
        _, opcode, unique, *_ = abi.IN_HEADER.unpack_from(request)
        if opcode != Opcode.INIT:
            raise RuntimeError(f"the kernel began with opcode {opcode}")
        offered = codec.decode_init(request)
        wanted = _WANTED if self._tree is None else _WANTED_WRITABLE
        flags = sum(flag for flag in wanted if offered.flags & flag)
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
        self._ledger.save(init_flags=flags, mode=self.operations.mode)

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
        request = bytearray(length)  # used again: methods keep no part of it beyond their call
        buffers = [request]
        unknown, begun, more = _unknown, self._begun, select.poll()
        more.register(fd, select.POLLIN)
        taken = 0  # requests, since reads were begun: others come first, but not for ever
        while True:
            if not begun:
                taken = 0
            elif taken >= BEGUN_MAX or not more.poll(0):
                self._finish_oldest()
                taken -= 1
                continue
            taken += 1
            try:
                read(fd, buffers)
            except OSError as error:
                if error.errno in (errno.ENODEV, errno.EBADF):
                    return
                continue  # ENOENT, EINTR, EAGAIN: the request went away
            opcode, unique, node = unpack(request)
            answer: Answer | Deferred | DiskTask | PendingRead = None
            try:
                answer = table.get(opcode, unknown)(unique, node, request)
                if type(answer) is bytes:
                    write(fd, answer)
                    continue
            except Exception as error:  # noqa: BLE001 - a loop of a door: logged, and the request is answered
                if answer is not None:
                    continue  # the write: the one who asked is gone
                answer = _failed(opcode, error)
            if isinstance(answer, PendingRead):
                begun[unique] = answer
            elif isinstance(answer, DiskTask):
                self._disk.submit(self._run_on_disk, opcode, unique, _caller(request), answer)
            elif callable(answer):
                self._waiting.submit(WaitingCall(opcode, unique, _caller(request), answer))
            else:
                self._send(unique, answer)

    def _finish_oldest(self) -> None:
        """Blocks on the disk, where the bytes are still on their way."""
        unique = next(iter(self._begun))
        answer: Answer
        try:
            answer = self._begun.pop(unique).finish()
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
                log.error("answer refused unique=%d reason=%s", unique, error)

    # ------------------------------------------------------------ events

    def _on_event(self, event: object) -> None:
        if isinstance(event, Invalidated):
            for parent, name in event.names:
                self._notifier.name_changed(parent, name)
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
        for node in nodes:  # pages that are being read now are theirs, and go when they are there
            self._notifier.pages_changed(node)
        if event.receipt:
            self._notifier.flush()
            self._client.forgot(event.receipt)

    def _written(self, event: Written) -> None:
        """What another session wrote: names that the kernel believes in may mean something else."""
        operations = self.operations
        if isinstance(operations, WritableOperations):
            for path in operations.of_others(event):
                operations.tell_kernel(path)

    def _catch_up(self) -> None:
        """What was dropped while nobody told us would keep its space, and its bytes may have been wrong. Names expire
        by themselves."""
        self._inodes.evict(self._inodes.ids())
        self._forget_files(self._files.ids())

    def _forget_files(self, ids: list[int]) -> None:
        drop: Callable[[Any], None] = self._files.drop
        for id in ids:
            drop(id)


def _tree_of(client: Any) -> MergedTree | None:
    """None where nothing can be written."""
    modes = WriteModes.parse(getattr(client, "write", ""))
    if not modes.any:
        return None
    return MergedTree(client, Upper(client.upper), modes, on_changed=client.changed)


def _unknown(unique: int, node: int, request: bytearray) -> Answer:
    return errno.ENOSYS


def _refuse_interrupts(unique: int, node: int, request: bytearray) -> Answer:
    """Tell the kernel that calls are not interrupted: it sends none any more on this mount, and wakes callers only to
    kill them."""
    return errno.ENOSYS


def _caller(request: bytearray) -> Caller:
    return Caller(*abi.CALLER.unpack_from(request))


def _failed(opcode: int, error: Exception) -> int:
    if isinstance(error, HeadraceError):
        log.info("request failed opcode=%d reason=%s", opcode, error)
        return errno_of(error)
    if isinstance(error, OSError) and error.errno:
        log.error("request failed opcode=%d", opcode, exc_info=error)
        return error.errno
    log.error("request failed opcode=%d", opcode, exc_info=error)
    return errno.EIO
