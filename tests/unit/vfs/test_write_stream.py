"""The descriptor of a file that is being written is closed by nobody while another thread writes to it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import termios
import threading

from headrace.testing.waiting import wait_for
from headrace.vfs.streams import WriteStream


def test_a_discard_waits_for_the_write_of_another_thread() -> None:
    """Otherwise the descriptor could be another file's by the time of the write."""
    reader, writer = os.pipe()
    room = fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ)
    abandoned = threading.Event()
    stream = WriteStream(writer, "f", finish=lambda _: None, abandon=lambda _: abandoned.set())

    def write() -> None:
        with contextlib.suppress(ValueError):  # it is closed by then
            stream.write(bytes(16 * room))

    threads = [
        threading.Thread(target=write, daemon=True),
        threading.Thread(target=stream.discard, daemon=True),
    ]
    threads[0].start()
    wait_for(lambda: waiting_bytes(reader) == room)
    threads[1].start()
    threads[1].join(0.3)  # it has time to be wrong
    assert not abandoned.is_set()
    data = b""
    while part := os.read(reader, 1 << 20):  # until the descriptor is closed
        data += part
    assert len(data) > room
    for thread in threads:
        thread.join(60)
    assert abandoned.is_set()
    assert stream.closed
    os.close(reader)


def waiting_bytes(reader: int) -> int:
    (count,) = struct.unpack("i", fcntl.ioctl(reader, termios.FIONREAD, bytes(4)))
    return int(count)


def test_a_forked_child_discards_without_the_threads_of_its_parent() -> None:
    reader, writer = os.pipe()
    stream = WriteStream(writer, "f", finish=lambda _: None, abandon=lambda _: None)
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with stream.raw._in_use:  # type: ignore[attr-defined]  # as a write of this thread does
            held.set()
            release.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # it ends a child that waits for ever
        try:
            stream.discard()
            os._exit(0)
        finally:
            os._exit(1)
    try:
        assert os.waitpid(child, 0)[1] == 0
    finally:
        release.set()
        thread.join(60)
    stream.discard()
    os.close(reader)
