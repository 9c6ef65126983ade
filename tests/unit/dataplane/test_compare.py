"""Wrong bytes of an origin are never kept where its version names a digest of the right ones."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import CorruptOriginError, StoreError
from headrace.base.model import Arrived, Entry
from headrace.dataplane import compare
from tests.unit.dataplane.nodes_fixture import NodesFixture
from tests.unit.dataplane.read_fixture import MIB
from tests.unit.dataplane.spoiled_origin import SpoiledReadPath, md5

pytestmark = pytest.mark.timeout(60)

PART = 5 * MIB


def parts_token(body: bytes, part_bytes: int) -> str:
    sums = [
        hashlib.md5(body[offset : offset + part_bytes], usedforsecurity=False).digest()
        for offset in range(0, len(body), part_bytes)
    ]
    return f'"{md5(b"".join(sums))}-{len(sums)}"'


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[SpoiledReadPath]:
    async with SpoiledReadPath(tmp_path).running() as world:
        yield world


@pytest.mark.expected_warnings("headrace.dataplane.compare")
async def test_what_comes_wrong_is_read_until_it_is_right(world: SpoiledReadPath) -> None:
    world.spoils.share = 0.3
    truth = {f"s/{number}": world.hold(f"s/{number}", 1000 + number) for number in range(60)}
    truth["s/block"] = world.hold("s/block", MIB)
    truth |= {f"large/{number}": world.hold(f"large/{number}", 5 * MIB + number) for number in range(3)}
    body = os.urandom(12 * MIB + 7)
    world.spoils.hold("large/parts", body, token=parts_token(body, PART))
    truth["large/parts"] = body
    bodies = await asyncio.gather(*map(world.loaded, truth))
    assert dict(zip(truth, bodies, strict=True)) == truth
    assert world.count("files_wrong") > 10
    assert world.count("files_compared") == len(truth)
    assert world.count("files_other") == world.count("files_corrupt") == 0


@pytest.mark.expected_warnings("headrace.dataplane.compare")
async def test_a_few_bytes_that_come_wrong_alike_are_not_believed(world: SpoiledReadPath) -> None:
    """Two reads of one byte with a flipped bit are the same with probability 1/8."""
    world.spoils.share = 0.3
    truth = {f"s/{number}": world.hold(f"s/{number}", 1) for number in range(150)}
    truth |= {f"large/{number}": world.hold(f"large/{number}", 2 * MIB + 1) for number in range(60)}
    bodies = await asyncio.gather(*map(world.loaded, truth))
    assert dict(zip(truth, bodies, strict=True)) == truth
    assert world.count("files_wrong") > 10
    assert world.count("files_compared") == len(truth)
    assert world.count("files_other") == 0


@pytest.mark.expected_warnings("headrace.dataplane.open_fills")
async def test_what_never_comes_right_is_an_error_and_is_not_kept(world: SpoiledReadPath) -> None:
    world.spoils.share = 1.0
    world.hold("small", 1000)
    world.hold("large", 3 * MIB)
    for key in ("small", "large"):
        entry = await world.entry(key)
        with pytest.raises(CorruptOriginError, match="don't match the checksum"):
            await world.reads.load(entry)
        assert world.store.index.cached(entry.id) is None
    assert world.damaged == [entry.id]
    asked = len(world.spoils.read)
    with pytest.raises(CorruptOriginError):
        await world.reads.load(await world.entry("large"))
    assert len(world.spoils.read) == asked, "all of it was fetched again at once"
    assert world.count("files_corrupt") == 2
    world.spoils.share = 0.0
    assert len(await world.loaded("small")) == 1000


@pytest.mark.parametrize("size", [1000, 3 * MIB])
async def test_a_token_that_is_no_digest_costs_a_second_read_for_the_first_files_only(
    world: SpoiledReadPath, size: int
) -> None:
    truth = {f"key/{n}": world.hold(f"key/{n}", size, token=f'"{os.urandom(16).hex()}"') for n in range(8)}
    for key, body in truth.items():
        assert await world.loaded(key) == body
    once = len(dict.fromkeys(world.spoils.read)) * -(-size // (2 * MIB))
    again = compare.OTHERS_MAX
    assert len(world.spoils.read) == once + again, world.spoils.read
    assert world.count("files_other") == again
    assert world.count("files_wrong") == 0


async def test_parts_of_a_size_that_nobody_guesses_are_taken_as_they_come(world: SpoiledReadPath) -> None:
    body = os.urandom(7 * MIB)
    for number in range(5):
        world.spoils.hold(f"odd/{number}", body, token=parts_token(body, MIB + 1))
    for number in range(5):
        assert await world.loaded(f"odd/{number}") == body
    assert world.count("files_compared") == world.count("files_other") == 0
    assert world.count("reads_again") == 0


@pytest.mark.expected_warnings("headrace.dataplane.compare")
async def test_a_file_that_was_whole_before_a_kill_is_compared_at_its_open(world: SpoiledReadPath) -> None:
    body = world.hold("f", 3 * MIB + 5)
    entry = await world.entry("f")
    writer = world.store.create(entry)
    wrong = bytearray(body)
    wrong[2 * MIB + 1] ^= 4
    writer.write(0, wrong)
    writer.close()
    assert await world.loaded("f") == body
    assert world.store.verifier.verify(entry.id)
    assert world.damaged == [entry.id]


async def test_a_file_that_goes_while_it_is_compared_is_fetched_anew(world: SpoiledReadPath) -> None:
    body = world.hold("f", 3 * MIB + 5)
    entry = await world.entry("f")
    wrong = bytearray(body)
    wrong[5] ^= 1
    writer = world.store.create(entry)
    writer.write(0, wrong)
    writer.close()

    def go(_: str) -> None:
        world.spoils.on_read = lambda _: None
        world.store.free(entry.id)

    world.spoils.on_read = go
    assert await world.loaded("f") == body


@pytest.mark.expected_warnings("a complete file could not be compared", "is dropped")
async def test_a_file_whose_comparison_has_a_defect_is_fetched_anew(
    world: SpoiledReadPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed neither complete nor absent until the node was restarted."""
    truth, run = world.hold("f", 3 * MIB), compare.WholeComparison.run

    async def fail(comparison: compare.WholeComparison) -> bool:
        raise KeyError("by plan")

    monkeypatch.setattr(compare.WholeComparison, "run", fail)
    entry = await world.entry("f")
    with pytest.raises(StoreError, match="could not be compared"):
        await world.reads.load(entry)
    assert world.store.index.cached(entry.id) is None
    monkeypatch.setattr(compare.WholeComparison, "run", run)
    assert await world.loaded("f") == truth


