"""The gateway's process: `python -m headrace.webhdfs.main`, started by `headrace webhdfs` and `headrace up`."""

from __future__ import annotations

from collections.abc import Callable

from headrace.base.errors import UsageError
from headrace.config.schema import Config
from headrace.http.address import bound_to, is_loopback, listen, split_address
from headrace.http.door import Door
from headrace.http.process import run_as_process, run_until_signal, take_all_descriptors
from headrace.http.tls import server_tls
from headrace.sdk.client import Client
from headrace.sdk.counts import Teller
from headrace.sdk.paths import Paths
from headrace.webhdfs.gateway import Gateway

SETTING = "webhdfs_address"
PATIENCE_S = 30.0
"""How long a request waits for a node that is away; clients give up after a minute or two."""


def check_address(config: Config) -> None:
    """UsageError for an address that others reach: nobody is asked who he is."""
    host, _ = split_address(config.webhdfs_address, SETTING)
    if not config.webhdfs_insecure and not is_loopback(host, SETTING):
        raise UsageError(
            f"setting {SETTING} = {config.webhdfs_address!r}",
            why="others reach it, and whoever does may read and write everything: nobody has to say truly who he is",
            hint="listen at 127.0.0.1 on each host, or say webhdfs_insecure = true in a network where all may do that",
        )


def serve(config: Config, node_socket: str, on_ready: Callable[[str], None]) -> None:
    """Until SIGTERM, SIGINT or SIGHUP, which this takes over. on_ready: told where it listens, as HOST:PORT.
    UsageError, NodeUnavailableError."""
    check_address(config)
    host, _ = split_address(config.webhdfs_address, SETTING)
    take_all_descriptors()
    tls = server_tls(config.webhdfs_tls_certificate, config.webhdfs_tls_key, "webhdfs_tls_certificate")
    listening = listen(config.webhdfs_address, SETTING)
    paths = Paths(Client(node_socket, role="webhdfs", patience_s=PATIENCE_S))
    gateway = Gateway(paths, replicas=config.replicas, loopback=is_loopback(host, SETTING))
    door = Door(gateway, listening, name="webhdfs", tls=tls)
    teller = Teller("webhdfs", gateway.counts, node_socket, address=bound_to(listening))
    on_ready(bound_to(listening))
    run_until_signal(door)
    teller.stop()
    paths.close()


if __name__ == "__main__":
    run_as_process("webhdfs", serve)
