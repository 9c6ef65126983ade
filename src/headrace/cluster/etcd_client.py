"""How etcd is reached: plain, or by TLS with a certificate, and as a user with a password.

Certificates and the password are read from their files for each connection, and `renewed` says that they changed since:
who holds a connection then makes another one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.base.errors import ClusterDeniedError, UsageError
from headrace.base.missing_extras import needs_extra
from headrace.base.reloaded import Reloaded
from headrace.base.secret_file import read_secret

_REFUSALS = {
    "permission denied": "permission denied",
    "authentication failed": "authentication failed",
    "user name is empty": "no user is named",
    "authentication is not enabled": "authentication is not enabled",
    "invalid auth token": "invalid auth token",
    "ALERT_BAD_CERTIFICATE": "bad certificate",
    "ALERT_UNKNOWN_CA": "a certificate of another authority",
    "ALERT_CERTIFICATE_EXPIRED": "the certificate has ended",
    "CERTIFICATE_REQUIRED": "no certificate is shown",
}
"""What etcd, and OpenSSL for it, say of who may not do it, whatever status they give to that; and in our words."""
_NOT_BELIEVED = "CERTIFICATE_VERIFY_FAILED"
"""What grpc says of an etcd whose certificate is not taken."""
_STALE = ("invalid auth token", "revision of auth store is old")
"""Another connection may do: the token was of an earlier time."""


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """tls: whether it is spoken. authority, certificate, key: PEM files; certificate and key "": none is shown. user:
    "" for none; password: the file that has it."""

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
    """UsageError for files that can't be read, MissingExtraError."""

    def __init__(self, access: EtcdAccess, *, timeout_s: float) -> None:
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what it has to say comes as an error, too
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
        """Whether the files changed since the last client was made."""
        self._secrets.get()
        return self._secrets.changes != self._used

    @property
    def delete_event(self) -> Any:
        return self._aetcd.EventKind.DELETE

    def client(self, endpoint: str) -> Any:
        """Not connected yet. endpoint: "host:port"."""
        secrets = self._secrets.get()
        self._used = self._secrets.changes
        return _client(self._aetcd, endpoint, self._access, secrets, timeout_s=self._timeout_s)

    def lease_channel(self, endpoint: str) -> LeaseChannel:
        """For a thread. Not connected yet."""
        return LeaseChannel(self._aetcd.client.rpc, endpoint, self._access, self._secrets, self._timeout_s)

    def denial_of(self, error: BaseException, endpoints: Sequence[str]) -> ClusterDeniedError | None:
        """What to raise where etcd refuses who asks; None where something else went wrong."""
        text = str(error)
        what = f"etcd at {', '.join(endpoints)}"
        if _NOT_BELIEVED in text:
            why = text.partition(_NOT_BELIEVED)[2].strip(": ").removesuffix(": OK")
            return ClusterDeniedError(
                what, why=f"its certificate is not taken: {why}", hint="see cluster_authority"
            )
        why = next((ours for theirs, ours in _REFUSALS.items() if theirs in text), "")
        if not why:
            return None
        who = f"user {self._access.user!r}" if self._access.user else "who has this node's certificate"
        if not (self._access.user or self._access.certificate):
            who = "this node, which shows neither a certificate nor a user"
        return ClusterDeniedError(
            what,
            why=f"it refuses {who}: {why}",
            hint="see the roles in docs/security/etcd.md",
        )

    def is_stale(self, error: BaseException) -> bool:
        """Whether a new connection may do what this one was refused."""
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


class LeaseChannel:
    """A connection on which a lease is renewed. Calls block for timeout_s at most, and raise what grpc does."""

    def __init__(
        self, rpc: Any, endpoint: str, access: EtcdAccess, secrets: Reloaded[_Secrets], timeout_s: float
    ) -> None:
        import grpc

        self._rpc = rpc
        self._access = access
        self._secrets = secrets
        self._timeout_s = timeout_s
        held = secrets.get()
        self._changes = secrets.changes
        self._channel: Any = (
            grpc.secure_channel(endpoint, _credentials(held))
            if access.tls
            else grpc.insecure_channel(endpoint)
        )
        self._password = held.password
        self._metadata: tuple[tuple[str, str], ...] = ()

    @property
    def is_stale(self) -> bool:
        """Whether certificates or password changed since."""
        self._secrets.get()
        return self._secrets.changes != self._changes

    def renew(self, lease: int) -> float:
        """For how long etcd keeps it; 0: it does not have it."""
        if self._access.user and not self._metadata:
            asked = self._rpc.AuthenticateRequest(name=self._access.user, password=self._password)
            answer = self._rpc.AuthStub(self._channel).Authenticate(asked, timeout=self._timeout_s)
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
    """aetcd's own client, which can open a plain channel only: the one call that opens it is another one."""
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
                asked = rpc.AuthenticateRequest(name=access.user, password=secrets.password)
                answer = await rpc.AuthStub(self.channel).Authenticate(asked, timeout=timeout_s)
                self.metadata = (("token", answer.token),)
            self.kvstub = rpc.KVStub(self.channel)
            self.leasestub = rpc.LeaseStub(self.channel)
            self._watcher = aetcd.watcher.Watcher(
                rpc.WatchStub(self.channel), timeout=timeout_s, metadata=self.metadata
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
