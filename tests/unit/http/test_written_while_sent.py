"""Answers whose file a program writes in place while it is sent."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.errors import VersionChangedError
from headrace.http.connection import HttpServerConnection
from headrace.http.messages import Response
from headrace.overlay.syscalls import tick_left_s
from headrace.testing.waiting import wait_for
from headrace.vfs.streams import Content

LIMIT_S = 60.0
SIZE = 16 << 20
"""More than the kernel keeps of a socket's bytes."""
OLD, NEW = b"o" * SIZE, b"n" * SIZE


class Transfer:
    """Sends a file to a client that reads when it is told to."""

    def __init__(self, file: Path) -> None:
        ours, self.client = socket.socketpair()
        self.client.settimeout(LIMIT_S)
        self.connection = HttpServerConnection(ours)
        self.content = Content.of_upper(os.open(file, os.O_RDONLY | os.O_CLOEXEC), b"/file")
        self.content.stat_at_rest()

    def begin(self, start: int, end: int) -> Response:
        """Return the answer with these bytes, to be sent on the connection."""
        response = Response(200, content=self.content, start=start, end=end)
        self.connection.prepare(response, b"")
        return response

    def finish(self, response: Response) -> bytes:
        """Send the rest, and return what the client received."""
        received = bytearray()
        reader = threading.Thread(target=self._read, args=(received,))
        reader.start()
        try:
            while not self.connection.send_rest(response):
                pass
        finally:
            self.connection.sock.shutdown(socket.SHUT_WR)
            reader.join(LIMIT_S)
            self.received = bytes(received)
        return self.received

    def _read(self, received: bytearray) -> None:
        while piece := self.client.recv(1 << 20):
            received += piece

    def close(self) -> None:
        self.content.close()
        self.connection.close()
        self.client.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "file"
    file.write_bytes(OLD)
    wait_for(lambda: not tick_left_s(file.stat()))
    return file


@pytest.fixture
def transfer(file: Path) -> Iterator[Transfer]:
    transfer = Transfer(file)
    yield transfer
    transfer.close()


def overwrite(file: Path) -> None:
    with file.open("r+b") as out:
        out.write(NEW)


def test_a_file_that_nobody_writes_is_sent_completely(transfer: Transfer) -> None:
    assert transfer.finish(transfer.begin(0, SIZE)) == OLD


def test_a_range_is_sent_completely(transfer: Transfer) -> None:
    assert transfer.finish(transfer.begin(5, SIZE - 1)) == OLD[5:-1]


def test_the_answer_is_cut_short_where_the_file_is_written(transfer: Transfer, file: Path) -> None:
    response = transfer.begin(0, SIZE)
    assert not transfer.connection.send_rest(response)
    overwrite(file)
    with pytest.raises(VersionChangedError):
        transfer.finish(response)
    assert 0 < len(transfer.received) < SIZE


def test_bytes_that_the_client_has_not_received_do_not_change(transfer: Transfer, file: Path) -> None:
    """The kernel would send the pages of the file as they are when the client reads."""
    response = transfer.begin(0, 64 << 10)
    assert transfer.connection.send_rest(response)
    overwrite(file)
    assert transfer.finish(response) == OLD[: 64 << 10]


def test_a_change_of_attributes_is_no_write(transfer: Transfer, file: Path) -> None:
    response = transfer.begin(0, SIZE)
    assert not transfer.connection.send_rest(response)
    file.chmod(0o600)
    file.rename(file.with_name("renamed"))
    assert transfer.finish(response) == OLD
