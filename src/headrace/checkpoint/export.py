"""Export a checkpoint as one safetensors file, with memory for the largest tensor only.

The file consists of the header's length (8 bytes, little-endian), the header (JSON, padded with spaces), and the
tensors without gaps (https://github.com/huggingface/safetensors#format). Plain values and numpy scalars are left out,
as the format cannot store them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from headrace.base.errors import CheckpointFailedError, CheckpointNotFoundError, NotSupportedError
from headrace.base.sync_folder import sync_folder
from headrace.checkpoint.manifest import Leaf, Manifest, RankPart
from headrace.checkpoint.memory import Bytes, page_aligned
from headrace.checkpoint.restore import THREADS, PackReaders, fetch, matcher, part_of, reads_of, with_readers
from headrace.checkpoint.storage import CheckpointStorage

TORCH_WORDS = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0", "complex64": "C64",
}  # fmt: skip
"""Names of dtypes in safetensors, by their names in torch."""
_NUMPY = {
    "<f8": "F64", "<f4": "F32", "<f2": "F16", "<i8": "I64", "<i4": "I32", "<i2": "I16", "|i1": "I8", "<u8": "U64",
    "<u4": "U32", "<u2": "U16", "|u1": "U8", "|b1": "BOOL", "<c8": "C64",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shard:
    """Hold a leaf and the offsets at which it begins in its tensor."""

    part: RankPart
    leaf: Leaf
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ExportedTensor:
    """Describe a tensor that consists of one shard, or of several that fill it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    shards: list[Shard]


@dataclass(frozen=True, slots=True)
class Exported:
    """Report an export. bytes: size of all tensors. left_out: names of leaves that are not tensors."""

    step: int
    file: str
    tensors: int
    bytes: int
    left_out: list[str]


def export(
    storage: CheckpointStorage, file: str, step: int | None = None, *, rank: int = 0, only: Sequence[str] = ()
) -> Exported:
    """Write the tensors and arrays of a rank to a safetensors file, which is complete and durable on return.

    From a checkpoint of torch.distributed.checkpoint the tensors of all ranks are written. An existing file is
    replaced; a link, a device or a pipe is refused. Raises NotSupportedError for a dtype that safetensors does not
    have, and if two leaves have the same name.
    """
    _refuse_other_than_file(file)

    def run(manifest: Manifest, readers: PackReaders) -> Exported:
        tensors = _tensors_of(manifest, matcher(only), rank, storage)
        chosen = sorted(tensors, key=lambda tensor: tensor.name)
        if not chosen:
            raise CheckpointNotFoundError(
                f"{storage.name}, step {manifest.head.step}", why="no tensor has a matching name"
            )
        _refuse_duplicates(chosen)
        _write(file, _header(chosen, manifest), (_bytes_of(tensor, readers) for tensor in chosen))
        left_out = [
            leaf.name
            for part in manifest.body.parts
            for leaf in part.leaves
            if leaf.kind in ("scalar", "blob")
        ]
        size = sum(tensor.size_bytes for tensor in chosen)
        return Exported(manifest.head.step, file, len(chosen), size, left_out)

    exported: Exported = with_readers(storage, step, run)
    return exported


def _tensors_of(
    manifest: Manifest, is_selected: Callable[[str], bool], rank: int, storage: CheckpointStorage
) -> list[ExportedTensor]:
    if manifest.head.kind == "dcp":
        return _sharded(manifest, is_selected)
    part = part_of(manifest, rank, storage)
    tensors = []
    for leaf in part.leaves:
        if leaf.kind in ("torch", "numpy") and is_selected(leaf.name):
            shard = Shard(part, leaf, (0,) * len(leaf.shape))
            tensors.append(
                ExportedTensor(leaf.name, _dtype_word(leaf), tuple(leaf.shape), leaf.size_bytes, [shard])
            )
    return tensors


def _sharded(manifest: Manifest, is_selected: Callable[[str], bool]) -> list[ExportedTensor]:
    """Assemble tensors from torch's metadata. Its items are [name, offsets, number of the part, number of the leaf]."""
    shards: dict[str, list[Shard]] = {}
    for name, offsets, part_number, leaf_number in manifest.body.dcp["items"]:
        part = manifest.body.parts[part_number]
        leaf = part.leaves[leaf_number]
        if leaf.kind == "torch" and is_selected(name):
            shards.setdefault(name, []).append(Shard(part, leaf, tuple(offsets or [0] * len(leaf.shape))))
    tensors = []
    for name, tensor_shards in shards.items():
        shape = tuple(manifest.body.dcp["tensors"][name]["size"])
        item_bytes = max((_item_bytes(shard.leaf) for shard in tensor_shards), default=1)
        size = item_bytes * int(np.prod(shape, dtype=np.int64))
        tensors.append(ExportedTensor(name, _dtype_word(tensor_shards[0].leaf), shape, size, tensor_shards))
    return tensors


