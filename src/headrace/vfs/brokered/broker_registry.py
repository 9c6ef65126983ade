"""Find nodes of other users by their sockets, and share the connections in a process."""

from __future__ import annotations

import os

from headrace.base.errors import UsageError
from headrace.config.load import SYSTEM_RUN_FOLDER, load
from headrace.config.schema import broker_socket_of, public_folder_of, socket_path_of
from headrace.vfs.brokered.broker_connection import BrokerConnection
from headrace.vfs.brokered.brokered_vfs import BrokeredVfs
from headrace.vfs.vfs_registry import VfsRegistry


class BrokerRegistry(VfsRegistry[BrokeredVfs]):
    """Keeps one `BrokeredVfs` for each socket."""

    def get(self, path: str, patience_s: float, *, any_owner: bool) -> BrokeredVfs:
        return self.reach(
            path, lambda: BrokeredVfs(BrokerConnection(path, patience_s=patience_s, any_owner=any_owner))
        )


BROKERS = BrokerRegistry()


def open_brokered_vfs(*, cache: str | None, socket: str | None, patience_s: float) -> BrokeredVfs | None:
    """Return the named node of another user, or the only one of root's that is open to others. None: there is none.
    Raises NodeUnavailableError or UsageError where there are several."""
    if socket is not None:
        path = broker_socket_of(os.path.abspath(socket))
        return BROKERS.get(path, patience_s, any_owner=True) if os.path.exists(path) else None
    sockets = []
    for directory in dict.fromkeys((load().config.run_folder, SYSTEM_RUN_FOLDER)):
        if cache is not None:
            candidates = [broker_socket_of(socket_path_of(directory, cache.split(":", 1)[0]))]
        else:
            candidates = _sockets_in(public_folder_of(directory))
        sockets += [path for path in candidates if os.path.exists(path)]
    if len(sockets) > 1:
        raise UsageError(
            f"{len(sockets)} nodes of this host are open to others",
            why=", ".join(sockets),
            hint="choose one by its cache",
        )
    return BROKERS.get(sockets[0], patience_s, any_owner=False) if sockets else None


def _sockets_in(directory: str) -> list[str]:
    try:
        return sorted(
            os.path.join(directory, name) for name in os.listdir(directory) if name.endswith(".sock")
        )
    except OSError:
        return []
