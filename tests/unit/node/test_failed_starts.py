"""A start of a node that fails: what it began is stopped again, as the node may start again in the same process."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from headrace.base.errors import CorruptIndexError, UsageError
from headrace.config.load import load
from headrace.config.schema import Config, MountConfig
from headrace.node.node import Node
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
