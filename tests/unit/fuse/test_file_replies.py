"""Replies to READ carry the file's bytes, by splice or by a copy, and nothing of an earlier reply that failed."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.fuse import abi
from headrace.fuse.file_replies import FileReplies
from tests.unit.fuse.fake_kernel import FakeDevice, Reply, decoded_reply

BODY = os.urandom(300_000)


@pytest.fixture
def device() -> Iterator[FakeDevice]:
    fake = FakeDevice()
    yield fake
    fake.close()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "file").write_bytes(BODY)
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.fixture(params=["splice", "copy"])
def replies(
    device: FakeDevice, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> FileReplies:
    """`copy`: of a user who has too many pipes of this size."""
    if request.param == "copy":

        def refuse(*_: object) -> int:
            raise PermissionError(errno.EPERM, "too many pipes")

        monkeypatch.setattr("headrace.fuse.file_replies.fcntl.fcntl", refuse)
    return FileReplies(device.fd)


@pytest.mark.parametrize(
    "offset, count", [(0, 1), (0, 4096), (5, 100_000), (4095, 4098), (299_999, 1), (7, 0)]
)
def test_a_reply_has_exactly_these_bytes(
    device: FakeDevice, replies: FileReplies, file: int, offset: int, count: int
) -> None:
    assert replies.send(2, file, offset, count) is None
    assert decoded_reply(device.receive(), 2) == Reply(0, BODY[offset : offset + count])
    assert os.lseek(file, 0, os.SEEK_CUR) == 0, "other threads use the descriptor"


@pytest.mark.expected_warnings("a cache file is too short")
@pytest.mark.parametrize("offset, count", [(299_999, 2), (300_000, 1), (100_000, 300_000)])
def test_a_cache_file_that_is_too_short_is_an_error_and_not_a_short_read(
    device: FakeDevice, replies: FileReplies, file: int, offset: int, count: int
) -> None:
    """The kernel would take the file's end to be there, and show zeros after it."""
    assert replies.send(2, file, offset, count) == errno.EIO
    assert device.is_silent()
    assert replies.send(4, file, 1, 10) is None
    assert decoded_reply(device.receive(), 4) == Reply(0, BODY[1:11])


@pytest.mark.expected_warnings("a cache file cannot be read")
def test_a_file_that_can_not_be_read_is_its_errno(
    device: FakeDevice, replies: FileReplies, file: int, tmp_path: Path
) -> None:
    directory = os.open(tmp_path, os.O_RDONLY)
    number = replies.send(2, directory, 0, 10)
    os.close(directory)
    assert number in (errno.EISDIR, errno.EINVAL)
    assert replies.send(4, 1 << 20, 0, 10) == errno.EBADF
    assert device.is_silent()
    assert replies.send(6, file, 1, 10) is None
    assert decoded_reply(device.receive(), 6) == Reply(0, BODY[1:11])


def test_a_caller_that_has_ended_leaves_no_bytes_behind(
    device: FakeDevice, replies: FileReplies, file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    splice, writev = os.splice, os.writev

    def gone(*_: object, **__: object) -> int:
        raise FileNotFoundError(errno.ENOENT, "the request was withdrawn")

    def splice_to_file(source: int, target: int, count: int, **options: int) -> int:
        return gone() if target == device.fd else splice(source, target, count, **options)

    monkeypatch.setattr(os, "splice", splice_to_file)
    monkeypatch.setattr(os, "writev", gone)
    assert replies.send(2, file, 0, 5000) is None
    monkeypatch.setattr(os, "splice", splice)
    monkeypatch.setattr(os, "writev", writev)
    assert replies.send(4, file, 1, 10) is None
    assert decoded_reply(device.receive(), 4) == Reply(0, BODY[1:11])


@pytest.mark.expected_warnings("the kernel refused a reply")
def test_a_refused_reply_is_logged_unless_its_caller_has_ended(
    file: int, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    read_only = os.open(tmp_path / "file", os.O_RDONLY)
    assert FileReplies(read_only).send(2, file, 0, 10) is None
    assert "the kernel refused a reply" in caplog.text
    os.close(read_only)


def pipes_of_this_process() -> set[str]:
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return {os.readlink(link) for link in links if os.path.islink(link) and "pipe:" in os.readlink(link)}


def test_each_thread_has_its_own_pipe(device: FakeDevice, file: int) -> None:
    replies = FileReplies(device.fd)
    barrier = threading.Barrier(5)
    pipes = pipes_of_this_process()

    def send(number: int) -> None:
        barrier.wait(30)
        for turn in range(20):
            assert replies.send(2 * (100 * number + turn), file, number * 1000, 500) is None
        barrier.wait(30)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    barrier.wait(30)
    for _ in range(80):
        message = device.receive()
        unique = int.from_bytes(message[8:16], "little")
        offset = unique // 200 * 1000
        assert decoded_reply(message, unique) == Reply(0, BODY[offset : offset + 500])
    assert len(pipes_of_this_process() - pipes) == 4
    barrier.wait(30)
    for thread in threads:
        thread.join()


def test_the_largest_read_fits_the_pipe(file: int) -> None:
    reader, writer = os.pipe()
    assert fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, abi.READ_BYTES_MAX + abi.PAGE_BYTES) == 1 << 20
    os.close(reader)
    os.close(writer)
