"""Receive S3 event notifications from a queue of SQS, by its JSON protocol (AmazonSQS, x-amz-json-1.0).

botocore finds the credentials, as the tools of AWS do, and signs. A message stays invisible for the visibility timeout
of the queue, and is delivered again if it was not deleted by then.
"""

from __future__ import annotations

import asyncio
import os
import re
import urllib.parse
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from headrace.base.decoding import decode_json
from headrace.base.errors import OriginDeniedError, OriginError, UsageError
from headrace.base.missing_extras import needs_extra
from headrace.events.changes import EventFormatError, ReportedChanges
from headrace.events.decode import decode_message
from headrace.origin.cloud import s3_options
from headrace.origin.options import OriginOptions
from headrace.receivers.http import EXTRA, HOSTS_OF_AZURE, HOSTS_OF_GOOGLE, QueueHttp, is_at, origin_of
from headrace.receivers.source import QueuedMessage, message_id

Answer = TypeVar("Answer")

MESSAGES_A_REQUEST = 10
RECEIVE_WAIT_S = 20
"""The longest wait that SQS permits."""
REQUEST_LIMIT_S = 10.0
_QUEUE_URL = re.compile(r"https?://[A-Za-z0-9.\-:]+/[A-Za-z0-9_\-/.]{1,200}")
_REGION = re.compile(r"(?:^|\.)(?:sqs|queue)\.([a-z0-9-]+)\.|^([a-z0-9-]+)\.queue\.")


class SqsMessage(msgspec.Struct, frozen=True):
    receipt: str = msgspec.field(name="ReceiptHandle")
    body: str = msgspec.field(name="Body")
    id: str = msgspec.field(name="MessageId", default="")


class SqsMessages(msgspec.Struct, frozen=True):
    messages: list[SqsMessage] = msgspec.field(name="Messages", default_factory=list)


class SqsFailures(msgspec.Struct, frozen=True):
    failed: list[dict[str, Any]] = msgspec.field(name="Failed", default_factory=list)


def check_queue_url(url: str) -> None:
    """Raise UsageError for anything else than the URL of a queue, and for one of another provider. Any other host may
    be a stand-in for SQS."""
    if not _QUEUE_URL.fullmatch(url) or is_at(url, (*HOSTS_OF_AZURE, *HOSTS_OF_GOOGLE)):
        raise UsageError(
            "option events",
            why="it is no URL of an SQS queue",
            hint="write https://sqs.REGION.amazonaws.com/ACCOUNT/QUEUE, as `aws sqs get-queue-url` prints it",
        )


class SqsQueue:
    """A queue of SQS. options: of the mount, whose credentials read the queue."""

    def __init__(self, url: str, options: OriginOptions) -> None:
        check_queue_url(url)
        self._url = url
        self._endpoint = origin_of(url)
        self._options = s3_options(options, os.environ)
        self._http = QueueHttp(f"queue {url}", self._forget_credentials)
        named = _REGION.search(urllib.parse.urlsplit(url).netloc)
        self._region = (named and (named[1] or named[2])) or self._options.region or "us-east-1"
        self._credentials: Any = None

    async def receive(self) -> Sequence[QueuedMessage]:
        request = {
            "QueueUrl": self._url,
            "MaxNumberOfMessages": MESSAGES_A_REQUEST,
            "WaitTimeSeconds": RECEIVE_WAIT_S,
        }
        answer = await self._call("ReceiveMessage", request, RECEIVE_WAIT_S + REQUEST_LIMIT_S)
        return await asyncio.to_thread(self._messages, answer)  # up to 10 MiB of JSON

    async def delete(self, messages: Sequence[QueuedMessage]) -> None:
        entries = [
            {"Id": str(number), "ReceiptHandle": message.receipt} for number, message in enumerate(messages)
        ]
        request = {"QueueUrl": self._url, "Entries": entries}
        answer = await self._call("DeleteMessageBatch", request, REQUEST_LIMIT_S)
        failed = _decoded(answer, SqsFailures, self._http.name).failed
        if failed:
            raise OriginError(self._http.name, why=f"{len(failed)} messages can't be deleted")

    async def close(self) -> None:
        await self._http.close()

    def _messages(self, answer: bytes) -> list[QueuedMessage]:
        return decode_messages(answer, self._http.name)

    async def _call(self, action: str, request: dict[str, Any], limit_s: float) -> bytes:
        body = msgspec.json.encode(request)
        headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{action}"}
        # credentials may come from a metadata service or a file, which block
        signed = await asyncio.to_thread(self._signed, headers, body)
        return await self._http.send("POST", f"{self._endpoint}/", headers=signed, body=body, limit_s=limit_s)

    def _forget_credentials(self) -> None:
        self._credentials = None

    def _signed(self, headers: dict[str, str], body: bytes) -> dict[str, str]:
        with needs_extra(self._http.name, extra=EXTRA):
            from botocore.auth import SigV4Auth
            from botocore.awsrequest import AWSRequest
            from botocore.exceptions import BotoCoreError
        try:
            credentials = self._find_credentials()
            request = AWSRequest("POST", f"{self._endpoint}/", headers=headers, data=body)
            SigV4Auth(credentials, "sqs", self._region).add_auth(request)
        except BotoCoreError as error:
            raise OriginDeniedError(self._http.name, why=f"no credentials: {type(error).__name__}") from None
        return dict(request.headers.items())

    def _find_credentials(self) -> Any:
        from botocore.credentials import Credentials
        from botocore.session import Session

        options = self._options
        if options.access_key_id:
            return Credentials(
                options.access_key_id, options.secret_access_key, options.session_token or None
            )
        if self._credentials is None:
            session = Session(profile=options.profile or None)
            self._credentials = session.get_credentials()
        if self._credentials is None:
            raise OriginDeniedError(
                self._http.name, why="no credentials were found", hint="give the mount some, or a profile"
            )
        return self._credentials.get_frozen_credentials()


def decode_messages(answer: bytes, queue: str) -> list[QueuedMessage]:
    """Return the messages of an answer. queue: its name in errors. Raises OriginError."""
    messages = _decoded(answer, SqsMessages, queue).messages[:MESSAGES_A_REQUEST]
    return [
        QueuedMessage(message.receipt, _content(message.body), message_id(message.id)) for message in messages
    ]


def _decoded(answer: bytes, kind: type[Answer], queue: str) -> Answer:
    try:
        return decode_json(answer, kind)
    except msgspec.DecodeError:
        raise OriginError(queue, why="the answer is none of SQS") from None


def _content(body: str) -> ReportedChanges | EventFormatError:
    try:
        return decode_message(body.encode("utf-8", "replace"))
    except EventFormatError as error:
        return error
