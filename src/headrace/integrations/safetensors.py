"""A model's weights out of safetensors files, as fast as links and disks allow. Needs torch, and no other package.

    weights = load_model("/mnt/models/llama-70b")             # all tensors, by name
    for name, tensor in iter_model("/mnt/models/llama-70b", device="cuda:0"): ...     # as the files arrive

Some files at a time are fetched whole (sdk/mapped_files.py), each is then mapped, and tensors lie in the mapping:
nothing is copied for device "cpu", and all processes of a host share the memory. The format:
https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.base.decoding import decode_json
from headrace.base.missing_extras import needs_extra

with needs_extra(__name__):
    import torch

from headrace.base.errors import CorruptCheckpointError, NotSupportedError, PathNotFoundError
from headrace.checkpoint.export import TORCH_WORDS
from headrace.checkpoint.manifest_check import DIMENSIONS_MAX, SIZE_BYTES_MAX
from headrace.checkpoint.restore import matcher
from headrace.sdk.cancel import Cancel
from headrace.sdk.mapped_files import ModelFolder, open_model_folder

FILES_AT_A_TIME = 4
"""So that several owners of a cluster are asked at one time, and the first files are there early."""
SUFFIX, INDEX = ".safetensors", ".safetensors.index.json"
SINGLE = "model.safetensors"
HEADER_BYTES_MAX = 100_000_000  # the format's own limit
_DTYPES = {word: getattr(torch, name) for name, word in TORCH_WORDS.items() if hasattr(torch, name)}
Device = str | torch.device


def load_model(
    where: str | os.PathLike[str],
    *,
    device: Device = "cpu",
    only: Sequence[str] = (),
    socket: str | None = None,
) -> dict[str, torch.Tensor]:
    """All tensors, by name, in the order of the files. Blocks until everything is there.

    where: one file, an index (`*.safetensors.index.json`), or a folder: its index says what belongs to the model, else
    `model.safetensors`, else all of its `*.safetensors`. A path, in a mount of Headrace's or anywhere; or
    `headrace:///PATH`, of the node at `socket` or of the configured cache. device: tensors of "cpu" lie in the mapped
    files; writing to them changes this process's memory only, 4 KiB page by page. only: patterns of names
    (`model.layers.0.*`); files without any such tensor are not read, where there is an index.

    PathNotFoundError, with what is missing; CorruptCheckpointError for what is no safetensors file;
    NotSupportedError for a dtype that torch hasn't; the origin's errors.
    """
    found: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensors in _by_file(os.fspath(where), torch.device(device), only, socket, found):
        found[name] = tensors
    return {name: tensor for tensors in found.values() for name, tensor in tensors.items()}


def iter_model(
    where: str | os.PathLike[str],
    *,
    device: Device = "cpu",
    only: Sequence[str] = (),
    socket: str | None = None,
) -> Generator[tuple[str, torch.Tensor], None, None]:
    """As load_model, each file's tensors as soon as the file is there, in whatever order files arrive. One that is
    given up midway asks for no more files; the node may go on with those that it has begun."""
    for _, tensors in _by_file(os.fspath(where), torch.device(device), only, socket, {}):
        yield from tensors.items()


@dataclass(frozen=True, slots=True)
class _Shard:
    """A file, and the tensors that an index says are in it; None: whatever is."""

    file: str
    names: frozenset[str] | None


def _by_file(
    where: str,
    device: torch.device,
    only: Sequence[str],
    socket: str | None,
    in_order: dict[str, dict[str, torch.Tensor]],
) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """Each file and its tensors as it arrives. in_order: gets the files' names first, in the order of the model."""
    files, single = open_model_folder(where, socket=socket)
    cancel, wanted = Cancel(), matcher(only)
    pool = ThreadPoolExecutor(FILES_AT_A_TIME, thread_name_prefix="model")
    try:
        shards = _shards(files, single, wanted)
        in_order.update((shard.file, {}) for shard in shards)
        coming = {pool.submit(files.whole, shard.file, cancel): shard for shard in shards}
        seen: set[str] = set()
        for done in as_completed(coming):
            shard = coming.pop(done)
            name = f"{files.name}/{shard.file}"
            tensors = _tensors(done.result(), name, shard.names, wanted)
            if not seen.isdisjoint(tensors):
                twice = ", ".join(sorted(seen & tensors.keys())[:3])
                raise CorruptCheckpointError(name, why=f"{twice}: in another file, too", hint="name one file")
            seen |= tensors.keys()
            yield shard.file, {key: tensor.to(device) for key, tensor in tensors.items()}
    finally:
        cancel.set()
        pool.shutdown(cancel_futures=True)
        files.close()
        cancel.close()


