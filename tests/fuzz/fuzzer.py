"""A fuzzer: a parser, what it may raise, and inputs to begin with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.fuzz.mutations import Mutate, mutate_bytes


@dataclass(frozen=True)
class Fuzzer:
    """parse: takes an input, and asserts what must hold of the value. refuses: the documented errors of the parser.
    words: of its grammar, for mutations. about: what is parsed, for `--list`."""

    name: str
    about: str
    parse: Callable[[bytes], object]
    refuses: tuple[type[Exception], ...]
    seeds: list[bytes]
    words: list[bytes] = field(default_factory=list)
    mutate: Mutate = mutate_bytes
    input_bytes_max: int = 4096
