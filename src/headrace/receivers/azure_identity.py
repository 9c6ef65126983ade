"""Get tokens of Microsoft Entra ID with the workload identity of a pod (AKS).

The cluster writes a token about the pod into a file, and names it in the environment. Entra exchanges it for an access
token (OAuth 2.0 client credentials with a JWT as assertion, RFC 7523). The origin's client does the same by itself.
"""

from __future__ import annotations

import asyncio
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec

from headrace.base.clock import monotonic_s
from headrace.base.decoding import decode_json
from headrace.base.errors import OriginDeniedError, OriginError, OriginUnavailableError, UsageError
from headrace.receivers.http import QueueHttp

SCOPE = "https://storage.azure.com/.default"
AUTHORITY = "https://login.microsoftonline.com/"
ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
ASSERTION_BYTES_MAX = 65536
ANSWER_BYTES_MAX = 65536
REQUEST_LIMIT_S = 10.0
RENEWED_BEFORE_S = 300.0
"""Seconds before its end at which a token is replaced, if it is valid for longer than twice that."""
_AUTHORITY = re.compile(r"https://[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?(?::[0-9]{1,5})?/?")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}")
_ASSERTION = re.compile(r"[A-Za-z0-9_.~+/=-]+")


class AccessToken(msgspec.Struct, frozen=True):
    token: Annotated[str, msgspec.Meta(pattern=r"\A[\x21-\x7e]{1,32768}\Z")] = msgspec.field(
        name="access_token"
    )
    valid_s: Annotated[int, msgspec.Meta(ge=1, le=7 * 86400)] = msgspec.field(name="expires_in")


@dataclass(frozen=True, slots=True)
class WorkloadIdentity:
    """Names an identity. token_url: where tokens are issued. client_id: of the application. token_file: path of the
    token about the pod, which the cluster replaces from time to time."""

    token_url: str
    client_id: str
    token_file: str


def workload_identity(environment: Mapping[str, str]) -> WorkloadIdentity | None:
    """Return the identity that the environment names, or None. Raise UsageError for an invalid one."""
    client_id = environment.get("AZURE_CLIENT_ID", "")
    tenant_id = environment.get("AZURE_TENANT_ID", "")
    token_file = environment.get("AZURE_FEDERATED_TOKEN_FILE", "")
    if not (client_id and tenant_id and token_file):
        return None
    authority = environment.get("AZURE_AUTHORITY_HOST") or AUTHORITY
    if not _AUTHORITY.fullmatch(authority):
        raise UsageError("AZURE_AUTHORITY_HOST", why="it is not https://HOST")
    for name, id in (("AZURE_CLIENT_ID", client_id), ("AZURE_TENANT_ID", tenant_id)):
        if not _ID.fullmatch(id):
            raise UsageError(name, why="it is no id")
    return WorkloadIdentity(f"{authority.rstrip('/')}/{tenant_id}/oauth2/v2.0/token", client_id, token_file)


class WorkloadTokens:
    """Holds the access token of an identity, and replaces it in time. For one loop."""

    def __init__(self, identity: WorkloadIdentity) -> None:
        self._identity = identity
        self._http = QueueHttp("the workload identity")
        self._lock = asyncio.Lock()
        self._token = ""
        self._valid_until_s = float("-inf")

    async def get(self) -> str:
        """Return a valid token. Raise OriginDeniedError or OriginUnavailableError."""
        async with self._lock:
            if monotonic_s() >= self._valid_until_s:
                asked_s = monotonic_s()
                access = await self._exchange()
                self._token = access.token
                self._valid_until_s = asked_s + max(access.valid_s - RENEWED_BEFORE_S, access.valid_s / 2)
            return self._token

    def forget(self) -> None:
        """Get another token for the next request."""
        self._valid_until_s = float("-inf")

    async def close(self) -> None:
        await self._http.close()

    async def _exchange(self) -> AccessToken:
        form = {
            "client_id": self._identity.client_id,
            "scope": SCOPE,
            "grant_type": "client_credentials",
            "client_assertion_type": ASSERTION_TYPE,
            "client_assertion": await asyncio.to_thread(self._assertion),
        }
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        body = urllib.parse.urlencode(form).encode()
        try:
            answer = await self._http.send(
                "POST", self._identity.token_url, headers=headers, body=body, limit_s=REQUEST_LIMIT_S
            )
            if len(answer) > ANSWER_BYTES_MAX:
                raise OriginError(self._http.name, why=f"an answer has more than {ANSWER_BYTES_MAX} bytes")
            return decode_json(answer, AccessToken)
        except msgspec.DecodeError:
            raise OriginDeniedError(self._http.name, why="the answer is no token") from None
        except (OriginDeniedError, OriginUnavailableError):
            raise
        except OriginError as error:  # a refusal has status 400
            raise OriginDeniedError(self._http.name, why=f"no token was issued: {error.why}") from None

    def _assertion(self) -> str:
        """Return what the file holds. Blocks."""
        try:
            with open(self._identity.token_file, "rb") as file:
                raw = file.read(ASSERTION_BYTES_MAX + 1)
        except OSError as error:
            raise OriginDeniedError(
                "AZURE_FEDERATED_TOKEN_FILE", why=f"it can't be read: {error.strerror}"
            ) from None
        text = raw.decode("ascii", "replace").strip()
        if len(raw) > ASSERTION_BYTES_MAX or not _ASSERTION.fullmatch(text):
            raise OriginDeniedError("AZURE_FEDERATED_TOKEN_FILE", why="it holds no token")
        return text
