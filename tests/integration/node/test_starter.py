"""A node whose starter was killed before the node was ready."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from headrace.config.schema import CacheVolume, Config, MountConfig
from tests.fork_server import ForkingPopen

LIMIT_S = 60


def test_a_node_whose_starter_has_ended_stops_in_order(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    config = Config(
        cache=[CacheVolume(str(tmp_path / "cache"), 1 << 30)],
        run_folder=str(tmp_path / "run"),
        mounts={"/": MountConfig(url=str(tmp_path / "source"))},
    )
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(config))
    reading, writing = os.pipe()
    os.close(reading)
    words = ["--config-json", str(tmp_path / "config.json"), "--ready-fd", str(writing)]
    with open(tmp_path / "log", "wb") as log:
        node = ForkingPopen([sys.executable, "-m", "headrace.node", *words], pass_fds=[writing], stderr=log)
    os.close(writing)
    assert node.wait(LIMIT_S) == 0
    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) == 1, lines
    assert "the process that started this node has ended" in lines[0]
    assert not os.path.exists(config.socket_path)
