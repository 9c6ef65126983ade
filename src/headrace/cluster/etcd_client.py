"""Connect to etcd: without TLS, or by TLS with a certificate, and as a user with a password.

Each connection reads certificates and the password from their files. `renewed` reports that they changed since; the
owner of a connection then makes a new one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.base.errors import ClusterDeniedError, UsageError
from headrace.base.missing_extras import needs_extra
from headrace.base.reloaded import Reloaded
from headrace.base.secret_file import read_secret

_REFUSALS = {
    "permission denied": "permission denied",
    "authentication failed": "authentication failed",
    "user name is empty": "the user name is empty",
    "authentication is not enabled": "authentication is not enabled",
    "invalid auth token": "invalid auth token",
    "ALERT_BAD_CERTIFICATE": "bad certificate",
    "ALERT_UNKNOWN_CA": "a certificate of another authority",
    "ALERT_CERTIFICATE_EXPIRED": "the certificate has expired",
    "CERTIFICATE_REQUIRED": "no certificate was sent",
}
"""Texts by which etcd, or OpenSSL for it, refuses a client, whatever the status code; and the texts of our messages."""
_NOT_TRUSTED = "CERTIFICATE_VERIFY_FAILED"
"""The text by which grpc reports that etcd's certificate is not trusted."""
_STALE = ("invalid auth token", "revision of auth store is old")
"""The token belongs to an earlier time; a new connection may work."""


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """Holds the credentials for etcd. tls: whether to use TLS. authority, certificate, key: PEM files; certificate
    and key "": send none. user: "" for none; password: the file that holds it."""

    tls: bool = False
    authority: str = ""
    certificate: str = ""
    key: str = ""
    user: str = ""
    password: str = ""


@dataclass(frozen=True, slots=True)
class _Secrets:
    authority: bytes | None
    certificate: bytes | None
    key: bytes | None
    password: str


class EtcdConnector:
    """Makes connections to etcd. Raise UsageError for files that can't be read, and MissingExtraError."""

    def __init__(self, access: EtcdAccess, *, timeout_s: float) -> None:
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # grpc also raises the errors that it would log
        with needs_extra("setting cluster"):
            import aetcd
        self._aetcd: Any = aetcd
        self._access = access
        self._timeout_s = timeout_s
        files = [access.authority, access.certificate, access.key, access.password]
        self._secrets = Reloaded([name for name in files if name], self._read, name="access to etcd")
        self._used = 0

    @property
    def renewed(self) -> bool:
        """Return whether the files changed since the last client was made."""
        self._secrets.get()
        return self._secrets.changes != self._used

    @property
    def delete_event(self) -> Any:
        return self._aetcd.EventKind.DELETE

    def client(self, endpoint: str) -> Any:
        """Return a client that has not connected yet. endpoint: "host:port"."""
        secrets = self._secrets.get()
        self._used = self._secrets.changes
        return _client(self._aetcd, endpoint, self._access, secrets, timeout_s=self._timeout_s)

    def lease_channel(self, endpoint: str) -> LeaseChannel:
        """Return a connection for a thread, not connected yet."""
        return LeaseChannel(self._aetcd.client.rpc, endpoint, self._access, self._secrets, self._timeout_s)

    def denial_of(self, error: BaseException, endpoints: Sequence[str]) -> ClusterDeniedError | None:
        """Return the error to raise when etcd refuses this node, or None when something else failed."""
        text = str(error)
        subject = f"etcd at {', '.join(endpoints)}"
        if _NOT_TRUSTED in text:
            why = text.partition(_NOT_TRUSTED)[2].strip(": ").removesuffix(": OK")
            return ClusterDeniedError(
                subject, why=f"its certificate is not trusted: {why}", hint="see cluster_authority"
            )
        why = next((ours for theirs, ours in _REFUSALS.items() if theirs in text), "")
        if not why:
            return None
        who = f"user {self._access.user!r}" if self._access.user else "the holder of this node's certificate"
        if not (self._access.user or self._access.certificate):
            who = "this node, which sends neither a certificate nor a user"
        return ClusterDeniedError(
            subject,
            why=f"it refuses {who}: {why}",
            hint="see the roles in docs/security/etcd.md",
        )

    def is_stale(self, error: BaseException) -> bool:
        """Return whether a new connection may be permitted a request that this one was refused."""
        return any(words in str(error) for words in _STALE)

    def _read(self) -> _Secrets:
        access = self._access
        password = _secret(access.password, "cluster_password")
        return _Secrets(
            _content(access.authority, "cluster_authority"),
            _content(access.certificate, "cluster_certificate"),
            _secret(access.key, "cluster_key"),
            (password or b"").decode().strip(),
        )


