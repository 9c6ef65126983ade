"""Provide TLS with certificates on both sides, each with a name in it: between nodes, and at their REST APIs.

The certificate decides who the other side is: each connection yields a `PeerIdentity`, with the identity and its
end. Host names are not compared, because nodes are known by their ids and move between addresses. Files that change
are used for new connections.
"""

from __future__ import annotations

import socket
import ssl
import time
from dataclasses import dataclass

from headrace.base.errors import UsageError
from headrace.base.refusals import reason_of
from headrace.base.reloaded import Reloaded
from headrace.base.secret_file import load_key
from headrace.identity.names import DEFAULT_FORM, NODE, Identity, NameForm, StrangerError, uris_of

HANDSHAKE_STEPS_MAX = 10


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Names PEM files: this side's certificate with its chain, its key without a password, and the authority that
    must have signed the other side's certificate. option: of a mount that names their directory; "": settings do."""

    certificate: str
    key: str
    authority: str
    option: str = ""

    def names(self) -> tuple[str, str, str]:
        return self.certificate, self.key, self.authority

    @property
    def key_subject(self) -> str:
        """Return what messages about the key begin with, before its path."""
        return f"option {self.option}" if self.option else "setting tls_key"

    @property
    def certificate_subject(self) -> str:
        if self.option:
            return f"option {self.option}: {self.certificate} and {self.key}"
        return f"settings tls_certificate {self.certificate}, tls_key {self.key}"

    @property
    def authority_subject(self) -> str:
        return (
            f"option {self.option}: {self.authority}"
            if self.option
            else f"setting tls_authority {self.authority}"
        )


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """Identifies the other side of a connection. until_s: when its certificate expires, in wall-clock time."""

    identity: Identity
    until_s: float

    @property
    def expired(self) -> bool:
        return time.time() >= self.until_s


@dataclass(frozen=True, slots=True)
class _Contexts:
    """Holds the contexts of both sides. own: this side's identity, from its certificate."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    own: Identity


class MutualTls:
    """Makes TLS connections that verify both sides. Raise UsageError for files that are missing, wrong, expired or
    without a name. cluster: its name; "": the name in the own certificate."""

    def __init__(self, files: TlsFiles, *, form: str = DEFAULT_FORM, cluster: str = "") -> None:
        self._files = files
        self._form = NameForm(form)
        self._cluster = cluster
        self._own: Identity | None = None
        self._contexts = Reloaded(files.names(), self._build, name="certificate")
        self._own = self._contexts.get().own

    @property
    def own(self) -> Identity:
        assert self._own is not None
        return self._own

    @property
    def files(self) -> TlsFiles:
        return self._files

    @property
    def form(self) -> NameForm:
        return self._form

    @property
    def renewals(self) -> int:
        """Return the number of times that the files were read again."""
        self._contexts.get()
        return self._contexts.changes

    def server(self) -> ssl.SSLContext:
        return self._contexts.get().server

    def wrap_socket(self, sock: socket.socket, server_hostname: str | None = None) -> ssl.SSLSocket:
        """Connect as a client to a node. On StrangerError or OSError sock is closed."""
        return self.dial(sock)[0]

    def dial(self, sock: socket.socket, node: str = "") -> tuple[ssl.SSLSocket, PeerIdentity]:
        """Connect to a node. node: the id that its certificate must name; "": any. On StrangerError or OSError sock
        is closed."""
        tls = self._contexts.get().client.wrap_socket(sock)
        try:
            return tls, self.member(tls, NODE, name=node)
        except BaseException:
            tls.close()
            raise

    def member(self, tls: ssl.SSLSocket | ssl.SSLObject, *roles: str, name: str = "") -> PeerIdentity:
        """Return the identity of the other side, after the handshake. Raise StrangerError when it has none of these
        roles, or another name."""
        member = self._read(tls.getpeercert() or {})
        identity = member.identity
        if identity.cluster != self.own.cluster:
            raise StrangerError(
                f"its certificate names {identity}, but this node is in cluster {self.own.cluster}"
            )
        if identity.role not in roles:
            raise StrangerError(f"its certificate names {identity}, which is no {' or '.join(roles)}")
        if name and identity.name != name:
            raise StrangerError(f"its certificate names {identity}, not {name}")
        return member

    # ------------------------------------------------------------ internal

    def _read(self, certificate: ssl._PeerCertRetDictType) -> PeerIdentity:
        identity = self._form.of_uris(uris_of(certificate))
        if not identity.cluster:
            identity = Identity(self._cluster, identity.role, identity.name)
        return PeerIdentity(identity, ssl.cert_time_to_seconds(str(certificate["notAfter"])))

    def _build(self) -> _Contexts:
        server = _context(ssl.PROTOCOL_TLS_SERVER, self._files)
        client = _context(ssl.PROTOCOL_TLS_CLIENT, self._files)
        own = self._check_own(server)
        if self._own is not None and own != self._own:
            raise UsageError(f"certificate {self._files.certificate}", why=f"it names {own} now")
        return _Contexts(server, client, own)

    def _check_own(self, server: ssl.SSLContext) -> Identity:
        """Return the identity of the own certificate, after a handshake with itself in memory: OpenSSL verifies the
        certificate as another node would."""
        subject = f"certificate {self._files.certificate}"
        try:
            own = self._read(_seen_by_server(server, self._files)).identity
        except ssl.SSLError as error:
            raise UsageError(
                subject, why=f"other nodes would refuse it: {reason_of(error)}", hint="headrace tls renew"
            ) from error
        except StrangerError as error:
            raise UsageError(
                subject,
                why=str(error).replace("its certificate", "it"),
                hint="make one with a name by headrace tls issue, or set tls_identity",
            ) from error
        if self._cluster and own.cluster != self._cluster:
            raise UsageError(subject, why=f"it names {own}, but this node is in cluster {self._cluster}")
        return own


def _seen_by_server(server: ssl.SSLContext, files: TlsFiles) -> ssl._PeerCertRetDictType:
    """Return the own certificate as a server with that context receives it. Raise SSLError when the server refuses
    it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # only the server's half is tested
    load_key(context, files.certificate, files.key, files.key_subject)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_server)
    acceptor = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(HANDSHAKE_STEPS_MAX):
        for side in (client, acceptor):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            if side is acceptor:
                return side.getpeercert() or {}
    raise ssl.SSLError("the handshake does not finish")


def _context(side: int, files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    if side == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # sessions are not resumed, because connections are kept open
    try:
        load_key(context, files.certificate, files.key, files.key_subject)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            files.certificate_subject,
            why=error.strerror or str(error),
        ) from error
    try:
        context.load_verify_locations(files.authority)
    except OSError as error:
        raise UsageError(files.authority_subject, why=error.strerror or str(error)) from error
    return context
