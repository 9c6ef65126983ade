"""The manifest: the file that makes a checkpoint be there. Its structs, its bytes, its checksums; docs/format.md.

HRCKPT1 <xxh3-128 of the second line> <xxh3-128 of the third>
the head, JSON: all that retention needs
the body, JSON: one part a rank
"""

from __future__ import annotations

from typing import Any

import msgspec
import xxhash

from headrace.base.decoding import decode_json
from headrace.base.errors import CorruptCheckpointError

MAGIC = b"HRCKPT1"
HEAD_BYTES_FIRST = 1 << 16
"""How much is read to see the head alone; a head is longer only with thousands of packs."""


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """Some bytes of a leaf. hash: xxh3-128 of the bytes as they are in memory, hex; resists accidents, not malice.
    pack: place in `RankPart.packs`. stored_bytes: in the pack, from offset on. codec: 0 as they are, n ≥ 1 zstd of the
    bytes shuffled by items of n bytes."""

    hash: str
    pack: int
    offset: int
    stored_bytes: int
    length: int
    codec: int = 0


class Leaf(msgspec.Struct, frozen=True, omit_defaults=True):
    """One tensor, array or blob. name: its keys, joined by dots. kind: torch, numpy, scalar (of numpy) or blob.
    dtype: torch's or numpy's word. inline: the bytes of a small one; else chunks, in order, without gaps."""

    name: str
    kind: str
    size_bytes: int
    dtype: str = ""
    shape: list[int] = []
    inline: bytes = b""
    chunks: list[Chunk] = []


class RankPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one rank saved. tree: its state (tensors.py), the tensors replaced by their places in `leaves`.
    packs: names of the files that chunks are in. pack_bytes: their sizes."""

    rank: int
    tree: Any
    leaves: list[Leaf]
    packs: list[str]
    pack_bytes: list[int]
    written_bytes: int = 0


class Head(msgspec.Struct, frozen=True, omit_defaults=True):
    """full: refers to no pack of another save. data_bytes: of all leaves. written_bytes: new ones, in packs.
    packs: every pack that is referred to, by any rank. kind: state, or dcp (torch.distributed.checkpoint)."""

    step: int
    save: str
    created_ns: int
    ranks: int
    full: bool
    data_bytes: int
    written_bytes: int
    packs: list[str]
    pack_bytes: list[int]
    kind: str = "state"
    metadata: dict[str, Any] = {}


class Body(msgspec.Struct, frozen=True, omit_defaults=True):
    """dcp: torch's metadata, as integrations/torch_checkpoint.py writes it."""

    parts: list[RankPart]
    dcp: Any = None


class Manifest(msgspec.Struct, frozen=True):
    head: Head
    body: Body


def digest(data: bytes | memoryview) -> str:
    return xxhash.xxh3_128_hexdigest(data)


def encode(manifest: Manifest) -> bytes:
    head, body = msgspec.json.encode(manifest.head), msgspec.json.encode(manifest.body)
    first = b" ".join((MAGIC, digest(head).encode(), digest(body).encode()))
    return b"\n".join((first, head, body, b""))


def decode(data: bytes, name: str) -> Manifest:
    """What it claims is not checked here (manifest_check.py).

    CorruptCheckpointError when a checksum or the form is wrong. name: for messages."""
    head, body_digest, rest = _head_bytes(data, name)
    body = rest.removesuffix(b"\n")
    if not rest.endswith(b"\n") or digest(body) != body_digest:
        raise _corrupt(name, "its body does not match its checksum")
    try:
        return Manifest(decode_json(head, Head), decode_json(body, Body))
    except msgspec.MsgspecError as error:
        raise _corrupt(name, str(error)) from None


def decode_head(data: bytes, name: str) -> Head | None:
    """Of the first bytes of a manifest; None when they don't hold all of the head."""
    if data.startswith(MAGIC[: len(data)]) and data.count(b"\n") < 2:
        return None
    try:
        return decode_json(_head_bytes(data, name)[0], Head)
    except msgspec.MsgspecError as error:
        raise _corrupt(name, str(error)) from None


def encode_part(part: RankPart) -> bytes:
    data = msgspec.json.encode(part)
    return b"\n".join((digest(data).encode(), data))


def decode_part(data: bytes, name: str) -> RankPart:
    checksum, _, rest = data.partition(b"\n")
    if digest(rest).encode() != checksum:
        raise _corrupt(name, "it does not match its checksum")
    try:
        return decode_json(rest, RankPart)
    except msgspec.MsgspecError as error:
        raise _corrupt(name, str(error)) from None


def _head_bytes(data: bytes, name: str) -> tuple[bytes, str, bytes]:
    """The head, the body's checksum, and what follows the head."""
    first, _, rest = data.partition(b"\n")
    head, newline, body = rest.partition(b"\n")
    words = first.split(b" ")
    if len(words) != 3 or words[0] != MAGIC or not newline:
        raise _corrupt(name, f"it does not begin as a manifest ({MAGIC.decode()})")
    if digest(head) != words[1].decode(errors="replace"):
        raise _corrupt(name, "its head does not match its checksum")
    return head, words[2].decode(errors="replace"), body


def _corrupt(name: str, why: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        name, why=why, hint="load another step; `headrace checkpoint list` names them"
    )
