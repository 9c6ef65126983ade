"""Store the last known members of the cluster in a file beside the cache, for a start while etcd is unavailable.

A node that starts with the stored members is in no other node's view before it has joined.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable

import msgspec

from headrace.base.decoding import decode_json
from headrace.base.kept_file import KeptFile
from headrace.ring.view import NodeInfo

log = logging.getLogger(__name__)

BYTES_MAX = 16 << 20


class _Kept(msgspec.Struct, frozen=True):
    """Is the content of the file. cluster: its URL as configured; node: the id of the node that wrote it."""

    cluster: str
    node: str
    nodes: list[NodeInfo]


class LastView:
    """Reads and writes the file at path. The file of another cluster, or of a node with another id, is ignored."""

    def __init__(self, path: str, *, cluster: str, node: str) -> None:
        self._path = path
        self._file = KeptFile(*os.path.split(path), bytes_max=BYTES_MAX)
        self._cluster = cluster
        self._node = node

    def read(self) -> dict[str, NodeInfo]:
        """Return the members by id; empty when there is no usable file."""
        try:
            raw = self._file.read()
            if raw is None:
                return {}
            kept = decode_json(raw, _Kept)
        except (OSError, ValueError) as error:
            log.warning("the last known members can't be read path=%s error=%s", self._path, error)
            return {}
        if (kept.cluster, kept.node) != (self._cluster, self._node):
            return {}
        return {info.id: info for info in kept.nodes}

    def write(self, nodes: Iterable[NodeInfo]) -> None:
        """Replace the file atomically. Blocks. A failure is logged, because only a start without etcd needs the
        file."""
        try:
            self._file.write(msgspec.json.encode(_Kept(self._cluster, self._node, list(nodes))))
        except OSError as error:
            log.warning("the last known members can't be written path=%s error=%s", self._path, error)
