"""The messages between a node and programs of other users of its host. The authority on their meaning.

One packet of a SOCK_SEQPACKET socket is one message, a tagged msgpack map. Who connects sends a request and waits for
its answer before the next one. Descriptors of cache files come with the answer (SCM_RIGHTS), for reading only. What is
in a request was chosen by any user of the host: it is checked here, while it is decoded. Since protocol 1.
"""

from __future__ import annotations

import msgspec

from headrace.base.errors import HeadraceError, ProtocolError, error_classes
from headrace.base.namespace_path import check_name, check_path

REQUEST_BYTES_MAX = 64 << 10
ANSWER_BYTES_MAX = 160 << 10
"""Below what a socket takes by default (net.core.wmem_default)."""
FILES_MAX = 64
NAMES_MAX = 1024
"""Of all paths of a request: each is looked at in the node's loop, 4 us or so."""
RANGE_BYTES_MAX = 64 << 20
ROWS_MAX = 256
_OFFSET_MAX = (1 << 63) - 1


class BrokerMessage(msgspec.Struct, frozen=True, tag=True):
    """Base of all; the tag on the wire is the class name."""


class OpenFiles(BrokerMessage, frozen=True):
    """Of each file a descriptor with the bytes start..end in it, or, where it is shorter, those up to its end; all that
    are not cached are fetched first. → OpenedFiles."""

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
    """What is at a path. → Looked."""

    path: bytes

    def __post_init__(self) -> None:
        check_path(self.path)
        _check_depth(self.path.count(b"/"))


class ListNames(BrokerMessage, frozen=True):
    """Names of a directory, those after a name, in byte order. → BrokerNames."""

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
    """code: of base/errors.py."""

    code: str
    what: str
    why: str
    hint: str


class OpenedFile(BrokerMessage, frozen=True):
    """whole: all bytes are in the descriptor, not only those that were asked for. Its descriptor is the next one of
    those that came along."""

    id: int
    size_bytes: int
    mtime_ns: int
    token: str
    whole: bool


class UpperFile(BrokerMessage, frozen=True):
    """It was written on this host, and is in no cache: it is read by a mount, where the kernel asks its owner's
    modes. No descriptor comes along: who owns a file may do more with one than read."""


class OpenedFiles(BrokerMessage, frozen=True):
    """In the order of the paths."""

    files: list[OpenedFile | UpperFile | BrokerRefusal]


class BrokerRow(msgspec.Struct, frozen=True, array_like=True):
    """As the mount shows it. written: it is in the upper layer. mode: of stat(2), the kind among it."""

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
    """next: the name after which to go on; b"": these are the last."""

    rows: list[BrokerRow]
    next: bytes = b""


Request = OpenFiles | LookAt | ListNames
Answer = OpenedFiles | Looked | BrokerNames | BrokerRefusal

_encoder = msgspec.msgpack.Encoder()
_requests = msgspec.msgpack.Decoder(Request)
_answers = msgspec.msgpack.Decoder(Answer)
_ERRORS = error_classes()


def encode(message: BrokerMessage) -> bytes:
    return _encoder.encode(message)


def decode_request(body: bytes) -> Request:
    """ProtocolError."""
    try:
        request: Request = _requests.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError("request not understood", why=str(error)) from error
    return request


def decode_answer(body: bytes) -> Answer:
    """ProtocolError."""
    try:
        answer: Answer = _answers.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError("answer not understood", why=str(error)) from error
    return answer


def refusal_of(error: HeadraceError) -> BrokerRefusal:
    return BrokerRefusal(error.code, error.what, error.why, error.hint)


def error_of(refusal: BrokerRefusal) -> HeadraceError:
    return _ERRORS.get(refusal.code, HeadraceError)(refusal.what, why=refusal.why, hint=refusal.hint)
