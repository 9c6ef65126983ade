"""Share the connections to nodes of other hosts in a process, by their addresses."""

from __future__ import annotations

import ssl

from headrace.base.errors import UsageError
from headrace.base.tokens import Tokens
from headrace.config.load import load
from headrace.http.node_connection import Address
from headrace.identity.mutual import MutualTls, TlsFiles
from headrace.vfs.remote.cluster_client import ClusterClient
from headrace.vfs.remote.remote_vfs import RemoteVfs
from headrace.vfs.vfs_registry import VfsRegistry

SCHEMES = ("http", "https", "headrace", "unix")


class RemoteRegistry(VfsRegistry[RemoteVfs]):
    """Keeps one `RemoteVfs` for each list of addresses."""

    def get(self, nodes: str, patience_s: float) -> RemoteVfs:
        """Return the namespace of the nodes. nodes: as the setting. Raises NodeUnavailableError where none of them
        answers, NotAllowedError, UsageError."""
        return self.reach((nodes, patience_s), lambda: open_remote_vfs(nodes, patience_s))


REMOTES = RemoteRegistry()


def open_remote_vfs(nodes: str, patience_s: float) -> RemoteVfs:
    config = load().config
    tls: MutualTls | None = None
    if config.tls_certificate:
        files = TlsFiles(config.tls_certificate, config.tls_key, config.tls_authority)
        tls = MutualTls(files, form=config.tls_identity)
    addresses = [address_of(text.strip(), tls) for text in nodes.split(",") if text.strip()]
    if not addresses:
        raise UsageError("nodes", why="the list is empty", hint="for example https://10.0.0.5:7480")
    tokens = Tokens(config.rest_token, "rest_token") if config.rest_token else None
    return RemoteVfs(ClusterClient(addresses, tokens, patience_s=patience_s))


def address_of(text: str, tls: MutualTls | None) -> Address:
    """Parse http://HOST:PORT, https://HOST:PORT or unix:PATH. headrace://HOST:PORT means https if TLS is set up, and
    http otherwise. tls: this host's certificate; without it, https trusts the system's authorities. Raises
    UsageError."""
    scheme, colon, rest = text.partition(":")
    host = rest.removeprefix("//").partition("/")[0]
    if scheme != "unix" and "@" in host:  # first, as other messages repeat the address
        raise UsageError(
            "address of a node",
            why="the URL holds a user or a password",
            hint="set rest_token to a file with the token",
        )
    if not colon or scheme not in SCHEMES or (scheme != "unix") != rest.startswith("//"):
        raise UsageError(
            f"node {text!r}", why="it is not a valid address", hint="for example https://10.0.0.5:7480"
        )
    if scheme == "unix":
        return Address(text, None)
    if scheme == "headrace":
        scheme = "http" if tls is None else "https"
    url = f"{scheme}:{rest}".rstrip("/")
    if scheme == "http":
        return Address(url, None)
    return Address(url, tls or ssl.create_default_context())
