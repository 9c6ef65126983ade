"""An origin that changes under a mount: what users see after a sync, or when the interval is over."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.client.connection import Connection
from headrace.fuse import device
from headrace.testing.waiting import wait_for
from headrace.wire.messages import JobStart
from tests import service_logs
from tests.fork_server import ForkingPopen
from tests.integration.node.conftest import running
from tests.integration.node.node_process import NodeProcess

__all__ = ["running"]
pytestmark = [pytest.mark.fuse, pytest.mark.timeout(60)]


class Mounted:
    def __init__(self, node: NodeProcess, io: str) -> None:
        self.node = node
        self.path = node.base / "mnt"
        self.path.mkdir()
        read, write = os.pipe()
        command = [sys.executable, "-m", "headrace.fuse.fd_store", "--mountpoint", str(self.path), "--io", io]
        command += ["--socket", node.config.socket_path, "--ready-fd", str(write)]
        self._log = node.base / "mount.log"
        with self._log.open("wb") as sink:
            self.holder: subprocess.Popen[bytes] = ForkingPopen(command, pass_fds=(write,), stderr=sink)
        os.close(write)
        ready, _, _ = select.select([read], [], [], 15)
        assert ready
        assert json.loads(os.read(read, 4096)).get("ready")
        os.close(read)

    def sync(self) -> None:
        connection = Connection(self.node.config.socket_path, role="cli")
        list(connection.stream(JobStart(kind="sync", path="/")))
        connection.close()

    def close(self) -> None:
        service_logs.collect([self._log])
        device.unmount(str(self.path), detach=True)
        self.holder.terminate()
        self.holder.wait(60)


@pytest.fixture(params=["passthrough", "splice"])
def mounted(needs_fuse: None, running: NodeProcess, request: pytest.FixtureRequest) -> Iterator[Mounted]:
    mount = Mounted(running, request.param)
    yield mount
    mount.close()


def names(path: Path) -> list[str]:
    return sorted(os.listdir(path))


def test_new_names_are_seen_after_a_sync(mounted: Mounted) -> None:
    folder = mounted.path / "folder"
    before = names(folder)
    assert names(folder) == before  # by now from the kernel's own cache
    assert not (folder / "new").exists()
    (mounted.node.source / "folder/new").write_bytes(b"new")
    (mounted.node.source / "folder/unasked").write_bytes(b"unasked")
    mounted.sync()
    wait_for(lambda: (folder / "new").exists(), 5)
    assert (folder / "new").read_bytes() == b"new"
    wait_for(lambda: names(folder) == sorted([*before, "new", "unasked"]), 5)


def test_names_never_asked_for_appear_in_a_cached_listing(mounted: Mounted) -> None:
    folder = mounted.path / "folder"
    before = names(folder)
    assert names(folder) == before
    (mounted.node.source / "folder/unasked").write_bytes(b"unasked")
    mounted.sync()
    wait_for(lambda: names(folder) == sorted([*before, "unasked"]), 5)


def test_removed_names_are_gone_after_a_sync(mounted: Mounted) -> None:
    folder = mounted.path / "folder"
    before = names(folder)
    assert names(folder) == before
    with open(folder / "small", "rb") as kept:
        (mounted.node.source / "folder/small").unlink()
        mounted.sync()
        wait_for(lambda: not (folder / "small").exists(), 5)
        wait_for(lambda: names(folder) == [name for name in before if name != "small"], 5)
        assert len(kept.read()) == 110_000


def test_a_replaced_file_is_read_new_and_the_open_one_old(mounted: Mounted) -> None:
    for name in ("small", "large"):
        path, source = mounted.path / name, mounted.node.source / name
        old = source.read_bytes()
        with open(path, "rb") as opened:
            assert opened.read() == old
            source.write_bytes(b"new" * 50_000)
            mounted.sync()
            wait_for(lambda: path.stat().st_size == 150_000, 5)  # noqa: B023 - it is called here
            assert path.read_bytes() == b"new" * 50_000
            opened.seek(0)
            assert opened.read() == old


def test_a_file_replaced_without_a_sync_is_never_a_mixture(mounted: Mounted) -> None:
    """Its names are still believed; the open finds that it changed, and the kernel looks it up again."""
    os.listdir(mounted.path)
    for name in ("small", "block", "more", "large"):
        assert (mounted.path / name).stat().st_size > 0
        (mounted.node.source / name).write_bytes(b"new" * 1000)
    assert (mounted.path / "small").read_bytes() == b"new" * 1000
    assert (mounted.path / "block").read_bytes() == b"new" * 1000
    for name in ("more", "large"):  # larger than a block: opened by its old size, read after the change
        try:
            (mounted.path / name).read_bytes()
        except OSError:
            pass
        wait_for(lambda: (mounted.path / name).read_bytes() == b"new" * 1000, 5)  # noqa: B023 - it is called here


def test_a_folder_that_went_and_came_back(mounted: Mounted) -> None:
    folder, source = mounted.path / "folder", mounted.node.source / "folder"
    assert names(folder)
    os.rename(source, mounted.node.base / "aside")
    mounted.sync()
    wait_for(lambda: not folder.exists(), 5)
    source.mkdir()
    (source / "other").write_bytes(b"other")
    mounted.sync()
    wait_for(lambda: folder.exists() and names(folder) == ["other"], 5)
    assert (folder / "other").read_bytes() == b"other"
