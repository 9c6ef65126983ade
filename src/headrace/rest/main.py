"""The process of the REST API: `python -m headrace.rest.main`, started by `headrace rest` and `headrace up`.

It listens at a unix socket, which only its user may open, and where it is configured at a TCP address: who asks there
shows a token, or a certificate as peers have (TLS), or both.
"""

from __future__ import annotations

import functools
import os
import socket
import threading
from collections.abc import Callable

from headrace.base.errors import StoreError, UsageError
from headrace.base.tokens import Tokens
from headrace.config.schema import Config, rest_socket_of
from headrace.http.address import BACKLOG, bound_to, is_loopback, listen, split_address
from headrace.http.door import Door
from headrace.http.process import Ready, run_as_process, run_until_signal, take_all_descriptors
from headrace.http.sender import trouble_with_sender
from headrace.http.tls import ServerTls
from headrace.identity.mutual import MutualTls, TlsFiles
from headrace.identity.names import CLIENT, NODE, OPERATOR
from headrace.rest.gateway import Handlers, RestGateway
from headrace.sdk.local_vfs import LocalVfs
from headrace.sdk.node_client import NodeClient

SETTING = "rest_address"
ONLY_UNIX = "unix"
PATIENCE_S = 30.0
"""How long a request waits for a node that is away."""


def check_access(config: Config) -> None:
    """UsageError for an address where anybody could ask."""
    host, _ = split_address(config.rest_address, SETTING)
    if config.rest_insecure or config.tls_certificate:
        return
    if not config.rest_token:
        raise UsageError(
            f"setting {SETTING} = {config.rest_address!r}",
            why="whoever reaches it could do anything with the node",
            hint="set rest_token = FILE, or tls_certificate, tls_key and tls_authority",
        )
    if not is_loopback(host, SETTING):
        raise UsageError(
            f"setting {SETTING} = {config.rest_address!r}",
            why="others reach it, and the token would travel in the open",
            hint="set tls_certificate, tls_key and tls_authority, or say rest_insecure = true",
        )


def serve(config: Config, node_socket: str, on_ready: Callable[[Ready], None]) -> None:
    """Until SIGTERM, SIGINT or SIGHUP, which this takes over. on_ready: told HOST:PORT, or unix:PATH where there is no
    other. UsageError, StoreError, NodeUnavailableError."""
    by_tcp = config.rest_address not in ("", ONLY_UNIX)
    if by_tcp:
        check_access(config)
    tokens = Tokens(config.rest_token, "rest_token") if config.rest_token else None
    tls = server_tls(config)
    take_all_descriptors()
    tcp = listen(config.rest_address, SETTING) if by_tcp else None
    paths = LocalVfs(NodeClient(node_socket, role="rest", patience_s=PATIENCE_S))
    handlers = Handlers(paths)
    at = rest_socket_of(node_socket)
    unix = Door(RestGateway(handlers, None), _listen_unix(at), name="rest-unix")
    if tcp is None:
        on_ready(Ready(f"unix:{at}"))
        run_until_signal(unix)
    else:
        beside = threading.Thread(target=unix.run, name="rest-unix", daemon=True)
        beside.start()
        on_ready(Ready(bound_to(tcp)))
        loopback = is_loopback(split_address(config.rest_address, SETTING)[0], SETTING)
        pages = functools.partial(trouble_with_sender, domains=(), loopback=loopback)
        run_until_signal(Door(RestGateway(handlers, tokens, pages=pages), tcp, name="rest", tls=tls))
        unix.stop()
        beside.join()
    os.unlink(at)
    paths.close()


def server_tls(config: Config) -> ServerTls | None:
    """Nodes and clients of the cluster may ask, as their certificates name them."""
    if not config.tls_certificate:
        return None
    files = TlsFiles(config.tls_certificate, config.tls_key, config.tls_authority)
    tls = MutualTls(files, form=config.tls_identity)
    return ServerTls(tls.server, admit=lambda sock: tls.member(sock, NODE, OPERATOR, CLIENT).until_s)


def _listen_unix(path: str) -> socket.socket:
    """Opened by the user only. A socket file that a dead process left is replaced."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    mask = os.umask(0o177)
    try:
        if os.path.exists(path):
            os.unlink(path)
        listening.bind(path)
    except OSError as error:
        listening.close()
        raise StoreError(f"socket {path}", why=error.strerror or str(error)) from error
    finally:
        os.umask(mask)
    listening.listen(BACKLOG)
    listening.setblocking(False)
    return listening


if __name__ == "__main__":
    run_as_process("rest", serve)
