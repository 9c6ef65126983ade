"""A session reads requests from its device, defers those that block, and replies to each exactly once."""

from __future__ import annotations

import errno
import gc
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from headrace.client.event_stream import EventsLost
from headrace.fuse import abi, handover_state
from headrace.fuse.abi import Opcode
from headrace.fuse.handover_state import HandoverState
from headrace.fuse.namespace_ops import NamespaceOperations
from headrace.fuse.node_ids import UPPER
from headrace.fuse.notify import Notifier
from headrace.fuse.operations import Mode
from headrace.fuse.removed_files import FREED_AT_ONCE_BYTES
from headrace.fuse.session import Session
from headrace.overlay.upper import Upper
from headrace.wire.messages import Completed, Evicted, Invalidated, Written
from tests.unit.fuse import kernel_layout as layout
from tests.unit.fuse.fake_kernel import (
    ROOT,
    FakeDevice,
    FakeKernel,
    Part,
    Reply,
    decoded_reply,
    encoded,
    uniques,
)
from tests.unit.fuse.memory_mount import MemoryBackings, WritingMemoryClient

ALL_FLAGS = (1 << 40) - 1 - abi.NO_OPEN_SUPPORT
READ_FLAGS = (
    abi.ASYNC_READ | abi.DO_READDIRPLUS | abi.READDIRPLUS_AUTO | abi.PARALLEL_DIROPS | abi.MAX_PAGES
) | (abi.EXPLICIT_INVAL_DATA | abi.INIT_EXT | abi.HAS_RESEND)
WRITE_FLAGS = READ_FLAGS | abi.ATOMIC_O_TRUNC | abi.BIG_WRITES | abi.HANDLE_KILLPRIV_V2
OpenClient = Callable[..., WritingMemoryClient]


class Served:
    """A session that serves in a thread of its own. Replies that come in another order are kept for their requests;
    notifications are apart."""

    def __init__(
        self, client: WritingMemoryClient, handover: HandoverState, mode: Mode, mountpoints: list[bytes]
    ) -> None:
        self.client, self.device, self.backings = client, FakeDevice(), MemoryBackings()
        self.session = Session(
            *(self.device.fd, handover, client),
            mode=mode,
            backings=self.backings,
            mountpoints=lambda: mountpoints,
        )
        self.kernel = FakeKernel(self.exchange)
        self.notifications: list[bytes] = []
        self._replies: dict[int, Reply] = {}
        self._outstanding: set[int] = set()
        self._uniques = uniques()
        self._thread = threading.Thread(target=self.session.serve)

    def start(self, offered: int = ALL_FLAGS) -> layout.InitOut:
        body = layout.InitIn(7, 45, 1 << 17, offered & 0xFFFFFFFF, offered >> 32)
        self.device.send(encoded(Opcode.INIT, 0, (body,), 1))
        self.session.start()
        out = decoded_reply(self.device.receive(), 1).decoded(layout.InitOut)
        self._thread.start()
        return out

    def take_over(self) -> None:
        self.session.start()
        self._thread.start()

    def send(self, opcode: int, node: int, *parts: Part, unique: int | None = None, thread: int = 0) -> int:
        unique = next(self._uniques) if unique is None else unique
        self._outstanding.add(unique)
        self.device.send(encoded(opcode, node, parts, unique, user=os.geteuid(), thread=thread))
        return unique

    def reply(self, unique: int) -> Reply:
        while unique not in self._replies:
            self.receive()
        return self._replies.pop(unique)

    def receive(self) -> None:
        """Receive one message; fail at a reply that no request waits for."""
        message = self.device.receive()
        header = layout.OutHeader.from_buffer_copy(message)
        if header.unique == 0:
            self.notifications.append(message)
            return
        assert header.unique in self._outstanding
        self._outstanding.remove(header.unique)
        self._replies[header.unique] = decoded_reply(message, header.unique)

    def notification(self) -> tuple[int, bytes]:
        """Return the oldest notification's code and body."""
        while not self.notifications:
            self.receive()
        message = self.notifications.pop(0)
        return layout.OutHeader.from_buffer_copy(message).error, message[16:]

    def exchange(
        self, opcode: int, node: int, parts: tuple[Part, ...], unique: int | None = None
    ) -> Reply | None:
        return self.reply(self.send(opcode, node, *parts, unique=unique))

    def close(self) -> None:
        if self._thread.ident is not None:
            self.session._notifier.flush()  # its thread would write to a descriptor that is closed, or another one
            self.device.unmount()
            self._thread.join(30)
            assert not self._thread.is_alive()
        self.device.close()


