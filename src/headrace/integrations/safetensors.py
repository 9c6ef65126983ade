"""Load a model's weights from safetensors files as fast as links and disks allow.

    weights = load_model("/mnt/models/llama-70b")             # all tensors, by name
    for name, tensor in iter_model("/mnt/models/llama-70b", device="cuda:0"): ...     # as the files arrive

The loader requests a few complete files at a time (sdk/folder.py) and maps each of them. Tensors point into the
mapping: device "cpu" needs no copy, and all processes of a host share the memory. It needs torch and no other package.
The format is https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import pairwise
from urllib.parse import unquote

import msgspec

from headrace.base.decoding import decode_json
from headrace.base.missing_extras import needs_extra

with needs_extra(__name__):
    import torch

from headrace.base.cancel import Cancel
from headrace.base.errors import CorruptCheckpointError, NotSupportedError, PathNotFoundError
from headrace.checkpoint.export import TORCH_WORDS
from headrace.checkpoint.manifest_check import DIMENSIONS_MAX, SIZE_BYTES_MAX
from headrace.checkpoint.restore import matcher
from headrace.sdk.folder import URL, Folder, open_folder_or_file

FILES_AT_A_TIME = 4
"""Files requested in parallel: several owners of a cluster serve them, and the first files arrive early."""
SUFFIX, INDEX = ".safetensors", ".safetensors.index.json"
SINGLE = "model.safetensors"
HEADER_BYTES_MAX = 100_000_000  # the format's own limit
TENSORS_MAX = 1_000_000
"""Most tensors of a file: ten times those of the largest models, which are in hundreds of files."""
ENTRY_BYTES_MAX = 1 << 16
"""Most bytes that describe a tensor in a header. One with all dimensions takes some 1,300."""
_DTYPES = {word: getattr(torch, name) for name, word in TORCH_WORDS.items() if hasattr(torch, name)}
Device = str | torch.device


def load_model(
    where: str | os.PathLike[str],
    *,
    device: Device = "cpu",
    only: Sequence[str] = (),
    socket: str | None = None,
) -> dict[str, torch.Tensor]:
    """Return all tensors by name, in the order of the files. Blocks until every file is complete.

    where: a file, an index (`*.safetensors.index.json`), or a directory. A directory's index names the files of the
    model; without an index it is `model.safetensors`, else every `*.safetensors`. The path may be in a mount of
    Headrace or in any other file system. `headrace:///PATH` is a path of the node at `socket`, or of the configured
    cache. device: tensors of "cpu" point into the mapped files; a write to them changes only this process's memory, in
    pages of 4 KiB. only: patterns of names (`model.layers.0.*`); with an index, files without such a tensor are not
    read.

    Raises PathNotFoundError with the name of what is missing; CorruptCheckpointError for a file that is not
    safetensors; NotSupportedError for a dtype that this torch does not have; the origin's errors.
    """
    tensors_of_file: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensors in _by_file(os.fspath(where), torch.device(device), only, socket, tensors_of_file):
        tensors_of_file[name] = tensors
    return {name: tensor for tensors in tensors_of_file.values() for name, tensor in tensors.items()}


def iter_model(
    where: str | os.PathLike[str],
    *,
    device: Device = "cpu",
    only: Sequence[str] = (),
    socket: str | None = None,
) -> Generator[tuple[str, torch.Tensor], None, None]:
    """Yield the tensors of each file, as (name, tensor), when the file arrives; files arrive in any order.

    A caller that stops early requests no more files, but the node may complete the files that it has begun. Arguments
    and errors are those of load_model.
    """
    for _, tensors in _by_file(os.fspath(where), torch.device(device), only, socket, {}):
        yield from tensors.items()


@dataclass(frozen=True, slots=True)
class _Shard:
    """Name a file and the tensors that an index lists for it; names is None without an index."""

    file: str
    names: frozenset[str] | None


def _by_file(
    where: str,
    device: torch.device,
    only: Sequence[str],
    socket: str | None,
    in_order: dict[str, dict[str, torch.Tensor]],
) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """Yield each file and its tensors when the file arrives.

    in_order: receives the names of all files first, in the order of the model.
    """
    if where.startswith(URL):
        where = URL + unquote(where.removeprefix(URL))
    files, file_name = open_folder_or_file(where, socket=socket)
    cancel, is_selected = Cancel(), matcher(only)
    pool = ThreadPoolExecutor(FILES_AT_A_TIME, thread_name_prefix="model")
    try:
        shards = _shards(files, file_name, is_selected)
        in_order.update((shard.file, {}) for shard in shards)
        shards_by_future = {pool.submit(files.fetch, shard.file, cancel): shard for shard in shards}
        loaded_names: set[str] = set()
        for future in as_completed(shards_by_future):
            shard = shards_by_future.pop(future)
            name = f"{files.name}/{shard.file}"
            tensors = _tensors(future.result(), name, shard.names, is_selected)
            if not loaded_names.isdisjoint(tensors):
                duplicates = ", ".join(sorted(loaded_names & tensors.keys())[:3])
                raise CorruptCheckpointError(
                    name, why=f"another file also has {duplicates}", hint="name one file"
                )
            loaded_names |= tensors.keys()
            yield shard.file, {key: tensor.to(device) for key, tensor in tensors.items()}
    finally:
        cancel.set()
        pool.shutdown(cancel_futures=True)
        cancel.close()


def _shards(files: Folder, file_name: str, is_selected: Callable[[str], bool]) -> list[_Shard]:
    if file_name.endswith(INDEX):
        return _indexed(files, file_name, is_selected)
    if file_name:
        return [_Shard(file_name, None)]
    names = files.names(recursive=False)
    indexes = [name for name in names if name.endswith(INDEX)]
    if len(indexes) == 1:
        return _indexed(files, indexes[0], is_selected)
    if indexes:
        raise NotSupportedError(
            files.name, why=f"the directory has {len(indexes)} indexes", hint="name one of them"
        )
    chosen = [SINGLE] if SINGLE in names else [name for name in names if name.endswith(SUFFIX)]
    if not chosen:
        raise PathNotFoundError(files.name, why=f"the directory has no *{SUFFIX} file")
    return [_Shard(name, None) for name in chosen]


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def _indexed(files: Folder, index: str, is_selected: Callable[[str], bool]) -> list[_Shard]:
    try:
        weight_map = decode_json(files.read_many([index])[0], _Index).weight_map
    except msgspec.MsgspecError as error:
        raise _corrupt(f"{files.name}/{index}", f"it is not a valid index: {error}") from None
    names: dict[str, set[str]] = {}
    for name, file in weight_map.items():
        if "/" in file or "\0" in file or file in ("", ".", ".."):
            raise _corrupt(f"{files.name}/{index}", f"it places {name} in {file!r}, outside this directory")
        if is_selected(name):
            names.setdefault(file, set()).add(name)
    return [_Shard(file, frozenset(file_names)) for file, file_names in sorted(names.items())]


class _Tensor(msgspec.Struct, frozen=True):
    """Describe a tensor as the header does. data_offsets: start and end in bytes, counted from the end of the
    header."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def _tensors(
    data: memoryview, name: str, listed: frozenset[str] | None, is_selected: Callable[[str], bool]
) -> dict[str, torch.Tensor]:
    """Return the selected tensors of one file, over its memory. listed: names that the file must contain."""
    header, data_start = _header(data, name)
    if listed is not None and not listed <= header.keys():
        missing = ", ".join(sorted(listed - header.keys())[:3])
        raise _corrupt(name, f"the index lists {missing}, which the file does not contain")
    chosen = header.keys() if listed is None else listed
    return {
        key: _tensor_over(data, data_start, f"{key[:200]} of {name}", tensor)
        for key, tensor in header.items()
        if key in chosen and is_selected(key)
    }


