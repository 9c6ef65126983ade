"""Manifests of checkpoints, with right checksums: whoever can write one can calculate those; and safetensors files."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import numpy as np
import torch

from headrace.base.decoding import decode_json
from headrace.base.errors import CorruptCheckpointError, NotSupportedError
from headrace.checkpoint import compression, layout, manifest, manifest_check, tensors
from headrace.checkpoint.manifest import Chunk, Head, Leaf, RankPart
from headrace.integrations import safetensors
from tests.fuzz.fuzzer import Fuzzer
from tests.fuzz.mutations import mutate_tree

MEMORY_BYTES_MAX = 1 << 16
"""The size of a leaf that is really made: a manifest may rightly say petabytes."""
_PACK = "000000000001-run-0-0.pack"
_LEAVES = [
    Leaf("w", "numpy", 32, "<f4", [2, 4], chunks=[Chunk("0" * 32, 0, 0, 32, 32)]),
    Leaf("t", "torch", 16, "float64", [2], chunks=[Chunk("0" * 32, 0, 64, 10, 16, 8)]),
    Leaf("s", "scalar", 8, "<f8", [], inline=bytes(8)),
    Leaf("b", "blob", 3, inline=b"abc"),
]
_TREE = [
    "d",
    [[["s", "w"], ["a", 0]], [["s", "l"], ["l", [["a", 1], ["i", "0x1"], ["f", "1.5"], ["y", "YQ=="]]]]],
]
_HEAD = Head(
    1,
    "000000000001-run-0",
    5,
    1,
    True,
    59,
    59,
    [_PACK],
    [4096],
    metadata={"epoch": 3},
    data={"a@1": "0" * 64},
)
_BODY = manifest.Body([RankPart(0, _TREE, _LEAVES, [_PACK], [4096], 59)])
_DCP = {
    "tensors": {
        "w": {
            "dtype": "float32", "layout": "strided", "memory_format": "contiguous_format", "requires_grad": False,
            "pin_memory": False, "size": [2, 4], "chunks": [[[0, 0], [2, 4]]],
        }
    },
    "bytes": ["b"],
    "planner": _TREE,
    "items": [["w", [0, 0], 0, 0], ["b", None, 0, 1]],
}  # fmt: skip
_TENSOR = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
_HEADER = {
    "__metadata__": {"format": "pt"},
    "a": _TENSOR,
    "b": {"dtype": "I8", "shape": [], "data_offsets": [24, 25]},
}
_REFUSES = (CorruptCheckpointError, NotSupportedError)
_JSON = mutate_tree(json.loads, lambda tree: json.dumps(tree).encode())
_WORDS = [
    b"|O",
    b"<f4",
    b"V8",
    b"bfloat16",
    b"float8_e4m3fn",
    b"complex64",
    b"torch",
    b"numpy",
    b"scalar",
    b"blob",
]
_WORDS += [
    b"../x",
    _PACK.encode(),
    b"(2,)f4",
    b"<M8[ns]",
    b"O8",
    b"S0",
    b"U1",
    b"quint8",
    b"F8_E4M3",
    b"1e400",
]


def _manifest(data: bytes) -> None:
    """The head and the body as a JSON list of two."""
    head, body = _halves(data)
    first = b" ".join((manifest.MAGIC, manifest.digest(head).encode(), manifest.digest(body).encode()))
    written = b"\n".join((first, head, body, b""))
    manifest.decode_head(written[: 1 << 16], "m")
    document = manifest_check.check_manifest(manifest.decode(written, "m"), "m")
    for pack in document.head.packs:
        assert "/" not in pack and layout.save_of_pack(pack)
    for part in document.body.parts:
        for leaf in part.leaves:
            _make(leaf)
        tensors.build(part.tree, lambda place, path: place, lambda name: True)
    if document.body.dcp is not None:
        decoded_metadata(document.body.dcp)
    assert manifest.decode(manifest.encode(document), "m").head.step == document.head.step


def decoded_metadata(document: dict[str, Any]) -> Any:
    from headrace.integrations.torch_checkpoint import (
        decode_metadata,
    )  # imports more than a second of modules

    return decode_metadata(document)


def _halves(data: bytes) -> tuple[bytes, bytes]:
    head, _, body = data.partition(b"\n")
    return head, body.replace(b"\n", b" ")


def _part(data: bytes) -> None:
    part = manifest_check.check_part(
        manifest.decode_part(manifest.digest(data).encode() + b"\n" + data, "p"), "p"
    )
    for leaf in part.leaves:
        _make(leaf)
        for chunk in leaf.chunks:
            assert 0 <= chunk.offset < chunk.offset + chunk.stored_bytes <= part.pack_bytes[chunk.pack]


def _make(leaf: Leaf) -> None:
    """Its memory, as loading makes it, of its size and no more; no pointers in it."""
    if leaf.kind == "blob" or leaf.size_bytes > MEMORY_BYTES_MAX:
        return
    value, memory = tensors.new_value(leaf)
    assert memory.nbytes == leaf.size_bytes
    if isinstance(value, np.ndarray):
        assert not value.dtype.hasobject
        assert value.nbytes == leaf.size_bytes
        value.tobytes()
    else:
        assert isinstance(value, torch.Tensor) and value.numel() * value.element_size() == leaf.size_bytes
    tensors.finished(leaf, value)


def _metadata(data: bytes) -> None:
    """Decode metadata of torch.distributed.checkpoint."""
    metadata = decoded_metadata(decode_json(data, dict[str, Any]))
    assert metadata.storage_data is not None


def _packed(data: bytes) -> None:
    """A compressed chunk: its codec and length come first."""
    if len(data) < 4:
        return
    item_bytes, length = data[0] % 17, int.from_bytes(data[1:4], "little") % MEMORY_BYTES_MAX
    target = np.empty(length, np.uint8)
    compression.decompress(memoryview(data)[4:], target, item_bytes, "c")


def _safetensors(data: bytes) -> None:
    """The header's length comes first, then JSON, then the bytes of tensors."""
    named_tensors = safetensors._tensors(memoryview(bytearray(data)), "f", None, lambda name: True)
    for tensor in named_tensors.values():
        assert tensor.numel() * tensor.element_size() <= len(data)
        assert math.prod(tensor.shape) == tensor.numel()


