"""Assemble and check the answer to one Fetch as it arrives. Sans-IO: the caller supplies messages and bytes.

Nothing that a peer sends is trusted. Blocks must follow one another, stay within the requested range and match their
checksums; a file that ends early is refused. InvalidResponseError names the broken rule.
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
    """Return a buffer that is not zeroed. Zeroing costs a tenth of the time of a receive
    (docs/decisions/0005-peer-transfer.md). The C API defines that NULL skips it."""
    return cast(bytearray, _new_bytearray(None, length))


class InvalidResponseError(Exception):
    """The answer does not match the request. Only this package sees it: callers get a PeerError that names the node."""


class ChecksumMismatchError(InvalidResponseError):
    """Received bytes don't match their checksum. file: the number of the file in the request."""

    def __init__(self, message: str, file: int) -> None:
        super().__init__(message)
        self.file = file


class FetchResponse:
    """Collects the files of one answer. files: the requested ranges, by their numbers in the request. For each block,
    call `expect`, fill the buffer that it returns, and call `received`. Call `ended` at the end of each file, and
    `done` at the end of the answer."""

    def __init__(self, files: list[FileRange]) -> None:
        self._files = files
        self._remaining = set(range(len(files)))
        self._current: int | None = None
        self._body = bytearray()
        self._offset = 0

    @property
    def remaining(self) -> set[int]:
        """Return the numbers of the files that have not ended."""
        return self._remaining

    def expect(self, block: Block) -> memoryview:
        """Return the buffer for the block's bytes."""
        if self._current is None:
            if block.file not in self._remaining:
                raise InvalidResponseError(f"it sent a block of file {block.file}, which is not expected")
            file = self._files[block.file]
            self._current, self._offset, self._body = block.file, file.start, buffer_of(file.end - file.start)
        file = self._files[self._current]
        if (
            block.file != self._current
            or block.start != self._offset
            or not 0 < block.length <= BLOCK_SIZE_BYTES
            or block.start + block.length > file.end
        ):
            raise InvalidResponseError(
                f"it sent block {block.start}+{block.length} of file {block.file} out of place"
            )
        position = block.start - file.start
        return memoryview(self._body)[position : position + block.length]

    def received(self, block: Block, body: memoryview) -> None:
        if xxhash.xxh3_64_intdigest(body) != block.checksum:
            path = os.fsdecode(self._files[block.file].path)
            raise ChecksumMismatchError(
                f"it sent bytes of {path} at {block.start} that don't match their checksum", block.file
            )
        self._offset += block.length

    def ended(self, end: FileEnd) -> Arrived | HeadraceError:
        """Return the file's bytes, or the reason why the peer does not have them."""
        if end.file not in self._remaining or self._current not in (None, end.file):
            raise InvalidResponseError(f"it sent the end of file {end.file}, which is not expected")
        file = self._files[end.file]
        is_complete = self._offset == file.end if self._current is not None else file.start == file.end
        body, self._current, self._body = self._body, None, bytearray()
        self._remaining.discard(end.file)
        if end.failure is not None:
            return error_of(end.failure)
        if not is_complete:
            raise InvalidResponseError(
                f"its answer ended before the file was complete: {os.fsdecode(file.path)}"
            )
        return Arrived(body, end.extras)

    def done(self) -> None:
        if self._remaining:
            raise InvalidResponseError(f"its answer lacks {len(self._remaining)} files")
