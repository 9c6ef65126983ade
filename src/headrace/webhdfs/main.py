"""The gateway's process: `python -m headrace.webhdfs.main`, started by `headrace webhdfs` and `headrace up`."""

from __future__ import annotations

import os
from collections.abc import Callable

from headrace.base.errors import UsageError
from headrace.base.secret_file import create_secret
from headrace.base.tokens import Tokens, make_token
from headrace.config.schema import Config
from headrace.http.address import bound_to, is_loopback, listen, split_address
from headrace.http.door import Door
from headrace.http.process import Ready, run_as_process, run_until_signal, take_all_descriptors
from headrace.http.tls import server_tls
from headrace.sdk.local_vfs import LocalVfs
from headrace.sdk.node_client import NodeClient
from headrace.sdk.request_stats import StatsReporter
from headrace.webhdfs.gateway import WebHdfsGateway
from headrace.webhdfs.token_file import TokenFile

SETTING = "webhdfs_address"
TOKEN_NAME = "webhdfs-token"
HADOOP_NAME = "webhdfs-token.hadoop"
PATIENCE_S = 30.0
"""How long a request waits for a node that is away; clients give up after a minute or two."""


def check_address(config: Config) -> None:
    """UsageError for an address that others reach where anybody could ask, or listen in."""
    host, _ = split_address(config.webhdfs_address, SETTING)
    if config.webhdfs_insecure or is_loopback(host, SETTING):
        return
    lacking = [] if config.webhdfs_tls_certificate else ["webhdfs_tls_certificate"]
    if not config.webhdfs_token and not config.webhdfs_tls_authority:  # each node would make one of its own
        lacking.append("webhdfs_token (or webhdfs_tls_authority)")
    if lacking:
        raise UsageError(
            f"setting {SETTING} = {config.webhdfs_address!r}",
            why=f"others reach it, and there is no {' and no '.join(lacking)}",
            hint=f"set {' and '.join(lacking)}, or say webhdfs_insecure = true",
        )


def serve(config: Config, node_socket: str, on_ready: Callable[[Ready], None]) -> None:
    """Until SIGTERM, SIGINT or SIGHUP, which this takes over. on_ready: told where it listens, as HOST:PORT.
    UsageError, NodeUnavailableError."""
    check_address(config)
    host, _ = split_address(config.webhdfs_address, SETTING)
    tokens = Tokens(config.webhdfs_token, "webhdfs_token") if config.webhdfs_token else None
    take_all_descriptors()
    tls = server_tls(
        config.webhdfs_tls_certificate,
        config.webhdfs_tls_key,
        "webhdfs_tls_certificate",
        authority=config.webhdfs_tls_authority,
    )
    listening = listen(config.webhdfs_address, SETTING)
    paths = LocalVfs(NodeClient(node_socket, role="webhdfs", patience_s=PATIENCE_S))
    folder, made = os.path.dirname(paths.client.upper), ""
    if tokens is None and not config.webhdfs_insecure and not config.webhdfs_tls_authority:
        made = os.path.join(folder, TOKEN_NAME)
        create_secret(made, make_token)
        tokens = Tokens(made, "webhdfs_token")
    shown: TokenFile | None = None
    if tokens is not None:
        port = split_address(bound_to(listening), SETTING)[1]
        shown = TokenFile(os.path.join(folder, HADOOP_NAME), tokens, [f"127.0.0.1:{port}"])
    gateway = WebHdfsGateway(paths, tokens, replicas=config.replicas, loopback=is_loopback(host, SETTING))
    door = Door(gateway, listening, name="webhdfs", tls=tls)
    teller = StatsReporter("webhdfs", gateway.counts, node_socket, address=bound_to(listening))
    on_ready(Ready(bound_to(listening), made))
    run_until_signal(door)
    teller.stop()
    if shown is not None:
        shown.stop()
    paths.close()


if __name__ == "__main__":
    run_as_process("webhdfs", serve)