def _header(data: memoryview, name: str) -> tuple[dict[str, _Tensor], int]:
    """Return the tensors in the order of their bytes, and the offset of the first byte after the header."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or not 2 <= length <= min(HEADER_BYTES_MAX, len(data) - 8):
        raise _corrupt(name, "it does not begin like a safetensors file")
    try:
        entries = decode_json(bytes(data[8 : 8 + length]), dict[str, msgspec.Raw])
    except msgspec.MsgspecError as error:
        raise _corrupt(name, f"its header is not valid: {error}") from None
    entries.pop("__metadata__", None)
    if len(entries) > TENSORS_MAX:
        raise _corrupt(name, f"it has {len(entries)} tensors, more than {TENSORS_MAX}")
    tensors = [(key, _entry(entry, f"{key[:200]} of {name}")) for key, entry in entries.items()]
    tensors.sort(key=lambda item: item[1].data_offsets)
    for (before, first), (after, second) in pairwise(tensors):
        if second.data_offsets[0] < first.data_offsets[1]:
            raise _corrupt(name, f"the bytes of {before[:200]} and {after[:200]} overlap")
    return dict(tensors), 8 + length


def _entry(entry: msgspec.Raw, name: str) -> _Tensor:
    """Return a tensor's description. Its size and numbers are checked before anything is computed from them."""
    encoded = memoryview(entry)
    if len(encoded) > ENTRY_BYTES_MAX:
        raise _corrupt(name, f"its description has {len(encoded)} bytes, more than {ENTRY_BYTES_MAX}")
    try:
        tensor = decode_json(bytes(encoded), _Tensor)
    except msgspec.MsgspecError as error:
        raise _corrupt(name, f"its description is not valid: {error}") from None
    if len(tensor.shape) > DIMENSIONS_MAX:
        raise _corrupt(name, f"it has {len(tensor.shape)} dimensions, more than {DIMENSIONS_MAX}")
    for number in (*tensor.shape, *tensor.data_offsets):
        if not 0 <= number <= SIZE_BYTES_MAX:
            raise _corrupt(name, f"it has a size or an offset outside of 0 to {SIZE_BYTES_MAX}")
    return tensor


def _tensor_over(data: memoryview, data_start: int, name: str, tensor: _Tensor) -> torch.Tensor:
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None:
        raise NotSupportedError(name, why=f"this torch has no dtype {tensor.dtype}", hint="use a newer torch")
    start, end = tensor.data_offsets
    count = math.prod(tensor.shape)
    # torch computes the strides of an empty tensor too
    if math.prod(max(1, size) for size in tensor.shape) > SIZE_BYTES_MAX:
        raise _corrupt(name, f"a tensor of {len(tensor.shape)} dimensions spans more items than is allowed")
    if not start <= end <= len(data) - data_start:
        raise _corrupt(
            name,
            f"a tensor is at {start} to {end}, but the file has {len(data) - data_start} bytes of tensors",
        )
    if end - start != count * dtype.itemsize:
        raise _corrupt(name, f"{end - start} bytes cannot hold {tensor.dtype} {tensor.shape}")
    if count == 0:
        return torch.empty(tensor.shape, dtype=dtype)
    if (data_start + start) % dtype.itemsize:  # torch requires items at multiples of their size
        copied = bytearray(data[data_start + start : data_start + end])
        return torch.frombuffer(copied, dtype=dtype, count=count).reshape(tensor.shape)
    return torch.frombuffer(data, dtype=dtype, count=count, offset=data_start + start).reshape(tensor.shape)


def _corrupt(name: str, why: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(name, why=why, hint="download or save the file again")
