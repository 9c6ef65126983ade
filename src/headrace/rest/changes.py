"""Tell far clusters which names of the namespace changed: the last ones, from the events of the node.

Each name has a number. A client asks for those after the last that it has, and waits for the next. Of a directory with
many changes at once only one name is kept: the client lists the directory in any case.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections import deque
from itertools import islice

from headrace.base.errors import HeadraceError, NodeUnavailableError
from headrace.base.model import FileId
from headrace.base.namespace_path import is_at_or_below, join
from headrace.client.event_stream import EventsLost
from headrace.client.node_client import NodeClient
from headrace.rest.waiters import Waiters
from headrace.wire.api import CHANGES_A_PAGE, ApiChanges, ChangesQuery
from headrace.wire.messages import Answer, Evicted, Invalidated, MountList, Written

log = logging.getLogger(__name__)

KEPT_MAX = 20_000
"""Most names that are kept: some MiB."""
SUBSCRIBE_LIMIT_S = 10.0
"""Seconds for which the first requests wait for the node's subscription."""


class ChangeFeed:
    """Follows the node from the first request on. Thread-safe."""

    def __init__(self, client: NodeClient) -> None:
        self._client = client
        self._changed = threading.Condition()
        self._names: deque[bytes] = deque(maxlen=KEPT_MAX)
        self._number = 0
        """The number of the last name; those before it have the numbers before."""
        self._feed = ""
        self._waiters = Waiters()
        self._subscribing = threading.Lock()
        self._has_subscribed = False

    def page(self, query: ChangesQuery) -> ApiChanges:
        """Return names after the number of the query, once there is one, or none after `wait_s`. is_complete: False if
        names are missing between; then anything below the path may have changed."""
        path = os.fsencode(query.path)
        self._follow()
        with self._waiters.waiting_s(query.wait_s) as wait_s, self._changed:
            deadline_s = time.monotonic() + wait_s
            is_known = query.feed == self._feed
            after = min(query.after, self._number) if is_known else self._number
            is_complete = is_known and not self._is_dropped(after)
            while is_complete:
                page, last = self._after(after, path)
                remaining_s = deadline_s - time.monotonic()
                if page or remaining_s <= 0:
                    return ApiChanges(self._feed, last, [os.fsdecode(name) for name in page])
                after = last
                self._changed.wait(remaining_s)
                is_complete = query.feed == self._feed and not self._is_dropped(after)
            return ApiChanges(self._feed, self._number, [], is_complete=False)

    def on_event(self, event: Answer | EventsLost) -> None:
        """Take an event of the node."""
        if isinstance(event, EventsLost):
            self._begin_anew()
        elif isinstance(event, Invalidated):
            by_directory = dict(event.names)
            index = self._client.local.index
            paths = ((index.path_of(FileId(parent)), name) for parent, name in by_directory.items())
            self._add([join(path, name) for path, name in paths if path is not None])
        elif isinstance(event, Written):
            self._add(event.paths)
        elif isinstance(event, Evicted) and event.receipt:
            self._acknowledge(event.receipt)

    def _follow(self) -> None:
        """Subscribe at the first request. On return the node reports all later changes. Raise NodeUnavailableError,
        at once if too many requests wait already."""
        if self._feed:
            return
        with self._subscribing:
            if not self._has_subscribed:
                self._client.subscribe(self.on_event, on_subscribed=self._confirm)
                self._has_subscribed = True
        with self._waiters.waiting_s(SUBSCRIBE_LIMIT_S) as limit_s, self._changed:
            if not self._changed.wait_for(lambda: self._feed, limit_s):
                raise NodeUnavailableError("changes", why="the node takes no subscription")

    def _confirm(self) -> None:
        """Begin the feed when the node has read the first subscription. The thread of the events calls this, so that
        no request waits for a silent node. If it raises HeadraceError, that thread subscribes again."""
        if self._feed:  # a later subscription: EventsLost follows
            return
        self._await_subscription()
        with self._changed:
            self._feed = secrets.token_hex(8)
            self._changed.notify_all()

    def _await_subscription(self) -> None:
        """Return when the node has read the subscription, to which it sends no answer. It reads requests in turns: when
        it answers the second of two, it has read all that was sent before the first."""
        for _ in range(2):
            self._client.ask(MountList())

    def _begin_anew(self) -> None:
        """Let clients know that they may have missed changes: they see another feed."""
        try:
            self._await_subscription()
        except HeadraceError as error:  # the stream breaks, too, and begins again
            log.info("a subscription is not confirmed error=%s", error)
        with self._changed:
            self._feed = secrets.token_hex(8)
            self._names.clear()
            self._changed.notify_all()

    def _add(self, paths: list[bytes]) -> None:
        with self._changed:
            self._number += len(paths)
            self._names.extend(paths)
            self._changed.notify_all()

    def _is_dropped(self, after: int) -> bool:
        """Return whether names after that number are not kept any more."""
        return after < self._number - len(self._names)

    def _after(self, after: int, top: bytes) -> tuple[list[bytes], int]:
        """Return names at and below a path, and the number of the last one that was looked at."""
        page: list[bytes] = []
        skipped = after - (self._number - len(self._names))
        for path in islice(self._names, skipped, None):
            if len(page) == CHANGES_A_PAGE:
                break
            after += 1
            if is_at_or_below(path, top):
                page.append(path)
        return page, after

    def _acknowledge(self, receipt: int) -> None:
        """Confirm that this process has no handle on a damaged file's bytes: the feed opens no files."""
        try:
            self._client.acknowledge(receipt)
        except HeadraceError as error:
            log.info("an eviction can't be acknowledged error=%s", error)
