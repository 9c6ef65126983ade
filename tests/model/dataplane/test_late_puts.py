"""A put that took place without its node hearing of it, and whose file then went with its folder: nobody tells of
that file, and what was put is removed all the same."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path

import pytest

from headrace.base.errors import OriginUnavailableError
from headrace.overlay.hiding import pending_removals
from headrace.overlay.upper import Upper
from headrace.testing.waiting import until
from headrace.writeback import upload
from headrace.writeback.writable_layer import WritableLayer
from tests.model.dataplane.scene import WriterFixture, playing

WANTED = {"/g": "dir", "/g/e": "dir", "/g/e/f": b"ours".hex()}


async def put_unheard(scene: WriterFixture) -> None:
    """/d/e/f is at the origin, and its node has not heard so."""
    session = scene.session
    await scene.do(lambda: session.mkdir(b"/d"), lambda: session.mkdir(b"/d/e"))
    await scene.persisted()
    scene.held.lose("put")
    await scene.write(b"/d/e/f", b"ours")
    await until(lambda: (scene.truth / "d/e/f").exists())


@pytest.mark.expected_warnings("retrying later")
async def test_its_folder_is_renamed_before_it_is_put_again(
    monkeypatch: pytest.MonkeyPatch, scene: WriterFixture
) -> None:
    await put_unheard(scene)
    real, renamed = upload._open_files, threading.Event()

    def rename_and_open(layer: WritableLayer, paths: list[bytes]) -> object:
        if not renamed.is_set():
            scene.session.rename(b"/d", b"/g", 0)
            renamed.set()
        return real(layer, paths)

    monkeypatch.setattr(upload, "_open_files", rename_and_open)
    await asyncio.to_thread(renamed.wait)
    await scene.check(WANTED)


@pytest.mark.expected_warnings("retrying later")
async def test_its_folder_is_renamed_while_the_next_node_looks_over_the_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Upper.walk
    scenes: list[WriterFixture] = []

    def rename_and_walk(
        upper: Upper, top: bytes = b"/", unread: dict[bytes, OSError] | None = None
    ) -> object:
        if scenes:
            scenes.pop().session.rename(b"/d", b"/g", 0)
        return real(upper, top, unread)

    async with playing(tmp_path) as scene:
        await put_unheard(scene)
    monkeypatch.setattr(Upper, "walk", rename_and_walk)
    async with playing(tmp_path, before=scenes.append) as scene:
        await scene.check(WANTED)
    assert not scenes


@pytest.mark.expected_warnings("retrying later")
async def test_what_is_put_aside_and_can_not_be_removed_is_put_aside_once(scene: WriterFixture) -> None:
    """A file is in its folder's place, and the removal has begun: nobody hides the name once more."""
    session, removals = scene.session, []

    async def refuse(key: str, **more: object) -> None:
        removals.append(key)
        raise OriginUnavailableError(key, why="by plan")

    await scene.do(lambda: session.mkdir(b"/d"))
    await scene.write(b"/d/f", b"within")
    await scene.persisted()
    remove = scene.here.origin.remove
    scene.here.origin.remove = refuse  # type: ignore[method-assign]
    await scene.do(lambda: session.rename(b"/d", b"/e", 0))
    await scene.write(b"/d", b"a file")
    while len(removals) < 5:
        with contextlib.suppress(OriginUnavailableError):
            await scene.here.write.persist(b"/")
        await scene.here.write.rescan()
    assert len(pending_removals(scene.here.upper)) == 1
    scene.here.origin.remove = remove  # type: ignore[method-assign]
    await scene.check({"/d": b"a file".hex(), "/e": "dir", "/e/f": b"within".hex()})
