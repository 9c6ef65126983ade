"""A state as bytes: nested dicts, lists and tuples of tensors, arrays and plain values, taken apart and put together.

`flatten` gives a tree of plain JSON, in which tensors and arrays are places in a list of leaves, and the leaves.
No pickle: what is not one of the kinds named here is refused, with its place. torch is imported only when a leaf is
its. The tree: a node is a list whose first item says what it is:

    ["d", [[key, node], …]] dict   ["l", [node, …]] list   ["u", [node, …]] tuple   ["n"] None   ["b", bool]
    ["i", hexadecimal] int   ["f", repr] float   ["s", text] str   ["y", base64] bytes   ["a", place] a leaf

Keys are nodes of plain values.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.base.errors import CheckpointMismatchError, CorruptCheckpointError, NotSupportedError
from headrace.base.missing_extras import needs_extra
from headrace.checkpoint.manifest import Leaf
from headrace.checkpoint.manifest_check import NUMPY_KINDS, item_bytes_of, items_of
from headrace.checkpoint.memory import Bytes, page_aligned

Path = tuple[Any, ...]
"""Keys and places from the top of a state."""
_DEPTH_MAX = 200
_HINT = "dicts, lists and tuples of torch tensors, numpy arrays, int, float, str, bytes, bool and None can be saved"


@dataclass(frozen=True, slots=True)
class HostLeaf:
    """A leaf beside the tensor or array that holds its bytes."""

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    value: Any

    def bytes(self) -> Any:
        """Flat uint8 over the value's own memory, numpy's; torch's for a tensor of another device. Copied first when
        the value is not contiguous."""
        return _torch_bytes(self.value) if self.kind == "torch" else _numpy_bytes(self.value)


def flatten(state: Any) -> tuple[Any, list[HostLeaf]]:
    """The tree and its leaves. A tensor met twice (the same memory, shape and strides) is one leaf.

    NotSupportedError names the place of what can't be saved.
    """
    taker = _Taker()
    return taker.node(state, ()), taker.leaves


class _Taker:
    def __init__(self) -> None:
        self.leaves: list[HostLeaf] = []
        self._seen: dict[Any, int] = {}

    def node(self, value: Any, path: Path) -> list[Any]:
        if len(path) > _DEPTH_MAX:
            raise NotSupportedError(where(path[:6]), why=f"nested more than {_DEPTH_MAX} deep, or in itself")
        if isinstance(value, Mapping):
            items = [[self._key(key, path), self.node(one, (*path, key))] for key, one in value.items()]
            return ["d", items]
        if type(value) in (list, tuple):
            word = "l" if type(value) is list else "u"
            return [word, [self.node(one, (*path, place)) for place, one in enumerate(value)]]
        plain = plain_node(value)
        return plain if plain is not None else ["a", self._leaf(value, path)]

    def _key(self, key: Any, path: Path) -> list[Any]:
        node = plain_node(key)
        if node is None:
            raise _refused(path, f"a key is a {type(key).__name__}, not a plain value")
        return node

    def _leaf(self, value: Any, path: Path) -> int:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            held = _held_tensor(torch, value, path)
            same: Any = (held.dtype, held.shape, value.stride(), str(value.device), value.data_ptr())
        elif type(value) in (np.ndarray, np.memmap) or isinstance(value, np.generic):
            held = _held_array(value, path)
            same = id(value)
        else:
            raise _refused(path, f"a {type(value).__module__}.{type(value).__qualname__} can't be saved")
        if held.size_bytes and same in self._seen:
            return self._seen[same]
        self._seen[same] = len(self.leaves)
        self.leaves.append(held)
        return len(self.leaves) - 1


def plain_node(value: Any) -> list[Any] | None:
    """None when it is not a plain value."""
    kind = type(value)
    if value is None:
        return ["n"]
    if kind is bool:
        return ["b", value]
    if kind is int:
        return ["i", hex(value)]
    if kind is float:
        return ["f", repr(value)]
    if kind is bytes:
        return ["y", base64.b64encode(value).decode()]
    if kind is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            return None  # half of a surrogate pair: JSON can't hold it
        return ["s", value]
    return None


def plain_value(node: Any) -> Any:
    try:
        match node:
            case ["n"]:
                return None
            case ["b", bool(value)]:
                return value
            case ["i", str(digits)]:
                return int(digits, 16)
            case ["f", str(text)]:
                return float(text)
            case ["s", str(text)]:
                return text
            case ["y", str(text)]:
                return base64.b64decode(text, validate=True)
    except ValueError:
        pass
    raise _no_tree(repr(node)[:40])


def _no_tree(holds: str) -> CorruptCheckpointError:
    return CorruptCheckpointError("the tree of the manifest", why=f"holds {holds}")


@dataclass(frozen=True, slots=True)
class Missing:
    """In the place of what was not asked for."""


MISSING = Missing()


def build(
    tree: list[Any], leaf: Callable[[int, Path], Any], wanted: Callable[[str], bool], path: Path = ()
) -> Any:
    """The state of a tree. CorruptCheckpointError for what `flatten` does not make.

    leaf: the value of a place in the list of leaves, at a path. wanted: by name; what is not
    is left out of dicts, and None in lists and tuples. MISSING when nothing of it is wanted. path: of the tree's top.

    No function within this one: one that calls itself is a cycle, which would keep the state until the next collection.
    """
    if len(path) > _DEPTH_MAX:
        raise _no_tree(f"more than {_DEPTH_MAX} levels")
    match tree:
        case ["d", list(items)] if all(isinstance(item, list) and len(item) == 2 for item in items):
            keys = [plain_value(key) for key, _ in items]
            pairs = [
                (key, build(one, leaf, wanted, (*path, key)))
                for key, (_, one) in zip(keys, items, strict=True)
            ]
            kept = {key: value for key, value in pairs if value is not MISSING}
            return kept if kept or not pairs else MISSING
        case ["l" | "u" as kind, list(items)]:
            values = [build(one, leaf, wanted, (*path, place)) for place, one in enumerate(items)]
            if values and all(value is MISSING for value in values):
                return MISSING
            values = [None if value is MISSING else value for value in values]
            return values if kind == "l" else tuple(values)
    if not wanted(where(path)):
        return MISSING
    match tree:
        case ["a", int(place)] if place >= 0:
            return leaf(place, path)
    return plain_value(tree)


def where(path: Path) -> str:
    return ".".join(map(str, path))


def inner(state: Any, path: Path) -> Any:
    """What is at that place of a state; MISSING when there is nothing."""
    for word in path:
        if isinstance(state, Mapping):
            state = state.get(word, MISSING)
        elif isinstance(state, (list, tuple)) and type(word) is int and word < len(state):
            state = state[word]
        else:
            return MISSING
    return state


def new_value(leaf: Leaf) -> tuple[Any, Bytes]:
    """An empty tensor, array or scalar of a leaf, and its bytes, to be filled; they begin at a page."""
    memory = page_aligned(leaf.size_bytes)
    return value_over(leaf, memory), memory


def value_over(leaf: Leaf, memory: Bytes) -> Any:
    """The tensor or array over memory that holds, or will hold, its bytes."""
    if leaf.kind == "torch":
        torch = _torch()
        dtype = _torch_dtype(torch, leaf)
        if leaf.size_bytes != items_of(leaf) * dtype.itemsize:
            raise CorruptCheckpointError(
                leaf.name, why=f"{leaf.size_bytes} bytes for {leaf.dtype} {leaf.shape}"
            )
        if leaf.size_bytes == 0:
            return torch.empty(leaf.shape, dtype=dtype)
        return torch.from_numpy(memory).view(dtype).reshape(leaf.shape)
    try:
        item_bytes_of(leaf)  # never a dtype of pointers
    except ValueError as error:
        raise CorruptCheckpointError(leaf.name, why=str(error)) from None
    return np.ndarray(tuple(leaf.shape), np.dtype(leaf.dtype), buffer=memory.data)


def finished(leaf: Leaf, value: Any) -> Any:
    """The value as it was saved, once its bytes are there: a numpy scalar is not an array."""
    return value[()] if leaf.kind == "scalar" else value


def check_target(leaf: Leaf, target: Any) -> None:
    """CheckpointMismatchError unless the leaf's bytes can go into that tensor or array."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(target, torch.Tensor):
        found = (str(target.dtype).removeprefix("torch."), list(target.shape))
        fits = leaf.kind == "torch" and type(target) in _tensor_types(torch)
    elif type(target) in (np.ndarray, np.memmap):
        found = (target.dtype.str, list(target.shape))
        fits = leaf.kind == "numpy" and target.flags.writeable
    else:
        raise CheckpointMismatchError(leaf.name, why=f"a {type(target).__name__} can't be restored into")
    if not fits or found != (leaf.dtype, leaf.shape):
        why = f"saved as {leaf.kind} {leaf.dtype} {leaf.shape}, to be restored into {found[0]} {found[1]}"
        raise CheckpointMismatchError(leaf.name, why=why, hint="restore without `into`, or by `only`")