def _dtype_word(leaf: Leaf) -> str:
    dtype_word = (TORCH_WORDS if leaf.kind == "torch" else _NUMPY).get(leaf.dtype)
    if dtype_word is None:
        raise NotSupportedError(
            leaf.name, why=f"safetensors has no dtype {leaf.dtype}", hint="leave it out by --only"
        )
    return dtype_word


def _item_bytes(leaf: Leaf) -> int:
    count = int(np.prod(leaf.shape, dtype=np.int64))
    return leaf.size_bytes // count if count else 0


def _refuse_duplicates(chosen: list[ExportedTensor]) -> None:
    for tensor, next_tensor in itertools.pairwise(chosen):
        if tensor.name == next_tensor.name:
            raise NotSupportedError(tensor.name, why="joining keys by dots gives two leaves this name")


def _header(chosen: list[ExportedTensor], manifest: Manifest) -> bytes:
    metadata = {"format": "pt", "headrace_step": str(manifest.head.step), "headrace_save": manifest.head.save}
    header: dict[str, Any] = {"__metadata__": metadata}
    offset = 0
    for tensor in chosen:
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.size_bytes],
        }
        offset += tensor.size_bytes
    data = msgspec.json.encode(header)
    data += b" " * (-len(data) % 8)
    return len(data).to_bytes(8, "little") + data


def _bytes_of(tensor: ExportedTensor, readers: PackReaders) -> Bytes:
    if len(tensor.shards) == 1 and tensor.shards[0].leaf.size_bytes == tensor.size_bytes:
        return _shard_bytes(tensor.shards[0], readers)
    memory = np.zeros(tensor.size_bytes, np.uint8)
    for shard in tensor.shards:
        item_type = np.dtype(f"V{max(_item_bytes(shard.leaf), 1)}")
        target = np.ndarray(tensor.shape, item_type, buffer=memory.data)
        region = tuple(
            slice(start, start + length)
            for start, length in zip(shard.offsets, shard.leaf.shape, strict=True)
        )
        target[region] = np.ndarray(
            tuple(shard.leaf.shape), item_type, buffer=_shard_bytes(shard, readers).data
        )
    return memory


def _shard_bytes(shard: Shard, readers: PackReaders) -> Bytes:
    memory = page_aligned(shard.leaf.size_bytes)
    if shard.leaf.inline:
        memory[:] = np.frombuffer(shard.leaf.inline, np.uint8)
    fetch(reads_of(shard.part, shard.leaf, memory), readers, threads=THREADS)
    return memory


def _refuse_other_than_file(path: str) -> None:
    """Raise CheckpointFailedError if there is something else than a file at the path: the new file would take its
    place, also that of /dev/null."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return  # there is nothing, or the attempt to write says why it can't be
    if stat.S_ISDIR(mode):
        raise CheckpointFailedError(path, why="is a directory")
    if not stat.S_ISREG(mode):
        raise CheckpointFailedError(
            path, why="it is a link, a device or a pipe, and no file", hint="name a new file"
        )


def _create(path: str, flags: int) -> int:
    """Open a new file: another one of its name may be a link that somebody else made, to a file of this user."""
    return os.open(path, flags | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def _write(file: str, header: bytes, bodies: Iterator[Bytes]) -> None:
    new = f"{file}.{secrets.token_hex(4)}.new"
    try:
        with open(new, "wb", buffering=0, opener=_create) as out:
            _write_all(out.fileno(), memoryview(header))
            for body in bodies:
                _write_all(out.fileno(), body.data)
            os.fsync(out.fileno())
        os.replace(new, file)
        sync_folder(os.path.dirname(os.path.abspath(file)))
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(new)
        if isinstance(error, OSError) and error.errno is not None:  # an error of Headrace has its own text
            raise CheckpointFailedError(file, why=os.strerror(error.errno).lower()) from None
        raise


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]
