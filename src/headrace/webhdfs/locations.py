"""Find the hosts that have a file: its owners by the ring, primary first. Spark and MapReduce schedule tasks there."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.ring.ring import Ring, RingMember, key_of
from headrace.ring.view import SEGMENT_BYTES

MEMBERS_MAX_AGE_S = 5.0
"""Seconds after which the members of the cluster are requested again."""
HOSTS_MAX = 3
"""Most owners of a segment that are reported: clients use one of the first."""

PARTS_MAX = 65_536
"""Most parts of a file: a longer file, which may be sparse, has longer parts. 8 TiB have as many of 128 MiB."""


@dataclass(frozen=True, slots=True)
class BlockLocation:
    """Names the nodes that have bytes start to end of a file. `names` are HOST:PORT of the nodes, with their port for
    peers."""

    start: int
    end: int
    names: tuple[str, ...]

    @property
    def hosts(self) -> list[str]:
        return [name.rpartition(":")[0].strip("[]") for name in self.names]


class Locations:
    """Finds the owners of ranges of files. `status` returns the node's status, from which the ring is built."""

    def __init__(self, status: Callable[[], dict[str, Any]], *, replicas: int) -> None:
        self._status = status
        self._replicas = min(replicas, HOSTS_MAX)
        self._lock = threading.Lock()
        self._until_s = 0.0
        self._is_known = False
        self._ring: Ring | None = None
        """Ring of the members; None for a node without others."""
        self._addresses: dict[str, str] = {}

    def parts(
        self, path: bytes, start: int, end: int, *, size_bytes: int, part_bytes: int
    ) -> list[BlockLocation]:
        """Return the locations of bytes start to end of a file, cut at multiples of `part_bytes`, which divides a
        segment. Parts are longer where the file has more than PARTS_MAX of them. One that is longer than a segment
        has the owners of its first."""
        while part_bytes * PARTS_MAX < size_bytes:
            part_bytes *= 2
        self._refresh()
        with self._lock:
            ring, addresses = self._ring, self._addresses
        locations = []
        for offset in range(start - start % part_bytes, end, part_bytes):
            if ring is None:
                names: tuple[str, ...] = (f"{socket.gethostname()}:0",)
            else:
                owners = ring.owners(key_of(path, offset // SEGMENT_BYTES), self._replicas)
                names = tuple(addresses[owner.id] for owner in owners)
            locations.append(BlockLocation(offset, min(size_bytes, offset + part_bytes), names))
        return locations

    def _refresh(self) -> None:
        """Request the members if those that are known are old. Other requests use the old ones meanwhile, so that a
        silent node holds few threads."""
        with self._lock:
            if time.monotonic() < self._until_s:
                return
            if self._is_known:
                self._until_s = time.monotonic() + MEMBERS_MAX_AGE_S
        members = _members(self._status())
        owning = [row for row in members if not row["draining"]] or members
        ring = None
        if len(members) > 1:
            ring = Ring(
                RingMember(str(row["id"]), int(row["capacity_bytes"]), str(row["zone"])) for row in owning
            )
        with self._lock:
            self._addresses = {str(row["id"]): str(row["address"]) for row in members}
            self._ring = ring
            self._is_known = True
            self._until_s = time.monotonic() + MEMBERS_MAX_AGE_S


def _members(status: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = status.get("cluster")
    return list(cluster["members"]) if isinstance(cluster, dict) and cluster.get("members") else []


def block_locations(parts: list[BlockLocation]) -> list[dict[str, Any]]:
    """Return Hadoop's BlockLocation of each part, for GETFILEBLOCKLOCATIONS."""
    return [
        {
            "cachedHosts": [],
            "corrupt": False,
            "hosts": part.hosts,
            "length": part.end - part.start,
            "names": list(part.names),
            "offset": part.start,
            "storageTypes": ["DISK"] * len(part.names),
            "topologyPaths": [f"/default-rack/{name}" for name in part.names],
        }
        for part in parts
    ]


def located_blocks(parts: list[BlockLocation], file_id: int, size_bytes: int) -> dict[str, Any]:
    """Return the LocatedBlocks of a file, for GET_BLOCK_LOCATIONS. Ports are 0, as no node speaks HDFS's own
    protocol."""
    rows = [_located(part, file_id) for part in parts]
    return {
        "fileLength": size_bytes,
        "isLastBlockComplete": True,
        "isUnderConstruction": False,
        "lastLocatedBlock": rows[-1] if rows else None,
        "locatedBlocks": rows,
    }


def _located(part: BlockLocation, file_id: int) -> dict[str, Any]:
    return {
        "block": {
            "blockId": file_id,
            "blockPoolId": "headrace",
            "generationStamp": 0,
            "numBytes": part.end - part.start,
        },
        "blockToken": {"urlString": "AAAAAA"},
        "cachedLocations": [],
        "isCorrupt": False,
        "locations": [_datanode(host) for host in part.hosts],
        "startOffset": part.start,
        "storageTypes": ["DISK"] * len(part.names),
    }


def _datanode(host: str) -> dict[str, Any]:
    ports = {"xferPort": 0, "infoPort": 0, "infoSecurePort": 0, "ipcPort": 0}
    space = {"capacity": 0, "dfsUsed": 0, "remaining": 0, "blockPoolUsed": 0, "lastUpdate": 0}
    return {
        **ports,
        **space,
        "adminState": "NORMAL",
        "hostName": host,
        "ipAddr": host,
        "name": f"{host}:0",
        "networkLocation": "/default-rack",
        "storageID": host,
        "xceiverCount": 0,
    }
