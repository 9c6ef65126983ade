"""Share one client for each node of this host among all APIs of one process."""

from __future__ import annotations

import atexit

from headrace.client.node_client import NodeClient
from headrace.vfs.local_vfs import REPORT_LIMIT_S, LocalVfs
from headrace.vfs.vfs_registry import VfsRegistry


class ClientRegistry(VfsRegistry[LocalVfs]):
    """Keeps one `LocalVfs` per node for the whole process, because a process may open an index only once."""

    def __init__(self) -> None:
        super().__init__()
        atexit.register(self._stop_reporting)

    def get(self, socket: str, patience_s: float) -> LocalVfs:
        return self.reach(socket, lambda: LocalVfs(NodeClient(socket, role="sdk", patience_s=patience_s)))

    def _stop_reporting(self) -> None:
        """Report the last changes to the nodes. Everything else stays open: files that were not closed are closed
        later."""
        for vfs in self.by_key.values():
            vfs.client.stop_reporting(REPORT_LIMIT_S)


HOSTS = ClientRegistry()
