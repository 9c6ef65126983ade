"""Convert a state to bytes and back: nested dicts, lists and tuples of tensors, arrays and plain values.

`flatten` returns a tree of plain JSON and a list of leaves. Numbers of leaves replace tensors and arrays in the tree.
It uses no pickle: it refuses values of other kinds, and names their path. torch is imported only for leaves of torch. A
node of the tree is a list that begins with its type:

    ["d", [[key, node], …]] dict   ["l", [node, …]] list   ["u", [node, …]] tuple   ["n"] None   ["b", bool]
    ["i", hexadecimal] int   ["f", repr] float   ["s", text] str   ["y", base64] bytes   ["a", number] a leaf

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
"""Keys and indexes from the top of a state."""
_DEPTH_MAX = 200
"""Most levels of a state."""
_HINT = "dicts, lists and tuples of torch tensors, numpy arrays, int, float, str, bytes, bool and None can be saved"


@dataclass(frozen=True, slots=True)
class HostLeaf:
    """Describe a leaf, with the tensor or array that holds its bytes."""

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    value: Any

    def bytes(self) -> Any:
        """Return flat uint8 over the value's own memory: numpy's, or torch's for a tensor on another device.

        A value that is not contiguous is copied first.
        """
        return _torch_bytes(self.value) if self.kind == "torch" else _numpy_bytes(self.value)


def flatten(state: Any) -> tuple[Any, list[HostLeaf]]:
    """Return the tree and its leaves. A tensor that occurs twice (the same memory, in the same view) is one leaf.

    Raises NotSupportedError with the path of a value that can't be saved.
    """
    flattener = _Flattener()
    return flattener.node(state, ()), flattener.leaves


class _Flattener:
    def __init__(self) -> None:
        self.leaves: list[HostLeaf] = []
        self._numbers: dict[Any, int] = {}

    def node(self, value: Any, path: Path) -> list[Any]:
        if len(path) > _DEPTH_MAX:
            raise NotSupportedError(
                where(path[:6]), why=f"it is nested deeper than {_DEPTH_MAX} levels, or contains itself"
            )
        if isinstance(value, Mapping):
            items = [[self._key(key, path), self.node(item, (*path, key))] for key, item in value.items()]
            return ["d", items]
        if type(value) in (list, tuple):
            letter = "l" if type(value) is list else "u"
            return [letter, [self.node(item, (*path, index)) for index, item in enumerate(value)]]
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
            leaf = _tensor_leaf(torch, value, path)
            # a conjugate or negative view has the memory of its base, and other values
            view = (value.stride(), value.is_conj(), value.is_neg())
            identity: Any = (leaf.dtype, leaf.shape, view, str(value.device), value.data_ptr())
        elif type(value) in (np.ndarray, np.memmap) or isinstance(value, np.generic):
            leaf = _array_leaf(value, path)
            identity = id(value)
        else:
            raise _refused(path, f"a {type(value).__module__}.{type(value).__qualname__} can't be saved")
        if leaf.size_bytes and identity in self._numbers:
            return self._numbers[identity]
        self._numbers[identity] = len(self.leaves)
        self.leaves.append(leaf)
        return len(self.leaves) - 1


def plain_node(value: Any) -> list[Any] | None:
    """Return the node of a plain value; None for other values."""
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
            return None  # half of a surrogate pair, which JSON can't contain
        return ["s", value]
    return None


def plain_value(node: Any) -> Any:
    """Return the plain value of a node. Raises CorruptCheckpointError for another node."""
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
    raise _invalid_tree(repr(node)[:40])


def _invalid_tree(content: str) -> CorruptCheckpointError:
    return CorruptCheckpointError("the tree of the manifest", why=f"it contains {content}")


@dataclass(frozen=True, slots=True)
class Missing:
    """Stand in for a value that was not selected, or does not exist."""


MISSING = Missing()


def build(
    tree: list[Any], leaf: Callable[[int, Path], Any], is_wanted: Callable[[str], bool], path: Path = ()
) -> Any:
    """Return the state of a tree. Raises CorruptCheckpointError for a tree that `flatten` does not make.

    leaf: returns the value of a leaf by its number and path. is_wanted: selects by name. Other values are left out of
    dicts, and are None in lists and tuples; the result is MISSING if no value is selected. path: of the tree's top.

    This function has no inner function. One that calls itself is a reference cycle, which would keep the state alive
    until the next garbage collection.
    """
    if len(path) > _DEPTH_MAX:
        raise _invalid_tree(f"more than {_DEPTH_MAX} levels")
    match tree:
        case ["d", list(items)] if all(isinstance(item, list) and len(item) == 2 for item in items):
            keys = [plain_value(key) for key, _ in items]
            return _selected_items(
                [
                    (key, build(item, leaf, is_wanted, (*path, key)))
                    for key, (_, item) in zip(keys, items, strict=True)
                ]
            )
        case ["l" | "u" as kind, list(items)]:
            values = _selected_values(
                [build(item, leaf, is_wanted, (*path, index)) for index, item in enumerate(items)]
            )
            return tuple(values) if kind == "u" and values is not MISSING else values
    if not is_wanted(where(path)):
        return MISSING
    match tree:
        case ["a", int(index)] if index >= 0:
            return leaf(index, path)
    return plain_value(tree)


def _selected_items(items: list[tuple[Any, Any]]) -> Any:
    """Return a dict of the selected items; MISSING if there are items but none is selected."""
    selected = {key: value for key, value in items if value is not MISSING}
    return selected if selected or not items else MISSING


def _selected_values(values: list[Any]) -> Any:
    """Return the values with None for those that are not selected; MISSING if there are values but none is selected."""
    if values and all(value is MISSING for value in values):
        return MISSING
    return [None if value is MISSING else value for value in values]


def where(path: Path) -> str:
    """Return a path as text, its keys joined by dots."""
    return ".".join(map(str, path))


def inner(state: Any, path: Path) -> Any:
    """Return the value at that path of a state; MISSING if there is none."""
    for key in path:
        if isinstance(state, Mapping):
            state = state.get(key, MISSING)
        elif isinstance(state, (list, tuple)) and type(key) is int and key < len(state):
            state = state[key]
        else:
            return MISSING
    return state


def new_value(leaf: Leaf) -> tuple[Any, Bytes]:
    """Return an empty tensor, array or scalar for a leaf, and its page-aligned bytes, to be filled."""
    memory = page_aligned(leaf.size_bytes)
    return value_over(leaf, memory), memory


def value_over(leaf: Leaf, memory: Bytes) -> Any:
    """Return the tensor or array over memory that contains, or will contain, its bytes. Raises CorruptCheckpointError
    if they do not fit."""
    if leaf.kind == "torch":
        torch = _torch()
        dtype = _torch_dtype(torch, leaf)
        if leaf.size_bytes != items_of(leaf) * dtype.itemsize:
            raise CorruptCheckpointError(
                leaf.name, why=f"{leaf.size_bytes} bytes do not fit {leaf.dtype} {leaf.shape}"
            )
        if leaf.size_bytes == 0:
            return torch.empty(leaf.shape, dtype=dtype)
        return torch.from_numpy(memory).view(dtype).reshape(leaf.shape)
    try:
        item_bytes_of(leaf)  # refuses dtypes with pointers
    except ValueError as error:
        raise CorruptCheckpointError(leaf.name, why=str(error)) from None
    return np.ndarray(tuple(leaf.shape), np.dtype(leaf.dtype), buffer=memory.data)


def finished(leaf: Leaf, value: Any) -> Any:
    """Return the value as it was saved, once its bytes are read: a numpy scalar is not an array."""
    return value[()] if leaf.kind == "scalar" else value


def check_target(leaf: Leaf, target: Any) -> None:
    """Raise CheckpointMismatchError unless the leaf's bytes can be restored into that tensor or array."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(target, torch.Tensor):
        form = (str(target.dtype).removeprefix("torch."), list(target.shape))
        fits = leaf.kind == "torch" and type(target) in _tensor_types(torch)
    elif type(target) in (np.ndarray, np.memmap):
        form = (target.dtype.str, list(target.shape))
        fits = leaf.kind == "numpy" and target.flags.writeable
    else:
        raise CheckpointMismatchError(leaf.name, why=f"a {type(target).__name__} can't be restored into")
    if not fits or form != (leaf.dtype, leaf.shape):
        why = f"saved as {leaf.kind} {leaf.dtype} {leaf.shape}, to be restored into {form[0]} {form[1]}"
        raise CheckpointMismatchError(leaf.name, why=why, hint="restore without `into`, or by `only`")