Serve = Callable[..., Served]
NextState = Callable[[], HandoverState]


@pytest.fixture
def next_state() -> Iterator[NextState]:
    """Call for each session of one mount: what the sessions before it left."""
    fd = handover_state.create()
    yield lambda: HandoverState(fd)
    os.close(fd)


@pytest.fixture
def serve(
    open_client: OpenClient, handover: HandoverState, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Serve]:
    """Call with the I/O mode and the write modes. The session does not serve yet. It freezes no objects, as their
    unfreezing would add all of the suite's to each later collection, some 0.4 s."""
    monkeypatch.setattr(gc, "freeze", lambda: None)
    sessions: list[Served] = []
    umask = os.umask(0)
    os.umask(umask)

    def make(
        mode: Mode = Mode.SPLICE,
        *,
        write: str = "",
        state: HandoverState = handover,
        mountpoints: Sequence[bytes] = (),
        generation: int = 1,
    ) -> Served:
        client = open_client(write)
        client.generation = generation
        if write:
            Upper(client.upper).make()
        sessions.append(Served(client, state, mode, [*mountpoints]))
        return sessions[-1]

    yield make
    for served in sessions:
        served.close()
    os.umask(umask)


@pytest.fixture
def served(serve: Serve) -> Served:
    running = serve()
    running.start()
    return running


# ------------------------------------------------------------ INIT


@pytest.mark.parametrize(
    "mode, write, offered, flags, depth, mode_after",
    [
        (Mode.SPLICE, "", ALL_FLAGS, READ_FLAGS, 0, Mode.SPLICE),
        (Mode.SPLICE, "back", ALL_FLAGS, WRITE_FLAGS, 0, Mode.SPLICE),
        (Mode.PASSTHROUGH, "", ALL_FLAGS, READ_FLAGS | abi.PASSTHROUGH, 2, Mode.PASSTHROUGH),
        (Mode.PASSTHROUGH, "", ALL_FLAGS & ~abi.PASSTHROUGH, READ_FLAGS, 0, Mode.SPLICE),
        (Mode.NOOPEN, "", ALL_FLAGS, READ_FLAGS, 0, Mode.NOOPEN),
        (Mode.NOOPEN, "", ALL_FLAGS | abi.NO_OPEN_SUPPORT, READ_FLAGS | abi.NO_OPEN_SUPPORT, 0, Mode.NOOPEN),
        (Mode.SPLICE, "", abi.INIT_EXT | abi.MAX_PAGES, abi.INIT_EXT | abi.MAX_PAGES, 0, Mode.SPLICE),
        (Mode.SPLICE, "back", 0, 0, 0, Mode.SPLICE),
    ],
)
def test_init_requests_what_the_kernel_offers_and_the_mount_needs(
    serve: Serve,
    handover: HandoverState,
    mode: Mode,
    write: str,
    offered: int,
    flags: int,
    depth: int,
    mode_after: Mode,
) -> None:
    served = serve(mode, write=write)
    out = served.start(offered)
    assert out.flags | out.flags2 << 32 == flags
    assert (out.major, out.minor) == (7, 45)
    assert out.max_write == (1 << 20 if write else 4096)
    assert (out.max_pages, out.max_readahead) == (255, 4096 * 1024)
    assert (out.max_background, out.congestion_threshold, out.time_gran) == (128, 96, 1)
    assert (out.max_stack_depth, out.map_alignment, out.request_timeout) == (depth, 0, 0)
    assert served.session.operations.mode is mode_after
    assert (handover.init_flags, handover.mode) == (flags, mode_after)


