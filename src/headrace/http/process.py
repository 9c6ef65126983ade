"""A gateway's process, such as `python -m headrace.s3.main`, started by `headrace up`.

Its settings come as JSON by a file, as they name secrets. It says on a pipe, in one JSON line, that it is ready, or why
not.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from headrace.base.decoding import decode_json
from headrace.base.errors import HeadraceError
from headrace.base.logs import log_to_stderr
from headrace.config.schema import Config
from headrace.http.door import Door

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ready:
    """address: HOST:PORT, or unix:PATH. credentials: the file from which a client on this host may take them, where the
    gateway made it itself; else ""."""

    address: str
    credentials: str = ""


Serve = Callable[[Config, str, Callable[[Ready], None]], None]
"""(settings, the node's socket, told where it listens once it does): until it is told to stop."""


def take_all_descriptors() -> None:
    """Each connection has one, and so has each file that is sent."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run_until_signal(door: Door) -> None:
    """SIGTERM, SIGINT and SIGHUP are taken over."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: door.stop())
    door.run()


def run_as_process(name: str, serve: Serve) -> NoReturn:
    """name: of the module, headrace.NAME.main, and in the log. Ends the process."""
    parser = argparse.ArgumentParser(prog=f"headrace.{name}.main")
    parser.add_argument("--config-json", required=True)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--ready-fd", type=int, default=-1)
    arguments = parser.parse_args()
    with open(arguments.config_json, "rb") as source:
        config = decode_json(source.read(), Config)
    log_to_stderr(config.log_level, format=f"%(asctime)s {name} %(levelname)s %(name)s %(message)s")
    ready_fd, status = arguments.ready_fd, 0
    try:
        serve(
            config,
            arguments.socket,
            lambda ready: _say(
                ready_fd,
                {
                    "ready": True,
                    "address": ready.address,
                    "credentials": ready.credentials,
                    "pid": os.getpid(),
                },
            ),
        )
    except HeadraceError as error:
        _say(ready_fd, {"error": error.code, "what": error.what, "why": error.why, "hint": error.hint})
        log.error("gateway did not start error=%s", error)
        status = 1
    logging.shutdown()
    os._exit(status)  # threads of the pool may be waiting for the node


def _say(ready_fd: int, message: dict[str, Any]) -> None:
    if ready_fd >= 0:
        with open(ready_fd, "wb") as out:
            out.write(json.dumps(message).encode() + b"\n")
