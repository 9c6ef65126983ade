"""Run the process of the REST API: `python -m headrace.rest.main`, started by `headrace rest` and `headrace up`.

It listens on a unix socket, which only its user may open, and on a TCP address if one is configured. A TCP client
sends a token, or a certificate as peers have (TLS), or both.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
from collections.abc import Callable, Iterator

from headrace.base.descriptor_limit import raise_descriptor_limit
from headrace.base.errors import StoreError, UsageError
from headrace.base.tokens import Tokens
from headrace.client.discovery import answers
from headrace.client.node_client import NodeClient
from headrace.config.schema import Config, rest_socket_of
from headrace.http.address import BACKLOG, bound_to, is_loopback, listen, split_address
from headrace.http.process import Ready, run_as_process, run_until_signal
from headrace.http.sender import sender_refusal
from headrace.http.server import HttpServer
from headrace.http.tls import ServerTls
from headrace.identity.mutual import MutualTls, TlsFiles
from headrace.identity.names import CLIENT, NODE, OPERATOR
from headrace.rest.gateway import Handlers, RestGateway
from headrace.vfs.local_vfs import LocalVfs

SETTING = "rest_address"
ONLY_UNIX = "unix"
PATIENCE_S = 30.0
"""Seconds for which a request waits for an unavailable node."""


def check_access(config: Config) -> None:
    """Raise UsageError for an address where access is not authenticated or not encrypted."""
    host, _ = split_address(config.rest_address, SETTING)
    if config.rest_insecure or config.tls_certificate:
        return
    if not config.rest_token:
        raise UsageError(
            f"setting {SETTING} = {config.rest_address!r}",
            why="every client that reaches it could do anything with the node",
            hint="set rest_token = FILE, or tls_certificate, tls_key and tls_authority",
        )
    if not is_loopback(host, SETTING):
        raise UsageError(
            f"setting {SETTING} = {config.rest_address!r}",
            why="other hosts reach it, and would send the token unencrypted",
            hint="set tls_certificate, tls_key and tls_authority, or rest_insecure = true",
        )


def serve(config: Config, node_socket: str, on_ready: Callable[[Ready], None]) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP. Call `on_ready` with HOST:PORT, or with unix:PATH without a TCP address.
    Raises UsageError, StoreError or NodeUnavailableError."""
    by_tcp = config.rest_address not in ("", ONLY_UNIX)
    if by_tcp:
        check_access(config)
    tokens = Tokens(config.rest_token, "rest_token") if config.rest_token else None
    events_tokens = Tokens(config.events_token, "events_token") if config.events_token else None
    tls = server_tls(config)
    raise_descriptor_limit()
    tcp = listen(config.rest_address, SETTING) if by_tcp else None
    vfs = LocalVfs(NodeClient(node_socket, role="rest", patience_s=PATIENCE_S))
    handlers = Handlers(vfs)
    socket_path = rest_socket_of(node_socket)
    if tcp is None:
        server = HttpServer(RestGateway(handlers, None), _listen_unix(socket_path), name="rest-unix")
        run_until_signal(server, lambda: on_ready(Ready(f"unix:{socket_path}")))
        os.unlink(socket_path)
    else:
        with _serving_unix(handlers, socket_path):
            loopback = is_loopback(split_address(config.rest_address, SETTING)[0], SETTING)
            pages = functools.partial(sender_refusal, domains=(), loopback=loopback)
            gateway = RestGateway(handlers, tokens, events_tokens=events_tokens, pages=pages)
            server = HttpServer(gateway, tcp, name="rest", tls=tls)
            address = bound_to(tcp)
            run_until_signal(server, lambda: on_ready(Ready(address)))
    vfs.close()


@contextlib.contextmanager
def _serving_unix(handlers: Handlers, path: str) -> Iterator[None]:
    """Serve on the unix socket, too, in a thread; not if another REST API of the node does."""
    if answers(path):
        yield
        return
    server = HttpServer(RestGateway(handlers, None), _listen_unix(path), name="rest-unix")
    thread = threading.Thread(target=server.run, name="rest-unix", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.stop()
        thread.join()
        os.unlink(path)


def server_tls(config: Config) -> ServerTls | None:
    """Return TLS that admits nodes, operators and clients of the cluster by their certificates; None without TLS."""
    if not config.tls_certificate:
        return None
    files = TlsFiles(config.tls_certificate, config.tls_key, config.tls_authority)
    tls = MutualTls(files, form=config.tls_identity)
    return ServerTls(tls.server, admit=lambda sock: tls.member(sock, NODE, OPERATOR, CLIENT).until_s)


def _listen_unix(path: str) -> socket.socket:
    """Listen on a unix socket that only the user can open. Replaces a socket file that a dead process left. Raises
    UsageError if a live one listens there, StoreError."""
    if answers(path):
        raise UsageError(
            f"socket {path}",
            why="another REST API of this node listens there",
            hint="use that one, or give this one an address: --address HOST:PORT",
        )
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
