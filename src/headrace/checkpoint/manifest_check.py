"""Check the values of a manifest before the loader allocates memory or opens a pack because of them.

The checksums detect accidents, not malice: every user who can write to a checkpoint directory can write a manifest.
Every manifest passes these checks when it is read. It therefore can't make the loader access foreign memory, read files
outside the directory, or run code. CorruptCheckpointError names the first invalid value.
"""

from __future__ import annotations

import math
import re

import numpy as np

from headrace.base.errors import CorruptCheckpointError
from headrace.checkpoint import layout
from headrace.checkpoint.data_versions import check_versions
from headrace.checkpoint.manifest import Chunk, Head, Leaf, Manifest, RankPart

NUMPY_KINDS = "biufcmMSU"
"""The kinds of numpy dtypes that are saved: none has pointers."""
SIZE_BYTES_MAX = 1 << 50
"""Most bytes of a leaf or a pack."""
DIMENSIONS_MAX = 64
"""Most dimensions of a leaf: the limit of numpy."""
_NUMPY_DTYPE = re.compile(r"[<>|=]?[biufcmMSU]\d{1,6}(\[\d{0,6}[A-Za-z]{1,2}(/\d{1,6})?\])?")
_TORCH_DTYPE = re.compile(r"[a-z][a-z0-9_]{1,40}")


def check_manifest(manifest: Manifest, name: str) -> Manifest:
    """Return the manifest if it is valid. Raises CorruptCheckpointError otherwise. name: for messages."""
    try:
        _check_head(manifest.head)
        sizes = dict(zip(manifest.head.packs, manifest.head.pack_bytes, strict=True))
        for part in manifest.body.parts:
            _check_part(part)
            for pack, size_bytes in zip(part.packs, part.pack_bytes, strict=True):
                _require(
                    sizes.get(pack) == size_bytes,
                    f"rank {part.rank} names pack {pack!r}, but the head does not",
                )
    except ValueError as error:
        raise CorruptCheckpointError(name, why=str(error), hint="load another step") from None
    return manifest


def check_head(head: Head, name: str) -> Head:
    """Return the head if it is valid, as check_manifest does."""
    try:
        _check_head(head)
    except ValueError as error:
        raise CorruptCheckpointError(name, why=str(error), hint="load another step") from None
    return head


def check_part(part: RankPart, name: str) -> RankPart:
    """Return the part if it is valid, as check_manifest does."""
    try:
        _check_part(part)
    except ValueError as error:
        raise CorruptCheckpointError(name, why=str(error), hint="save again") from None
    return part


def item_bytes_of(leaf: Leaf) -> int:
    """Return the size in bytes of one item of a numpy leaf. Raises ValueError for a dtype that is never saved."""
    _require(_NUMPY_DTYPE.fullmatch(leaf.dtype) is not None, f"{leaf.name} has the dtype {leaf.dtype!r}")
    try:
        dtype = np.dtype(leaf.dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{leaf.name} has the dtype {leaf.dtype!r}: {error}") from None
    safe = (
        dtype.kind in NUMPY_KINDS and not dtype.hasobject and dtype.names is None and dtype.subdtype is None
    )
    _require(safe, f"{leaf.name} has the dtype {leaf.dtype!r}")
    return dtype.itemsize


def items_of(leaf: Leaf) -> int:
    """Return the number of items in the leaf's shape."""
    return math.prod(leaf.shape)


def _strides_of(leaf: Leaf) -> int:
    """Return the bytes that the leaf's largest stride spans, also if a size of 0 makes the leaf empty."""
    item_bytes = item_bytes_of(leaf) if leaf.kind in ("numpy", "scalar") else 1
    return math.prod(max(1, size) for size in leaf.shape) * item_bytes


def _check_head(head: Head) -> None:
    _require(0 <= head.step <= layout.STEP_MAX, f"step {head.step}")
    _require(head.kind in ("state", "dcp"), f"kind {head.kind!r}")
    _check_packs(head.packs, head.pack_bytes)
    check_versions(head.data)


def _check_packs(packs: list[str], pack_bytes: list[int]) -> None:
    _require(len(packs) == len(pack_bytes), f"{len(packs)} packs and {len(pack_bytes)} sizes")
    for pack, size_bytes in zip(packs, pack_bytes, strict=True):
        _require(layout.save_of_pack(pack) is not None, f"{pack[:80]!r} is not the name of a pack")
        _require(0 <= size_bytes <= SIZE_BYTES_MAX, f"pack {pack} of {size_bytes} bytes")


def _check_part(part: RankPart) -> None:
    _require(part.rank >= 0, f"rank {part.rank}")
    _check_packs(part.packs, part.pack_bytes)
    for leaf in part.leaves:
        _check_leaf(leaf)
        for chunk in leaf.chunks:
            _check_chunk(chunk, leaf, part)


def _check_leaf(leaf: Leaf) -> None:
    _require(0 <= leaf.size_bytes <= SIZE_BYTES_MAX, f"{leaf.name} of {leaf.size_bytes} bytes")
    fits = len(leaf.shape) <= DIMENSIONS_MAX and min(leaf.shape, default=0) >= 0
    _require(fits and _strides_of(leaf) <= SIZE_BYTES_MAX, f"{leaf.name} has the shape {leaf.shape}"[:200])
    if leaf.kind in ("numpy", "scalar"):
        _require(leaf.kind == "numpy" or not leaf.shape, f"{leaf.name} is a scalar with a shape")
        size_bytes = items_of(leaf) * item_bytes_of(leaf)
        _require(size_bytes == leaf.size_bytes, f"{leaf.name} has {leaf.size_bytes} bytes for {size_bytes}")
    elif leaf.kind == "torch":  # tensors.value_over compares the size with the dtype
        _require(_TORCH_DTYPE.fullmatch(leaf.dtype) is not None, f"{leaf.name} has the dtype {leaf.dtype!r}")
        _require(items_of(leaf) <= leaf.size_bytes * 8, f"{leaf.name} has the shape {leaf.shape}")
    else:
        _require(leaf.kind == "blob", f"{leaf.name} is of kind {leaf.kind!r}")
    if leaf.inline:
        _require(
            len(leaf.inline) == leaf.size_bytes and not leaf.chunks,
            f"{leaf.name} has inline bytes of another size, or chunks too",
        )
    else:
        covered = sum(chunk.length for chunk in leaf.chunks)
        _require(
            covered == leaf.size_bytes, f"the chunks of {leaf.name} have {covered} of {leaf.size_bytes} bytes"
        )


def _check_chunk(chunk: Chunk, leaf: Leaf, part: RankPart) -> None:
    _require(0 <= chunk.pack < len(part.packs), f"a chunk of {leaf.name} is in pack {chunk.pack}")
    _require(chunk.length > 0, f"a chunk of {leaf.name} has {chunk.length} bytes")
    _require(0 <= chunk.codec <= leaf.size_bytes, f"a chunk of {leaf.name} has codec {chunk.codec}")
    _require(
        chunk.codec > 0 or chunk.stored_bytes == chunk.length,
        f"a plain chunk of {leaf.name} has another size in its pack",
    )
    within = chunk.offset >= 0 and 0 < chunk.stored_bytes <= part.pack_bytes[chunk.pack] - chunk.offset
    _require(within, f"a chunk of {leaf.name} is outside of its pack")


def _require(holds: bool, why: str) -> None:  # noqa: FBT001
    """Raise ValueError with the reason unless the condition holds."""
    if not holds:
        raise ValueError(why)
