"""Track the members of the cluster: each node's own record, and the view that follows from all of them.

Record `nodes/<id>`: NodeInfo as JSON, leased. A node that is killed leaves when its lease has ended. While etcd is
unavailable the last view stays, and reads continue. A node that starts meanwhile uses the view of its last run, is
not in the cluster, and joins when etcd is available again.

The epoch grows by one with every change of the nodes that this node observes. It is local: nodes with the same
members may have different epochs, so epochs of two nodes can't be compared.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from headrace.base.clock import monotonic_s
from headrace.base.decoding import decode_json
from headrace.base.errors import ClusterDeniedError, ClusterUnavailableError, HeadraceError, NodeIdTakenError
from headrace.base.tasks import OwnedTasks
from headrace.cluster.etcd import DENIED_PAUSE_S, EtcdRecords
from headrace.cluster.last_view import LastView
from headrace.ring.view import ClusterView, NodeInfo, alone, next_view

log = logging.getLogger(__name__)

PREFIX = "nodes/"
SETTLE_S = 0.05
"""Changes within this time make one view."""
RETURN_S = 10.0
"""The time that other nodes have to come back before they count as gone. If etcd lost this node's record, it lost
theirs, too."""
JOIN_PAUSE_S = 0.3
ADOPT_PAUSE_S = 5.0
"""Pause before a view that this node did not completely adopt is published again."""


class Membership:
    """Joins the cluster and maintains the view. info: of this node. last: the members of the last run; None: they
    are not kept. on_view: called with each new view, on the loop. Its errors are logged, and it is called again with
    that view; `start` raises those of the first view. is_alive: returns whether a node with that id, address and
    instance answers. joined: set once this node was in the cluster."""

    def __init__(
        self,
        records: EtcdRecords,
        info: NodeInfo,
        *,
        last: LastView | None = None,
        on_view: Callable[[ClusterView], None],
        is_alive: Callable[[NodeInfo], Awaitable[bool]],
    ) -> None:
        self._records = records
        self._info = info
        self._on_view = on_view
        self._is_alive = is_alive
        self._last = last
        self._displaced: set[str] = set()
        self.joined = asyncio.Event()
        self._nodes: dict[str, NodeInfo] = {}
        self._departed: dict[str, tuple[NodeInfo, float]] = {}
        self._record_lost_s = float("-inf")
        self._changed = asyncio.Event()
        self._making_view = asyncio.Lock()
        self._tasks = OwnedTasks()
        self._eviction = ""
        self.view: ClusterView | None = None
        self._is_adopted = False
        self._alone = alone(info)

    def current_view(self) -> ClusterView:
        """Return the last known view; before the first one, a view of this node alone."""
        return self.view or self._alone

    async def start(self) -> None:
        """Join the cluster, or use the last known members when etcd is unavailable and join later (joined). On
        return there is a view. Raise NodeIdTakenError, and ClusterUnavailableError, which is ClusterDeniedError
        where etcd refuses this node."""
        try:
            await self._join()
        except ClusterUnavailableError as error:
            self._nodes = self._last.read() if self._last is not None else {}
            if not self._nodes:
                raise
            names = ",".join(sorted(self._nodes))
            log.warning(
                "this node is not in the cluster and uses the last known members nodes=%s error=%s",
                names,
                error,
            )
            await self._make_view()
            self._tasks.start(self._join_later())
        self._tasks.start(self._run())

    async def stop(self) -> None:
        """Leave the cluster; on return this node is out of it, provided that etcd answers."""
        await self._tasks.close()
        await self._records.close()

    async def drain(self) -> None:
        """Mark this node as draining: it owns nothing in the next view of every node. Raise ClusterUnavailableError,
        and NodeIdTakenError when the record is another node's by now."""
        await self._set_draining(draining=True)

    async def end_drain(self) -> None:
        """Take part again after `drain`. Raises as `drain` does."""
        await self._set_draining(draining=False)

    def status(self) -> dict[str, Any]:
        availability = self._records.availability
        trouble = self._eviction or availability.trouble()
        if not self._eviction and not self.joined.is_set():
            trouble = f"not in the cluster, the members of its last run are used: {trouble or 'it joins'}"
        return {
            "etcd_away_s": round(availability.away_s, 1),
            "leases_lost": self._records.leases_lost,
            "draining": self._info.draining,
            "joined": self.joined.is_set(),
            "trouble": trouble,
        }

    # ------------------------------------------------------------ internal

    @property
    def _key(self) -> str:
        return f"{PREFIX}{self._info.id}"

    async def _join(self) -> None:
        """Register this node and follow the others; on return there is a view with this node in it. Raise
        NodeIdTakenError or ClusterUnavailableError."""
        await self._records.start()
        await self._register()
        last_nodes, self._nodes = self._nodes, {}
        await self._records.follow(PREFIX, self._on_record)
        self._nodes[self._info.id] = self._info
        self._expect_return({id: info for id, info in last_nodes.items() if id not in self._nodes})
        self.joined.set()
        await self._make_view()

    async def _join_later(self) -> None:
        while True:
            try:
                await self._join()
                log.warning("etcd is available again, and this node joined the cluster")
                return
            except ClusterUnavailableError as error:
                denied = isinstance(error, ClusterDeniedError)
                await asyncio.sleep(DENIED_PAUSE_S if denied else JOIN_PAUSE_S)
            except NodeIdTakenError as error:
                self._eviction = str(error)
                log.error("this node can't join the cluster error=%s", error)
                return
            except HeadraceError as error:
                log.warning("this node could not join the cluster and tries again error=%s", error)
                await asyncio.sleep(JOIN_PAUSE_S)

    def _expect_return(self, nodes: dict[str, NodeInfo]) -> None:
        """Keep nodes of the last view that have no record in etcd for a while: they may be about to write theirs
        again, too."""
        if nodes:
            self._record_lost_s = monotonic_s()
            self._departed = {id: (info, self._record_lost_s) for id, info in nodes.items()}
            asyncio.get_running_loop().call_later(RETURN_S + SETTLE_S, self._changed.set)

    async def _register(self) -> None:
        own_record = msgspec.json.encode(self._info)
        while not await self._records.create(self._key, own_record, leased=True):
            raw = await self._records.get(self._key)
            other = None if raw is None else _decode(raw)
            is_own = other is not None and other.instance == self._info.instance
            if other is not None and not is_own and await self._is_alive(other):
                raise NodeIdTakenError(
                    f"node id {self._info.id!r}",
                    why=f"the node at {other.address} has this id and is alive",
                    hint="set another node_id",
                )
            # The record is from a run that was killed. Another starting node may have been faster: read again.
            if other is not None:
                self._displaced.add(other.instance)
            if raw is not None and await self._records.replace(self._key, raw, own_record, leased=True):
                return

    def _on_record(self, key: str, value: bytes | None) -> None:
        id = key.removeprefix(PREFIX)
        info = None if value is None else _decode(value)
        if info is not None and info.id != id:
            log.warning("a node record was ignored, it names another node key=%s id=%s", key, info.id)
            return
        if id == self._info.id:
            if info is not None and info.instance != self._info.instance:
                if info.instance not in self._displaced:  # otherwise it is the run that this one replaced
                    self._on_replaced(info)
            elif info is not None and info.draining != self._info.draining:
                self._follow_own(info)  # the record was written although the call that wrote it failed
            elif value is None:
                self._record_lost_s = monotonic_s()
                asyncio.get_running_loop().call_later(RETURN_S + SETTLE_S, self._changed.set)
            return
        old_info = self._nodes.pop(id, None)
        if info is not None:
            self._nodes[id] = info
            self._departed.pop(id, None)
        elif old_info is not None:
            self._departed[id] = (old_info, monotonic_s())
        self._changed.set()

    async def _set_draining(self, *, draining: bool) -> None:
        if self._eviction:
            raise NodeIdTakenError("node drain", why=self._eviction)
        if not self.joined.is_set():
            raise ClusterUnavailableError(
                "node drain", why="this node is not in the cluster: etcd is unavailable"
            )
        info = msgspec.structs.replace(self._info, draining=draining)
        await self._records.put(self._key, msgspec.json.encode(info), leased=True)
        self._follow_own(info)

    def _follow_own(self, info: NodeInfo) -> None:
        """Leave the ring, or return to it, as all nodes do that read this node's record: after it is written, never
        before."""
        self._info = msgspec.structs.replace(self._info, draining=info.draining)
        self._changed.set()

    def _may_return(self) -> dict[str, NodeInfo]:
        """Return the nodes that disappeared recently: together with this node's own record, or since then."""
        now_s = monotonic_s()
        if now_s > self._record_lost_s + RETURN_S:
            self._departed.clear()
        return {
            id: info
            for id, (info, at_s) in self._departed.items()
            if at_s > self._record_lost_s - 2 * SETTLE_S
        }

    def _on_replaced(self, other: NodeInfo) -> None:
        """Give up the record to another node of the same id, and continue to read. The two must not overwrite each
        other."""
        self._eviction = f"another node took the id {other.id!r}, at {other.address}: set another node_id"
        log.error("another node has this node's id id=%s address=%s", other.id, other.address)
        self._records.disown(self._key)

    async def _run(self) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(SETTLE_S)
            self._changed.clear()
            try:
                await self._make_view()
            except Exception:
                log.exception("the node did not completely adopt a new view, retrying")
                asyncio.get_running_loop().call_later(ADOPT_PAUSE_S, self._changed.set)

    async def _make_view(self) -> None:
        """Compute the view and publish it. The ring is built in a thread, because it takes some ms a node. The
        members are stored for the next run. A node that joins late may have two calls at a time: the second one knows
        more, and must not be overtaken."""
        async with self._making_view:
            old_view, nodes = self.view, {**self._may_return(), **self._nodes, self._info.id: self._info}
            if old_view is not None and dict(old_view.nodes) == nodes:
                if not self._is_adopted:
                    self._adopt(old_view)
                return
            loop = asyncio.get_running_loop()
            view = await loop.run_in_executor(None, lambda: _view_of(nodes, old_view, me=self._info.id))
            self._adopt(view)
            if self._last is not None and self.joined.is_set():
                await loop.run_in_executor(None, self._last.write, list(nodes.values()))

    def _adopt(self, view: ClusterView) -> None:
        self.view, self._is_adopted = view, False
        self._on_view(view)
        self._is_adopted = True


def _view_of(nodes: dict[str, NodeInfo], old_view: ClusterView | None, *, me: str) -> ClusterView:
    """Return the next view. The first view of a node that joins has a previous ring without this node: the members
    on it hold the files that this node will own."""
    others = {id: info for id, info in nodes.items() if id != me}
    if old_view is None and others:
        old_view = next_view(None, others, epoch=0)
    return next_view(old_view, nodes, epoch=1 if old_view is None else old_view.epoch + 1)


def _decode(raw: bytes) -> NodeInfo | None:
    try:
        return decode_json(raw, NodeInfo)
    except msgspec.DecodeError as error:
        log.warning("a node record can't be decoded error=%s", error)
        return None
