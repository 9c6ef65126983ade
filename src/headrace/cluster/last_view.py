"""Who was in the cluster when this node last heard of it, in a file beside its cache: for a start while etcd is away.

It is a memory, not a claim: whoever starts by it is in nobody else's view before it has joined.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable

import msgspec

from headrace.base.decoding import decode_json
from headrace.base.private_folder import private
from headrace.ring.view import NodeInfo

log = logging.getLogger(__name__)


class _Kept(msgspec.Struct, frozen=True):
    """cluster: its URL as configured; node: the id of the one who wrote it."""

    cluster: str
    node: str
    nodes: list[NodeInfo]


class LastView:
    """path: of the file. One of another cluster, or of a node with another id, is no memory of ours."""

    def __init__(self, path: str, *, cluster: str, node: str) -> None:
        self._path = path
        self._cluster = cluster
        self._node = node

    def read(self) -> dict[str, NodeInfo]:
        """By id; empty where there is none to go by."""
        try:
            with open(self._path, "rb") as file:
                kept = decode_json(file.read(), _Kept)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            log.warning("last members can't be read path=%s error=%s", self._path, error)
            return {}
        if (kept.cluster, kept.node) != (self._cluster, self._node):
            return {}
        return {info.id: info for info in kept.nodes}

    def write(self, nodes: Iterable[NodeInfo]) -> None:
        """Replaced as a whole. Blocks; one that can't be written costs only what it is for."""
        new = f"{self._path}.new"
        try:
            with open(new, "wb", opener=private) as file:
                file.write(msgspec.json.encode(_Kept(self._cluster, self._node, list(nodes))))
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self._path)
        except OSError as error:
            log.warning("last members can't be written path=%s error=%s", self._path, error)
