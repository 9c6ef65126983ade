"""The gateway's process: `python -m headrace.s3.main`, started by `headrace s3` and `headrace up`.

Its settings come as JSON by a file, as they name secrets. It says on a pipe, in one JSON line, that it is ready, or why
not.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable
from typing import Any

import msgspec

from headrace.base.errors import HeadraceError, UsageError
from headrace.config.schema import Config
from headrace.s3.credentials import read_credentials
from headrace.s3.door import Door, listen
from headrace.s3.gateway import Access, Gateway
from headrace.s3.http import is_number
from headrace.sdk.client import Client
from headrace.sdk.paths import Paths

log = logging.getLogger(__name__)

PATIENCE_S = 30.0
"""How long a request waits for a node that is away; clients give up after a minute."""


def split_address(address: str) -> tuple[str, int]:
    """HOST:PORT, [HOST]:PORT. UsageError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not is_number(port) or int(port) > 65535:
        raise UsageError(
            f"setting s3_address = {address!r}", why="not HOST:PORT", hint="for example 127.0.0.1:9000"
        )
    return host.strip("[]"), int(port)


def access_of(config: Config) -> Access:
    """UsageError for keys that can't be read, and for an address that others reach where anybody could ask."""
    secrets = read_credentials(config.s3_credentials) if config.s3_credentials else {}
    host, _ = split_address(config.s3_address)
    if not config.insecure and not is_loopback(host):
        raise UsageError(
            f"setting s3_address = {config.s3_address!r}",
            why="others reach it, and the gateway has no TLS of its own",
            hint="put a proxy with TLS before 127.0.0.1, or say insecure = true"
            + ("" if secrets else " (and then s3_credentials, or anybody may read)"),
        )
    return Access(secrets, tuple(one.strip().lower() for one in config.s3_domains.split(",") if one.strip()))


def is_loopback(host: str) -> bool:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(f"setting s3_address: host {host!r}", why=error.strerror or str(error)) from error
    return all(ipaddress.ip_address(str(one[4][0]).partition("%")[0]).is_loopback for one in found)


def serve(config: Config, node_socket: str, on_ready: Callable[[str], None]) -> None:
    """Until SIGTERM, SIGINT or SIGHUP, which this takes over. on_ready: told where it listens, as HOST:PORT.
    UsageError, NodeUnavailableError."""
    access = access_of(config)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    listening = listen(*split_address(config.s3_address))
    paths = Paths(Client(node_socket, role="s3", patience_s=PATIENCE_S))
    door = Door(Gateway(paths, access), listening)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: door.stop())
    host, port = listening.getsockname()[:2]
    bound = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    on_ready(bound)
    door.run()
    paths.close()


def _say(ready_fd: int, message: dict[str, Any]) -> None:
    if ready_fd >= 0:
        with open(ready_fd, "wb") as out:
            out.write(json.dumps(message).encode() + b"\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="headrace.s3.main")
    parser.add_argument("--config-json", required=True)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--ready-fd", type=int, default=-1)
    arguments = parser.parse_args()
    with open(arguments.config_json, "rb") as source:
        config = msgspec.json.decode(source.read(), type=Config)
    logging.basicConfig(
        level=config.log_level.upper(), format="%(asctime)s s3 %(levelname)s %(name)s %(message)s"
    )
    try:
        serve(
            config,
            arguments.socket,
            lambda bound: _say(arguments.ready_fd, {"ready": True, "address": bound, "pid": os.getpid()}),
        )
        return 0
    except HeadraceError as error:
        _say(
            arguments.ready_fd,
            {"error": error.code, "what": error.what, "why": error.why, "hint": error.hint},
        )
        log.error("gateway did not start error=%s", error)
        return 1


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    os._exit(status)  # threads of the pool may be waiting for the node
