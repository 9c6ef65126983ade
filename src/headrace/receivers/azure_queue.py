"""Receive events of Azure Event Grid from a queue of Azure Storage, by its REST interface (2021-08-06).

Signed with the account key ("Authorize with Shared Key" in Azure's reference), or with a token of Microsoft Entra ID:
the one of the mount, or those of a workload identity (azure_identity.py), which go to queues of Azure only.
Messages stay invisible for VISIBILITY_S, and are delivered again if they were not deleted by then. The service does not
wait for messages, so an empty queue is asked once a second.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import os
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from email.utils import formatdate
from xml.etree import ElementTree

from headrace.base.bounded_xml import ENCODING, BoundedBuilder, check_xml
from headrace.base.errors import OriginDeniedError, OriginError, OriginUnavailableError, UsageError
from headrace.events.changes import EventFormatError, ReportedChanges
from headrace.events.decode import decode_message
from headrace.origin.options import OriginOptions
from headrace.receivers.azure_identity import WorkloadTokens, workload_identity
from headrace.receivers.http import HOSTS_OF_AWS, HOSTS_OF_GOOGLE, QueueHttp, is_at
from headrace.receivers.source import QueuedMessage

VERSION = "2021-08-06"
MESSAGES_A_REQUEST = 32
"""The most that the service gives at once, of 64 KiB each."""
RUN_BYTES_MAX = 1 << 20
"""Most bytes of a tag of an answer with its text: 64 KiB, and six for each character that is escaped."""
ELEMENTS_MAX = 16384
"""Most elements and attributes of an answer. Each message has eight."""
VISIBILITY_S = 30
REQUEST_LIMIT_S = 10.0
SIGNED_HEADERS = 11
"""Standard headers between the method and those of Azure in the text that is signed; requests here have none."""
_QUEUE_URL = re.compile(r"https?://[A-Za-z0-9.\-:]+(?:/[a-z0-9]{3,24})?/[a-z0-9](?:-?[a-z0-9]){2,62}")
IDENTITY_QUEUE_URL = re.compile(
    r"https://[a-z0-9]{3,24}(?:\.[a-z0-9]{1,24})?"
    r"\.queue\.(?:core\.(?:windows\.net|usgovcloudapi\.net|chinacloudapi\.cn)|storage\.azure\.net)(?::443)?/[a-z0-9-]+"
)
"""The queues to which the token of an identity is sent: it opens all that the identity may use."""
_RECEIPT = re.compile(r"[\x21-\x7e]{1,1024}")


def check_azure_queue(url: str) -> None:
    """Raise UsageError for anything else than the URL of a queue, and for one of another provider."""
    if not _QUEUE_URL.fullmatch(url) or is_at(url, (*HOSTS_OF_AWS, *HOSTS_OF_GOOGLE)):
        raise UsageError(
            "option events",
            why="it is no URL of an Azure storage queue",
            hint="write https://ACCOUNT.queue.core.windows.net/QUEUE",
        )


class AzureQueue:
    """A queue of a storage account. options: of the mount, whose account key or token reads the queue. Without them the
    workload identity of the environment does. Raises UsageError for an invalid one."""

    def __init__(self, url: str, options: OriginOptions) -> None:
        check_azure_queue(url)
        self._url = url
        self._token = options.token
        self._account = options.account_name or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")
        self._key = options.account_key or os.environ.get("AZURE_STORAGE_ACCOUNT_KEY", "")
        self._http = QueueHttp(f"queue {url}", self._forget_token)
        self._identity_tokens = None if self._token or self._key else self._identity_of_environment()

    async def receive(self) -> Sequence[QueuedMessage]:
        query = {"numofmessages": str(MESSAGES_A_REQUEST), "visibilitytimeout": str(VISIBILITY_S)}
        answer = await self._call("GET", "/messages", query)
        return await asyncio.to_thread(self._messages, answer)  # up to 3 MiB of XML

    async def delete(self, messages: Sequence[QueuedMessage]) -> None:
        """Delete messages that were handled. One that was delivered again meanwhile has another receipt: the others are
        deleted nevertheless, and OriginError is raised at the end."""
        refused: OriginError | None = None
        for message in messages:
            id, _, receipt = message.receipt.partition(" ")
            try:
                await self._call("DELETE", f"/messages/{id}", {"popreceipt": receipt})
            except (OriginDeniedError, OriginUnavailableError):
                raise
            except OriginError as error:
                refused = error
        if refused is not None:
            raise refused

    async def close(self) -> None:
        await self._http.close()
        if self._identity_tokens is not None:
            await self._identity_tokens.close()

    def _identity_of_environment(self) -> WorkloadTokens | None:
        identity = workload_identity(os.environ)
        if identity is None or not IDENTITY_QUEUE_URL.fullmatch(self._url):
            return None
        return WorkloadTokens(identity)

    def _forget_token(self) -> None:
        if self._identity_tokens is not None:
            self._identity_tokens.forget()

    async def _call(self, method: str, path: str, query: Mapping[str, str]) -> bytes:
        url = f"{self._url}{path}?{urllib.parse.urlencode(query, quote_via=urllib.parse.quote)}"
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": VERSION}
        if self._identity_tokens is not None:
            headers["Authorization"] = f"Bearer {await self._identity_tokens.get()}"
        else:
            headers["Authorization"] = self._authorization(method, path, query, headers)
        return await self._http.send(method, url, headers=headers, limit_s=REQUEST_LIMIT_S)

    def _authorization(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> str:
        if self._token:
            return f"Bearer {self._token}"
        try:
            key = base64.b64decode(self._key, validate=True)
        except ValueError:
            key = b""
        if not self._account or not key:
            raise OriginDeniedError(
                self._http.name,
                why="no account key was found, or it is none",
                hint="give the mount the options account_name and account_key, or token; or the pod an identity",
            )
        named = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
        resource = f"/{self._account}{urllib.parse.urlsplit(self._url).path}{path}"
        resource += "".join(f"\n{name}:{value}" for name, value in sorted(query.items()))
        text = f"{method}\n" + "\n" * SIGNED_HEADERS + named + resource
        mac = hmac.new(key, text.encode(), hashlib.sha256)
        return f"SharedKey {self._account}:{base64.b64encode(mac.digest()).decode()}"

    def _messages(self, answer: bytes) -> list[QueuedMessage]:
        return decode_messages(answer, self._http.name)


def decode_messages(answer: bytes, name: str) -> list[QueuedMessage]:
    """Decode the messages of an answer. Raise OriginError for anything else. name: of the queue, for messages."""
    try:
        text = answer.decode("utf-8-sig")
        # a document type could define entities that grow without end, and UTF-16 could hide one
        if "<!" in text or "\0" in text:
            raise ElementTree.ParseError
        body = text.encode()
        check_xml(body, run_bytes_max=RUN_BYTES_MAX)
        parser = ElementTree.XMLParser(target=BoundedBuilder(ELEMENTS_MAX), encoding=ENCODING)
        parser.feed(body)
        top: ElementTree.Element = parser.close()
    except (ElementTree.ParseError, ValueError):
        raise OriginError(name, why="the answer is none of a storage queue") from None
    messages = []
    for element in top.findall("QueueMessage")[:MESSAGES_A_REQUEST]:
        id, receipt = element.findtext("MessageId", ""), element.findtext("PopReceipt", "")
        if not re.fullmatch(r"[A-Za-z0-9-]{1,64}", id) or not _RECEIPT.fullmatch(receipt):
            raise OriginError(name, why="a message has no valid id or receipt")
        messages.append(QueuedMessage(f"{id} {receipt}", _content(element.findtext("MessageText", "")), id))
    return messages


def _content(text: str) -> ReportedChanges | EventFormatError:
    """Return what a message reports. Event Grid encodes it by base64."""
    try:
        body = text.strip().encode()
        if not body.startswith((b"{", b"[")):
            body = base64.b64decode(body, validate=True)
        return decode_message(body)
    except EventFormatError as error:
        return error
    except ValueError:
        return EventFormatError("it is neither JSON nor base64")