def test_a_device_that_does_not_begin_with_init_is_not_served(serve: Serve) -> None:
    served = serve()
    served.send(Opcode.LOOKUP, ROOT, b"small\0")
    with pytest.raises(RuntimeError, match="not INIT, its opcode is 1"):
        served.session.start()
    assert served.device.is_silent()


# ------------------------------------------------------------ the loop


@pytest.mark.parametrize(
    "opcode", [0, 7, 19, 37, 48, 52, 4096, (1 << 32) - 1, *(Opcode.ACCESS, Opcode.LSEEK)]
)
def test_an_unknown_opcode_is_not_implemented(served: Served, opcode: int) -> None:
    assert served.kernel.errno(opcode, ROOT, bytes(40)) == errno.ENOSYS
    assert served.kernel.node("small")


def test_interrupts_are_refused_and_interrupt_nothing(served: Served) -> None:
    served.client.options["miss"] = True
    stuck = Path(served.client.folder, "stuck")
    stuck.touch()
    waiting = served.send(Opcode.LOOKUP, ROOT, b"small\0")
    interrupt = served.kernel.errno(Opcode.INTERRUPT, 0, layout.InterruptIn(waiting), unique=waiting | 1)
    assert interrupt == errno.ENOSYS
    stuck.unlink()
    assert served.reply(waiting).decoded(layout.EntryOut).attr.size == 10


@pytest.mark.parametrize("mode", [Mode.SPLICE, Mode.NOOPEN])
def test_calls_that_wait_for_the_node_delay_no_other(
    serve: Serve, origin: dict[str, bytes], mode: Mode
) -> None:
    served = serve(mode)
    served.start()
    big, small = served.kernel.node("big"), served.kernel.node("small")
    assert served.kernel.read(small) == origin["small"]
    stuck = Path(served.client.folder, "stuck")
    stuck.touch()
    reads = [served.send(Opcode.READ, big, layout.ReadIn(0, block << 20, 4096)) for block in range(3)]
    served.client.options["miss"] = True
    lookups = [served.send(Opcode.LOOKUP, ROOT, name + b"\0") for name in (b"small", b"dir", b"none")]
    assert served.kernel.attributes(big).size == len(origin["big"])
    assert served.kernel.read(small, offset=2, size=3) == origin["small"][2:5]
    assert served.device.is_silent()
    stuck.unlink()
    for block, unique in enumerate(reads):
        assert served.reply(unique) == Reply(0, origin["big"][block << 20 :][:4096])
    sizes = [served.reply(unique).decoded(layout.EntryOut).attr.size for unique in lookups]
    assert sizes == [10, 0, 0]
    assert served.device.is_silent()


def test_many_reads_at_once_get_their_own_bytes(serve: Serve, origin: dict[str, bytes]) -> None:
    served = serve(Mode.NOOPEN)
    served.start()
    served.client.complete(served.client.id_of("/big"))
    node, offsets = served.kernel.node("big"), [number * 50_021 for number in range(62)]
    sent = [served.send(Opcode.READ, node, layout.ReadIn(0, offset, 512)) for offset in offsets]
    for offset, unique in zip(offsets, sent, strict=True):
        assert served.reply(unique) == Reply(0, origin["big"][offset : offset + 512])
    assert served.device.is_silent()