def bytes_of_target(target: Any) -> Bytes | None:
    """Its own memory, flat; None when it is not contiguous, or not in this machine's memory."""
    if isinstance(target, np.ndarray):
        return _numpy_bytes(target) if target.flags.c_contiguous else None
    tensor = target.detach()
    if tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        return None
    found: Bytes = _torch_bytes(tensor)
    return found


def fill(target: Any, leaf: Leaf, memory: Bytes) -> None:
    """Copies into a target that has no memory of its own to be read into."""
    value = value_over(leaf, memory)
    if isinstance(target, np.ndarray):
        np.copyto(target, value)
    else:
        target.detach().copy_(value)


def _held_tensor(torch: Any, tensor: Any, path: Path) -> HostLeaf:
    if type(tensor) not in _tensor_types(torch):
        why = f"a {type(tensor).__name__} is not a plain tensor"
        raise NotSupportedError(
            where(path), why=why, hint="headrace.integrations.torch_checkpoint saves sharded tensors"
        )
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise _refused(path, f"a tensor that is {tensor.layout}, on {tensor.device}, can't be saved")
    dtype = str(tensor.dtype).removeprefix("torch.")
    size = tensor.numel() * tensor.element_size()
    return HostLeaf(where(path), "torch", dtype, tuple(tensor.shape), size, tensor)


