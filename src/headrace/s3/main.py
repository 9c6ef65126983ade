"""Run the S3 gateway's process: `python -m headrace.s3.main`, started by `headrace s3` and `headrace up`."""

from __future__ import annotations

import os
from collections.abc import Callable

from headrace.base.descriptor_limit import raise_descriptor_limit
from headrace.base.errors import UsageError
from headrace.client.node_client import NodeClient
from headrace.client.request_stats import StatsReporter
from headrace.config.schema import Config
from headrace.http.address import bound_to, is_loopback, listen, split_address
from headrace.http.process import Ready, run_as_process, run_until_signal
from headrace.http.server import HttpServer
from headrace.http.tls import server_tls
from headrace.s3.credentials import FILE_NAME, make_credentials, open_credentials
from headrace.s3.gateway import Access, S3Gateway
from headrace.vfs.local_vfs import LocalVfs

SETTING = "s3_address"
PATIENCE_S = 30.0
"""Seconds for which a request waits for an unavailable node. Clients give up after a minute."""


def check_address(config: Config) -> None:
    """Raise UsageError for an address that other hosts reach where access is not authenticated or not encrypted."""
    host, _ = split_address(config.s3_address, SETTING)
    if config.s3_insecure or is_loopback(host, SETTING):
        return
    required = ("s3_tls_certificate", "s3_credentials")  # each node would create a different key
    lacking = [name for name in required if not getattr(config, name)]
    if lacking:
        raise UsageError(
            f"setting s3_address = {config.s3_address!r}",
            why=f"other hosts reach it, and there is no {' and no '.join(lacking)}",
            hint=f"set {' and '.join(lacking)}, or s3_insecure = true",
        )


def access_of(config: Config, credentials: str) -> Access:
    """Return who may send requests. `credentials` is the file of access keys; "" allows everyone. Raises UsageError."""
    host, _ = split_address(config.s3_address, SETTING)
    domains = tuple(name.strip().lower() for name in config.s3_domains.split(",") if name.strip())
    secrets = open_credentials(credentials).get if credentials else None
    loopback = is_loopback(host, SETTING)
    return Access(secrets, domains, reads_origin_metadata=config.s3_metadata, loopback=loopback)


def serve(config: Config, node_socket: str, on_ready: Callable[[Ready], None]) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP. Call `on_ready` with the HOST:PORT. Raises UsageError or
    NodeUnavailableError."""
    check_address(config)
    access = access_of(config, config.s3_credentials) if config.s3_credentials else None
    raise_descriptor_limit()
    tls = server_tls(config.s3_tls_certificate, config.s3_tls_key, "s3_tls_certificate")
    listening = listen(config.s3_address, SETTING)
    vfs = LocalVfs(NodeClient(node_socket, role="s3", patience_s=PATIENCE_S))
    credentials = ""
    if access is None:
        if not config.s3_insecure:
            credentials = os.path.join(os.path.dirname(vfs.client.upper), FILE_NAME)
            make_credentials(credentials)
        access = access_of(config, credentials)
    gateway = S3Gateway(vfs, access)
    server = HttpServer(gateway, listening, name="s3", tls=tls)
    reporter = StatsReporter("s3", gateway.counts, node_socket, address=bound_to(listening))
    run_until_signal(server, lambda: on_ready(Ready(bound_to(listening), credentials)))
    reporter.stop()
    vfs.close()


if __name__ == "__main__":
    run_as_process("s3", serve)