async def test_a_reader_of_all_of_it_has_a_file_that_becomes_whole(world: SpoiledReadPath) -> None:
    body = world.hold("f", 3 * MIB + 5)
    entry: Entry = await world.entry("f")
    await world.reads.fill(entry.id, 0, len(body))
    await world.reads.load(entry)
    assert world.content(entry.id) == body
    assert world.whole == [entry.id]


async def test_nothing_is_compared_where_it_is_not_wanted(tmp_path: Path) -> None:
    async with SpoiledReadPath(tmp_path, verify_origin=False).running() as w:
        for size in (1000, 3 * MIB):
            w.hold(f"f{size}", size, token=f'"{os.urandom(16).hex()}"')
        for size in (1000, 3 * MIB):
            await w.loaded(f"f{size}")
        assert len(w.spoils.read) == 3
        assert not any(w.reads.digests.statistics().values())


@pytest.mark.expected_warnings("headrace.dataplane.compare")
async def test_what_an_owner_handed_on_before_it_compared_is_not_kept_either(tmp_path: Path) -> None:
    """The other node has wrong bytes with checksums of blocks that match, and asks the origin, not the owner again."""
    async with NodesFixture(tmp_path, nodes="ab").running() as world:
        body, spoilt = os.urandom(5 * MIB + 3), set[int]()
        read_range = world.origin.read_range

        async def spoil_once(key: str, start: int, end: int, **rest: Any) -> Arrived:
            arrived = await read_range(key, start, end, **rest)
            if start in spoilt:
                return arrived
            spoilt.add(start)
            return Arrived(bytes([arrived.body[0] ^ 1]) + bytes(arrived.body[1:]))

        world.origin.hold("f", body, token=f'"{md5(body)}"')
        world.origin.read_range = spoil_once  # type: ignore[method-assign]
        owner = world.owner("f")
        (other,) = (node for node in world.nodes.values() if node is not owner)
        for node in (other, owner):
            entry = await node.entry("f")
            await node.reads.load(entry)
            assert node.content(entry.id) == body, node.id
        assert other.reads.digests.files_wrong == owner.reads.digests.files_wrong == 1
