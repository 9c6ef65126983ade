from __future__ import annotations

import struct

from headrace.base.errors import error_classes
from headrace.base.model import Entry, FileId, Kind, Version
from headrace.fuse import abi, codec
from headrace.fuse.errno_map import ERRNO

ENTRY = Entry(FileId(77), FileId(1), b"name", Kind.FILE, Version(1234, 5_000_000_007, "t"))


def test_sizes_are_the_kernels() -> None:
    assert abi.IN_HEADER.size == 40
    assert abi.OUT_HEADER.size == 16
    assert abi.ENTRY_REPLY.size == 16 + 128
    assert abi.ATTR_REPLY.size == 16 + 104
    assert abi.OPEN_REPLY.size == 32
    assert abi.INIT_OUT.size == 64
    assert abi.STATFS_REPLY.size == 16 + 80
    assert abi.DIRENTPLUS.size == 128 + 24
    assert abi.INVAL_ENTRY_OUT.size == 16 + 16
    assert abi.INVAL_INODE_OUT.size == 16 + 24


def test_entry_reply() -> None:
    reply = codec.AttributeEncoder(uid=3, gid=4, generation=9).entry_reply(5, 1 << 48 | 77, ENTRY, 1.5)
    assert struct.unpack_from("<IiQ", reply) == (144, 0, 5)
    node, generation, ttl, attr_ttl, ttl_ns, _ = struct.unpack_from("<QQQQII", reply, 16)
    assert (node, generation, ttl, ttl_ns) == (1 << 48 | 77, 9, 1, 500_000_000)
    assert attr_ttl == codec.FOREVER_S
    assert struct.unpack_from("<QQQQQQII", reply, 56)[:4] == (77, 1234, 3, 5)


def test_directory_records_are_padded() -> None:
    part = codec.dirent(7, b"abc", Kind.FILE, 2)
    assert len(part) == 32
    assert len(codec.AttributeEncoder(uid=0, gid=0, generation=0).direntplus(ENTRY, 77, 1, 1.0)) % 8 == 0


def test_notifications_carry_their_length() -> None:
    for message in (codec.inval_entry(1, b"x" * 255), codec.inval_inode(2), codec.resend()):
        assert struct.unpack_from("<I", message)[0] == len(message)


def test_init_of_an_old_kernel_has_no_second_flags() -> None:
    request = bytes(40) + abi.INIT_IN.pack(7, 31, 131072, abi.ASYNC_READ, 0xFFFF)
    assert codec.decode_init(request).flags == abi.ASYNC_READ


def test_every_error_has_an_errno() -> None:
    assert set(error_classes()) <= set(ERRNO)
