"""Copies of what another node wrote: what becomes of a take-over's own notes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from headrace.ring.view import NodeInfo, next_view
from headrace.wire.peer_messages import Replicate
from headrace.writeback.replication.replica_host import ReplicaHost
from headrace.writeback.sync_journal import SyncJournal


async def test_a_writer_that_is_back_is_not_measured_by_what_was_put_in_its_place(tmp_path: Path) -> None:
    """It has put newer versions since, which the take-over's table doesn't know; the answer to the writer stays."""
    view = next_view(None, {"n0": NodeInfo("n0", "", "", "", 1 << 30, "", 3)}, epoch=1)

    def tables(folder: Path) -> list[str]:
        return sorted(file.name for file in folder.glob("*.db*"))

    with ThreadPoolExecutor(1) as threads:
        keeper = ReplicaHost("n1", str(tmp_path), cast(Any, None), threads, view=lambda: view)
        await keeper.replicate(Replicate("n0", [], begin=True, end=True))
        folder = Path(keeper.folder_of("n0"))
        for name in ("known.db", "taken.db"):
            SyncJournal(str(folder / name)).close()
        await keeper.replicate(Replicate("n0", [], begin=False, end=False))
        assert tables(folder) == ["known.db", "taken.db"]
        await keeper.replicate(Replicate("n0", [], begin=True, end=True))
        assert tables(folder) == ["taken.db"]
