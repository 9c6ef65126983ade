"""Run a node process over a folder of random files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from headrace.base.model import BLOCK_SIZE_BYTES
from headrace.client.node_client import NodeClient
from headrace.client.path_reader import PathReader
from headrace.config.schema import CacheVolume, Config, MountConfig
from tests import service_logs
from tests.fork_server import ForkingPopen

MIB = BLOCK_SIZE_BYTES

SIZES = {"empty": 0, "one": 1, "small": 110_000, "block": MIB, "more": MIB + 1, "large": 40 * MIB + 12_345}


class NodeProcess:
    """A node process on a folder of random files."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.source = base / "source"
        self.configure(
            Config(
                cache=[CacheVolume(str(base / "cache"), 1 << 30)],
                run_folder=str(base / "run"),
                mounts={"/": MountConfig(url=str(self.source))},
                sync_interval_s=3600.0,
            )
        )
        self.start()

    def configure(self, config: Config) -> None:
        """Set the configuration of the next start."""
        self.config = config
        (self.base / "config.json").write_bytes(msgspec.json.encode(config))

    def start(self) -> None:
        ready_read, ready_write = os.pipe()
        with open(self.base / "node.log", "ab") as output:
            self.process: subprocess.Popen[bytes] = ForkingPopen(
                [
                    sys.executable,
                    "-m",
                    "headrace.node",
                    "--config-json",
                    str(self.base / "config.json"),
                    "--ready-fd",
                    str(ready_write),
                ],
                pass_fds=[ready_write],
                stderr=output,
            )
        os.close(ready_write)
        with open(ready_read, "rb") as ready:
            line = msgspec.json.decode(ready.readline())
        assert line.get("ready"), line

    def client(self) -> NodeClient:
        return NodeClient(self.config.socket_path, role="sdk", patience_s=10)

    def stop(self) -> None:
        service_logs.collect([self.base / "node.log"])
        self.process.terminate()
        self.process.wait(60)


def whole(client: NodeClient, path: bytes) -> bytes:
    return b"".join(PathReader(client).read(path))
