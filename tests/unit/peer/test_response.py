"""An answer put together from blocks: what is right comes out, and every wrong turn is an error."""

from __future__ import annotations

import random

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import HeadraceError, NotOwnerError
from headrace.base.model import Arrived
from headrace.peer.response import FetchResponse, InvalidResponseError
from headrace.wire.peer_frame import failure_of
from headrace.wire.peer_messages import Block, FileEnd, FileRange

MIB = 1 << 20


def wanted(start: int, end: int) -> FileRange:
    return FileRange(b"/f", 10 * MIB, 1, "t", start, end)


def give(assembly: FetchResponse, file: int, start: int, body: bytes) -> None:
    block = Block(file, start, len(body), xxhash.xxh3_64_intdigest(body))
    view = assembly.expect(block)
    view[:] = body
    assembly.received(block, view)


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_files_in_any_order(sizes: list[int], chance: random.Random) -> None:
    assembly = FetchResponse([wanted(5, 5 + size) for size in sizes])
    order = list(range(len(sizes)))
    chance.shuffle(order)
    for index in order:
        body, position = chance.randbytes(sizes[index]), 0
        while position < len(body):
            step = chance.randint(1, len(body) - position)
            give(assembly, index, 5 + position, body[position : position + step])
            position += step
        file = assembly.ended(FileEnd(index))
        assert isinstance(file, Arrived)
        assert bytes(file.body) == body
    assembly.done()


def test_a_flipped_bit() -> None:
    assembly = FetchResponse([wanted(0, 100)])
    block = Block(0, 0, 100, xxhash.xxh3_64_intdigest(bytes(100)))
    view = assembly.expect(block)
    view[:] = bytes(50) + b"\x01" + bytes(49)
    with pytest.raises(InvalidResponseError, match="checksum"):
        assembly.received(block, view)


@pytest.mark.parametrize(
    "block",
    [
        Block(0, 0, 101, 0),
        Block(0, 10, 90, 0),
        Block(0, 0, 0, 0),
        Block(0, 0, -5, 0),
        Block(1, 0, 10, 0),
        Block(-1, 0, 10, 0),
    ],
)
def test_blocks_out_of_place(block: Block) -> None:
    assembly = FetchResponse([wanted(0, 100)])
    with pytest.raises(InvalidResponseError):
        assembly.expect(block)


def test_a_block_that_is_too_long() -> None:
    with pytest.raises(InvalidResponseError, match="out of place"):
        FetchResponse([wanted(0, 4 * MIB)]).expect(Block(0, 0, MIB + 1, 0))


def test_a_file_within_another() -> None:
    assembly = FetchResponse([wanted(0, 100), wanted(0, 100)])
    give(assembly, 0, 0, bytes(50))
    with pytest.raises(InvalidResponseError):
        assembly.expect(Block(1, 0, 50, 0))
    with pytest.raises(InvalidResponseError):
        assembly.ended(FileEnd(1))


def test_a_file_that_ends_early_or_twice() -> None:
    assembly = FetchResponse([wanted(0, 100), wanted(0, 100)])
    give(assembly, 0, 0, bytes(99))
    with pytest.raises(InvalidResponseError, match="ended before"):
        assembly.ended(FileEnd(0))
    with pytest.raises(InvalidResponseError):
        assembly.ended(FileEnd(0))
    with pytest.raises(InvalidResponseError):
        assembly.ended(FileEnd(1))  # not even begun
    with pytest.raises(InvalidResponseError):
        FetchResponse([wanted(0, 1)]).done()


def test_a_failure_is_the_same_error_also_half_way() -> None:
    assembly = FetchResponse([wanted(0, 100)])
    give(assembly, 0, 0, bytes(50))
    error = assembly.ended(FileEnd(0, failure_of(NotOwnerError("/f", why="no"))))
    assert isinstance(error, NotOwnerError)
    assert isinstance(error, HeadraceError)
    assembly.done()
