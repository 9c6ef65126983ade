"""Share one client for each node of this host among all APIs of one process."""

from __future__ import annotations

import atexit

from headrace.base.errors import NodeUnavailableError
from headrace.client.discovery import configured_nodes, find_node
from headrace.client.node_client import NodeClient
from headrace.vfs.local_vfs import TELL_S_MAX, LocalVfs
from headrace.vfs.vfs import Vfs
from headrace.vfs.vfs_registry import VfsRegistry


class ClientRegistry(VfsRegistry[LocalVfs]):
    """Keeps one `LocalVfs` per node for the whole process, because a process may open an index only once."""

    def __init__(self) -> None:
        super().__init__()
        atexit.register(self._end_telling)

    def get(self, socket: str, patience_s: float) -> LocalVfs:
        return self.reach(socket, lambda: LocalVfs(NodeClient(socket, role="sdk", patience_s=patience_s)))

    def _end_telling(self) -> None:
        """Report the last changes to the nodes. Everything else stays open: files that were not closed are closed
        later."""
        for vfs in self.by_key.values():
            vfs.client.end_telling(TELL_S_MAX)


HOSTS = ClientRegistry()


def open_vfs(nodes: str | None, *, cache: str | None, socket: str | None, patience_s: float) -> Vfs:
    """Open the namespace of this host's node, which `find_node` finds. If this user has no node, use another user's
    node that is open to others. If there is none either, use the nodes of the setting `nodes`.

    nodes: REST APIs of nodes of other hosts, which are used instead. Raise NodeUnavailableError, NotAllowedError or
    UsageError."""
    if nodes is None:
        try:
            return HOSTS.get(find_node(socket=socket, cache=cache), patience_s)
        except NodeUnavailableError:
            from headrace.vfs.brokered.broker_registry import (
                open_brokered_vfs,  # not needed if this user's node runs
            )

            brokered_vfs = open_brokered_vfs(cache=cache, socket=socket, patience_s=patience_s)
            if brokered_vfs is not None:
                return brokered_vfs
            nodes = configured_nodes()
            if socket is not None or cache is not None or not nodes:
                raise
    from headrace.vfs.remote.remote_registry import REMOTES  # not needed if a node runs here

    return REMOTES.get(nodes, patience_s)
