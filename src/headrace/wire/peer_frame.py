"""Frames between nodes: those of `wire/frame.py`, with the messages of `wire/peer_messages.py`. Sans-IO.

The raw bytes of a block follow its Block frame. They are no frame and never pass through this module.
"""

from __future__ import annotations

from headrace.base.decoding import msgpack_decoder
from headrace.base.errors import ProtocolError
from headrace.wire.frame import HEADER_BYTES, body_length, decode, encode, error_of, failure_of
from headrace.wire.peer_messages import PEER_PROTOCOL, PEER_PROTOCOL_MIN, PeerAnswer, PeerRequest

__all__ = [
    "HEADER_BYTES",
    "SPOKEN",
    "body_length",
    "common_protocol",
    "decode_answer",
    "decode_request",
    "encode",
    "error_of",
    "failure_of",
]

SPOKEN = (PEER_PROTOCOL_MIN, PEER_PROTOCOL)
"""The oldest and the newest protocol of this release."""

_requests = msgpack_decoder(PeerRequest)
_answers = msgpack_decoder(PeerAnswer)


def decode_request(body: bytes) -> PeerRequest:
    """Decode a peer's request. Raises ProtocolError for anything else."""
    request: PeerRequest = decode(_requests, body, kind="peer's request")
    return request


def decode_answer(body: bytes) -> PeerAnswer:
    """Decode a peer's answer. Raises ProtocolError for anything else."""
    answer: PeerAnswer = decode(_answers, body, kind="peer's answer")
    return answer


def common_protocol(theirs: tuple[int, int], *, ours: tuple[int, int] = SPOKEN) -> int:
    """Return the highest protocol that both nodes speak. Raises ProtocolError if there is none."""
    highest = min(theirs[1], ours[1])
    if highest < max(theirs[0], ours[0]):
        raise ProtocolError(
            f"the peer speaks protocols {theirs[0]} to {theirs[1]}",
            why=f"this node speaks {ours[0]} to {ours[1]}",
            hint="upgrade nodes one release at a time",
        )
    return highest
