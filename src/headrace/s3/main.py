"""The gateway's process: `python -m headrace.s3.main`, started by `headrace s3` and `headrace up`."""

from __future__ import annotations

from collections.abc import Callable

from headrace.base.errors import UsageError
from headrace.config.schema import Config
from headrace.http.address import bound_to, is_loopback, listen, split_address
from headrace.http.door import Door
from headrace.http.process import run_as_process, run_until_signal, take_all_descriptors
from headrace.http.tls import server_tls
from headrace.s3.credentials import read_credentials
from headrace.s3.gateway import Access, Gateway
from headrace.sdk.client import Client
from headrace.sdk.counts import Teller
from headrace.sdk.paths import Paths

SETTING = "s3_address"
PATIENCE_S = 30.0
"""How long a request waits for a node that is away; clients give up after a minute."""


def access_of(config: Config) -> Access:
    """UsageError for keys that can't be read, and for an address that others reach where anybody could ask."""
    secrets = read_credentials(config.s3_credentials) if config.s3_credentials else {}
    host, _ = split_address(config.s3_address, SETTING)
    if not config.s3_insecure and not is_loopback(host, SETTING):
        lacking = [
            name
            for name, given in (
                ("s3_tls_certificate", config.s3_tls_certificate),
                ("s3_credentials", secrets),
            )
            if not given
        ]
        if lacking:
            raise UsageError(
                f"setting s3_address = {config.s3_address!r}",
                why=f"others reach it, and there is no {' and no '.join(lacking)}",
                hint=f"set {' and '.join(lacking)}, or say s3_insecure = true",
            )
    domains = tuple(one.strip().lower() for one in config.s3_domains.split(",") if one.strip())
    return Access(secrets, domains, asks=config.s3_metadata, loopback=is_loopback(host, SETTING))


def serve(config: Config, node_socket: str, on_ready: Callable[[str], None]) -> None:
    """Until SIGTERM, SIGINT or SIGHUP, which this takes over. on_ready: told where it listens, as HOST:PORT.
    UsageError, NodeUnavailableError."""
    access = access_of(config)
    take_all_descriptors()
    tls = server_tls(config.s3_tls_certificate, config.s3_tls_key, "s3_tls_certificate")
    listening = listen(config.s3_address, SETTING)
    paths = Paths(Client(node_socket, role="s3", patience_s=PATIENCE_S))
    gateway = Gateway(paths, access)
    door = Door(gateway, listening, name="s3", tls=tls)
    teller = Teller("s3", gateway.counts, node_socket, address=bound_to(listening))
    on_ready(bound_to(listening))
    run_until_signal(door)
    teller.stop()
    paths.close()


if __name__ == "__main__":
    run_as_process("s3", serve)