def _with_length(header: dict[str, Any]) -> bytes:
    body = json.dumps(header).encode()
    return len(body).to_bytes(8, "little") + body + bytes(25)


def _decode_file(data: bytes) -> dict[str, Any]:
    length = int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8 : 8 + length])
    return header


FUZZERS = [
    Fuzzer(
        "manifests",
        "manifests: head and body, and the state they describe (checkpoint/manifest.py, manifest_check.py, tensors.py)",
        _manifest,
        _REFUSES,
        [
            msgspec.json.encode(_HEAD) + b"\n" + msgspec.json.encode(_BODY),
            msgspec.json.encode(_HEAD) + b"\n" + msgspec.json.encode(manifest.Body([], _DCP)),
        ],
        words=_WORDS,
        mutate=mutate_tree(
            lambda data: [json.loads(half) for half in data.split(b"\n")],
            lambda tree: b"\n".join(json.dumps(half).encode() for half in tree),
        ),
        input_bytes_max=16384,
    ),
    Fuzzer(
        "manifest-parts",
        "parts of a checkpoint that is being saved (checkpoint/manifest.py)",
        _part,
        _REFUSES,
        [msgspec.json.encode(_BODY.parts[0])],
        words=_WORDS,
        mutate=_JSON,
    ),
    Fuzzer(
        "dcp-metadata",
        "metadata of torch.distributed.checkpoint (integrations/torch_checkpoint.py)",
        _metadata,
        (*_REFUSES, msgspec.DecodeError),
        [json.dumps(_DCP).encode()],
        words=[*_WORDS, b"strided", b"load", b"serialization", b"contiguous_format"],
        mutate=_JSON,
    ),
    Fuzzer(
        "packed-chunks",
        "compressed chunks of packs (checkpoint/compression.py)",
        _packed,
        (CorruptCheckpointError,),
        [
            bytes((codec,))
            + (100).to_bytes(3, "little")
            + compression.compress(np.arange(100, dtype=np.uint8), codec)
            for codec in (1, 4, 8)
        ],
    ),
    Fuzzer(
        "safetensors",
        "safetensors files (integrations/safetensors.py)",
        _safetensors,
        _REFUSES,
        [
            _with_length(_HEADER),
            _with_length({"a": {"dtype": "F64", "shape": [0, 5], "data_offsets": [3, 3]}}),
        ],
        words=[*_WORDS, b"__metadata__", b"data_offsets", b"BF16", b"BOOL", b"F8_E5M2"],
        mutate=mutate_tree(_decode_file, _with_length),
    ),
]
