"""Receive GCS notifications from a subscription of Pub/Sub, by its REST interface (v1, pull and acknowledge).

google-auth finds the credentials, as Google's tools do. PUBSUB_EMULATOR_HOST names an emulator, which needs none.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.base.decoding import decode_json
from headrace.base.errors import OriginDeniedError, OriginError, UsageError
from headrace.base.missing_extras import needs_extra
from headrace.events.changes import EventFormatError, ReportedChanges
from headrace.events.decode import decode_attributes
from headrace.origin.options import OriginOptions
from headrace.receivers.http import EXTRA, QueueHttp
from headrace.receivers.source import QueuedMessage, message_id

SERVICE = "https://pubsub.googleapis.com"
SCOPE = "https://www.googleapis.com/auth/pubsub"
MESSAGES_A_REQUEST = 100
PULL_LIMIT_S = 120.0
"""Pub/Sub waits for a first message, for up to 90 seconds."""
REQUEST_LIMIT_S = 10.0
_SUBSCRIPTION = re.compile(r"projects/[A-Za-z0-9.:\-]{1,100}/subscriptions/[A-Za-z][A-Za-z0-9._~%+\-]{2,254}")
_EMULATOR = re.compile(r"[A-Za-z0-9.\-]+(:[0-9]{1,5})?")


class PubsubMessage(msgspec.Struct, frozen=True):
    attributes: dict[str, str] = {}
    published_at: str = msgspec.field(name="publishTime", default="")
    id: str = msgspec.field(name="messageId", default="")


class ReceivedMessage(msgspec.Struct, frozen=True):
    receipt: str = msgspec.field(name="ackId")
    content: PubsubMessage = msgspec.field(name="message")


class PubsubMessages(msgspec.Struct, frozen=True):
    messages: list[ReceivedMessage] = msgspec.field(name="receivedMessages", default_factory=list)


def check_subscription(name: str) -> None:
    """Raise UsageError for anything else than the full name of a subscription."""
    if not _SUBSCRIPTION.fullmatch(name):
        raise UsageError(
            "option events",
            why="it is no subscription of Pub/Sub",
            hint="write projects/PROJECT/subscriptions/SUBSCRIPTION",
        )


class PubsubSubscription:
    """A subscription of Pub/Sub. options: of the mount, whose credentials pull."""

    def __init__(self, name: str, options: OriginOptions) -> None:
        check_subscription(name)
        emulator = os.environ.get("PUBSUB_EMULATOR_HOST", "")
        if emulator and not _EMULATOR.fullmatch(emulator):
            raise UsageError("PUBSUB_EMULATOR_HOST", why="it is not HOST:PORT")
        self._is_emulator = bool(emulator)
        self._url = f"{f'http://{emulator}' if emulator else SERVICE}/v1/{name}"
        self._options = options
        self._http = QueueHttp(f"subscription {name}", self._forget_credentials)
        self._credentials: Any = None

    async def receive(self) -> Sequence[QueuedMessage]:
        answer = await self._call("pull", {"maxMessages": MESSAGES_A_REQUEST}, PULL_LIMIT_S)
        # an answer may have tens of MiB
        return await asyncio.to_thread(decode_messages, answer, self._http.name)

    async def delete(self, messages: Sequence[QueuedMessage]) -> None:
        request = {"ackIds": [message.receipt for message in messages]}
        await self._call("acknowledge", request, REQUEST_LIMIT_S)

    async def close(self) -> None:
        await self._http.close()

    async def _call(self, action: str, request: dict[str, Any], limit_s: float) -> bytes:
        headers = {"Content-Type": "application/json"}
        if not self._is_emulator:
            headers["Authorization"] = f"Bearer {await asyncio.to_thread(self._token)}"
        body = msgspec.json.encode(request)
        return await self._http.send(
            "POST", f"{self._url}:{action}", headers=headers, body=body, limit_s=limit_s
        )

    def _forget_credentials(self) -> None:
        self._credentials = None

    def _token(self) -> str:
        """Return a valid access token. Blocks while it is renewed."""
        if self._options.token:
            return self._options.token
        with needs_extra(self._http.name, extra=EXTRA):
            import google.auth
            import google.auth.transport.urllib3
            import google.oauth2.service_account
            import urllib3
        try:
            if self._credentials is None:
                path = os.path.expanduser(self._options.service_account_path)
                if path:
                    account = google.oauth2.service_account.Credentials
                    self._credentials = account.from_service_account_file(path, scopes=[SCOPE])
                else:
                    self._credentials, _ = google.auth.default(scopes=[SCOPE])
            if not self._credentials.valid:
                self._credentials.refresh(google.auth.transport.urllib3.Request(urllib3.PoolManager()))
        except (google.auth.exceptions.GoogleAuthError, ValueError, OSError) as error:
            # the message may quote a key file
            raise OriginDeniedError(self._http.name, why=f"no credentials: {type(error).__name__}") from None
        token: str = self._credentials.token
        return token


def decode_messages(answer: bytes, subscription: str) -> list[QueuedMessage]:
    """Return the messages of an answer. subscription: its name in errors. Raises OriginError."""
    try:
        messages = decode_json(answer, PubsubMessages).messages[:MESSAGES_A_REQUEST]
    except msgspec.DecodeError:
        raise OriginError(subscription, why="the answer is none of Pub/Sub") from None
    return [
        QueuedMessage(received.receipt, _content(received.content), message_id(received.content.id))
        for received in messages
    ]


def _content(message: PubsubMessage) -> ReportedChanges | EventFormatError:
    try:
        return decode_attributes(message.attributes, published_at=message.published_at)
    except EventFormatError as error:
        return error
