"""A start of a node that fails: what it began is stopped again, as the node may start again in the same process."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

import msgspec
import pytest

from headrace.base.errors import CorruptIndexError, UsageError
from headrace.config.load import load
from headrace.config.schema import Config, MountConfig
from headrace.node import node as node_module
from headrace.node.node import Node
from headrace.origin.local import LocalOrigin
from headrace.writeback.writeback import WriteBack


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "origin").mkdir()
    return msgspec.structs.replace(
        load({"cache": [f"{tmp_path}/cache:64MiB"], "run_folder": str(tmp_path)}).config,
        mounts={"/a": MountConfig(f"file://{tmp_path}/origin")},
        write="/a=back",
        open_to_others=True,
    )


def others() -> set[asyncio.Task[object]]:
    """Return the tasks of the loop, without that of the test."""
    return asyncio.all_tasks() - {asyncio.current_task()}


def is_listening(config: Config) -> bool:
    return os.path.exists(config.socket_path)


async def test_no_task_and_no_server_is_left(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    before = others()
    began: list[asyncio.Task[object]] = []

    def refuse(node: Node) -> None:
        began.extend(others() - before)
        assert is_listening(config)
        raise UsageError("broker", why="refused by plan")

    monkeypatch.setattr(Node, "_serve_others", refuse)
    with pytest.raises(UsageError, match="refused by plan"):
        await Node.start(config)
    assert len(began) >= 3  # budgets, costs and write-back
    assert others() == before
    assert not is_listening(config)


@pytest.mark.parametrize(("place", "step"), [(Node, "_serve_others"), (node_module, "_start_background")])
async def test_no_thread_and_no_origin_is_left(
    config: Config, monkeypatch: pytest.MonkeyPatch, place: object, step: str
) -> None:
    before, failed = set(threading.enumerate()), []
    run_step = getattr(place, step)

    async def close(origin: LocalOrigin) -> None:
        closed.append(origin)
        await close_origin(origin)

    def fail(node: Node) -> None:
        run_step(node)
        node.disk.submit(time.monotonic).result()
        failed.append(node)
        raise UsageError("start", why="refused by plan")

    closed: list[LocalOrigin] = []
    close_origin = LocalOrigin.close
    monkeypatch.setattr(LocalOrigin, "close", close)
    monkeypatch.setattr(place, step, fail)
    with pytest.raises(UsageError, match="refused by plan"):
        await Node.start(config)
    assert len(failed) == len(closed) == 1
    assert_no_thread_since(before)


def assert_no_thread_since(before: set[threading.Thread]) -> None:
    """Threads of asyncio itself stay; the others have ended, or are about to."""
    for thread in set(threading.enumerate()) - before:
        if not thread.name.startswith("asyncio_"):
            thread.join(60)
            assert not thread.is_alive(), thread.name


@pytest.mark.expected_warnings("the index is corrupt")
async def test_nothing_of_it_runs_beside_the_node_that_starts_again(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, before = WriteBack.start, others()
    failed: list[asyncio.Task[object]] = []

    async def fail_first(write: WriteBack) -> None:
        await start(write)
        if not failed:
            failed.extend(others() - before)
            raise CorruptIndexError("index", why="a page is damaged by plan")

    monkeypatch.setattr(WriteBack, "start", fail_first)
    node = await Node.start(config)
    try:
        assert failed and all(task.done() for task in failed)
    finally:
        await node.stop()
    assert others() == before