def _shards(files: ModelFolder, single: str, wanted: Callable[[str], bool]) -> list[_Shard]:
    if single.endswith(INDEX):
        return _indexed(files, single, wanted)
    if single:
        return [_Shard(single, None)]
    names = files.names()
    indexes = [name for name in names if name.endswith(INDEX)]
    if len(indexes) == 1:
        return _indexed(files, indexes[0], wanted)
    if indexes:
        raise NotSupportedError(files.name, why=f"{len(indexes)} indexes are in it", hint="name one of them")
    chosen = [SINGLE] if SINGLE in names else [name for name in names if name.endswith(SUFFIX)]
    if not chosen:
        raise PathNotFoundError(files.name, why=f"no *{SUFFIX} is in it")
    return [_Shard(name, None) for name in chosen]


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def _indexed(files: ModelFolder, index: str, wanted: Callable[[str], bool]) -> list[_Shard]:
    try:
        weight_map = decode_json(files.read(index), _Index).weight_map
    except msgspec.MsgspecError as error:
        raise _corrupt(f"{files.name}/{index}", f"not an index: {error}") from None
    names: dict[str, set[str]] = {}
    for name, file in weight_map.items():
        if "/" in file or file in ("", ".", ".."):
            raise _corrupt(f"{files.name}/{index}", f"{name} is said to be in {file!r}, not in this folder")
        if wanted(name):
            names.setdefault(file, set()).add(name)
    return [_Shard(file, frozenset(found)) for file, found in sorted(names.items())]


class _Tensor(msgspec.Struct, frozen=True):
    """As the header says it. data_offsets: start and end, after the header."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def _tensors(
    data: memoryview, name: str, listed: frozenset[str] | None, wanted: Callable[[str], bool]
) -> dict[str, torch.Tensor]:
    """Of one file, those wanted, over its memory. listed: what must be in it."""
    header, begin = _header(data, name)
    if listed is not None and not listed <= header.keys():
        missing = ", ".join(sorted(listed - header.keys())[:3])
        raise _corrupt(name, f"the index says that {missing} is in it, and it is not")
    chosen = header.keys() if listed is None else listed
    return {
        key: _tensor_over(data, begin, f"{key} of {name}", one)
        for key, one in header.items()
        if key in chosen and wanted(key)
    }


def _header(data: memoryview, name: str) -> tuple[dict[str, _Tensor], int]:
    """The tensors in the order of their bytes, and where those begin."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or not 2 <= length <= min(HEADER_BYTES_MAX, len(data) - 8):
        raise _corrupt(name, "it does not begin as a safetensors file")
    try:
        words: dict[str, Any] = decode_json(bytes(data[8 : 8 + length]), dict[str, Any])
        words.pop("__metadata__", None)
        found = msgspec.convert(words, dict[str, _Tensor])
    except msgspec.MsgspecError as error:
        raise _corrupt(name, f"its header is not one of a safetensors file: {error}") from None
    ordered = sorted(found.items(), key=lambda item: item[1].data_offsets)
    return dict(ordered), 8 + length


def _tensor_over(data: memoryview, begin: int, name: str, one: _Tensor) -> torch.Tensor:
    dtype = _DTYPES.get(one.dtype)
    if dtype is None:
        raise NotSupportedError(name, why=f"this torch has no {one.dtype}", hint="use a newer one")
    start, end = one.data_offsets
    count = math.prod(one.shape)
    strides = math.prod(max(1, size) for size in one.shape)  # which torch calculates of an empty one, too
    if len(one.shape) > DIMENSIONS_MAX or strides > SIZE_BYTES_MAX:
        raise _corrupt(name, f"{len(one.shape)} dimensions, {strides} items")
    if min(one.shape, default=0) < 0 or not 0 <= start <= end <= len(data) - begin:
        raise _corrupt(name, f"said to be at {start} to {end}, of {len(data) - begin} bytes")
    if end - start != count * dtype.itemsize:
        raise _corrupt(name, f"{end - start} bytes do not hold {one.dtype} {one.shape}")
    if count == 0:
        return torch.empty(one.shape, dtype=dtype)
    if (
        begin + start
    ) % dtype.itemsize:  # a mapping begins at a page; torch wants items at multiples of their size
        piece = bytearray(data[begin + start : begin + end])
        return torch.frombuffer(piece, dtype=dtype, count=count).reshape(one.shape)
    return torch.frombuffer(data, dtype=dtype, count=count, offset=begin + start).reshape(one.shape)


def _corrupt(name: str, why: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(name, why=why, hint="fetch or save it again")
