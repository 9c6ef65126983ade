"""From addresses to nodes: what all callers of one process share."""

from __future__ import annotations

import ssl

from headrace.base.errors import UsageError
from headrace.base.tokens import Tokens
from headrace.config.load import load
from headrace.identity.mutual import MutualTls, TlsFiles
from headrace.sdk.remote.cluster_client import ClusterClient
from headrace.sdk.remote.http_connection import Address
from headrace.sdk.remote.remote_vfs import RemoteVfs
from headrace.sdk.vfs_registry import VfsRegistry

SCHEMES = ("http", "https", "headrace", "unix")


class RemoteRegistry(VfsRegistry[RemoteVfs]):
    """One `RemoteVfs` for each list of addresses."""

    def get(self, nodes: str, patience_s: float) -> RemoteVfs:
        """nodes: as the setting. NodeUnavailableError where none of them answers, NotAllowedError, UsageError."""
        return self.reach((nodes, patience_s), lambda: open_remote_vfs(nodes, patience_s))


REMOTES = RemoteRegistry()


def open_remote_vfs(nodes: str, patience_s: float) -> RemoteVfs:
    config = load().config
    tls: MutualTls | None = None
    if config.tls_certificate:
        files = TlsFiles(config.tls_certificate, config.tls_key, config.tls_authority)
        tls = MutualTls(files, form=config.tls_identity)
    addresses = [address_of(one.strip(), tls) for one in nodes.split(",") if one.strip()]
    if not addresses:
        raise UsageError("nodes", why="none is named", hint="for example https://10.0.0.5:7480")
    tokens = Tokens(config.rest_token, "rest_token") if config.rest_token else None
    return RemoteVfs(ClusterClient(addresses, tokens, patience_s=patience_s))


def address_of(text: str, tls: MutualTls | None) -> Address:
    """http://HOST:PORT, https://HOST:PORT, unix:PATH; headrace://HOST:PORT is the one or the other as TLS is set up or
    not. tls: with our certificate; without it, https goes by the authorities that the system knows. UsageError."""
    scheme, colon, rest = text.partition(":")
    if not colon or scheme not in SCHEMES or (scheme != "unix") != rest.startswith("//"):
        raise UsageError(f"node {text!r}", why="not understood", hint="for example https://10.0.0.5:7480")
    if scheme == "unix":
        return Address(text, None)
    if scheme == "headrace":
        scheme = "http" if tls is None else "https"
    url = f"{scheme}:{rest}".rstrip("/")
    if scheme == "http":
        return Address(url, None)
    return Address(url, tls or ssl.create_default_context())
