"""Whole requests of the kernel: what a mount's operations make of them (fuse/operations.py and its subclasses)."""

from __future__ import annotations

import functools
import os
import struct
import tempfile

from headrace.base.errors import HeadraceError
from headrace.fuse import abi, handover_state
from headrace.fuse.abi import Opcode
from headrace.fuse.handover_state import HandoverState
from headrace.fuse.operations import Mode
from tests.fuzz.fuzzer import Fuzzer
from tests.unit.fuse.memory_mount import MemoryMount, WritingMemoryClient

_OPCODES = sorted(set(Opcode) - {Opcode.FALLOCATE})
"""FALLOCATE would take this host's memory."""
_HEAD = struct.Struct("<BBB")  # mount, opcode, node
_SIZED = {Opcode.READ: abi.READ_IN, Opcode.READDIR: abi.READ_IN, Opcode.READDIRPLUS: abi.READ_IN}


@functools.cache
def _mount(write: str) -> tuple[MemoryMount, list[int]]:
    """Return a mount of an origin with a few files, and nodes of it. It lasts as long as this process. One of the nodes
    is a file that is open, so that no request ends it."""
    folder = tempfile.mkdtemp()  # the worker's parent removes it
    for path in ("cache", "partial", "source/dir"):
        os.makedirs(f"{folder}/{path}")
    for path in ("small", "dir/inner"):
        with open(f"{folder}/source/{path}", "wb") as file:
            file.write(path.encode())
    memory = handover_state.create()
    mount = MemoryMount(WritingMemoryClient(folder, write=write), HandoverState(memory), mode=Mode.SPLICE)
    os.close(memory)
    nodes = [1, mount.client.id_of("/dir"), mount.client.id_of("/small"), 12345, abi.RESENT_BIT | 7]
    return mount, [*nodes, mount.kernel.create(b"new").entry.nodeid] if write else nodes


def _request(data: bytes) -> None:
    """A request of any opcode to any node. Each is answered, in a form that the kernel takes, or refused."""
    which, opcode_index, node_index = _HEAD.unpack_from(data)
    mount, nodes = _mount("back" if which & 1 else "")
    opcode, body = _OPCODES[opcode_index % len(_OPCODES)], data[_HEAD.size : 4000]
    if opcode not in mount.table:
        return
    layout = _SIZED.get(opcode)
    if layout is not None and len(body) >= layout.size and layout.unpack_from(body)[2] > abi.READ_BYTES_MAX:
        return  # the kernel requests no more
    reply = mount.exchange(opcode, nodes[node_index % len(nodes)], (body,), 2)
    assert reply is not None or opcode in (Opcode.FORGET, Opcode.BATCH_FORGET)
    assert mount.device.is_silent()


def _seed(opcode: Opcode, body: bytes, *, writable: bool = True, node_index: int = 0) -> bytes:
    return _HEAD.pack(int(writable), _OPCODES.index(opcode), node_index) + body


FUZZERS = [
    Fuzzer(
        "mount-requests",
        "whole requests of the kernel (fuse/operations.py, fuse/namespace_ops.py, fuse/file_ops.py)",
        _request,
        (HeadraceError, ValueError, OverflowError, struct.error),
        [
            _seed(Opcode.LOOKUP, b"small\0", writable=False),
            _seed(Opcode.READDIRPLUS, abi.READ_IN.pack(5, 0, 4096, 0)),
            _seed(Opcode.CREATE, abi.CREATE_IN.pack(os.O_RDWR, 0o644, 0, 0) + b"new\0"),
            _seed(Opcode.WRITE, abi.WRITE_IN.pack(3, 0, 4, 0, 0, 0, 0) + b"data", node_index=5),
            _seed(Opcode.SETATTR, abi.SETATTR_IN.pack(8, *[0] * 15), node_index=5),
            _seed(Opcode.RENAME2, abi.RENAME2_IN.pack(1, 0, 0) + b"small\0moved\0"),
            _seed(Opcode.SETXATTR, abi.SETXATTR_IN.pack(1, 0) + b"user.a\0b", node_index=5),
            _seed(Opcode.BATCH_FORGET, abi.BATCH_FORGET_IN.pack(1, 0) + abi.FORGET_ITEM.pack(5, 1)),
        ],
        words=[b"small\0", b"dir\0", b"..", b"/", b"user.headrace.cached\0"],
    )
]
