"""Who is in the cluster: each node's own record, and the view that follows from all of them.

Record `nodes/<id>`: NodeInfo as JSON, leased. A node that is killed is out when its lease has ended. While etcd is away
the last view stays, and nobody stops reading; a node that starts meanwhile goes by the view of its last run, is not in
the cluster, and joins when etcd is back.

Epoch: grows by one with every change of the nodes that this node heard of. It counts here only: nodes with the same
members may have different epochs, and nobody may compare those of two nodes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from headrace.base.decoding import decode_json
from headrace.base.errors import ClusterDeniedError, ClusterUnavailableError, HeadraceError, NodeIdTakenError
from headrace.cluster.etcd import DENIED_PAUSE_S, EtcdRecords
from headrace.cluster.last_view import LastView
from headrace.ring.view import ClusterView, NodeInfo, next_view

log = logging.getLogger(__name__)

PREFIX = "nodes/"
SETTLE_S = 0.05
"""Changes that come together make one view."""
RETURN_S = 10.0
"""When etcd lost this node's record, it lost others' too: they have so long to come back before they count as gone."""
JOIN_PAUSE_S = 0.3


class Membership:
    """info: of this node. last: what it remembers of its last run; None: nothing. on_view: told each new view, on the
    loop; what it raises is logged, but for the first, where `start` raises it. is_alive: whether a node with that id,
    address and instance answers. joined: set once this node was in the cluster."""

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
        self._joining: asyncio.Task[None] | None = None
        self.joined = asyncio.Event()
        self._nodes: dict[str, NodeInfo] = {}
        self._gone: dict[str, tuple[NodeInfo, float]] = {}
        self._forgotten_s = float("-inf")
        self._changed = asyncio.Event()
        self._work: asyncio.Task[None] | None = None
        self._evicted_by = ""
        self.view: ClusterView | None = None

    async def start(self) -> None:
        """There is a view on return, and this node is in the cluster; or, where etcd is away and a last view is known,
        will be (joined). NodeIdTakenError, ClusterUnavailableError, which is ClusterDeniedError where etcd refuses this
        node."""
        try:
            await self._join()
        except ClusterUnavailableError as error:
            self._nodes = self._last.read() if self._last is not None else {}
            if not self._nodes:
                raise
            names = ",".join(sorted(self._nodes))
            log.warning("not in the cluster, the last known members are used nodes=%s error=%s", names, error)
            await self._make_view()
            self._joining = asyncio.ensure_future(self._join_later())
        self._work = asyncio.ensure_future(self._keep())

    async def stop(self) -> None:
        """Out of the cluster on return, where etcd answers."""
        for task in (self._joining, self._work):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self._records.close()

    async def drain(self) -> None:
        """This node owns nothing any more, in everybody's next view. ClusterUnavailableError."""
        if not self.joined.is_set():
            raise ClusterUnavailableError("node drain", why="this node is not in the cluster: etcd is away")
        self._info = msgspec.structs.replace(self._info, draining=True)
        await self._records.put(self._key, msgspec.json.encode(self._info), leased=True)
        self._changed.set()

    def status(self) -> dict[str, Any]:
        away_since_s = self._records.away_since_s
        away_s = 0.0 if away_since_s is None else time.monotonic() - away_since_s
        trouble = self._evicted_by
        if not trouble and not self.joined.is_set():
            trouble = (
                f"not in the cluster: etcd is away for {away_s:.0f} s, the members of the last run are used"
            )
        elif not trouble and away_since_s is not None:
            trouble = f"etcd is away for {away_s:.0f} s: the last members are used"
        return {
            "etcd_away_s": round(away_s, 1),
            "leases_lost": self._records.leases_lost,
            "draining": self._info.draining,
            "joined": self.joined.is_set(),
            "trouble": trouble,
        }

    # ------------------------------------------------------------ inside

    @property
    def _key(self) -> str:
        return f"{PREFIX}{self._info.id}"

    async def _join(self) -> None:
        """In the cluster, and in a view of it, on return. NodeIdTakenError, ClusterUnavailableError: as before."""
        await self._records.start()
        await self._register()
        before, self._nodes = self._nodes, {}
        await self._records.follow(PREFIX, self._heard)
        self._nodes[self._info.id] = self._info
        self._expect({id: info for id, info in before.items() if id not in self._nodes})
        self.joined.set()
        await self._make_view()

    async def _join_later(self) -> None:
        while True:
            try:
                await self._join()
                log.warning("etcd is back, this node is in the cluster")
                return
            except ClusterUnavailableError as error:
                denied = isinstance(error, ClusterDeniedError)
                await asyncio.sleep(DENIED_PAUSE_S if denied else JOIN_PAUSE_S)
            except NodeIdTakenError as error:
                self._evicted_by = str(error)
                log.error("not in the cluster error=%s", error)
                return
            except HeadraceError as error:
                log.warning("joining the cluster failed error=%s", error)
                await asyncio.sleep(JOIN_PAUSE_S)

    def _expect(self, nodes: dict[str, NodeInfo]) -> None:
        """Nodes of the last view that etcd has no record of: they may be about to write theirs again, too."""
        if nodes:
            self._forgotten_s = time.monotonic()
            self._gone = {id: (info, self._forgotten_s) for id, info in nodes.items()}
            asyncio.get_running_loop().call_later(RETURN_S + SETTLE_S, self._changed.set)

    async def _register(self) -> None:
        mine = msgspec.json.encode(self._info)
        while not await self._records.create(self._key, mine, leased=True):
            raw = await self._records.get(self._key)
            other = None if raw is None else _unpacked(raw)
            mine_already = other is not None and other.instance == self._info.instance
            if other is not None and not mine_already and await self._is_alive(other):
                raise NodeIdTakenError(
                    f"node id {self._info.id!r}",
                    why=f"the node at {other.address} has it, and is alive",
                    hint="set another node_id",
                )
            # Of a run that was killed. Another one that starts may have been faster: look again.
            if other is not None:
                self._displaced.add(other.instance)
            if raw is not None and await self._records.replace(self._key, raw, mine, leased=True):
                return

    def _heard(self, key: str, value: bytes | None) -> None:
        id = key.removeprefix(PREFIX)
        info = None if value is None else _unpacked(value)
        if info is not None and info.id != id:
            log.warning("node record not taken key=%s why=it is that of %s", key, info.id)
            return
        if id == self._info.id:
            if info is not None and info.instance != self._info.instance:
                if info.instance not in self._displaced:  # else it is old news
                    self._replaced(info)
            elif value is None:
                self._forgotten_s = time.monotonic()
                asyncio.get_running_loop().call_later(RETURN_S + SETTLE_S, self._changed.set)
            return
        before = self._nodes.pop(id, None)
        if info is not None:
            self._nodes[id] = info
            self._gone.pop(id, None)
        elif before is not None:
            self._gone[id] = (before, time.monotonic())
        self._changed.set()

    def _may_return(self) -> dict[str, NodeInfo]:
        """Nodes that went when this one's own record did, or since, and a short time ago."""
        now_s = time.monotonic()
        if now_s > self._forgotten_s + RETURN_S:
            self._gone.clear()
        return {
            id: info for id, (info, at_s) in self._gone.items() if at_s > self._forgotten_s - 2 * SETTLE_S
        }

    def _replaced(self, other: NodeInfo) -> None:
        """Two nodes of one id: this one goes on reading and gives the place up; it must not fight."""
        self._evicted_by = f"another node took the id {other.id!r}, at {other.address}: set another node_id"
        log.error("another node has this node's id id=%s address=%s", other.id, other.address)
        self._records.disown(self._key)

    async def _keep(self) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(SETTLE_S)
            self._changed.clear()
            try:
                await self._make_view()
            except Exception:
                log.exception(
                    "members changed and not all of this node follows"
                )  # the next change may be better

    async def _make_view(self) -> None:
        """The ring is built in a thread: it takes some ms a node. What is known of the cluster is kept for the next
        run."""
        before, nodes = self.view, {**self._may_return(), **self._nodes, self._info.id: self._info}
        if before is not None and dict(before.nodes) == nodes:
            return
        loop = asyncio.get_running_loop()
        self.view = await loop.run_in_executor(None, lambda: _view_of(nodes, before, me=self._info.id))
        self._on_view(self.view)
        if self._last is not None and self.joined.is_set():
            await loop.run_in_executor(None, self._last.write, list(nodes.values()))


def _view_of(nodes: dict[str, NodeInfo], before: ClusterView | None, *, me: str) -> ClusterView:
    """The first view of a node that joins has a ring before it, of those who were there: they have what it owns now."""
    others = {id: info for id, info in nodes.items() if id != me}
    if before is None and others:
        before = next_view(None, others, epoch=0)
    return next_view(before, nodes, epoch=1 if before is None else before.epoch + 1)


def _unpacked(raw: bytes) -> NodeInfo | None:
    try:
        return decode_json(raw, NodeInfo)
    except msgspec.DecodeError as error:
        log.warning("node record not understood error=%s", error)
        return None
