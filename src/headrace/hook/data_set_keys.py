"""Name data sets, so that the processes of a loader agree: a worker has a copy of the data set of its trainer.

A key has what two data sets of one class and length differ in: the indices of a subset, the names of files. It leaves
out numbers and all else that a program may change between epochs, or in its workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import PurePath
from typing import Any

from .interruptions import raise_interruption

NAME_MAX = 512
PARTS_MAX = 64
"""Elements of a list that are looked at."""
_DEPTH_MAX = 8
_LISTS = (list, tuple, range)


def data_set_key(data_set: Any, pid: int) -> str:
    """Return what the processes of a loader call its data set. pid: of the process that has the loader."""
    kind = type(data_set)
    name = f"{pid}:{kind.__module__}.{kind.__qualname__}"[:NAME_MAX] + f":{len(data_set)}"
    digest = blake2b(digest_size=8)
    try:
        for text in _texts_of(data_set, 0):
            digest.update(text.encode("utf-8", "backslashreplace") + b"\0")
    except Exception as error:  # noqa: BLE001 - a data set is an object of the program
        raise_interruption(error)
        return name
    return f"{name}:{digest.hexdigest()}"


def _texts_of(data_set: Any, depth: int) -> Iterator[str]:
    """Yield the texts by which a data set differs from another one of its class."""
    yield type(data_set).__qualname__
    members = getattr(data_set, "__dict__", {})
    for name in sorted(members):
        value = members[name]
        if name == "indices":
            yield from (f"{name} {int(index)}" for index in _some_of(value))
        elif isinstance(value, (str, PurePath)):
            yield f"{name} {value}"
        elif type(value) in _LISTS:
            for part in _some_of(value):
                yield from _texts_of_part(part, depth)
        elif _is_data_set(value) and depth < _DEPTH_MAX:
            yield from _texts_of(value, depth + 1)


def _texts_of_part(part: Any, depth: int) -> Iterator[str]:
    """Yield the text of an element of a list: a path, a row that begins with one, or a data set."""
    if type(part) in (list, tuple) and part:
        part = part[0]
    if isinstance(part, (str, PurePath)):
        yield str(part)
    elif _is_data_set(part) and depth < _DEPTH_MAX:
        yield from _texts_of(part, depth + 1)


def _some_of(values: Sequence[Any]) -> Iterator[Any]:
    """Yield elements at even distances, and how many there are."""
    count = len(values)
    yield from (values[place] for place in range(0, count, max(1, count // PARTS_MAX)))


def _is_data_set(value: Any) -> bool:
    """Return whether an object is of a class that is derived from one of torch's data sets."""
    return any(kind.__module__ == "torch.utils.data.dataset" for kind in type(value).__mro__)
