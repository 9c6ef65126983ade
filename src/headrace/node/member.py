"""Decide how other nodes know this one: its id, its certificate, and the addresses where they reach it."""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass

from headrace import __version__
from headrace.base.errors import UsageError
from headrace.base.namespace_path import check_node_id
from headrace.base.write_modes import WriteModes
from headrace.config.schema import Config
from headrace.http.address import is_loopback
from headrace.identity.mutual import MutualTls, TlsFiles
from headrace.identity.names import NODE
from headrace.ring.view import NodeInfo
from headrace.wire.peer_messages import PEER_PROTOCOL
from headrace.writeback.coherence.directory_claims import writes_of

PORT = 7412


@dataclass(frozen=True, slots=True)
class Member:
    """This node as a member of the cluster. info: its record; host, port: where it serves peers; tls: None for plain
    TCP."""

    info: NodeInfo
    cluster: str
    host: str
    port: int
    tls: MutualTls | None

    @classmethod
    def of(cls, config: Config, cluster: str, endpoint: str, *, capacity_bytes: int) -> Member:
        """Build the member of this run. endpoint: one of etcd; capacity_bytes: of this node's cache. Raise
        UsageError."""
        host, port = listen_address(config, endpoint)
        tls = node_tls(config, cluster)
        info = NodeInfo(
            id=node_id_of(config, tls),
            instance=secrets.token_hex(8),
            address=f"{host}:{port}",
            zone=config.zone,
            capacity_bytes=capacity_bytes,
            version=__version__,
            protocol=PEER_PROTOCOL,
            api=api_url(config, host),
            writes=writes_of(WriteModes.parse(config.write)),
        )
        return cls(info, cluster, host, port, tls)


def node_tls(config: Config, cluster: str) -> MutualTls | None:
    """Return the node's TLS, or None without certificates. Raise UsageError."""
    if not config.tls_certificate:
        return None
    files = TlsFiles(config.tls_certificate, config.tls_key, config.tls_authority)
    tls = MutualTls(files, form=config.tls_identity, cluster=cluster)
    if tls.own.role != NODE:
        raise UsageError(
            f"setting tls_certificate = {files.certificate}", why=f"it names {tls.own}, which is no node"
        )
    return tls


def node_id_of(config: Config, tls: MutualTls | None) -> str:
    """Return the node's id, on which certificate, setting, record and messages agree. Raise UsageError."""
    if tls is None:
        node_id = config.node_id or socket.gethostname()
        try:
            check_node_id(node_id)
        except ValueError as error:
            raise UsageError(
                f"node id {node_id[:80]!r}", why=str(error), hint="set another node_id"
            ) from None
        return node_id
    if config.node_id not in ("", tls.own.name):
        raise UsageError(
            f"setting node_id = {config.node_id!r}",
            why=f"the certificate {tls.files.certificate} names {tls.own}",
            hint="remove node_id, or issue a certificate for it",
        )
    return tls.own.name


def listen_address(config: Config, endpoint: str) -> tuple[str, int]:
    """Return host and port where peers reach this node. Raise UsageError for an invalid address, and for one beyond
    loopback without TLS."""
    host, _, port_text = config.listen.rpartition(":")
    if config.listen and (not port_text.isdigit() or int(port_text) > 65535):
        raise UsageError(
            f"setting listen = {config.listen!r}", why="it is not HOST:PORT", hint="for example 10.0.0.5:7412"
        )
    port = int(port_text) if config.listen else PORT
    host = host.strip("[]")
    if host in ("", "0.0.0.0", "::"):
        host = _address_towards(endpoint)
    if not (config.tls_certificate or config.peers_insecure or is_loopback(host, "listen")):
        raise UsageError(
            f"peers at {host}:{port}",
            why="other hosts reach this address, and without TLS anybody could read and change the cache",
            hint="set tls_certificate, tls_key and tls_authority, or peers_insecure = true on a private network",
        )
    return host, port


def api_url(config: Config, host: str) -> str:
    """Return the URL of the REST API for other hosts, or "" without one. host: where peers reach this node."""
    rest_host, _, port = config.rest_address.rpartition(":")
    if not rest_host or port == "0":
        return ""
    if rest_host.strip("[]") in ("0.0.0.0", "::"):
        rest_host = f"[{host}]" if ":" in host else host
    return f"{'https' if config.tls_certificate else 'http'}://{rest_host}:{port}"


def _address_towards(endpoint: str) -> str:
    """Return this host's address on the route to etcd. Nothing is sent: a datagram socket only looks the route up."""
    host, _, port = endpoint.rpartition(":")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, int(port)))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise UsageError(
            "no address for peers",
            why=f"{endpoint}: {error.strerror or error}",
            hint="set listen = HOST:PORT",
        ) from error
