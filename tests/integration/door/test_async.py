"""fsspec's coroutines over the door: the same bytes and names, and a loop that never waits."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import random
from pathlib import Path
from typing import Any

import fsspec
import pytest

from headrace.integrations.fsspec import AsyncHeadraceFileSystem
from tests.integration.door.conftest import Host, MakeDoor, left_in_work, settled, tree_of

pytestmark = pytest.mark.timeout(60)


def truth_of(host: Host) -> dict[str, bytes]:
    return {f"/{name}": (host.truth / name).read_bytes() for name in host.names()}


async def test_reading_and_names_are_the_origins(make_door: MakeDoor, tmp_path: Path) -> None:
    host, waiting = make_door()
    fs = fsspec.filesystem("headrace", asynchronous=True)
    truth = truth_of(host)
    large = truth["/large.tar"]
    chance = random.Random(7)
    starts = [chance.randrange(len(large)) for _ in range(40)]
    ends = [start + chance.randrange(1, 200_000) for start in starts]
    bodies = await asyncio.gather(*(fs._cat_file(path) for path in truth))
    assert dict(zip(truth, bodies, strict=True)) == truth
    assert await fs._cat(list(truth)) == truth
    ranges = await fs._cat_ranges(["/large.tar"] * 40, starts, ends)
    assert ranges == [large[start:end] for start, end in zip(starts, ends, strict=True)]
    assert await fs._cat_file("headrace:///large.tar", -10) == large[-10:]
    assert await fs._find("/") == sorted(truth)
    assert await fs._glob("/folder/**") == waiting.glob("/folder/**")
    assert await fs._du("/") == sum(map(len, truth.values()))
    assert (await fs._info("/small"))["size"] == 110_000
    assert (await fs._isdir("/folder"), await fs._isfile("/folder")) == (True, False)
    assert await fs._exists("/none") is False
    with pytest.raises(FileNotFoundError, match=r"^/none: "):
        await fs._cat_file("/none")
    walked = [row async for row in fs._walk("/")]
    assert walked == list(waiting.walk("/"))
    pruned = []
    async for path, folders, _ in fs._walk("/"):
        pruned.append(path)
        folders.clear()
    assert pruned == ["/"]
    await fs._get("/folder", str(tmp_path / "got"), recursive=True)
    async with await fs.open_async("/large.tar") as stream:
        stream.seek(5_000_000)
        assert await stream.read(1000) == large[5_000_000:5_001_000]
        assert stream.tell() == 5_001_000
    got = {f"/folder/{file.relative_to(tmp_path / 'got')}": file for file in (tmp_path / "got").rglob("*")}
    assert {name: path.read_bytes() for name, path in got.items() if path.is_file()} == {
        name: data for name, data in truth.items() if name.startswith("/folder/")
    }


async def test_what_is_written_is_at_the_origin(make_door: MakeDoor, tmp_path: Path) -> None:
    host, waiting = make_door(write="back")
    fs = fsspec.filesystem("headrace", asynchronous=True)
    before = tree_of(host.truth)
    (tmp_path / "local").write_bytes(b"put")
    await asyncio.gather(*(fs._pipe_file(f"/out/{number}", b"%d" % number) for number in range(50)))
    await fs._pipe({"/out/a": b"a", "/out/b": b"b"})
    await fs._put_file(str(tmp_path / "local"), "/out/put")
    await fs._cp_file("/small", "/out/copy")
    await fs._mv("/out/0", "/out/renamed")
    await fs._mkdir("/made")
    await fs._rm(["/out/1", "/out/2"])
    async with await fs.open_async("/out/streamed", "wb") as stream:
        await stream.write(b"streamed")
        assert not await fs._exists("/out/streamed")
    with pytest.raises(KeyError):
        async with await fs.open_async("/out/broken", "wb") as stream:
            await stream.write(b"x")
            raise KeyError
    with pytest.raises(ValueError, match="binary mode"):
        await fs.open_async("/out/text", "w")
    with fs.transaction:
        await fs._pipe_file("/out/together", b"t")
        assert not await fs._exists("/out/together")
    wanted = {f"out/{number}": b"%d" % number for number in range(3, 50)}
    wanted |= {"out/a": b"a", "out/b": b"b", "out/put": b"put", "out/renamed": b"0", "out/together": b"t"}
    wanted |= {"out/streamed": b"streamed", "out/copy": (host.truth / "small").read_bytes()}
    assert left_in_work(host) == []
    settled(host)
    expected = before | {name: data.hex() for name, data in wanted.items()} | {"out": "dir", "made": "dir"}
    assert tree_of(host.truth) == expected
    assert waiting.cat("/out/renamed") == b"0"


def test_it_is_one_file_system_with_two_ways_to_ask(make_door: MakeDoor) -> None:
    """Also in a forked child, by pickle and by JSON; and what is not asked for it stays the plain one."""
    host, waiting = make_door()
    small = (host.truth / "small").read_bytes()
    fs = fsspec.filesystem("headrace", asynchronous=True)
    assert isinstance(fs, AsyncHeadraceFileSystem)
    assert not isinstance(waiting, AsyncHeadraceFileSystem)
    assert (fs.async_impl, fs.asynchronous, waiting.async_impl) == (True, True, False)
    copies: list[Any] = [fs, pickle.loads(pickle.dumps(fs)), type(fs).from_json(json.dumps(fs.to_dict()))]
    for copied in copies:
        assert isinstance(copied, AsyncHeadraceFileSystem)
        assert copied.cat_file("/small") == small
        assert asyncio.run(copied._cat_file("/small")) == small
    child = os.fork()
    if child == 0:
        os._exit(0 if asyncio.run(fs._cat_file("/small")) == small else 1)
    assert os.waitpid(child, 0)[1] == 0


async def test_the_loop_goes_on_while_a_call_waits_for_the_node(make_door: MakeDoor) -> None:
    host, _ = make_door()
    fs = fsspec.filesystem("headrace", asynchronous=True)
    data = (host.truth / "large.tar").read_bytes()
    read = asyncio.ensure_future(fs._cat_file("/large.tar"))
    count = 0
    while not read.done():
        await asyncio.sleep(0)
        count += 1
    assert read.result() == data
    assert count > 10
