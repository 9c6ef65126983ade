"""A checkpoint as one safetensors file, for everybody who reads those. Leaf by leaf: memory for the largest is enough.

The file: 8 bytes, little-endian, the length of the header; the header, JSON, padded with spaces; the tensors, without
gaps (https://github.com/huggingface/safetensors#format). Plain values and numpy scalars have no place in it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from headrace.base.errors import CheckpointFailedError, CheckpointNotFoundError, NotSupportedError
from headrace.checkpoint.manifest import Leaf, Manifest, RankPart
from headrace.checkpoint.memory import Bytes, page_aligned
from headrace.checkpoint.restore import THREADS, PackReaders, fetch, matcher, part_of, reads_of, with_sources
from headrace.checkpoint.storage import CheckpointStorage

TORCH_WORDS = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0", "complex64": "C64",
}  # fmt: skip
_NUMPY = {
    "<f8": "F64", "<f4": "F32", "<f2": "F16", "<i8": "I64", "<i4": "I32", "<i2": "I16", "|i1": "I8", "<u8": "U64",
    "<u4": "U32", "<u2": "U16", "|u1": "U8", "|b1": "BOOL", "<c8": "C64",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shard:
    """A leaf, and where it begins in its tensor."""

    part: RankPart
    leaf: Leaf
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Whole:
    """A tensor, of one shard or of several that fill it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    shards: list[Shard]


@dataclass(frozen=True, slots=True)
class Exported:
    step: int
    file: str
    tensors: int
    bytes: int
    left_out: list[str]


def export(
    place: CheckpointStorage, file: str, step: int | None = None, *, rank: int = 0, only: Sequence[str] = ()
) -> Exported:
    """Writes the tensors and arrays of a rank (of all ranks, where torch.distributed.checkpoint saved) to a file, which
    is there, whole and durable, on return. A file of that name is replaced.

    NotSupportedError for a dtype that safetensors hasn't, and where two leaves have one name.
    """

    def run(manifest: Manifest, sources: PackReaders) -> Exported:
        found = _wholes(manifest, matcher(only), rank, place)
        chosen = sorted(found, key=lambda one: one.name)
        if not chosen:
            raise CheckpointNotFoundError(
                f"{place.name}, step {manifest.head.step}", why="no tensor is named so"
            )
        _refuse_twins(chosen)
        _write(file, _header(chosen, manifest), (_bytes_of(one, sources) for one in chosen))
        left_out = [
            leaf.name
            for part in manifest.body.parts
            for leaf in part.leaves
            if leaf.kind in ("scalar", "blob")
        ]
        size = sum(one.size_bytes for one in chosen)
        return Exported(manifest.head.step, file, len(chosen), size, left_out)

    done: Exported = with_sources(place, step, run)
    return done


def _wholes(
    manifest: Manifest, wanted: Callable[[str], bool], rank: int, place: CheckpointStorage
) -> list[Whole]:
    if manifest.head.kind == "dcp":
        return _sharded(manifest, wanted)
    part = part_of(manifest, rank, place)
    found = []
    for leaf in part.leaves:
        if leaf.kind in ("torch", "numpy") and wanted(leaf.name):
            shard = Shard(part, leaf, (0,) * len(leaf.shape))
            found.append(Whole(leaf.name, _word(leaf), tuple(leaf.shape), leaf.size_bytes, [shard]))
    return found


def _sharded(manifest: Manifest, wanted: Callable[[str], bool]) -> list[Whole]:
    """By torch's metadata: items are [name, offsets, part, place among its leaves]."""
    shards: dict[str, list[Shard]] = {}
    for name, offsets, part_number, leaf_number in manifest.body.dcp["items"]:
        part = manifest.body.parts[part_number]
        leaf = part.leaves[leaf_number]
        if leaf.kind == "torch" and wanted(name):
            shards.setdefault(name, []).append(Shard(part, leaf, tuple(offsets or [0] * len(leaf.shape))))
    found = []
    for name, pieces in shards.items():
        shape = tuple(manifest.body.dcp["tensors"][name]["size"])
        item = max((_item_bytes(shard.leaf) for shard in pieces), default=1)
        size = item * int(np.prod(shape, dtype=np.int64))
        found.append(Whole(name, _word(pieces[0].leaf), shape, size, pieces))
    return found


def _word(leaf: Leaf) -> str:
    word = (TORCH_WORDS if leaf.kind == "torch" else _NUMPY).get(leaf.dtype)
    if word is None:
        raise NotSupportedError(
            leaf.name, why=f"safetensors has no {leaf.dtype}", hint="leave it out by --only"
        )
    return word


def _item_bytes(leaf: Leaf) -> int:
    count = int(np.prod(leaf.shape, dtype=np.int64))
    return leaf.size_bytes // count if count else 0


def _refuse_twins(chosen: list[Whole]) -> None:
    for one, other in itertools.pairwise(chosen):
        if one.name == other.name:
            raise NotSupportedError(
                one.name, why="two leaves have this name once their keys are joined by dots"
            )


def _header(chosen: list[Whole], manifest: Manifest) -> bytes:
    about = {"format": "pt", "headrace_step": str(manifest.head.step), "headrace_save": manifest.head.save}
    header: dict[str, Any] = {"__metadata__": about}
    at = 0
    for one in chosen:
        header[one.name] = {
            "dtype": one.dtype,
            "shape": list(one.shape),
            "data_offsets": [at, at + one.size_bytes],
        }
        at += one.size_bytes
    data = msgspec.json.encode(header)
    data += b" " * (-len(data) % 8)
    return len(data).to_bytes(8, "little") + data


def _bytes_of(whole: Whole, sources: PackReaders) -> Bytes:
    if len(whole.shards) == 1 and whole.shards[0].leaf.size_bytes == whole.size_bytes:
        return _shard_bytes(whole.shards[0], sources)
    memory = np.zeros(whole.size_bytes, np.uint8)
    for shard in whole.shards:
        item = np.dtype(f"V{max(_item_bytes(shard.leaf), 1)}")
        target = np.ndarray(whole.shape, item, buffer=memory.data)
        region = tuple(
            slice(start, start + length)
            for start, length in zip(shard.offsets, shard.leaf.shape, strict=True)
        )
        target[region] = np.ndarray(tuple(shard.leaf.shape), item, buffer=_shard_bytes(shard, sources).data)
    return memory


def _shard_bytes(shard: Shard, sources: PackReaders) -> Bytes:
    memory = page_aligned(shard.leaf.size_bytes)
    if shard.leaf.inline:
        memory[:] = np.frombuffer(shard.leaf.inline, np.uint8)
    fetch(reads_of(shard.part, shard.leaf, memory), sources, threads=THREADS)
    return memory


def _write(file: str, header: bytes, bodies: Iterator[Bytes]) -> None:
    new = f"{file}.new"
    try:
        with open(new, "wb", buffering=0) as out:
            _write_all(out.fileno(), memoryview(header))
            for body in bodies:
                _write_all(out.fileno(), body.data)
            os.fsync(out.fileno())
        os.replace(new, file)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(new)
        if error.errno is None:  # one of ours
            raise
        raise CheckpointFailedError(file, why=os.strerror(error.errno).lower()) from None


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]
