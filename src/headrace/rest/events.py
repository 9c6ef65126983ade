"""Receive events that origins post, and hand them to the node. The node believes the origin only."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from headrace.base.errors import UsageError
from headrace.client.node_client import NodeClient
from headrace.events.changes import EVENTS_BYTES_MAX, EventFormatError
from headrace.events.decode import decode_message
from headrace.http.messages import Request, Response
from headrace.rest.bodies import read_whole
from headrace.rest.problems import RefusedError
from headrace.wire.api import ReceivedEvents
from headrace.wire.event_messages import ReportChanges
from headrace.wire.messages import Done

REQUEST_ORIGIN = "webhook-request-origin"
POSTS_A_MINUTE = 6000
"""Posts that a sender of CloudEvents may send, unless it asks for fewer. Those of Event Grid have up to 5000 events."""
_ORIGIN = re.compile(r"[A-Za-z0-9._:/*-]{1,255}")


def confirm(request: Request) -> Response:
    """Answer the validation handshake of CloudEvents (HTTP 1.1 Web Hooks for Event Delivery, 4). It needs no token: who
    gets the answer may post, and each post is refused without the token. A request of anything else, such as the page
    of a browser, is permitted nothing."""
    headers = [("Allow", "OPTIONS, POST")]
    origin = request.header(REQUEST_ORIGIN)
    if _ORIGIN.fullmatch(origin):
        asked = request.header("webhook-request-rate")
        rate = int(asked) if asked.isascii() and asked.isdecimal() and len(asked) < 10 else 0
        allowed = str(min(rate or POSTS_A_MINUTE, POSTS_A_MINUTE))
        headers += [("WebHook-Allowed-Origin", origin), ("WebHook-Allowed-Rate", allowed)]
    return Response(200, headers)


class EventOperations:
    """Receives posts. Thread-safe."""

    def __init__(self, client: NodeClient) -> None:
        self._client = client

    def receive(self, pieces: Iterator[bytes]) -> ReceivedEvents | Response:
        """Hand the changes of a post to the node. Raise RefusedError for a body that is no event. Azure Event Grid
        gets its code back: who can post may also subscribe."""
        with read_whole(pieces, EVENTS_BYTES_MAX) as data:
            try:
                reported = decode_message(bytes(data))
            except EventFormatError as error:
                raise RefusedError(422, UsageError("events", why=str(error))) from error
        if reported.validation_code:
            body = msgspec.json.encode({"validationResponse": reported.validation_code})
            return Response(200, [("Content-Type", "application/json")], body=body)
        if reported.changes or reported.refused:
            answer = self._client.ask(ReportChanges(reported.changes, reported.refused))
            assert isinstance(answer, Done)
        return ReceivedEvents(len(reported.changes), reported.refused)
