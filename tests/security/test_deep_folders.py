"""Finding 23: folders in folders in folders, more of them than the interpreter has frames, are walked like any others.

The limit of frames is lowered for the test, as a thousand folders would take seconds to make.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.beneath import Root
from headrace.base.model import ROOT_ID, Entry, FileId, Kind, Version
from headrace.cli.ls import _walk
from headrace.fuse.generations import BYTES, Generations
from headrace.fuse.node_table import NodeTable
from headrace.integrations.fsspec import HeadraceFileSystem
from headrace.origin.local_write import make_directories
from headrace.overlay.upper import Upper
from headrace.s3.listing import ObjectListing
from headrace.sdk.cache import cache_over
from headrace.sdk.folder import LocalFolder
from headrace.sdk.namespace import open_local_vfs
from headrace.vfs.client_registry import HOSTS
from headrace.vfs.local_vfs import LocalVfs
from tests.integration.cli.host import Host

DEPTH, FRAMES = 100, 70
CHAIN = "/d" * DEPTH
pytestmark = pytest.mark.root


@pytest.fixture
def few_frames() -> Iterator[None]:
    """So many more than are used now."""
    frame, used = sys._getframe(), 0
    while frame is not None:
        frame, used = frame.f_back, used + 1  # type: ignore[assignment]
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(used + FRAMES)
    yield
    sys.setrecursionlimit(before)


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Host, LocalVfs]]:
    (tmp_path / "host").mkdir()
    host = Host(tmp_path / "host", write="back", persist_delay_s=3600)
    for top in ("deep", "other"):
        (host.truth / f"{top}{CHAIN}").mkdir(parents=True)
        (host.truth / f"{top}{CHAIN}/f").write_bytes(top.encode())
    config = tmp_path / "config.toml"
    config.write_text(f'[mounts."/"]\nurl = "{host.truth}"\n')
    try:
        host.start("node", "run", "--config", config, "--cache", f"{host.cache}:1GiB").wait_ready()
        for name in ("HEADRACE_RUN_FOLDER", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
            monkeypatch.setenv(name, host.environment[name])
        HeadraceFileSystem.clear_instance_cache()
        HOSTS.close()
        paths = open_local_vfs(patience_s=10)
        yield host, paths
        HOSTS.close()
    finally:
        host.close()


def check_fsspec() -> None:
    files, top, there = HeadraceFileSystem(), "/deep", f"/deep{CHAIN}/f"
    assert files.find(top) == [there]
    down = [folder for folder, _, _ in files.walk(top)]
    assert down == [top + "/d" * depth for depth in range(DEPTH + 1)]
    assert [folder for folder, _, _ in files.walk(top, topdown=False)] == down[::-1]
    assert [folder for folder, _, _ in files.walk(top, maxdepth=3)] == down[:3]


def test_the_library(library: tuple[Host, LocalVfs], few_frames: None) -> None:
    host, paths = library
    cache, there = cache_over(paths), f"/deep{CHAIN}/f"
    assert [f"{folder}/{name}" for folder, _, files in cache.walk("/deep") for name in files] == [there]
    assert list(cache.glob("/deep/**/f")) == [there]
    assert [row.key for row in ObjectListing(paths, b"/deep").page(b"", b"", b"", 10).rows] == [
        there[6:].encode()
    ]
    check_fsspec()

    cache.rename("/deep", "/moved")  # which only the layer knows
    assert cache.read(f"/moved{CHAIN}/f") == b"deep"
    assert not cache.exists("/deep")
    cache.remove("/other", recursive=True)
    cache.rename("/moved", "/other")  # over what the origin has
    assert cache.read(f"/other{CHAIN}/f") == b"deep"
    cache.persist("/")
    assert (host.truth / f"other{CHAIN}/f").read_bytes() == b"deep"
    assert not (host.truth / "deep").exists()


def test_ls(few_frames: None) -> None:
    class Node:
        def list_path(self, path: bytes) -> list[Entry]:
            kind = Kind.DIRECTORY if path.count(b"/d") < DEPTH else Kind.FILE
            return [Entry(FileId(1), ROOT_ID, b"d", kind, Version(0, 0))]

    names = [name for name, _ in _walk(Node(), b"/", recursive=True)]  # type: ignore[arg-type]
    assert names == [b"d" + b"/d" * depth for depth in range(DEPTH + 1)]


def test_folders_of_this_host(tmp_path: Path, few_frames: None) -> None:
    root = Root(os.fsencode(tmp_path))
    make_directories(root.at(CHAIN.encode()), root.at(b"/"))
    (tmp_path / CHAIN[1:] / "f").write_bytes(b"x")
    assert LocalFolder(str(tmp_path)).names() == [f"{CHAIN[1:]}/f"]


def test_names_of_a_session(tmp_path: Path, few_frames: None) -> None:
    """Another session renamed the top of what this one knows; and what it learnt is a ring."""
    upper = Upper(str(tmp_path / "upper"))
    upper.make()
    upper.at(CHAIN.encode()).make_directories(0o755)
    generations = Generations(bytearray(BYTES))
    nodes, node = NodeTable(upper, lambda _: None, generations), int(ROOT_ID)
    for depth in range(1, DEPTH + 1):
        path = CHAIN[: 2 * depth].encode()
        above, node = node, nodes.node_of(path, upper.at(path).lstat())
        nodes.remember(node, above, b"d")
    assert nodes.path(node) == CHAIN.encode()
    upper.at(b"/d").rename(upper.at(b"/moved"))
    assert nodes.path(node) == b"/moved" + CHAIN[2:].encode()
    ring = NodeTable(upper, lambda _: None, generations)
    ring.remember(node, node - 1, b"a")
    ring.remember(node - 1, node, b"b")
    assert ring.path(node) in (None, b"/moved" + CHAIN[2:].encode())
