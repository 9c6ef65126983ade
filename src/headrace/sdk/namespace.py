"""Open the namespace by path, for modules that translate it to another interface: fsspec's, a checkpoint storage.

It gives them what they need of the packages below, so that they import no other.
"""

from __future__ import annotations

from headrace.base.errors import NodeUnavailableError
from headrace.base.namespace_path import join, split
from headrace.client.discovery import configured_nodes, find_node
from headrace.client.node_client import PATIENCE_S
from headrace.overlay.merged_view import FileStat
from headrace.vfs.client_registry import HOSTS
from headrace.vfs.file_stat import is_directory, stat_of, version_text
from headrace.vfs.local_vfs import LocalVfs
from headrace.vfs.streams import Content, ReadStream, WriteStream
from headrace.vfs.vfs import Vfs

__all__ = [
    "PATIENCE_S",
    "Content",
    "FileStat",
    "LocalVfs",
    "ReadStream",
    "Vfs",
    "WriteStream",
    "is_directory",
    "join",
    "open_local_vfs",
    "open_vfs",
    "split",
    "stat_of",
    "version_text",
]


def open_local_vfs(
    *, cache: str | None = None, socket: str | None = None, patience_s: float = PATIENCE_S
) -> LocalVfs:
    """Open the namespace of this host's node, which `find_node` finds. The process shares it. Raise
    NodeUnavailableError, NotAllowedError or UsageError."""
    return HOSTS.get(find_node(socket=socket, cache=cache), patience_s)


def open_vfs(nodes: str | None, *, cache: str | None, socket: str | None, patience_s: float) -> Vfs:
    """Open the namespace of this host's node. If this user has no node, use another user's node that is open to others.
    If there is none either, use the nodes of the setting `nodes`.

    nodes: REST APIs of nodes of other hosts, which are used instead. Raise NodeUnavailableError, NotAllowedError or
    UsageError."""
    if nodes is None:
        try:
            return open_local_vfs(cache=cache, socket=socket, patience_s=patience_s)
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