class LoudWatchStub:
    """Opens streams of watches that end with an error only. aetcd ignores that etcd cancels a watch, or ends the
    stream: its reader would wait for ever."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub

    async def Watch(self, requests: Any, **options: Any) -> AsyncIterator[Any]:
        async for response in self._stub.Watch(requests, **options):
            if response.canceled and not response.compact_revision:  # that one aetcd reports
                raise ConnectionError(
                    f"etcd cancelled the watch: {response.cancel_reason or 'no reason given'}"
                )
            yield response
        raise ConnectionError("etcd ended the watch")


class LeaseChannel:
    """Is a connection that renews a lease. Calls block for at most timeout_s, and raise the errors of grpc."""

    def __init__(
        self, rpc: Any, endpoint: str, access: EtcdAccess, secrets: Reloaded[_Secrets], timeout_s: float
    ) -> None:
        import grpc

        self._rpc = rpc
        self._access = access
        self._secrets = secrets
        self._timeout_s = timeout_s
        current = secrets.get()
        self._changes = secrets.changes
        self._channel: Any = (
            grpc.secure_channel(endpoint, _credentials(current))
            if access.tls
            else grpc.insecure_channel(endpoint)
        )
        self._password = current.password
        self._metadata: tuple[tuple[str, str], ...] = ()

    @property
    def is_stale(self) -> bool:
        """Return whether certificates or password changed since the connection was made."""
        self._secrets.get()
        return self._secrets.changes != self._changes

    def renew(self, lease: int) -> float:
        """Return the seconds for which etcd keeps the lease; 0 when it does not have it."""
        if self._access.user and not self._metadata:
            request = self._rpc.AuthenticateRequest(name=self._access.user, password=self._password)
            answer = self._rpc.AuthStub(self._channel).Authenticate(request, timeout=self._timeout_s)
            self._metadata = (("token", answer.token),)
        call = self._rpc.LeaseStub(self._channel).LeaseKeepAlive(
            iter([self._rpc.LeaseKeepAliveRequest(ID=lease)]),
            timeout=self._timeout_s,
            metadata=self._metadata,
        )
        try:
            return float(next(call).TTL)
        finally:
            call.cancel()

    def close(self) -> None:
        self._channel.close()


def _content(path: str, setting: str) -> bytes | None:
    if not path:
        return None
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise UsageError(f"setting {setting} = {path}", why=error.strerror or str(error)) from error


def _secret(path: str, setting: str) -> bytes | None:
    return read_secret(path, f"setting {setting}").encode() if path else None


def _client(aetcd: Any, endpoint: str, access: EtcdAccess, secrets: _Secrets, *, timeout_s: float) -> Any:
    """Return aetcd's client with another method to open the channel, because aetcd can open only plain channels."""
    host, _, port = endpoint.rpartition(":")
    rpc = aetcd.client.rpc

    class Client(aetcd.Client):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(host=host, port=int(port), timeout=timeout_s)
            self._opening = asyncio.Lock()

        async def connect(self) -> None:
            async with self._opening:
                if not self._connected.is_set():
                    await self._open()

        async def _open(self) -> None:
            self.channel = _channel(rpc, endpoint, access, secrets)
            if access.user:
                request = rpc.AuthenticateRequest(name=access.user, password=secrets.password)
                answer = await rpc.AuthStub(self.channel).Authenticate(request, timeout=timeout_s)
                self.metadata = (("token", answer.token),)
            self.kvstub = rpc.KVStub(self.channel)
            self.leasestub = rpc.LeaseStub(self.channel)
            self._watcher = aetcd.watcher.Watcher(
                LoudWatchStub(rpc.WatchStub(self.channel)), timeout=timeout_s, metadata=self.metadata
            )
            self._connected.set()

    return Client()


def _channel(rpc: Any, endpoint: str, access: EtcdAccess, secrets: _Secrets) -> Any:
    if not access.tls:
        return rpc.insecure_channel(endpoint)
    return rpc.secure_channel(endpoint, _credentials(secrets))


def _credentials(secrets: _Secrets) -> Any:
    import grpc

    return grpc.ssl_channel_credentials(
        root_certificates=secrets.authority,
        private_key=secrets.key,
        certificate_chain=secrets.certificate,
    )
