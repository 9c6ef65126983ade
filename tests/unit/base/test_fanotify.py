"""Events of a file system: what the kernel says, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.base.fanotify import (
    CREATE,
    DELETE,
    MOVED_TO,
    ON_DIRECTORY,
    READ_BYTES,
    ChangeEvents,
    EventsLostError,
    FileEvent,
    decode_events,
    path_of_handle,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="fanotify needs root")
OVERFLOW = (
    (24).to_bytes(4, "little")
    + b"\x03\0"
    + (24).to_bytes(2, "little")
    + (0x4000).to_bytes(8, "little")
    + bytes(8)
)


def changes(folder: Path) -> bytes:
    """Return events, as the kernel encodes them: three names in a directory."""
    fd = os.open(folder, os.O_RDONLY)
    events = ChangeEvents(fd)
    try:
        (folder / "d").mkdir()
        (folder / "d" / "a b").touch()
        (folder / "d").rename(folder / "e")
        return os.read(events.fd, READ_BYTES)
    finally:
        events.close()
        os.close(fd)


def of(folder: Path, data: bytes) -> dict[bytes, FileEvent]:
    fd = os.open(folder, os.O_RDONLY)
    try:
        return {
            event.name: event
            for event in decode_events(data)
            if event.pid == os.getpid()
            and (path_of_handle(fd, event.handle) or b"").startswith(os.fsencode(folder))
        }
    finally:
        os.close(fd)


def test_an_event_names_the_entry_and_its_directory_wherever_that_is_now(tmp_path: Path) -> None:
    events = of(tmp_path, changes(tmp_path))
    assert set(events) == {b"d", b"a b", b"e"}
    assert events[b"a b"].mask & CREATE and not events[b"a b"].mask & ON_DIRECTORY
    assert events[b"e"].mask & MOVED_TO and events[b"e"].mask & ON_DIRECTORY
    fd = os.open(tmp_path, os.O_RDONLY)
    handle = events[b"a b"].handle
    assert path_of_handle(fd, handle) == os.fsencode(tmp_path / "e")
    (tmp_path / "e/a b").unlink()
    (tmp_path / "e").rmdir()
    assert path_of_handle(fd, handle) is None
    os.close(fd)


def test_a_full_queue_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EventsLostError):
        list(decode_events(changes(tmp_path) + OVERFLOW))


def test_what_is_cut_off_or_changed_never_reads_beyond_its_end(tmp_path: Path) -> None:
    data = changes(tmp_path)
    for end in range(1, len(data)):
        with_errors(data[:end])
    for index in range(len(data)):
        for byte in (0, 0xFF, data[index] ^ 0x10):
            with_errors(data[:index] + bytes([byte]) + data[index + 1 :])


def with_errors(data: bytes) -> None:
    try:
        for event in decode_events(data):
            assert len(event.handle) + len(event.name) <= len(data)
    except (ValueError, EventsLostError):
        pass


def test_a_removal_is_told_from_a_creation(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    events = ChangeEvents(fd)
    (tmp_path / "f").touch()
    (tmp_path / "f").unlink()
    masks = [event.mask for event in events.read() if event.name == b"f" and event.pid == os.getpid()]
    events.close()
    os.close(fd)
    assert any(mask & DELETE for mask in masks)
