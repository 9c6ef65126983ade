"""What all doors of one process share: one client for each node of this host."""

from __future__ import annotations

import atexit
from typing import cast

from headrace.base.errors import NodeUnavailableError
from headrace.sdk.discovery import configured_nodes, find_node
from headrace.sdk.local_vfs import TELL_S_MAX, LocalVfs
from headrace.sdk.node_client import NodeClient
from headrace.sdk.vfs_registry import VfsRegistry


class ClientRegistry(VfsRegistry[LocalVfs]):
    """One `LocalVfs` a node for all of this process: an index may be open in it once only."""

    def __init__(self) -> None:
        super().__init__()
        atexit.register(self._end_telling)

    def get(self, socket: str, patience_s: float) -> LocalVfs:
        return self.reach(socket, lambda: LocalVfs(NodeClient(socket, role="sdk", patience_s=patience_s)))

    def _end_telling(self) -> None:
        """All else stays open: files that nobody closed are closed after this."""
        for paths in self.made.values():
            paths.client.end_telling(TELL_S_MAX)


HOSTS = ClientRegistry()


def open_vfs(nodes: str | None, *, cache: str | None, socket: str | None, patience_s: float) -> LocalVfs:
    """The namespace of this host's node, which `find_node` finds; where this user has none, of another user's that is
    open to others; where none runs, by the nodes of the setting `nodes`.
    nodes: REST APIs of nodes of other hosts, instead. NodeUnavailableError, NotAllowedError, UsageError."""
    if nodes is None:
        try:
            return HOSTS.get(find_node(socket=socket, cache=cache), patience_s)
        except NodeUnavailableError:
            from headrace.sdk.brokered.broker_registry import (
                open_brokered_vfs,  # not wanted where this user's node runs
            )

            brokered = open_brokered_vfs(cache=cache, socket=socket, patience_s=patience_s)
            if brokered is not None:
                return cast(LocalVfs, brokered)  # it has the calls of a LocalVfs that programs make
            nodes = configured_nodes()
            if socket is not None or cache is not None or not nodes:
                raise
    from headrace.sdk.remote.remote_registry import REMOTES  # not wanted where there is a node

    return cast(LocalVfs, REMOTES.get(nodes, patience_s))  # it has the calls of a LocalVfs that programs make
