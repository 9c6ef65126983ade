"""A key that is longer than a store takes: said where the name is made; else the one file says so, and keeps nobody."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import NotSupportedError
from headrace.base.key_length import key_room
from headrace.origin.origin import check_key_length
from headrace.testing.waiting import until
from tests.model.dataplane.scene import WriterFixture, playing
from tests.model.dataplane.writer_node import Lower

ROOM = 700
LONG = b"/d/" + b"/".join([b"n" * 200] * 4)


@pytest.mark.parametrize(
    ("url", "room"),
    [
        ("s3://bucket", 1024),
        ("s3://bucket/a/prefix", 1024 - len("a/prefix/")),
        ("gs://bucket/\u00fc", 1024 - 3),
        ("az://container", 1024),
        ("file:///folder", None),
        ("https://host/path", None),
    ],
)
def test_the_room_of_a_key(url: str, room: int | None) -> None:
    assert key_room(url) == room
    check_key_length(url, "k" * (room or 4000))
    if room is not None:
        with pytest.raises(NotSupportedError, match="shorter name"):
            check_key_length(url, "k" * (room - 1) + "\u00fc")


async def test_it_is_said_where_the_name_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whatever call; what is there already can be written, renamed and removed."""
    folder = LONG.rpartition(b"/")[0]
    async with playing(tmp_path) as scene:
        session, tree = scene.session, scene.session._tree
        prefix = b""
        for name in folder.split(b"/")[1:]:
            prefix += b"/" + name
            await scene.do(lambda path=prefix: session.mkdir(path))  # type: ignore[misc]
        await scene.write(b"/f", b"data")
        await scene.write(folder + b"/" + b"m" * 200, b"made before")
        monkeypatch.setattr(Lower, "key_fits", lambda lower, path: len(path) - 1 <= ROOM)
        calls: list[Callable[[], Any]] = [
            lambda: session.put_bytes(LONG, b"x", os.O_TRUNC),
            lambda: session.replace(LONG, b"x"),
            lambda: session.mkdir(LONG),
            lambda: session.symlink(LONG),
            lambda: session.rename(b"/f", LONG, 0),
            lambda: session.change(lambda: tree.link(b"/f", LONG), b"/f", LONG),
        ]
        for call in calls:
            with pytest.raises(OSError) as caught:
                await scene.do(call)
            assert caught.value.errno == errno.ENAMETOOLONG
        before = folder + b"/" + b"m" * 200
        await scene.write(before, b"written again")
        await scene.do(lambda: session.rename(before, b"/g", 0))
        wanted = {"/f": b"data".hex(), "/g": b"written again".hex()}
        for end in range(len(folder.split(b"/")) - 1):
            wanted[os.fsdecode(b"/".join(folder.split(b"/")[: end + 2]))] = "dir"
        await scene.check(wanted)


@pytest.mark.expected_warnings("retrying later")
async def test_a_file_that_no_store_takes_keeps_nobody_and_says_so(scene: WriterFixture) -> None:
    session, write = scene.session, scene.here.write
    await scene.write(b"/old", b"old")
    await scene.persisted()
    real, tries = scene.here.origin.put, []

    async def put(key: str, source: Any, **more: Any) -> Any:
        if key.startswith("long"):
            tries.append(key)
            check_key_length("s3://bucket", "k" * 1025)
        return await real(key, source, **more)

    scene.here.origin.put = put  # type: ignore[method-assign]
    await scene.write(b"/long", b"data")
    await scene.write(b"/other", b"more")
    await scene.do(lambda: session.unlink(b"/old"))
    with pytest.raises(NotSupportedError, match="1025 bytes"):
        await write.persist(b"/")
    while (scene.truth / "old").exists() or not (scene.truth / "other").exists():
        await write.persist(b"/other")
        await write.persist(b"/old")
    ((path, why),) = write.failing(b"/")
    assert path == "/long" and "shorter name" in why
    journal = write.layer.journal  # another try may be under way
    await until(lambda: not journal.unsure and journal.get(b"/long") is None)
    await scene.do(lambda: session.rename(b"/long", b"/short", 0))
    await scene.check({"/short": b"data".hex(), "/other": b"more".hex()})
    assert tries
