"""The kernel asks the layer of a lazy seal for names and whole requests."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from typing import Any, cast

from headrace.base.cache_names import lazy_name
from headrace.base.cancel import Cancel
from headrace.base.errors import HeadraceError, PathNotFoundError
from headrace.base.model import ROOT_ID, FileId
from headrace.fuse import abi, handover_state
from headrace.fuse.abi import Opcode
from headrace.fuse.handles import HandleCache
from headrace.fuse.handover_state import HandoverState
from headrace.fuse.io_modes import InodeIoModes
from headrace.fuse.lazy_files import DIRECTORY_ID, CacheClient, LazyClient, LazyFiles
from headrace.fuse.mountpoints import MountpointNames
from headrace.fuse.operations import DiskTask, Mode, Operations, PendingRead
from headrace.seal.snapshot import SnapshotEntry
from tests.fuzz.fuzzer import Fuzzer

MISSING = {3, 9, (1 << 47) - 2}
_NODES = (ROOT_ID, DIRECTORY_ID, 9, 1 << 48 | 9, 4, (1 << 64) - 1)


class _EmptyCache:
    """A node that has no file and can fetch none."""

    generation = 1

    def entry(self, id: FileId) -> None: ...
    def cached_version(self, id: FileId) -> None: ...
    def complete_path(self, id: FileId) -> None: ...
    def touch(self, id: FileId, pid: int = 0) -> None: ...
    def resolve(self, path: bytes) -> None:
        assert path in {b"/a/%d" % id for id in MISSING}
        raise PathNotFoundError("a file")


def _client() -> LazyClient:
    files = [(SnapshotEntry(b"%d" % id, 0o100444, id, checksum=None), id) for id in MISSING]
    return LazyClient(cast("CacheClient", _EmptyCache()), LazyFiles("/a", files))


def _operations() -> Operations:
    client = _client()
    logging.getLogger("headrace.fuse.lazy_files").setLevel(logging.CRITICAL)  # each refused file is a line
    handover = HandoverState(handover_state.create())
    return Operations(
        *(client, InodeIoModes(handover, _close), HandleCache(client)),
        mode=Mode.NOOPEN,
        register=_register,
        send=_send,
        mountpoints=MountpointNames(client, handover, tuple),
    )


def _close(backing_id: int) -> None:
    raise AssertionError("the layer has no passthrough")


def _register(path: str) -> int:
    raise AssertionError("the layer has no passthrough")


def _send(unique: int, fd: int, offset: int, count: int) -> int | None:
    raise AssertionError("bytes are sent of a file that the cache lacks")


_CLIENT, _OPERATIONS = _client(), _operations()
_TABLE: dict[int, Callable[..., Any]] = {**_OPERATIONS.table()}
_OPCODES = sorted(Opcode)


def _look_up(data: bytes) -> None:
    """A name leads to a missing file, and to the same one, or to nothing. The first byte chooses the directory."""
    folder = (ROOT_ID, DIRECTORY_ID, FileId(9))[data[0] % 3] if data else ROOT_ID
    entry = _CLIENT.lookup_fast(folder, data[1:])
    if entry is None:
        return
    if folder == ROOT_ID:
        assert (entry.id, data[1:]) == (DIRECTORY_ID, b"lazy")
    else:
        assert folder == DIRECTORY_ID and entry.id in MISSING and entry.version.size_bytes == entry.id
        assert lazy_name(entry.id) == b"lazy/" + data[1:]


def _ask(data: bytes) -> None:
    """A request is answered once, with an errno or with a reply to it. The first two bytes choose opcode and node, the
    rest follows the header."""
    opcode = _OPCODES[data[0] % len(_OPCODES)] if data else Opcode.LOOKUP
    node = _NODES[data[1] % len(_NODES)] if len(data) > 1 else ROOT_ID
    body = data[2 : 2 + abi.REQUEST_BYTES_MAX - 40].ljust(abi.REQUEST_BYTES_MAX - 40, b"\0")
    request = bytearray(abi.IN_HEADER.pack(40 + len(body), opcode, 7, node, 0, 0, 1, 0, 0) + body)
    method = _TABLE.get(opcode)
    answer: Any = None if method is None else method(7, node, request)
    for _ in range(4):
        if isinstance(answer, DiskTask):
            answer = answer.work()
        elif isinstance(answer, PendingRead):
            answer = answer.finish()
        elif callable(answer):
            answer = answer(Cancel())
    assert answer is None or isinstance(answer, int | bytes)
    if isinstance(answer, bytes):
        length, error, unique = abi.OUT_HEADER.unpack_from(answer)
        assert (length, error, unique) == (len(answer), 0, 7)
    elif answer is not None:
        assert 0 <= answer < 512


_NAME = b"%012x\0" % 9
_READ = abi.READ_IN.pack(1, 0, 4096, 0)
FUZZERS = [
    Fuzzer(
        "lazy-names",
        "names that the kernel asks the layer of a lazy seal for (fuse/lazy_files.py)",
        _look_up,
        (),
        [b"\0lazy", *(b"\1%012x" % id for id in sorted(MISSING)), b"\2%012x" % 9],
        words=[b"lazy", b"..", b"/", b"0x", b"+", b"_", "²".encode(), b"\n"],
    ),
    Fuzzer(
        "lazy-requests",
        "requests of the kernel to the layer of a lazy seal (fuse/lazy_files.py, fuse/operations.py)",
        _ask,
        (HeadraceError, struct.error, ValueError, OverflowError),
        [
            bytes((_OPCODES.index(opcode), node)) + body
            for opcode, body in (
                *(
                    (Opcode.LOOKUP, _NAME),
                    (Opcode.READ, _READ),
                    (Opcode.OPEN, bytes(8)),
                    (Opcode.GETATTR, b""),
                ),
                *((Opcode.READDIRPLUS, _READ), (Opcode.GETXATTR, bytes(8) + b"user.headrace.origin\0")),
                *((Opcode.STATFS, b""), (Opcode.WRITE, bytes(40)), (Opcode.RELEASE, bytes(24))),
            )
            for node in range(len(_NODES))
        ],
        words=[b"lazy\0", _NAME, b"..", b"\xff" * 8, bytes(8)],
    ),
]
