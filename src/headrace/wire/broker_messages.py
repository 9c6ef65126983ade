"""The messages between a node and programs of other users of its host. This module is the authority on their meaning.

A message is a tagged msgpack map in one packet of a SOCK_SEQPACKET socket. The client sends a request and waits for its
answer before it sends the next one. The answer carries descriptors of cache files (SCM_RIGHTS), open for reading only.
Any user of the host can send a request, so the classes here check each value while it is decoded. Since protocol 1.
"""

from __future__ import annotations

import msgspec

from headrace.base.decoding import decode_with, msgpack_decoder
from headrace.base.errors import HeadraceError, ProtocolError, error_classes
from headrace.base.namespace_path import check_name, check_path
from headrace.base.printable import utf8_text

REQUEST_BYTES_MAX = 64 << 10
ANSWER_BYTES_MAX = 160 << 10
"""Less than a socket accepts by default (net.core.wmem_default)."""
FILES_MAX = 64
NAMES_MAX = 1024
"""The limit for the names in all paths of a request: the node's loop looks each one up, in about 4 us."""
RANGE_BYTES_MAX = 64 << 20
ROWS_MAX = 256
_OFFSET_MAX = (1 << 63) - 1


class BrokerMessage(msgspec.Struct, frozen=True, tag=True):
    """Base class of all messages; the tag on the wire is the class name."""


class OpenFiles(BrokerMessage, frozen=True):
    """Open files and fetch their missing blocks of start..end first. → OpenedFiles: a descriptor for each file, with
    the bytes start..end, or up to the end of a shorter file."""

    paths: list[bytes]
    start: int
    end: int

    def __post_init__(self) -> None:
        if not 1 <= len(self.paths) <= FILES_MAX:
            raise ValueError(f"{len(self.paths)} paths: 1 to {FILES_MAX} are allowed")
        if not 0 <= self.start <= self.end <= min(_OFFSET_MAX, self.start + RANGE_BYTES_MAX):
            raise ValueError(f"range {self.start} to {self.end}: {RANGE_BYTES_MAX} bytes are allowed")
        for path in self.paths:
            check_path(path)
        _check_depth(sum(path.count(b"/") for path in self.paths))


class LookAt(BrokerMessage, frozen=True):
    """Return the entry at a path. → Looked."""

    path: bytes

    def __post_init__(self) -> None:
        check_path(self.path)
        _check_depth(self.path.count(b"/"))


class ListNames(BrokerMessage, frozen=True):
    """List a directory in byte order, beginning after a name. → BrokerNames."""

    path: bytes
    after: bytes = b""

    def __post_init__(self) -> None:
        check_path(self.path)
        _check_depth(self.path.count(b"/"))
        if self.after:
            check_name(self.after)


def _check_depth(names: int) -> None:
    if names > NAMES_MAX:
        raise ValueError(f"{names} names in the paths: {NAMES_MAX} are allowed")


class BrokerRefusal(BrokerMessage, frozen=True):
    """An error. code: of base/errors.py."""

    code: str
    what: str
    why: str
    hint: str


class OpenedFile(BrokerMessage, frozen=True):
    """A file of the cache; its descriptor is the next one of those that came with the answer. whole: all bytes of the
    file are in the descriptor, not only the requested ones."""

    id: int
    size_bytes: int
    mtime_ns: int
    token: str
    whole: bool


class UpperFile(BrokerMessage, frozen=True):
    """A file that was written on this host and is in no cache. The client reads it through a mount, where the kernel
    checks its owner and mode. The answer has no descriptor for it: the owner of a file can do more with a descriptor
    than read."""


class OpenedFiles(BrokerMessage, frozen=True):
    """The opened files, in the order of the paths."""

    files: list[OpenedFile | UpperFile | BrokerRefusal]


class BrokerRow(msgspec.Struct, frozen=True, array_like=True):
    """An entry as the mount shows it. written: it is in the upper layer. mode: of stat(2), with the file type."""

    name: bytes
    id: int
    mode: int
    uid: int
    gid: int
    size_bytes: int
    mtime_ns: int
    token: str
    written: bool


class Looked(BrokerMessage, frozen=True):
    row: BrokerRow


class BrokerNames(BrokerMessage, frozen=True):
    """A page of a listing. next: the name to continue after; b"": this is the last page."""

    rows: list[BrokerRow]
    next: bytes = b""


Request = OpenFiles | LookAt | ListNames
Answer = OpenedFiles | Looked | BrokerNames | BrokerRefusal

_encoder = msgspec.msgpack.Encoder()
_requests = msgpack_decoder(Request)
_answers = msgpack_decoder(Answer)
_ERRORS = error_classes()


def encode(message: BrokerMessage) -> bytes:
    return _encoder.encode(message)


def decode_request(body: bytes) -> Request:
    """Decode a request. Raises ProtocolError."""
    try:
        request: Request = decode_with(_requests.decode, body)
    except msgspec.DecodeError as error:
        raise ProtocolError("request not understood", why=str(error)) from error
    return request


def decode_answer(body: bytes) -> Answer:
    """Decode an answer. Raises ProtocolError."""
    try:
        answer: Answer = decode_with(_answers.decode, body)
    except msgspec.DecodeError as error:
        raise ProtocolError("answer not understood", why=str(error)) from error
    return answer


def refusal_of(error: HeadraceError) -> BrokerRefusal:
    """Return an error as an answer. Its texts become UTF-8, as they may contain a file name that is not."""
    return BrokerRefusal(error.code, *map(utf8_text, (error.what, error.why, error.hint)))


def error_of(refusal: BrokerRefusal) -> HeadraceError:
    return _ERRORS.get(refusal.code, HeadraceError)(refusal.what, why=refusal.why, hint=refusal.hint)