def _held_array(value: Any, path: Path) -> HostLeaf:
    if value.dtype.kind not in NUMPY_KINDS or value.dtype.hasobject:
        raise _refused(path, f"an array of {value.dtype} can't be saved")
    kind = "scalar" if isinstance(value, np.generic) else "numpy"
    return HostLeaf(where(path), kind, value.dtype.str, tuple(value.shape), value.nbytes, value)


def _torch_bytes(tensor: Any) -> Any:
    torch = _torch()
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.numel() == 0:
        return np.empty(0, np.uint8)
    flat = flat.view(torch.uint8)
    return flat.numpy() if flat.device.type == "cpu" else flat


def _numpy_bytes(array: Any) -> Bytes:
    if array.nbytes == 0:
        return np.empty(0, np.uint8)
    flat: Bytes = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return flat


def _torch_dtype(torch: Any, leaf: Leaf) -> Any:
    dtype = getattr(torch, leaf.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise NotSupportedError(
            leaf.name, why=f"this torch has no dtype {leaf.dtype}", hint="use a newer one"
        )
    return dtype


def _tensor_types(torch: Any) -> tuple[type, ...]:
    return (torch.Tensor, torch.nn.Parameter)


def _torch() -> Any:
    with needs_extra("a torch tensor"):
        import torch
    return torch


def _refused(path: Path, why: str) -> NotSupportedError:
    return NotSupportedError(where(path) or "the state", why=why, hint=_HINT)
