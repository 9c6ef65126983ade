"""Events of fanotify, by which a node learns of changes in exclusive directories."""

from __future__ import annotations

import struct

from headrace.base.fanotify import (
    ATTRIB,
    CLOSE_WRITE,
    CREATE,
    MOVED_TO,
    ON_DIRECTORY,
    EventsLostError,
    decode_events,
)
from tests.fuzz.fuzzer import Fuzzer


def _read(data: bytes) -> None:
    """Nothing is read beyond the end of an event."""
    for event in decode_events(data):
        assert len(event.handle) >= 8 and len(event.handle) + len(event.name) < len(data)
        assert b"\0" not in event.name


def _event(mask: int, name: bytes, handle: bytes = bytes(8)) -> bytes:
    """Return an event as the kernel encodes it: head, record, file system, handle, name."""
    entry = bytes(8) + struct.pack("=Ii", len(handle), 1) + handle + name + b"\0"
    entry += bytes(-(len(entry) + 4) % 4)
    record = struct.pack("=BBH", 2, 0, 4 + len(entry)) + entry
    return struct.pack("=IBBHQii", 24 + len(record), 3, 0, 24, mask, -1, 7) + record


_OVERFLOW = struct.pack("=IBBHQii", 24, 3, 0, 24, 0x4000, -1, 0)

FUZZERS = [
    Fuzzer(
        "file-changes",
        "events of fanotify (base/fanotify.py)",
        _read,
        (ValueError, EventsLostError),
        [
            _event(CREATE | CLOSE_WRITE, b"f") + _event(MOVED_TO | ON_DIRECTORY, b"d" * 255, bytes(128)),
            _event(ATTRIB, b".") + _OVERFLOW,
            _event(CREATE, b"", b""),
        ],
        words=[b"\0" * 4, b"\xff" * 4, b"\x18\0\0\0", b"\x02\0", b"\x03\0\x18\0"],
    ),
]