@pytest.mark.expected_warnings("request failed")
@pytest.mark.parametrize("name", [b"broken-fast", b"broken-slow"])
def test_a_defect_is_an_answer_and_not_the_end(
    served: Served, name: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("planted")

    if name == b"broken-slow":
        served.client.options["miss"] = True
        monkeypatch.setattr(served.client, "lookup", fail)
    else:
        monkeypatch.setattr(served.client, "lookup_fast", fail)
    assert served.kernel.errno(Opcode.LOOKUP, ROOT, name + b"\0") == errno.EIO
    assert "planted" in caplog.text
    monkeypatch.undo()
    served.client.options["miss"] = False
    assert served.kernel.node("small")


def test_an_error_of_the_node_is_the_errno_of_its_code(served: Served) -> None:
    node = served.kernel.node("big")
    Path(served.client.folder, "broken").touch()
    assert served.kernel.errno(Opcode.READ, node, layout.ReadIn(0, 0, 4096)) == errno.EHOSTUNREACH
    assert served.kernel.errno(Opcode.OPEN, 1 << 48 | 5, layout.OpenIn()) == errno.ENOENT
    assert served.kernel.errno(Opcode.GETATTR, 5, layout.GetattrIn()) == errno.ESTALE


def test_a_killed_caller_gets_its_answer(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel keeps a killed process until each of its calls is answered."""
    monkeypatch.setattr("headrace.fuse.waiting_calls.CHECK_INTERVAL_S", 0.01)
    monkeypatch.setattr("headrace.fuse.waiting_calls.is_killed", lambda thread: thread == 4711)
    served.client.options["miss"] = True
    Path(served.client.folder, "stuck").touch()
    survivor = served.send(Opcode.LOOKUP, ROOT, b"small\0", thread=4712)
    killed = served.send(Opcode.LOOKUP, ROOT, b"dir\0", thread=4711)
    assert served.reply(killed) == Reply(errno.ECANCELED, b"")
    assert served.device.is_silent()
    Path(served.client.folder, "stuck").unlink()
    assert served.reply(survivor).error == 0


def test_forgets_get_no_reply(served: Served) -> None:
    for _ in range(3):
        served.device.send(encoded(Opcode.FORGET, ROOT, (layout.ForgetIn(1),), 8))
    body = (layout.BatchForgetIn(1), layout.ForgetOne(5, 1))
    served.device.send(encoded(Opcode.BATCH_FORGET, 0, body, 8))
    assert served.kernel.node("small")
    assert served.device.is_silent()


@pytest.mark.expected_warnings("the kernel refused a reply")
@pytest.mark.parametrize(
    "number, is_logged", [(errno.ENOENT, False), (errno.ENODEV, False), (errno.EINVAL, True)]
)
def test_a_reply_that_the_kernel_refuses_ends_nothing(
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
    *,
    is_logged: bool,
) -> None:
    """ENOENT: the caller was interrupted before its reply. Any other refusal is a defect, and is logged."""
    assert served.kernel.node("dir"), "the loop runs by now"
    refused = threading.Event()

    def refuse(fd: int, data: bytes) -> int:
        refused.set()
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr("headrace.fuse.session.os.write", refuse)
        served.device.send(encoded(Opcode.GETATTR, 5, (layout.GetattrIn(),), 100))
        assert refused.wait(30)
    assert served.kernel.node("small")
    assert served.device.is_silent()
    assert ("refused a reply" in caplog.text) is is_logged


def test_a_full_pool_delays_only_the_removal_of_a_large_file(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.fuse.session.DISK_THREADS", 1)
    served = serve(write="back")
    served.start()
    with Path(served.client.upper, "tree", "new").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 2 * FREED_AT_ONCE_BYTES)
    is_free = threading.Event()
    served.session._disk.submit(is_free.wait, 60)
    unique = served.send(Opcode.UNLINK, ROOT, b"new\0")
    assert served.kernel.lookup(b"new").nodeid == 0, "the session serves the next call"
    assert served.device.is_silent()
    is_free.set()
    assert served.reply(unique).error == 0


def test_a_writable_session_serves_a_whole_life_of_a_file(serve: Serve, origin: dict[str, bytes]) -> None:
    served = serve(write="back")
    served.start()
    data = os.urandom(100_000)
    node = served.kernel.write_file(b"new", data)
    assert node & UPPER
    assert served.kernel.read(node) == data
    assert served.kernel.rename(b"new", b"moved") == 0
    assert served.kernel.rename(b"big", b"also moved") == 0
    assert served.notification()[0] == abi.Notify.INVAL_ENTRY
    assert served.kernel.read(served.kernel.node("also moved"), size=1 << 16) == origin["big"][: 1 << 16]
    assert served.kernel.errno(Opcode.UNLINK, ROOT, b"moved\0") == 0
    assert served.kernel.lookup(b"moved").nodeid == 0


# ------------------------------------------------------------ events and takeovers


def test_an_invalidated_name_is_dropped_with_the_listing_of_its_directory(served: Served) -> None:
    served.client.on_event(Invalidated(names=[(5, b"first"), (5, b"second")]))
    for name in (b"first", b"second"):
        code, body = served.notification()
        assert code == abi.Notify.INVAL_ENTRY
        assert body == bytes(layout.InvalEntryOut(5, len(name))) + name + b"\0"
    assert served.notification() == (abi.Notify.INVAL_INODE, bytes(layout.InvalInodeOut(5)))
    assert served.device.is_silent()


@pytest.mark.expected_warnings(
    "the kernel refused a notification"
)  # which may come after the end of the mount
@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_a_name_with_a_mount_below_is_looked_up_again_and_not_dropped(serve: Serve) -> None:
    """The kernel would detach the mount with the name."""
    served = serve(mountpoints=[b"/dir/sub"])
    served.start()
    assert served.kernel.xattr(ROOT, abi.MOUNTPOINTS_XATTR.encode()).body == b"1"
    places = [(ROOT, b"dir"), (served.client.id_of("/dir"), b"sub"), (ROOT, b"small")]
    served.client.on_event(Invalidated(names=places))
    for parent, name in places:
        code, body = served.notification()
        flags = 0 if name == b"small" else abi.EXPIRE_ONLY
        assert code == abi.Notify.INVAL_ENTRY
        assert body == bytes(layout.InvalEntryOut(parent, len(name), flags)) + name + b"\0"


def test_an_evicted_file_is_opened_again_and_its_registration_ends(
    serve: Serve, origin: dict[str, bytes]
) -> None:
    served = serve(Mode.PASSTHROUGH)
    served.start()
    node, id = served.kernel.node("small"), served.client.id_of("/small")
    served.kernel.release(node, served.kernel.open(node).fh)
    (backing_id,) = served.backings.files
    path = served.client.complete_path(id)
    assert path is not None
    Path(path).unlink()
    served.client.on_event(Evicted(ids=[id], receipt=9))
    assert served.backings.closed == [backing_id]
    assert served.client.receipts == [9]
    assert served.kernel.read(node) == origin["small"]


def test_pages_of_a_damaged_file_are_dropped_before_its_receipt(served: Served) -> None:
    node, id = served.kernel.node("small"), served.client.id_of("/small")
    served.kernel.open(node)
    acknowledged = threading.Thread(
        target=lambda: served.client.on_event(Evicted(ids=[id], damaged=True, receipt=9))
    )
    acknowledged.start()
    nodes = {layout.InvalInodeOut.from_buffer_copy(served.notification()[1]).ino for _ in range(2)}
    acknowledged.join(30)
    assert node in nodes
    assert served.client.receipts == [9]


def test_a_completed_file_is_read_from_its_new_cache_file(served: Served, origin: dict[str, bytes]) -> None:
    node, id = served.kernel.node("big"), served.client.id_of("/big")
    served.kernel.open(node)
    served.kernel.read(node, size=10)
    served.client.complete(id)
    Path(served.client.folder, "broken").touch()
    served.client.on_event(Completed(ids=[id]))
    assert served.kernel.read(node, offset=2 << 20, size=100) == origin["big"][2 << 20 :][:100]


def test_changes_of_another_session_are_invalidated(serve: Serve) -> None:
    served = serve(write="back")
    served.start()
    served.kernel.write_file(b"new", b"")
    served.client.on_event(Written([b"/new"], source=served.client.source))
    served.client.on_event(Written([b"/other"], source=5))
    code, body = served.notification()
    assert (code, body[16:]) == (abi.Notify.INVAL_ENTRY, b"other\0")


def test_lost_events_drop_every_registration(serve: Serve) -> None:
    served = serve(Mode.PASSTHROUGH)
    served.start()
    for path in ("small", "empty"):
        node = served.kernel.node(path)
        served.kernel.release(node, served.kernel.open(node).fh)
    assert len(served.backings.files) == 2
    served.client.on_event(EventsLost())
    assert served.backings.files == {}


def test_the_next_session_serves_what_the_first_had_open(
    serve: Serve, origin: dict[str, bytes], next_state: NextState
) -> None:
    first = serve(Mode.PASSTHROUGH, state=next_state())
    first.start()
    node = first.kernel.node("small")
    opened = first.kernel.open(node)
    second = serve(Mode.SPLICE, state=next_state())
    second.take_over()
    assert second.notification() == (abi.Notify.RESEND, b"")
    assert second.session.operations.mode is Mode.PASSTHROUGH, "INIT is not repeated"
    assert second.kernel.read(node) == origin["small"]
    again = second.kernel.open(node)
    assert again.backing_id == opened.backing_id
    second.backings.files[opened.backing_id] = 0
    second.client.on_event(Evicted(ids=[second.client.id_of("/small")]))
    assert second.backings.closed == []
    for _ in range(2):
        second.kernel.release(node, opened.fh)
    assert second.backings.closed == [opened.backing_id]


def test_requests_are_resent_before_the_next_session_reads_one(
    serve: Serve, next_state: NextState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel would resend a RELEASE that was read before, and the session would count it twice."""
    next_state().save(init_flags=abi.HAS_RESEND, mode=Mode.SPLICE)
    monkeypatch.setattr(Notifier, "_run", lambda self: None)  # its thread gets no time meanwhile
    second = serve(state=next_state())
    second.session.start()
    assert not second.device.is_silent()
    assert second.notification() == (abi.Notify.RESEND, b"")


def test_a_session_that_took_over_finds_the_nodes_of_the_first(serve: Serve, next_state: NextState) -> None:
    first = serve(write="back", state=next_state())
    first.start()
    node = first.kernel.write_file(b"new", b"bytes")
    second = serve(write="back", state=next_state())
    second.take_over()
    assert second.kernel.read(node) == b"bytes"
    assert second.kernel.write(node, b"B") == 1
    assert second.kernel.read(node) == b"Bytes"
    assert second.kernel.attributes(node).size == 5


def test_a_session_that_took_over_sends_the_nodes_of_the_first(serve: Serve, next_state: NextState) -> None:
    """The kernel fails each call on an open file whose node has another generation."""
    first = serve(write="back", state=next_state())
    first.start()
    node = first.kernel.write_file(b"new", b"")
    operations = first.session.operations
    assert isinstance(operations, NamespaceOperations)
    # its inode number was one of a removed file
    later, _ = operations._nodes.remember(node, ROOT, b"new", new=True)
    sent = first.kernel.lookup(b"new")
    assert (sent.nodeid, sent.generation) == (later, first.client.generation)
    second = serve(write="back", state=next_state(), generation=first.client.generation + 1000)
    second.take_over()
    again = second.kernel.lookup(b"new")
    assert (again.nodeid, again.generation) == (later, sent.generation)
    assert second.kernel.lookup(b"small").generation == first.kernel.lookup(b"small").generation


def test_a_session_that_took_over_registers_files_anew(serve: Serve, next_state: NextState) -> None:
    """Before it followed the events of the node, a file may have been evicted, or found damaged."""
    first = serve(Mode.PASSTHROUGH, state=next_state())
    first.start()
    node = first.kernel.node("small")
    opened = first.kernel.open(node)
    first.kernel.release(node, opened.fh)
    assert first.backings.closed == [], "it is kept for the next open"
    second = serve(Mode.PASSTHROUGH, state=next_state())
    second.backings.files[opened.backing_id] = 0
    second.take_over()
    assert second.backings.closed == [opened.backing_id]