def bytes_of_target(target: Any) -> Bytes | None:
    """Return the target's own memory, flat; None if it is not contiguous or on another device."""
    if isinstance(target, np.ndarray):
        return _numpy_bytes(target) if target.flags.c_contiguous else None
    tensor = target.detach()
    if tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        return None
    data: Bytes = _torch_bytes(tensor)
    return data


def fill(target: Any, leaf: Leaf, memory: Bytes) -> None:
    """Copy a leaf's bytes into a target that can't be read into directly."""
    value = value_over(leaf, memory)
    if isinstance(target, np.ndarray):
        np.copyto(target, value)
    else:
        target.detach().copy_(value)


def _tensor_leaf(torch: Any, tensor: Any, path: Path) -> HostLeaf:
    if type(tensor) not in _tensor_types(torch):
        why = f"a {type(tensor).__name__} is not a plain tensor"
        raise NotSupportedError(
            where(path), why=why, hint="headrace.integrations.torch_checkpoint saves sharded tensors"
        )
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise _refused(path, f"a tensor with the layout {tensor.layout} on {tensor.device} can't be saved")
    dtype = str(tensor.dtype).removeprefix("torch.")
    size = tensor.numel() * tensor.element_size()
    return HostLeaf(where(path), "torch", dtype, tuple(tensor.shape), size, tensor)


def _array_leaf(value: Any, path: Path) -> HostLeaf:
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
            leaf.name, why=f"this torch has no dtype {leaf.dtype}", hint="use a newer torch"
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
