"""Run the WebHDFS gateway: `python -m headrace.webhdfs.main`, started by `headrace webhdfs` and `headrace up`."""

from __future__ import annotations

import os
from collections.abc import Callable

from headrace.base.descriptor_limit import raise_descriptor_limit
from headrace.base.errors import UsageError
from headrace.base.secret_file import create_secret
from headrace.base.tokens import Tokens, make_token
from headrace.client.node_client import NodeClient
from headrace.client.request_stats import StatsReporter
from headrace.config.schema import Config
from headrace.http.address import bound_to, is_loopback, listen, split_address
from headrace.http.process import Ready, run_as_process, run_until_signal
from headrace.http.server import HttpServer
from headrace.http.tls import server_tls
from headrace.vfs.local_vfs import LocalVfs
from headrace.webhdfs.gateway import WebHdfsGateway
from headrace.webhdfs.token_file import TokenFile

SETTING = "webhdfs_address"
TOKEN_NAME = "webhdfs-token"
HADOOP_NAME = "webhdfs-token.hadoop"
PATIENCE_S = 30.0
"""Seconds for which a request waits for an unavailable node. Clients give up after a minute or two."""


def check_address(config: Config) -> None:
    """Raise UsageError for an address that other hosts reach where access is not authenticated or not encrypted."""
    host, _ = split_address(config.webhdfs_address, SETTING)
    if config.webhdfs_insecure or is_loopback(host, SETTING):
        return
    lacking = [] if config.webhdfs_tls_certificate else ["webhdfs_tls_certificate"]
    if not config.webhdfs_token and not config.webhdfs_tls_authority:  # each node would create another one
        lacking.append("webhdfs_token (or webhdfs_tls_authority)")
    if lacking:
        raise UsageError(
            f"setting {SETTING} = {config.webhdfs_address!r}",
            why=f"other hosts reach it, and there is no {' and no '.join(lacking)}",
            hint=f"set {' and '.join(lacking)}, or webhdfs_insecure = true",
        )


def serve(config: Config, node_socket: str, on_ready: Callable[[Ready], None]) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP. Call `on_ready` with the HOST:PORT. Raises UsageError or
    NodeUnavailableError."""
    check_address(config)
    host, _ = split_address(config.webhdfs_address, SETTING)
    tokens = Tokens(config.webhdfs_token, "webhdfs_token") if config.webhdfs_token else None
    raise_descriptor_limit()
    tls = server_tls(
        config.webhdfs_tls_certificate,
        config.webhdfs_tls_key,
        "webhdfs_tls_certificate",
        authority=config.webhdfs_tls_authority,
    )
    listening = listen(config.webhdfs_address, SETTING)
    vfs = LocalVfs(NodeClient(node_socket, role="webhdfs", patience_s=PATIENCE_S))
    directory, token_path = os.path.dirname(vfs.client.upper), ""
    if tokens is None and not config.webhdfs_insecure and not config.webhdfs_tls_authority:
        token_path = os.path.join(directory, TOKEN_NAME)
        create_secret(token_path, make_token)
        tokens = Tokens(token_path, "webhdfs_token")
    hadoop_file: TokenFile | None = None
    if tokens is not None:
        port = split_address(bound_to(listening), SETTING)[1]
        hadoop_file = TokenFile(os.path.join(directory, HADOOP_NAME), tokens, [f"127.0.0.1:{port}"])
    gateway = WebHdfsGateway(vfs, tokens, replicas=config.replicas, loopback=is_loopback(host, SETTING))
    server = HttpServer(gateway, listening, name="webhdfs", tls=tls)
    reporter = StatsReporter("webhdfs", gateway.counts, node_socket, address=bound_to(listening))
    run_until_signal(server, lambda: on_ready(Ready(bound_to(listening), token_path)))
    reporter.stop()
    if hadoop_file is not None:
        hadoop_file.stop()
    vfs.close()


if __name__ == "__main__":
    run_as_process("webhdfs", serve)
