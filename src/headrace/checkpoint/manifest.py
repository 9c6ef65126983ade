"""Define the manifest, the file whose existence makes a checkpoint exist: structs, encoding, checksums.

docs/format/checkpoint.md describes it. A manifest has three lines:

    HRCKPT1 <xxh3-128 of the second line> <xxh3-128 of the third>
    the head, JSON: everything that retention needs
    the body, JSON: one part per rank
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import xxhash

from headrace.base.decoding import decode_json
from headrace.base.errors import CorruptCheckpointError

MAGIC = b"HRCKPT1"
HEAD_BYTES_FIRST = 1 << 16
"""Bytes that are read to get only the head. Only thousands of packs make a head longer."""
HEAD_BYTES_MAX = 1 << 26
"""Most bytes of a head with the first line, and of a claim, which names no more packs than a head. A pack takes some 80
bytes in a head, so this suffices for ten packs of each of 80,000 ranks."""
MANIFEST_BYTES_MAX = 1 << 30
"""Most bytes of a manifest or a part. A leaf with a chunk takes some 250 bytes, so this suffices for 4,000 ranks with
1,000 leaves each. No reader allocates more for a file that somebody else made."""
_FIRST_LINE = re.compile(rb"HRCKPT1 [0-9a-f]{32} [0-9a-f]{32}\n")
_FIRST_LINE_BYTES = 74


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """Locate some bytes of a leaf in a pack.

    hash: xxh3-128 of the uncompressed bytes, hex; it detects accidents, not malice. pack: index in `RankPart.packs`.
    stored_bytes: length in the pack, from offset on. length: uncompressed. codec: 0 for plain bytes, n ≥ 1 for zstd of
    the bytes shuffled by items of n bytes.
    """

    hash: str
    pack: int
    offset: int
    stored_bytes: int
    length: int
    codec: int = 0


class Leaf(msgspec.Struct, frozen=True, omit_defaults=True):
    """Describe one tensor, array or blob. name: its keys, joined by dots. kind: torch, numpy, scalar (of numpy) or
    blob.

    dtype: the name that torch or numpy gives it. inline: the bytes of a small leaf; other leaves have chunks, in order,
    without gaps.
    """

    name: str
    kind: str
    size_bytes: int
    dtype: str = ""
    shape: list[int] = []
    inline: bytes = b""
    chunks: list[Chunk] = []


class RankPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """Describe the state that one rank saved.

    tree: the state (tensors.py), with indexes into `leaves` in place of the tensors. packs: names of the files that
    contain the chunks. pack_bytes: their sizes. written_bytes: new bytes, before compression.
    """

    rank: int
    tree: Any
    leaves: list[Leaf]
    packs: list[str]
    pack_bytes: list[int]
    written_bytes: int = 0


class Head(msgspec.Struct, frozen=True, omit_defaults=True):
    """Hold the fields of a checkpoint that retention needs.

    full: it refers to no pack of another save. data_bytes: of all leaves. written_bytes: new bytes, in packs. packs:
    every pack that any rank refers to. kind: state, or dcp (torch.distributed.checkpoint). data: the sealed versions
    that it was trained on, NAME@VERSION and the id of each.
    """

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
    data: dict[str, str] = {}


class Body(msgspec.Struct, frozen=True, omit_defaults=True):
    """Hold the parts of all ranks. dcp: torch's metadata, as integrations/torch_checkpoint.py writes it."""

    parts: list[RankPart]
    dcp: Any = None


class Manifest(msgspec.Struct, frozen=True):
    """Describe a checkpoint."""

    head: Head
    body: Body


def digest(data: bytes | memoryview) -> str:
    return xxhash.xxh3_128_hexdigest(data)


def encode(manifest: Manifest) -> bytes:
    head, body = msgspec.json.encode(manifest.head), msgspec.json.encode(manifest.body)
    first = b" ".join((MAGIC, digest(head).encode(), digest(body).encode()))
    return b"\n".join((first, head, body, b""))


def decode(data: bytes, name: str) -> Manifest:
    """Return the manifest. Call manifest_check.py for its values.

    Raises CorruptCheckpointError if a checksum or the form is wrong. name: for messages.
    """
    head, body_digest, body_start = _head_bytes(data, name)
    body = data[body_start:-1]
    if body_start >= len(data) or not data.endswith(b"\n") or digest(body) != body_digest:
        raise _corrupt(name, "its body does not match its checksum")
    try:
        return Manifest(decode_json(head, Head), decode_json(body, Body))
    except msgspec.MsgspecError as error:
        raise _corrupt(name, str(error)) from None


def decode_head(data: bytes, name: str) -> Head | None:
    """Return the head from the first bytes of a manifest; None if they do not contain all of it, but a correct first
    line, or the beginning of one."""
    if len(data) < _FIRST_LINE_BYTES:
        may_continue = data.startswith(MAGIC[: len(data)])
    else:
        may_continue = _FIRST_LINE.match(data) is not None
    if may_continue and data.count(b"\n") < 2:
        return None
    try:
        return decode_json(_head_bytes(data, name)[0], Head)
    except msgspec.MsgspecError as error:
        raise _corrupt(name, str(error)) from None


def head_bytes_of(encoded: bytes) -> int:
    """Return the length of an encoded manifest up to the end of its head."""
    return encoded.index(b"\n", _FIRST_LINE_BYTES)


def encode_part(part: RankPart) -> bytes:
    data = msgspec.json.encode(part)
    return b"\n".join((digest(data).encode(), data))


def decode_part(data: bytes, name: str) -> RankPart:
    checksum, _, encoded = data.partition(b"\n")
    if digest(encoded).encode() != checksum:
        raise _corrupt(name, "it does not match its checksum")
    try:
        return decode_json(encoded, RankPart)
    except msgspec.MsgspecError as error:
        raise _corrupt(name, str(error)) from None


def _head_bytes(data: bytes, name: str) -> tuple[bytes, str, int]:
    """Return the head, the body's checksum, and where the body begins."""
    first_line = _FIRST_LINE.match(data)
    head_end = data.find(b"\n", _FIRST_LINE_BYTES)
    if first_line is None or head_end < 0:
        raise _corrupt(name, f"it does not begin like a manifest ({MAGIC.decode()})")
    _, head_digest, body_digest = first_line.group().decode().split()
    head = data[_FIRST_LINE_BYTES:head_end]
    if digest(head) != head_digest:
        raise _corrupt(name, "its head does not match its checksum")
    return head, body_digest, head_end + 1


def _corrupt(name: str, why: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        name, why=why, hint="load another step; `headrace checkpoint list` shows them"
    )
