"""Send requests to a session as the kernel does, without /dev/fuse, and take its replies as strictly as the kernel.

The device is a pair of SOCK_SEQPACKET sockets: a read returns one request, and a write is one reply. A reply that is
spliced may come in several packets, which are put together by the length in its header.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import socket
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from headrace.fuse.abi import Opcode
from tests.unit.fuse import kernel_layout as layout

ROOT = 1
PATIENCE_S = 30.0
"""A reply that does not come within this time never comes."""
HEADER_BYTES = ctypes.sizeof(layout.OutHeader)
PACKET_BYTES_MAX = 1 << 21
ERRNO_MAX = 512
Out = TypeVar("Out", bound=ctypes.Structure)
Part = bytes | ctypes.Structure


class Reply(NamedTuple):
    """Holds a reply without its header. `error` is a positive errno, or 0."""

    error: int
    body: bytes

    def decoded(self, kind: type[Out]) -> Out:
        """Decode the body as one structure, of exactly that length."""
        assert self.error == 0, os.strerror(self.error)
        assert len(self.body) == ctypes.sizeof(kind)
        return kind.from_buffer_copy(self.body)


class Name(NamedTuple):
    """Holds one record of READDIR or READDIRPLUS; `entry` is None for the former."""

    name: bytes
    number: int
    offset: int
    type: int
    entry: layout.EntryOut | None


Exchange = Callable[[int, int, tuple[Part, ...], int | None], Reply | None]
"""Sends a request, by opcode, node, body and `unique`, and returns its reply; None for a request without one."""


def encoded(
    opcode: int, node: int, parts: tuple[Part, ...], unique: int, *, user: int = 0, thread: int = 0
) -> bytes:
    body = b"".join(bytes(part) for part in parts)
    length = ctypes.sizeof(layout.InHeader) + len(body)
    group = user
    return bytes(layout.InHeader(length, opcode, unique, node, user, group, thread)) + body


def decoded_reply(message: bytes, unique: int) -> Reply:
    """Decode a reply, or fail where the kernel refuses it (fuse_dev_do_write)."""
    header = layout.OutHeader.from_buffer_copy(message)
    assert header.len == len(message)
    assert header.unique == unique
    assert -ERRNO_MAX < header.error <= 0
    assert not header.error or header.len == HEADER_BYTES, "a reply with an error has no body"
    return Reply(-header.error, message[HEADER_BYTES:])


def decoded_names(body: bytes, *, plus: bool) -> list[Name]:
    """Decode a page of a directory, or fail where the kernel refuses it (parse_dirfile, parse_dirplusfile)."""
    names, position = [], 0
    while position < len(body):
        entry = None
        if plus:
            entry = layout.EntryOut.from_buffer_copy(body, position)
            position += ctypes.sizeof(layout.EntryOut)
        record = layout.Dirent.from_buffer_copy(body, position)
        position += ctypes.sizeof(layout.Dirent)
        name = body[position : position + record.namelen]
        assert 0 < len(name) == record.namelen <= 255 and b"/" not in name and b"\0" not in name
        position += record.namelen + (-record.namelen & 7)
        names.append(Name(name, record.ino, record.off, record.type, entry))
    assert position == len(body)
    return names


class FakeDevice:
    """Is both ends of a device: `fd` is the session's."""

    def __init__(self) -> None:
        self._socket, session_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(PATIENCE_S)
        self.fd = session_end.detach()

    def send(self, request: bytes) -> None:
        self._socket.send(request)

    def receive(self) -> bytes:
        """Return one reply or notification, whole."""
        message = self._socket.recv(PACKET_BYTES_MAX)
        length = layout.OutHeader.from_buffer_copy(message).len
        while len(message) < length:
            message += self._socket.recv(PACKET_BYTES_MAX)
        assert len(message) == length
        return message

    def is_silent(self) -> bool:
        """Return whether the session has sent nothing that was not received yet."""
        self._socket.settimeout(0)
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        finally:
            self._socket.settimeout(PATIENCE_S)
        return False

    def unmount(self) -> None:
        """End the session's loop: each later read of its descriptor fails with EBADF, as that of a mount that is gone
        fails with ENODEV. A read that waits now ends with a request that has no reply."""
        gone = os.open("/", os.O_PATH)
        os.dup2(gone, self.fd)
        os.close(gone)
        with contextlib.suppress(OSError):
            self.send(encoded(Opcode.FORGET, ROOT, (layout.ForgetIn(0),), 0))

    def close(self) -> None:
        self._socket.close()
        os.close(self.fd)


