"""Follow the changes of a far cluster: a long poll of its REST API, at the node that answers."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from headrace.base.deadline import Deadline
from headrace.base.errors import OriginUnavailableError
from headrace.events.changes import EventFormatError, OriginChange, ReportedChanges
from headrace.origin.far_cluster import FarRequest, ask_json, call_far, open_far_nodes
from headrace.origin.options import OriginOptions
from headrace.origin.threads import Threads
from headrace.receivers.source import QueuedMessage
from headrace.wire.api import CHANGES_A_PAGE, ApiChanges

WAIT_S = 20.0
REQUEST_LIMIT_S = 30.0
"""Seconds for an answer, its wait included. Then the next node of the list is followed."""
_FEED = re.compile(r"[\x21-\x7e]{1,64}")


class FarChanges:
    """The feed of a far cluster, as a queue. What is deleted is not asked for again."""

    def __init__(self, url: str, options: OriginOptions) -> None:
        self._url = url
        self._bucket = url.partition("://")[2].partition("/")[0]
        self._nodes, self._path = open_far_nodes(url, options)
        self._threads = Threads()
        self._feed = ""
        self._position = self._asked = 0

    async def receive(self) -> Sequence[QueuedMessage]:
        """Wait for changes. Batches follow each other: the next one is asked for when the last was received."""
        query = {
            "path": self._path or "/",
            "feed": self._feed,
            "after": str(self._asked),
            "wait_s": str(WAIT_S if self._feed else 0),
        }
        target = f"changes of {self._url}"

        def ask(request: FarRequest) -> ApiChanges:
            return ask_json(self._nodes, "listChanges", query, ApiChanges, target, request=request)

        page = await call_far(self._threads, ask, target, Deadline.after(REQUEST_LIMIT_S))
        if not _FEED.fullmatch(page.feed) or page.next < 0 or len(page.names) > CHANGES_A_PAGE:
            raise OriginUnavailableError(target, why="the answer is none of the REST API")
        self._feed, self._asked = page.feed, page.next
        if not page.is_complete:  # also at the beginning: listings may be older than the feed
            return [QueuedMessage(str(page.next), ReportedChanges([], is_everything=True))]
        return [QueuedMessage(str(page.next), self._content(page.names))] if page.names else []

    async def delete(self, messages: Sequence[QueuedMessage]) -> None:
        """Do nothing: the feed forgets by itself. What could not be handled is healed by the age of listings."""

    async def close(self) -> None:
        self._nodes.close()
        self._threads.close()

    def _content(self, names: list[str]) -> ReportedChanges | EventFormatError:
        changes = []
        refused = 0
        for name in names:
            try:
                changes.append(OriginChange("headrace", self._bucket, os.fsencode(name.lstrip("/"))))
            except ValueError:
                refused += 1
        return ReportedChanges(changes, refused)
