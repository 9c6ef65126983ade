"""Changes an input: its bytes, its words, or, where it is a tree of values, the values."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

Mutate = Callable[[bytes, list[bytes], random.Random], bytes]
"""(an input, words of the grammar, chance) → another input."""

NUMBERS = [
    0,
    1,
    -1,
    2,
    7,
    127,
    128,
    255,
    256,
    1000,
    4095,
    4096,
    65535,
    65536,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
]
NUMBERS += [
    1 << 32,
    (1 << 53) + 1,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
    -(1 << 31),
    -(1 << 63),
    10**18,
    10**17,
]
STRINGS = [
    "",
    " ",
    "/",
    "//",
    ".",
    "..",
    "../..",
    "/a/../b",
    "\0",
    "a\0b",
    "\n",
    "\r\n",
    "%",
    "%2e%2e",
    "%00",
    "%25",
]
STRINGS += [
    "é",
    "\u2028",
    "\ufeff",
    "İ",
    "ß",
    "\U0001f600",
    "\ud800",
    "nan",
    "inf",
    "-inf",
    "1e999",
    "1_0",
    "٣",
    "²",
]
STRINGS += [
    "-0",
    "+1",
    "0x10",
    "1e5",
    "true",
    "null",
    "a" * 300,
    "9" * 19,
    "9" * 400,
    "9" * 5000,
    "/a" * 2100,
    "*" * 64,
]
_TOKEN = re.compile(rb"[A-Za-z]+|[0-9]+|\s+|.", re.S)


def mutate_bytes(data: bytes, words: list[bytes], chance: random.Random) -> bytes:
    for _ in range(chance.choice((1, 1, 2, 3, 5))):
        data = chance.choice(_CHANGES)(data, words, chance)
    return data


def mutate_text(data: bytes, words: list[bytes], chance: random.Random) -> bytes:
    """By tokens as well as by bytes."""
    if chance.random() < 0.3:
        return mutate_bytes(data, words, chance)
    tokens = _TOKEN.findall(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        _change_tokens(tokens, words, chance)
    return b"".join(tokens)


def mutate_tree(decode: Callable[[bytes], Any], encode: Callable[[Any], bytes]) -> Mutate:
    """By values: what decodes is changed as a tree and encoded again; the rest, and some of it, by bytes."""

    def mutate(data: bytes, words: list[bytes], chance: random.Random) -> bytes:
        if chance.random() < 0.2:
            return mutate_text(data, words, chance)
        try:
            tree = decode(data)
            for _ in range(chance.choice((1, 1, 2, 3))):
                tree = _change_value(tree, words, chance)
            return encode(tree)
        except Exception:  # noqa: BLE001 - what can't be a tree is changed by its bytes
            return mutate_bytes(data, words, chance)

    return mutate


def _span(data: bytes, chance: random.Random) -> tuple[int, int]:
    start = chance.randrange(len(data) + 1)
    return start, min(len(data), start + chance.choice((1, 1, 2, 4, 16, 64)))


def _drop(data: bytes, words: list[bytes], chance: random.Random) -> bytes:
    start, end = _span(data, chance)
    return data[:start] + data[end:]


def _repeat(data: bytes, words: list[bytes], chance: random.Random) -> bytes:
    start, end = _span(data, chance)
    times = chance.choice((1, 1, 2, 2, 3, 3, 40, 40, 5000))
    return data[:end] + data[start:end] * times + data[end:]


def _flip(data: bytes, words: list[bytes], chance: random.Random) -> bytes:
    if not data:
        return b"\0"
    changed = bytearray(data)
    changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _overwrite(data: bytes, words: list[bytes], chance: random.Random) -> bytes:
    start, end = _span(data, chance)
    fresh = chance.choice((bytes(end - start), b"\xff" * (end - start), chance.randbytes(end - start)))
    return data[:start] + fresh + data[end:]


def _insert(data: bytes, words: list[bytes], chance: random.Random) -> bytes:
    start, _ = _span(data, chance)
    return data[:start] + _word(words, chance) + data[start:]


def _number(data: bytes, words: list[bytes], chance: random.Random) -> bytes:
    """A fixed-width field takes another number."""
    width = chance.choice((1, 2, 4, 8))
    start = chance.randrange(max(1, len(data) - width + 1))
    value = chance.choice(NUMBERS) % (1 << 8 * width)
    return data[:start] + value.to_bytes(width, chance.choice(("little", "big"))) + data[start + width :]


def _cut(data: bytes, words: list[bytes], chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


_CHANGES = (_drop, _repeat, _flip, _overwrite, _insert, _number, _cut)


def _word(words: list[bytes], chance: random.Random) -> bytes:
    if words and chance.random() < 0.6:
        return chance.choice(words)
    if chance.random() < 0.5:
        return str(chance.choice(NUMBERS)).encode()
    return chance.choice(STRINGS).encode("utf-8", "surrogatepass")


def _change_tokens(tokens: list[bytes], words: list[bytes], chance: random.Random) -> None:
    place = chance.randrange(len(tokens) + 1)
    kind = chance.randrange(6)
    if kind == 0 or place == len(tokens):
        tokens.insert(place, _word(words, chance))
    elif kind == 1:
        del tokens[place : place + chance.choice((1, 1, 3, 10))]
    elif kind == 2:
        tokens[place] = _word(words, chance)
    elif kind == 3:
        tokens[place:place] = tokens[place : place + chance.choice((1, 3, 10))] * chance.choice((1, 2, 50))
    elif kind == 4:
        other = chance.randrange(len(tokens))
        tokens[place], tokens[other] = tokens[other], tokens[place]
    else:
        tokens[place] = chance.choice((tokens[place].swapcase(), tokens[place] * 2, b""))


def _change_value(tree: Any, words: list[bytes], chance: random.Random) -> Any:
    """One place of the tree, chosen on the way down."""
    if isinstance(tree, dict) and tree and chance.random() < 0.85:
        key = chance.choice(list(tree))
        changed = dict(tree)
        match chance.randrange(8):
            case 0:
                del changed[key]
            case 1:
                changed[_leaf("", words, chance)] = tree[key]
            case _:
                changed[key] = _change_value(tree[key], words, chance)
        return changed
    if isinstance(tree, list) and tree and chance.random() < 0.85:
        place = chance.randrange(len(tree))
        match chance.randrange(8):
            case 0:
                return tree[:place] + tree[place + 1 :]
            case 1:
                return tree[:place] + [tree[place]] * chance.choice((2, 3, 100)) + tree[place:]
            case _:
                return [*tree[:place], _change_value(tree[place], words, chance), *tree[place + 1 :]]
    if chance.random() < 0.02:
        return _nested(tree, chance)
    return _leaf(tree, words, chance)


def _nested(tree: Any, chance: random.Random) -> Any:
    """Deeper than any parser recurses."""
    for _ in range(chance.choice((3, 50, 1200))):
        tree = [tree]
    return tree


_KINDS = (int, str, bytes, float, bool, list, dict, type(None))


def _leaf(value: Any, words: list[bytes], chance: random.Random) -> Any:
    """Mostly of the same type."""
    kind = type(value) if chance.random() < 0.8 else chance.choice(_KINDS)
    if kind is int:
        return chance.choice((chance.choice(NUMBERS), chance.getrandbits(16)))
    if kind is str:
        text = value if isinstance(value, str) else ""
        mixed = mutate_text(text.encode("utf-8", "surrogatepass"), words, chance).decode("utf-8", "replace")
        return chance.choice((chance.choice(STRINGS), mixed, mixed))
    if kind is bytes:
        return mutate_text(value if isinstance(value, bytes) else b"", words, chance)
    if kind is float:
        return chance.choice((0.0, -1.5, 1e308, float("inf"), float("nan"), 5e-324))
    return {bool: chance.random() < 0.5, list: [], dict: {}}.get(kind)
