"""Receive what origins report about changes, and have all nodes look again at what changed.

Each queue has one receiver in the cluster: on the node that owns the path of its mount. During a change of the members
two nodes may receive for a moment, which is harmless, as each message is handled by one of them.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.base.clock import monotonic_s
from headrace.base.deadline import Deadline
from headrace.base.errors import DeadlineExceededError, HeadraceError
from headrace.base.tasks import OwnedTasks
from headrace.events.changes import OriginChange
from headrace.namespace.changed_directories import ChangedDirectories
from headrace.namespace.reported_paths import Scope, Target
from headrace.origin.options import OPTION_EVENTS
from headrace.receivers.factory import build_queue, check_events
from headrace.receivers.receiver import QueueReceiver
from headrace.wire.event_messages import ReportChanges
from headrace.wire.messages import Done
from headrace.wire.peer_messages import REPORTED_MAX, OriginChanged

if TYPE_CHECKING:
    from headrace.node.cluster_link import ClusterLink
    from headrace.ring.view import ClusterView, NodeInfo

log = logging.getLogger(__name__)

HANDLED_WITHIN_S = 3600.0
"""Most seconds that a message of a queue waits for its listings, and for the rests before them. A directory of millions
is listed for minutes, and rests for four times as long. A message that was given up would cause one more listing."""
SEND_LIMIT_S = 5.0
RETRY_S = 1.0
CHANGES_AT_ONCE = 256
"""Changes that are looked at before other tasks of the loop run."""
PLACE_S = 1.0
"""Seconds between two checks which receivers belong to this node."""
UNSENT_MAX = 8192
"""Most names and directories that wait for one node. A mount with more than it leaves free for the others is sent as
their common parent and all below it."""


class UnsentReports:
    """The names and directories that wait for one node, by the paths of their mounts, which take turns."""

    def __init__(self) -> None:
        self._by_mount: dict[bytes, dict[Target, None]] = {}
        self.count = 0

    def add(self, mount: bytes, wanted: Iterable[Target]) -> None:
        targets = self._by_mount.setdefault(mount, {})
        before = len(targets)
        targets.update(dict.fromkeys(wanted))
        self.count += len(targets) - before
        if len(targets) > UNSENT_MAX - self.count:
            common_parent = os.path.commonpath([path for path, _ in targets])
            self.count += 1 - len(targets)
            self._by_mount[mount] = {(common_parent, Scope.BELOW): None}

    def take(self) -> tuple[bytes, Scope, list[bytes]]:
        """Remove and return a mount and some of its paths, of one scope. There must be some."""
        mount = next(iter(self._by_mount))
        targets = self._by_mount.pop(mount)
        scope = next(iter(targets))[1]
        paths = [path for path, other in targets if other is scope][:REPORTED_MAX]
        for path in paths:
            del targets[path, scope]
        self.count -= len(paths)
        if targets:
            self._by_mount[mount] = targets  # the last one in turn
        return mount, scope, paths


class ReportSender:
    """Passes reported changes on to the other nodes. A node that does not answer gets them again until it answers or
    leaves the cluster. mount_of: returns the path of the mount that answers for a path."""

    def __init__(self, link: ClusterLink, mount_of: Callable[[bytes], bytes]) -> None:
        self._me = link.info.id
        self._peers = link.peers
        self._view = link.view
        self._mount_of = mount_of
        self._unsent: dict[str, UnsentReports] = {}
        self._sending: dict[str, asyncio.Task[None]] = {}
        self._tasks = OwnedTasks()

    async def send(self, targets: Iterable[Target]) -> None:
        """Return when each node was notified, or did not answer once."""
        others = [node for node in self._view().nodes.values() if node.id != self._me]
        wanted: dict[bytes, list[Target]] = {}
        for target in targets if others else ():
            wanted.setdefault(self._mount_of(target[0]), []).append(target)
        if not wanted:
            return
        for node in others:
            for mount, changed in wanted.items():
                self._unsent.setdefault(node.id, UnsentReports()).add(mount, changed)
        await asyncio.wait([self._begin(node.id) for node in others], timeout=SEND_LIMIT_S)

    async def stop(self) -> None:
        await self._tasks.close()

    @property
    def unsent(self) -> int:
        """Return how many names and directories wait for nodes that do not answer."""
        return sum(unsent.count for unsent in self._unsent.values())

    def _has_unsent(self, node_id: str) -> bool:
        unsent = self._unsent.get(node_id)
        return unsent is not None and unsent.count > 0

    def _begin(self, node_id: str) -> asyncio.Future[None]:
        """Return a future that ends after the first attempt, or, while others are being made, when the node has all."""
        running = self._sending.get(node_id)
        if running is not None and not running.done():
            return running
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sending[node_id] = self._tasks.start(self._send_all(node_id, first))
        return first

    async def _send_all(self, node_id: str, first: asyncio.Future[None]) -> None:
        try:
            while self._has_unsent(node_id):
                node = self._view().nodes.get(node_id)
                if node is None:
                    return
                is_sent = await self._attempt(node)
                if not first.done():
                    first.set_result(None)
                if not is_sent:
                    await asyncio.sleep(RETRY_S)
        finally:
            if not self._has_unsent(node_id) or node_id not in self._view().nodes:
                self._unsent.pop(node_id, None)
            if not first.done():
                first.set_result(None)
            if self._sending.get(node_id) is asyncio.current_task():
                del self._sending[node_id]

    async def _attempt(self, node: NodeInfo) -> bool:
        unsent = self._unsent[node.id]
        mount, scope, paths = unsent.take()
        request = OriginChanged(paths, below=scope is Scope.BELOW, names=scope is Scope.NAME)
        try:
            await self._peers.report_origin_changes(node, request, Deadline.after(SEND_LIMIT_S))
        except HeadraceError as error:
            log.info("reported changes wait for a node node=%s error=%s", node.id, error)
            unsent.add(mount, ((path, scope) for path in paths))
            return False
        return True


@dataclass(frozen=True, slots=True, eq=False)
class QueueSource:
    """Names the origin of a mount and its options. A mount that takes the place of another one has its own."""

    url: str
    options: dict[str, str]


class OriginEvents:
    """Holds the receivers of a node. link: None without a cluster."""

    def __init__(self, changed: ChangedDirectories, link: ClusterLink | None) -> None:
        self._changed = changed
        self._view: Callable[[], ClusterView] | None = None if link is None else link.view
        self._me = "" if link is None else link.info.id
        self._sender = None if link is None else ReportSender(link, changed.reported.top_of)
        self._queues: dict[str, QueueSource] = {}
        self._has_queues = asyncio.Event()
        self._receivers: dict[str, tuple[QueueSource, QueueReceiver]] = {}
        self._posts = self._posted = self._refused = 0
        self._posted_s: float | None = None
        self._tasks = OwnedTasks()
        self.handlers: Mapping[type, Any] = {ReportChanges: self._report}

    def start(self) -> None:
        self._tasks.start(self._place_receivers())

    async def stop(self) -> None:
        await self._tasks.close()
        for _, receiver in self._receivers.values():
            await receiver.stop()
        self._receivers.clear()
        if self._sender is not None:
            await self._sender.stop()

    def add(self, path: str, url: str, options: dict[str, str]) -> None:
        """Note a mount. Raise UsageError if its option `events` is invalid."""
        check_events(url, options)
        self._queues.pop(path, None)
        if options.get(OPTION_EVENTS):
            self._queues[path] = QueueSource(url, options)
            self._has_queues.set()

    def remove(self, path: str) -> None:
        self._queues.pop(path, None)

    def status(self) -> dict[str, object]:
        since_s = None if self._posted_s is None else round(monotonic_s() - self._posted_s, 1)
        return {
            "receivers": {path: receiver.status() for path, (_, receiver) in self._receivers.items()},
            "posts": {
                "posts": self._posts,
                "changes": self._posted,
                "refused": self._refused,
                "since_s": since_s,
            },
            **self._changed.statistics(),
            "unsent": 0 if self._sender is None else self._sender.unsent,
        }

    async def handle(self, changes: Sequence[OriginChange], *, everything_of: str = "") -> None:
        """Have all nodes list again what changed; everything_of: all below a mount. Raise HeadraceError if this node
        could not: of the others, one that does not answer now is notified later."""
        targets = await self._targets(changes)
        if everything_of:
            targets = {(os.fsencode(everything_of), Scope.BELOW)}
        listed = await self._add(targets)
        if self._sender is not None:
            await self._sender.send(targets)
        if not listed:
            return
        ended, late = await asyncio.wait(listed, timeout=HANDLED_WITHIN_S)
        unlisted = len(late) + sum(future.cancelled() for future in ended)
        if unlisted:
            raise DeadlineExceededError("reported changes", why=f"{unlisted} of them are not looked up yet")
        for future in ended:
            if (error := future.exception()) is not None:
                raise error

    async def _report(self, request: ReportChanges) -> Done:
        """Take a post of an origin. It is answered before the listings: an origin must not wait for them."""
        self._posts += 1
        self._posted += len(request.changes)
        self._refused += request.refused
        self._posted_s = monotonic_s()
        targets = await self._targets(request.changes)
        await self._add(targets)
        if self._sender is not None:
            self._tasks.start(self._sender.send(targets))
        return Done()

    async def _targets(self, changes: Sequence[OriginChange]) -> set[Target]:
        """Return the names and directories that changed. Other tasks of the loop run in between."""
        targets: set[Target] = set()
        for start in range(0, len(changes), CHANGES_AT_ONCE):
            targets |= self._changed.reported.targets(changes[start : start + CHANGES_AT_ONCE])
            await asyncio.sleep(0)
        return self._changed.reported.joined(targets)

    async def _add(self, targets: Iterable[Target]) -> list[asyncio.Future[None]]:
        """Have this node look names up and list directories. Other tasks of the loop run in between."""
        listed = []
        for target in targets:
            listed.append(self._changed.add(*target))
            if len(listed) % CHANGES_AT_ONCE == 0:
                await asyncio.sleep(0)
        return listed

    # ------------------------------------------------------------ receivers

    async def _place_receivers(self) -> None:
        while True:
            await self._has_queues.wait()
            try:
                await self._place()
            except Exception:
                log.exception(
                    "receivers of events were not placed, retrying"
                )  # those of other mounts must be
            if not self._queues and not self._receivers:
                self._has_queues.clear()
            await asyncio.sleep(PLACE_S)

    async def _place(self) -> None:
        """Start the receivers that belong to this node, and stop those that do not any more."""
        for path, (source, receiver) in list(self._receivers.items()):
            if self._queues.get(path) is not source or not self._is_own(path):
                del self._receivers[path]
                await receiver.stop()
        for path, source in list(self._queues.items()):
            if path not in self._receivers and self._is_own(path):
                receiver = QueueReceiver(path, partial(build_queue, source.url, source.options), self.handle)
                self._receivers[path] = source, receiver
                receiver.start()

    def _is_own(self, path: str) -> bool:
        """Return whether this node receives for a mount."""
        if self._view is None:
            return True
        owners = self._view().owners(os.fsencode(path))
        return not owners or owners[0].id == self._me
