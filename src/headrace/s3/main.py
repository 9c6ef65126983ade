"""The gateway's process: `python -m headrace.s3.main`, started by `headrace s3` and `headrace up`."""

from __future__ import annotations

import os
from collections.abc import Callable

from headrace.base.errors import UsageError
from headrace.config.schema import Config
from headrace.http.address import bound_to, is_loopback, listen, split_address
from headrace.http.door import Door
from headrace.http.process import Ready, run_as_process, run_until_signal, take_all_descriptors
from headrace.http.tls import server_tls
from headrace.s3.credentials import FILE_NAME, make_credentials, open_credentials
from headrace.s3.gateway import Access, S3Gateway
from headrace.sdk.local_vfs import LocalVfs
from headrace.sdk.node_client import NodeClient
from headrace.sdk.request_stats import StatsReporter

SETTING = "s3_address"
PATIENCE_S = 30.0
"""How long a request waits for a node that is away; clients give up after a minute."""


def check_address(config: Config) -> None:
    """UsageError for an address that others reach where anybody could ask, or listen in."""
    host, _ = split_address(config.s3_address, SETTING)
    if config.s3_insecure or is_loopback(host, SETTING):
        return
    wanted = ("s3_tls_certificate", "s3_credentials")  # each node would make a key of its own
    lacking = [name for name in wanted if not getattr(config, name)]
    if lacking:
        raise UsageError(
            f"setting s3_address = {config.s3_address!r}",
            why=f"others reach it, and there is no {' and no '.join(lacking)}",
            hint=f"set {' and '.join(lacking)}, or say s3_insecure = true",
        )


def access_of(config: Config, credentials: str) -> Access:
    """credentials: the file of access keys; "": nobody is asked for one. UsageError for keys that can't be read."""
    host, _ = split_address(config.s3_address, SETTING)
    domains = tuple(one.strip().lower() for one in config.s3_domains.split(",") if one.strip())
    secrets = open_credentials(credentials).get if credentials else None
    return Access(secrets, domains, asks=config.s3_metadata, loopback=is_loopback(host, SETTING))


def serve(config: Config, node_socket: str, on_ready: Callable[[Ready], None]) -> None:
    """Until SIGTERM, SIGINT or SIGHUP, which this takes over. on_ready: told where it listens, as HOST:PORT.
    UsageError, NodeUnavailableError."""
    check_address(config)
    access = access_of(config, config.s3_credentials) if config.s3_credentials else None
    take_all_descriptors()
    tls = server_tls(config.s3_tls_certificate, config.s3_tls_key, "s3_tls_certificate")
    listening = listen(config.s3_address, SETTING)
    paths = LocalVfs(NodeClient(node_socket, role="s3", patience_s=PATIENCE_S))
    made = ""
    if access is None:
        if not config.s3_insecure:
            made = os.path.join(os.path.dirname(paths.client.upper), FILE_NAME)
            make_credentials(made)
        access = access_of(config, made)
    gateway = S3Gateway(paths, access)
    door = Door(gateway, listening, name="s3", tls=tls)
    teller = StatsReporter("s3", gateway.counts, node_socket, address=bound_to(listening))
    on_ready(Ready(bound_to(listening), made))
    run_until_signal(door)
    teller.stop()
    paths.close()


if __name__ == "__main__":
    run_as_process("s3", serve)
