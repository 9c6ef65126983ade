"""Stand for the data set of a sampler in a copy of the sampler: a data set can be as large as the memory.

A stand-in copies what the sampler asks of the data set, at the moment it does: numbers, texts, lists of them, arrays.
Methods run with the stand-in in place of the data set. It refuses all that may change the data set or draw from it.
"""

from __future__ import annotations

import sys
from types import FunctionType, MethodType
from typing import Any

from .copied_code import SharesState, check_method, is_a

BYTES_MAX = 256 << 20
"""Largest array or tensor that is copied."""
_ATOMS = frozenset((type(None), bool, int, float, complex, str, bytes, range))
_DEPTH_MAX = 8
PARTS_MAX = 1_000_000
"""Lists and the like within lists of data sets that are copied, a few µs each. One that is met again counts again."""
_MISSING = object()


class RefusedParts:
    """Keeps why stand-ins refused something: the sampler may catch the error."""

    def __init__(self) -> None:
        self.first: SharesState | None = None
        self._parts = 0

    def count_part(self, depth: int) -> None:
        """Count what is copied. Raise the error for lists that are too deep, or have too many lists."""
        self._parts += 1
        if depth > _DEPTH_MAX or self._parts > PARTS_MAX:
            raise self.note("deep or large lists of a data set")

    def note(self, reason: str) -> SharesState:
        """Return the error that says what is refused."""
        error = SharesState(reason)
        self.first = self.first or error
        return error

    def check(self) -> None:
        """Raise the first refusal, if there was one."""
        if self.first is not None:
            raise self.first


def stand_in_for(value: Any, refusals: RefusedParts, depth: int = 0) -> Any:
    """Return a copy of an object that a data set holds, or a stand-in. Raise SharesState for what has none."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind in (list, tuple, set, frozenset, dict):
        refusals.count_part(depth)
    if kind in (list, tuple, set, frozenset):
        return (
            value.copy() if _is_flat(value) and kind is not tuple else _copied_parts(value, refusals, depth)
        )
    if kind is dict:
        parts = (stand_in_for(part, refusals, depth + 1) for part in value.values())
        return value.copy() if _is_flat(value.values()) else dict(zip(value, parts, strict=True))
    copied = _copied_array(value)
    if copied is not None:
        return copied
    if depth > _DEPTH_MAX or not _is_data_set(value):
        raise refusals.note(
            f"an object of the type {kind.__module__}.{kind.__qualname__}, which a data set holds"
        )
    return _DataSetStandIn(value, refusals)


def _copied_array(value: Any) -> Any:
    """Return a copy of an array or a tensor, None for anything else, or if it is too large."""
    kind, numpy, torch = type(value), sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and kind is numpy.ndarray and not value.dtype.hasobject:
        return value.copy() if value.nbytes <= BYTES_MAX else None
    if torch is not None and kind is torch.Tensor:
        return value.detach().clone() if value.numel() * value.element_size() <= BYTES_MAX else None
    return None


def _is_flat(values: Any) -> bool:
    return set(map(type, values)) <= _ATOMS


def _copied_parts(values: Any, refusals: RefusedParts, depth: int) -> Any:
    if all(type(value) is tuple and _is_flat(value) for value in values):
        return type(values)(values)
    return type(values)(stand_in_for(value, refusals, depth + 1) for value in values)


def _is_data_set(value: Any) -> bool:
    torch_data = sys.modules["torch.utils.data"]
    kind = type(value)
    return is_a(value, torch_data.Dataset) or (hasattr(kind, "__getitem__") and hasattr(kind, "__len__"))


class _DataSetStandIn:
    """Has the length of a data set, and copies of its attributes."""

    def __init__(self, data_set: Any, refusals: RefusedParts) -> None:
        object.__setattr__(self, "_parts", (data_set, refusals, {}))

    def __getattribute__(self, name: str) -> Any:
        data_set, refusals, copies = object.__getattribute__(self, "_parts")
        if name == "__class__":
            return type(data_set)
        if name not in copies:
            copies[name] = _attribute(self, data_set, name, refusals)
        value = copies[name]
        return value.__get__(self) if isinstance(value, property) else value

    def __len__(self) -> int:
        return len(object.__getattribute__(self, "_parts")[0])

    def __getitem__(self, index: Any) -> Any:
        raise _refusal(self, "its samples")

    def __iter__(self) -> Any:
        raise _refusal(self, "its samples")

    def __contains__(self, value: Any) -> bool:
        raise _refusal(self, "its samples")

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise _refusal(self, "a call of it")

    def __setattr__(self, name: str, value: Any) -> None:
        raise _refusal(self, f"its attribute {name}, which changes")

    def __delattr__(self, name: str) -> None:
        raise _refusal(self, f"its attribute {name}, which changes")

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        raise _refusal(self, "a copy of it")


def _refusal(stand_in: _DataSetStandIn, part: str) -> SharesState:
    data_set, refusals, _ = object.__getattribute__(stand_in, "_parts")
    return _of(data_set, part, refusals)


def _of(data_set: Any, part: str, refusals: RefusedParts) -> SharesState:
    return refusals.note(f"the data set {type(data_set).__module__}.{type(data_set).__qualname__}: {part}")


def _attribute(stand_in: Any, data_set: Any, name: str, refusals: RefusedParts) -> Any:
    """Return what a stand-in has under a name. A property is returned itself, to be called each time."""
    kind = type(data_set)
    member = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), _MISSING)
    held = getattr(data_set, "__dict__", {}) if _is_plain(kind) else {}
    where = f"the attribute {name} of the data set {kind.__module__}.{kind.__qualname__}"
    try:
        if isinstance(member, property):
            _check_function(member.fget, where)
            return member
        if name in held:
            return stand_in_for(held[name], refusals)
        if isinstance(member, FunctionType):
            _check_function(member, where)
            return MethodType(member, stand_in)
        if isinstance(member, staticmethod):
            _check_function(member.__func__, where)
            return member.__func__
        if member is not _MISSING:
            return stand_in_for(member, refusals)
    except SharesState as error:
        raise refusals.note(str(error)) from None
    if hasattr(kind, "__getattr__") or not _is_plain(kind):
        raise _of(data_set, f"its attribute {name}", refusals)
    raise AttributeError(name)


def _is_plain(kind: Any) -> bool:
    """Return whether attributes of a class are looked up as usual."""
    return bool(kind.__getattribute__ is object.__getattribute__)


def _check_function(function: Any, where: str) -> None:
    if isinstance(function, FunctionType) and "super" in function.__code__.co_names:
        raise SharesState(f"what super() reaches in {where}")
    check_method(function, where)
