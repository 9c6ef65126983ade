"""Test whether FUSE passthrough works on this host, instead of guessing from the kernel's version.

The test makes a file system that is mounted nowhere, lets a forked child open, read and map its one file, and compares
the bytes. It must run before this process has threads, and takes some 10 ms. A killed process leaves nothing.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import signal
import time
from dataclasses import dataclass

from headrace.base.errors import MountError
from headrace.base.model import Entry, FileId, Kind, Version
from headrace.base.mount_api import closing_descriptor
from headrace.fuse import abi, codec, device
from headrace.fuse.abi import Opcode

LIMIT_S = 2.0
"""Seconds after which the test fails."""
_BACKING_BYTES = b"headrace passthrough probe\n" * 512
_SESSION_BYTES = b"?" * len(_BACKING_BYTES)
_FILE = Entry(FileId(2), FileId(1), b"probe", Kind.FILE, Version(len(_BACKING_BYTES), 0))
_ROOT = Entry(FileId(1), FileId(1), b"", Kind.DIRECTORY, Version(0, 0))


@dataclass(frozen=True, slots=True)
class Result:
    """Tells whether passthrough works, and why."""

    works: bool
    reason: str


def probe() -> Result:
    with contextlib.ExitStack() as stack:
        try:
            fd = stack.enter_context(closing_descriptor(device.open_device()))
            root = stack.enter_context(closing_descriptor(device.mount_nowhere(fd, source="headrace-probe")))
            backing = stack.enter_context(closing_descriptor(_backing_file()))
            return _probe_in(fd, root, backing)
        except (OSError, MountError) as error:
            return Result(works=False, reason=str(error))


def _backing_file() -> int:
    """Make the file behind the mounted one, in memory, and return its descriptor."""
    file = os.memfd_create("headrace-probe")
    os.write(file, _BACKING_BYTES)
    return file


def _probe_in(fd: int, root: int, backing: int) -> Result:
    child = os.fork()
    if child == 0:
        os.close(fd)
        _compare_and_exit(root)
    server = _Server(fd, backing)
    try:
        return server.run(child)
    finally:
        server.close()


def _compare_and_exit(root: int) -> None:
    """Read and map the file in the child, and exit with a status: 0 same bytes, 1 other bytes, 2 error."""
    status = 2
    try:
        fd = os.open("probe", os.O_RDONLY, dir_fd=root)
        content = os.read(fd, len(_BACKING_BYTES) + 1)
        with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as mapped:
            status = 0 if content == _BACKING_BYTES and mapped[:] == _BACKING_BYTES else 1
    finally:
        os._exit(status)


class _Server:
    """Answers the child's requests on the temporary mount, whose one file is registered for passthrough."""

    def __init__(self, fd: int, file: int) -> None:
        self._fd = fd
        self._file = file
        self._backing_id = 0
        self._refusal = ""
        self._encode = codec.AttributeEncoder(uid=os.getuid(), gid=os.getgid(), generation=0)

    def close(self) -> None:
        if self._backing_id:
            device.backing_close(self._fd, self._backing_id)

    def run(self, child: int) -> Result:
        pidfd = os.pidfd_open(child)
        deadline_s = time.monotonic() + LIMIT_S
        try:
            while True:
                remaining_s = max(0.0, deadline_s - time.monotonic())
                ready, _, _ = select.select([self._fd, pidfd], [], [], remaining_s)
                if self._fd in ready:
                    self._answer(os.read(self._fd, abi.REQUEST_BYTES_MAX))
                elif pidfd in ready:
                    return self._verdict(os.waitpid(child, 0)[1])
                elif not ready:
                    os.kill(child, signal.SIGKILL)
                    return Result(works=False, reason="the self-test got no reply in time")
        finally:
            os.close(pidfd)

    def _verdict(self, status: int) -> Result:
        if self._refusal:
            return Result(works=False, reason=self._refusal)
        if status != 0:
            return Result(works=False, reason="the self-test read other bytes than were written")
        return Result(works=True, reason="self-test passed")

    def _answer(self, request: bytes) -> None:
        _, opcode, unique, node, *_ = abi.IN_HEADER.unpack_from(request)
        reply = codec.error_reply(unique, 38)
        if opcode == Opcode.INIT:
            reply = self._init(unique, codec.decode_init(request))
        elif opcode == Opcode.LOOKUP:
            reply = self._encode.entry_reply(unique, 2, _FILE, 1.0)
        elif opcode == Opcode.GETATTR:
            reply = self._encode.attr_reply(unique, _FILE if node == 2 else _ROOT)
        elif opcode == Opcode.OPEN:
            reply = self._open(unique)
        elif opcode == Opcode.READ:
            reply = codec.data_reply(unique, _SESSION_BYTES[: abi.READ_IN.unpack_from(request, 40)[2]])
        elif opcode == Opcode.RELEASE:
            reply = codec.error_reply(unique, 0)
        elif opcode == Opcode.FORGET:
            return
        os.write(self._fd, reply)

    def _init(self, unique: int, offered: codec.Init) -> bytes:
        flags = offered.flags & (abi.PASSTHROUGH | abi.INIT_EXT | abi.MAX_PAGES)
        if not flags & abi.PASSTHROUGH:
            self._refusal = "the kernel does not offer FUSE passthrough"
        return codec.init_reply(unique, flags=flags, stack_depth=2, readahead_bytes=1 << 20)

    def _open(self, unique: int) -> bytes:
        flags = 0
        if not self._refusal:
            try:
                self._backing_id = device.backing_open(self._fd, self._file)
                flags = abi.FOPEN_PASSTHROUGH
            except OSError as error:
                self._refusal = f"the kernel refuses to register a file: {error.strerror}"
        return abi.OPEN_REPLY.pack(32, 0, unique, 0, flags, self._backing_id)
