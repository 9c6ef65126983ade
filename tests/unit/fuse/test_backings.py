"""The FD store registers for an untrusted session what its user may read, and nothing else."""

from __future__ import annotations

import array
import errno
import os
import select
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.fuse import backings, device
from headrace.fuse.backings import BackingsKeeper, FdStoreBackings
from tests.integration.cli.host import wait_until
from tests.unit.fuse.memory_mount import MemoryBackings

NUMBER = struct.Struct("<i")


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> MemoryBackings:
    """Return what the kernel would have registered."""
    kernel = MemoryBackings()
    monkeypatch.setattr(device, "backing_open", lambda fuse_fd, fd: kernel.open(fd))
    monkeypatch.setattr(device, "backing_close", lambda fuse_fd, backing_id: kernel.close(backing_id))
    return kernel


@pytest.fixture
def keeper() -> Iterator[BackingsKeeper]:
    """One that answers in a thread until the session closes its end."""
    store = BackingsKeeper(-1, read_only=True)
    yield from _serving(store)


def _serving(store: BackingsKeeper) -> Iterator[BackingsKeeper]:
    store.socket.setblocking(True)

    def answer() -> None:
        while select.select([store], [], [])[0] and store.answer():
            pass

    thread = threading.Thread(target=answer)
    thread.start()
    yield store
    store.theirs.shutdown(socket.SHUT_RDWR)
    thread.join(30)
    assert not thread.is_alive()
    store.close()


@pytest.fixture
def session(keeper: BackingsKeeper) -> FdStoreBackings:
    return FdStoreBackings(keeper.theirs)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "file").write_bytes(b"bytes")
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    yield fd
    os.close(fd)


def test_a_file_is_registered_and_released(
    session: FdStoreBackings, registered: MemoryBackings, file: int
) -> None:
    first, second = session.open(file), session.open(file)
    assert registered.files == dict.fromkeys((first, second), os.fstat(file).st_ino)
    session.close(first)
    assert session.open(file) == 3  # an answer comes after the release
    assert registered.closed == [first]


def test_no_descriptor_of_a_session_is_kept(
    session: FdStoreBackings, registered: MemoryBackings, file: int
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        session.close(session.open(file))
    session.open(file)
    # it closes them after its reply; those of earlier tests may be closed meanwhile
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before)


@pytest.mark.parametrize("number", [errno.ELOOP, errno.EPERM])
def test_the_kernels_refusal_reaches_the_session(
    session: FdStoreBackings, registered: MemoryBackings, file: int, number: int
) -> None:
    registered.failure = OSError(number, os.strerror(number))
    with pytest.raises(OSError) as raised:
        session.open(file)
    assert raised.value.errno == number


@pytest.mark.expected_warnings("registration refused")
@pytest.mark.parametrize("path", ["/", "/dev/null"])
def test_only_regular_files_are_registered(
    session: FdStoreBackings, registered: MemoryBackings, path: str
) -> None:
    fd = os.open(path, os.O_RDONLY)
    with pytest.raises(PermissionError):
        session.open(fd)
    os.close(fd)
    assert registered.files == {}


@pytest.mark.expected_warnings("registration refused")
def test_a_file_of_another_user_is_not_registered(
    session: FdStoreBackings, registered: MemoryBackings, tmp_path: Path
) -> None:
    """The session's user may have a descriptor of it, and not the right to pass it on to everybody of the mount."""
    path = tmp_path / "file"
    path.write_bytes(b"bytes")
    if os.geteuid() == 0:
        os.chown(path, 4242, 4242)
    else:
        path = Path("/etc/passwd")
    fd = os.open(path, os.O_RDONLY)
    with pytest.raises(PermissionError):
        session.open(fd)
    os.close(fd)
    assert registered.files == {}


def test_a_writable_mount_gets_no_registration(registered: MemoryBackings, file: int) -> None:
    for store in _serving(BackingsKeeper(-1, read_only=False)):
        with pytest.raises(PermissionError):
            FdStoreBackings(store.theirs).open(file)
    assert registered.files == {}


@pytest.mark.parametrize(
    "body, count",
    [(NUMBER.pack(0), 0), (NUMBER.pack(0), 2), (NUMBER.pack(-5), 1), (b"abc", 1), (b"abcdefgh", 1)],
)
def test_a_malformed_request_registers_nothing(
    keeper: BackingsKeeper, registered: MemoryBackings, file: int, body: bytes, count: int
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file] * count))] if count else []
    keeper.theirs.sendmsg([body], rights)
    assert keeper.theirs.recv(16) == NUMBER.pack(-errno.EINVAL)
    assert registered.files == {}
    wait_until(lambda: len(os.listdir("/proc/self/fd")) == before)
    assert FdStoreBackings(keeper.theirs).open(file) == 1


def test_a_session_has_as_many_registrations_as_it_has_slots(
    session: FdStoreBackings, registered: MemoryBackings, file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backings, "SLOTS", 2)
    first = session.open(file)
    session.open(file)
    with pytest.raises(OSError) as raised:
        session.open(file)
    assert raised.value.errno == errno.ENFILE
    session.close(first)
    assert session.open(file)


def test_a_session_whose_fd_store_has_ended_registers_nothing(file: int) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    session = FdStoreBackings(theirs)
    ours.close()
    with pytest.raises(OSError):
        session.open(file)
    session.close(5)  # has nobody to tell
    theirs.close()


def test_what_is_no_fuse_device_registers_nothing(file: int) -> None:
    with pytest.raises(OSError):
        backings.OwnBackings(file).open(file)
    backings.OwnBackings(file).close(5)
