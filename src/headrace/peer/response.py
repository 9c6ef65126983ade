"""The answer to one Fetch, put together and checked as it comes. Sans-IO: the caller brings messages and bytes.

Nothing a peer says is believed: blocks must follow one another, stay within what was asked for and match their
checksums; a file that ended early is no file. InvalidResponseError says which rule was broken.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import cast

import xxhash

from headrace.base.errors import HeadraceError
from headrace.base.model import BLOCK_SIZE_BYTES, Arrived
from headrace.wire.peer_frame import error_of
from headrace.wire.peer_messages import Block, FileEnd, FileRange

_new_bytearray: Callable[[None, int], object] = ctypes.pythonapi.PyByteArray_FromStringAndSize
_new_bytearray.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t)  # type: ignore[attr-defined]
_new_bytearray.restype = ctypes.py_object  # type: ignore[attr-defined]


def buffer_of(length: int) -> bytearray:
    """Not zeroed: that is a tenth of what receiving costs (docs/decisions/0005-peer-transfer.md). The C API says that
    NULL means this."""
    return cast(bytearray, _new_bytearray(None, length))


class InvalidResponseError(Exception):
    """The answer is not what was asked for. Only of this room: a PeerError that names the node is made of it."""


class ChecksumMismatchError(InvalidResponseError):
    """Bytes that don't match their checksum; file: its number."""

    def __init__(self, what: str, file: int) -> None:
        super().__init__(what)
        self.file = file


class FetchResponse:
    """wanted: the files asked for, by their numbers in the request. expect a block, fill what it returns, received;
    ended at each end; done at the last."""

    def __init__(self, wanted: list[FileRange]) -> None:
        self._wanted = wanted
        self._left = set(range(len(wanted)))
        self._open: int | None = None
        self._body = bytearray()
        self._at = 0

    @property
    def left(self) -> set[int]:
        """The numbers of files that have not ended."""
        return self._left

    def expect(self, block: Block) -> memoryview:
        """Where its bytes go."""
        if self._open is None:
            if block.file not in self._left:
                raise InvalidResponseError(f"a block of file {block.file}, which is not awaited")
            one = self._wanted[block.file]
            self._open, self._at, self._body = block.file, one.start, buffer_of(one.end - one.start)
        one = self._wanted[self._open]
        if (
            block.file != self._open
            or block.start != self._at
            or not 0 < block.length <= BLOCK_SIZE_BYTES
            or block.start + block.length > one.end
        ):
            raise InvalidResponseError(
                f"block {block.start}+{block.length} of file {block.file} out of place"
            )
        offset = block.start - one.start
        return memoryview(self._body)[offset : offset + block.length]

    def received(self, block: Block, body: memoryview) -> None:
        if xxhash.xxh3_64_intdigest(body) != block.checksum:
            path = os.fsdecode(self._wanted[block.file].path)
            raise ChecksumMismatchError(
                f"the bytes of {path} at {block.start} don't match their checksum", block.file
            )
        self._at += block.length

    def ended(self, end: FileEnd) -> Arrived | HeadraceError:
        """The file's bytes, or why the peer has them not."""
        if end.file not in self._left or self._open not in (None, end.file):
            raise InvalidResponseError(f"the end of file {end.file}, which is not awaited")
        one = self._wanted[end.file]
        whole = self._at == one.end if self._open is not None else one.start == one.end
        body, self._open, self._body = self._body, None, bytearray()
        self._left.discard(end.file)
        if end.failure is not None:
            return error_of(end.failure)
        if not whole:
            raise InvalidResponseError(f"the answer ended before the file did: {os.fsdecode(one.path)}")
        return Arrived(body, end.extras)

    def done(self) -> None:
        if self._left:
            raise InvalidResponseError(f"{len(self._left)} files are missing")
