"""Which hosts have a file at hand: its owners by the ring, primary first. Spark and MapReduce put tasks there."""

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
HOSTS_MAX = 3
"""So many of a segment's owners are told: who asks takes one of the first."""


@dataclass(frozen=True, slots=True)
class BlockLocation:
    """Bytes start..end of a file, and who has them. names: HOST:PORT of the nodes; the port is the one peers use."""

    start: int
    end: int
    names: tuple[str, ...]

    @property
    def hosts(self) -> list[str]:
        return [name.rpartition(":")[0].strip("[]") for name in self.names]


class Locations:
    """status: of the node."""

    def __init__(self, status: Callable[[], dict[str, Any]], *, replicas: int) -> None:
        self._status = status
        self._replicas = min(replicas, HOSTS_MAX)
        self._lock = threading.Lock()
        self._until_s = 0.0
        self._ring: Ring | None = None
        """None: the node is alone."""
        self._addresses: dict[str, str] = {}

    def parts(
        self, path: bytes, start: int, end: int, *, size_bytes: int, part_bytes: int
    ) -> list[BlockLocation]:
        """Those of a file that bytes start..end touch, cut at multiples of part_bytes, of which a segment has a whole
        number."""
        with self._lock:
            self._look()
            ring, addresses = self._ring, self._addresses
        found = []
        for at in range(start - start % part_bytes, end, part_bytes):
            if ring is None:
                names: tuple[str, ...] = (f"{socket.gethostname()}:0",)
            else:
                owners = ring.owners(key_of(path, at // SEGMENT_BYTES), self._replicas)
                names = tuple(addresses[one.id] for one in owners)
            found.append(BlockLocation(at, min(size_bytes, at + part_bytes), names))
        return found

    def _look(self) -> None:
        if time.monotonic() < self._until_s:
            return
        members = _members(self._status())
        owning = [row for row in members if not row["draining"]] or members
        self._addresses = {str(row["id"]): str(row["address"]) for row in members}
        self._ring = None
        if len(members) > 1:
            self._ring = Ring(
                RingMember(str(row["id"]), int(row["capacity_bytes"]), str(row["zone"])) for row in owning
            )
        self._until_s = time.monotonic() + MEMBERS_MAX_AGE_S


def _members(status: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = status.get("cluster")
    return list(cluster["members"]) if isinstance(cluster, dict) and cluster.get("members") else []


def block_locations(parts: list[BlockLocation]) -> list[dict[str, Any]]:
    """Hadoop's BlockLocation, as GETFILEBLOCKLOCATIONS tells it."""
    return [
        {
            "cachedHosts": [],
            "corrupt": False,
            "hosts": one.hosts,
            "length": one.end - one.start,
            "names": list(one.names),
            "offset": one.start,
            "storageTypes": ["DISK"] * len(one.names),
            "topologyPaths": [f"/default-rack/{name}" for name in one.names],
        }
        for one in parts
    ]


def located_blocks(parts: list[BlockLocation], file_id: int, size_bytes: int) -> dict[str, Any]:
    """The same as GET_BLOCK_LOCATIONS tells it. Ports of HDFS's own protocol are 0: nobody speaks it here."""
    rows = [_located(one, file_id) for one in parts]
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
    room = {"capacity": 0, "dfsUsed": 0, "remaining": 0, "blockPoolUsed": 0, "lastUpdate": 0}
    return {
        **ports,
        **room,
        "adminState": "NORMAL",
        "hostName": host,
        "ipAddr": host,
        "name": f"{host}:0",
        "networkLocation": "/default-rack",
        "storageID": host,
        "xceiverCount": 0,
    }
