"""The namespace of a node in this process, whose cache folder has files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.client.node_client import NodeClient
from headrace.overlay.upper import Upper
from headrace.vfs.local_vfs import LocalVfs
from tests.unit.client.conftest import Cached, cached, start_node
from tests.unit.client.scripted_node import ScriptedNode

__all__ = ["cached", "start_node"]
StartNode = Callable[..., ScriptedNode]
OpenVfs = Callable[..., LocalVfs]


@pytest.fixture
def nodes() -> list[ScriptedNode]:
    """The nodes of the namespaces that the test opened."""
    return []


@pytest.fixture
def open_vfs(
    start_node: StartNode, cached: Cached, tmp_path: Path, nodes: list[ScriptedNode]
) -> Iterator[OpenVfs]:
    """Call with the write modes."""
    opened: list[LocalVfs] = []

    def open_one(write: str = "back") -> LocalVfs:
        Upper(str(tmp_path / "upper")).make()
        node = start_node(cached.welcome(upper=str(tmp_path / "upper"), write=write))
        nodes.append(node)
        opened.append(LocalVfs(NodeClient(node.path, role="sdk")))
        return opened[-1]

    yield open_one
    for vfs in opened:
        vfs.close()


@pytest.fixture
def vfs(open_vfs: OpenVfs) -> LocalVfs:
    return open_vfs()