class FakeKernel:
    """Makes the requests that system calls make. The methods return decoded replies, or fail at an error; `call`
    returns any reply."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def call(self, opcode: int, node: int, *parts: Part, unique: int | None = None) -> Reply:
        reply = self._exchange(opcode, node, parts, unique)
        assert reply is not None
        return reply

    def notify(self, opcode: int, node: int, *parts: Part) -> None:
        """Send a request that gets no reply."""
        assert self._exchange(opcode, node, parts, None) is None

    def errno(self, opcode: int, node: int, *parts: Part, unique: int | None = None) -> int:
        reply = self.call(opcode, node, *parts, unique=unique)
        assert not reply.body or not reply.error
        return reply.error

    def lookup(self, name: bytes, parent: int = ROOT) -> layout.EntryOut:
        """Return the entry of a name; its nodeid is 0 where there is none."""
        return self.call(Opcode.LOOKUP, parent, name + b"\0").decoded(layout.EntryOut)

    def node(self, path: str) -> int:
        """Look up each name of a path, and return the node of the last one."""
        node = ROOT
        for name in filter(None, os.fsencode(path).split(b"/")):
            node = self.lookup(name, node).nodeid
            assert node, path
        return node

    def attributes(self, node: int) -> layout.Attr:
        attr: layout.Attr = self.call(Opcode.GETATTR, node, layout.GetattrIn()).decoded(layout.AttrOut).attr
        return attr

    def open(self, node: int, flags: int = os.O_RDONLY, *, kill_ids: bool = False) -> layout.OpenOut:
        return self.call(Opcode.OPEN, node, layout.OpenIn(flags, int(kill_ids))).decoded(layout.OpenOut)

    def create(
        self, name: bytes, parent: int = ROOT, *, flags: int = os.O_RDWR, mode: int = 0o100644
    ) -> layout.CreateOut:
        body = layout.CreateIn(flags | os.O_CREAT, mode)
        return self.call(Opcode.CREATE, parent, body, name + b"\0").decoded(layout.CreateOut)

    def release(self, node: int, fh: int) -> None:
        assert self.call(Opcode.RELEASE, node, layout.ReleaseIn(fh)) == Reply(0, b"")

    def read(self, node: int, fh: int = 0, *, offset: int = 0, size: int = 1 << 17) -> bytes:
        reply = self.call(Opcode.READ, node, layout.ReadIn(fh, offset, size))
        assert reply.error == 0 and len(reply.body) <= size
        return reply.body

    def write(self, node: int, data: bytes, *, offset: int = 0, fh: int = 0, flags: int = 0) -> int:
        body = layout.WriteIn(fh, offset, len(data), flags)
        size: int = self.call(Opcode.WRITE, node, body, data).decoded(layout.WriteOut).size
        return size

    def write_file(self, name: bytes, data: bytes, parent: int = ROOT, *, mode: int = 0o100644) -> int:
        """Create a file, as a program that writes and closes it, and return its node."""
        created = self.create(name, parent, mode=mode)
        assert not data or self.write(created.entry.nodeid, data) == len(data)
        self.release(created.entry.nodeid, created.open.fh)
        node: int = created.entry.nodeid
        return node

    def names(self, node: int = ROOT, *, size: int = 4096, plus: bool = False) -> list[Name]:
        """Read a whole directory, in pages of a size."""
        opcode = Opcode.READDIRPLUS if plus else Opcode.READDIR
        fh = self.call(Opcode.OPENDIR, node, layout.OpenIn()).decoded(layout.OpenOut).fh
        names: list[Name] = []
        while True:
            offset = names[-1].offset if names else 0
            page = self.call(opcode, node, layout.ReadIn(fh, offset, size))
            assert page.error == 0 and len(page.body) <= size
            if not page.body:
                break
            names += decoded_names(page.body, plus=plus)
        assert self.errno(Opcode.RELEASEDIR, node, layout.ReleaseIn(fh)) == 0
        return names

    def setattr(self, node: int, valid: int, **values: int) -> Reply:
        return self.call(Opcode.SETATTR, node, layout.SetattrIn(valid=valid, **values))

    def set_xattr(self, node: int, name: bytes, value: bytes, flags: int = 0) -> int:
        return self.errno(Opcode.SETXATTR, node, layout.SetxattrIn(len(value), flags), name + b"\0", value)

    def xattr(self, node: int, name: bytes, size: int = 4096) -> Reply:
        return self.call(Opcode.GETXATTR, node, layout.GetxattrIn(size), name + b"\0")

    def rename(
        self, old: bytes, new: bytes, flags: int = 0, *, parents: tuple[int, int] = (ROOT, ROOT)
    ) -> int:
        body = layout.Rename2In(parents[1], flags)
        return self.errno(Opcode.RENAME2, parents[0], body, old + b"\0" + new + b"\0")


def uniques() -> Iterator[int]:
    """Yield ids of requests as the kernel assigns them: even, and none twice."""
    return itertools.count(2, 2)
