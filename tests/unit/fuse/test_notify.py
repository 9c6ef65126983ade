"""Notifications reach the kernel in order, from a thread that nobody waits for."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import pytest

from headrace.fuse import notify
from headrace.fuse.abi import Notify
from headrace.fuse.notify import Notifier
from tests.unit.fuse import kernel_layout as layout
from tests.unit.fuse.fake_kernel import FakeDevice


@pytest.fixture
def device() -> Iterator[FakeDevice]:
    fake = FakeDevice()
    yield fake
    fake.close()


def test_notifications_keep_their_order(device: FakeDevice) -> None:
    notifier = Notifier(device.fd)
    notifier.name_changed(5, b"name")
    notifier.listing_changed(6)
    notifier.pages_changed(7)
    notifier.flush()
    notifier.resend()
    bodies = [
        (Notify.INVAL_ENTRY, bytes(layout.InvalEntryOut(5, 4)) + b"name\0"),
        (Notify.INVAL_INODE, bytes(layout.InvalInodeOut(6, 0, 0))),
        (Notify.INVAL_INODE, bytes(layout.InvalInodeOut(7, 0, 0))),
        (Notify.RESEND, b""),
    ]
    for code, body in bodies:
        assert device.receive() == bytes(layout.OutHeader(16 + len(body), code, 0)) + body


def test_flush_ends_when_the_kernel_has_all(device: FakeDevice) -> None:
    notifier = Notifier(device.fd)
    notifier.name_changed(5, b"name")
    notifier.flush()
    assert not device.is_silent()


def test_flush_waits_for_a_kernel_that_is_busy_only_so_long(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may wait for a lock whose owner waits for this session."""
    monkeypatch.setattr(notify, "FLUSH_LIMIT_S", 0.05)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, bytes(4096))
    except BlockingIOError:
        os.set_blocking(writer, True)
    notifier = Notifier(writer)
    notifier.name_changed(5, b"name")
    notifier.flush()
    while len(os.read(reader, 1 << 20)) % 4096 == 0:
        pass  # the notification comes last
    os.close(reader)
    os.close(writer)


@pytest.mark.expected_warnings("the kernel refused a notification")
@pytest.mark.parametrize(
    "number, is_logged",
    [
        *((number, False) for number in (errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENOTCONN)),
        (errno.EINVAL, True),
    ],
)
def test_a_refused_notification_does_not_end_the_thread(
    device: FakeDevice,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
    *,
    is_logged: bool,
) -> None:
    """ENOENT: the kernel has not cached the name; ENODEV: the mount is gone."""

    def refuse(fd: int, message: bytes) -> int:
        raise OSError(number, os.strerror(number))

    notifier = Notifier(device.fd)
    with monkeypatch.context() as patch:
        patch.setattr("headrace.fuse.notify.os.write", refuse)
        notifier.name_changed(5, b"name")
        notifier.flush()
    assert ("refused a notification" in caplog.text) is is_logged
    notifier.listing_changed(6)
    assert device.receive()[16:] == bytes(layout.InvalInodeOut(6, 0, 0))
