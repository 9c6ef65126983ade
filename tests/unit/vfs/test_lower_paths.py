"""Lookups by path, of several threads at once."""

from __future__ import annotations

import pytest

from headrace.base.errors import StaleIdError
from headrace.base.model import Entry, FileId
from headrace.client.node_client import MISS, NodeClient
from headrace.vfs.lower_paths import RACES_MAX, LowerPaths
from tests.unit.client.conftest import Cached
from tests.unit.vfs.conftest import StartNode


class Replaced:
    """A client whose lookups of a name fail some times, as if the directory was replaced; and each time another thread
    forgets the directory first."""

    def __init__(self, client: NodeClient, patch: pytest.MonkeyPatch, *, failures: int) -> None:
        self.paths = LowerPaths(client)
        self.failures_left = failures
        self._known = client.lookup_stale
        patch.setattr(client, "lookup_fast", lambda *_: MISS)
        patch.setattr(client, "lookup", self._lookup)

    def _lookup(self, parent: FileId, name: bytes) -> Entry | None:
        if name == b"inner" and self.failures_left:
            self.failures_left -= 1
            self.paths.directories.clear()
            raise StaleIdError("a directory", why="it was replaced")
        return self._known(parent, name)


@pytest.fixture
def client(start_node: StartNode, cached: Cached) -> NodeClient:
    return NodeClient(start_node(cached.welcome()).path, role="sdk")


def test_a_directory_that_another_thread_forgot_is_looked_up_again(
    client: NodeClient, cached: Cached, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced = Replaced(client, monkeypatch, failures=RACES_MAX)
    entry = replaced.paths.entry(b"/dir/inner", client.local)
    assert entry is not None and entry.id == cached.ids[b"/dir/inner"]
    assert replaced.failures_left == 0
    client.close()


def test_a_directory_that_stays_stale_is_an_error(
    client: NodeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced = Replaced(client, monkeypatch, failures=1000)
    with pytest.raises(StaleIdError):
        replaced.paths.entry(b"/dir/inner", client.local)
    assert replaced.failures_left == 1000 - RACES_MAX - 1
    client.close()
