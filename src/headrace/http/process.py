"""Run a gateway as a process, such as `python -m headrace.s3.main`, which `headrace up` starts.

It reads its settings from a JSON file, because they name secrets. It writes one JSON line to a pipe, which reports
that it is ready or why it failed.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from headrace.base.decoding import decode_json
from headrace.base.errors import HeadraceError
from headrace.base.hangup import unless_ignored
from headrace.base.logs import log_to_stderr
from headrace.config.schema import Config
from headrace.http.server import HttpServer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ready:
    """Reports that a gateway listens. address: HOST:PORT, or unix:PATH. credentials: the file of credentials for
    clients on this host, when the gateway created it; "" otherwise."""

    address: str
    credentials: str = ""


Serve = Callable[[Config, str, Callable[[Ready], None]], None]
"""Serves until it is stopped. Arguments: the settings, the node's socket, and a function to call once it listens."""


def run_until_signal(server: HttpServer, announce: Callable[[], None] = lambda: None) -> None:
    """Run a server until SIGTERM, SIGINT, or SIGHUP unless that is ignored. announce: reports that it is ready, when
    the signals end it in order already."""
    for number in unless_ignored(signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: server.stop())
    announce()
    server.run()


def run_as_process(name: str, serve: Serve) -> NoReturn:
    """Run a gateway and exit the process. name: NAME of the module headrace.NAME.main; it is also used in the log."""
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
            lambda ready: _report(
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
        _report(ready_fd, error.as_report())
        log.error("the gateway did not start error=%s", error)
        status = 1
    logging.shutdown()
    os._exit(status)  # threads of the pool may still wait for the node


def _report(ready_fd: int, message: dict[str, Any]) -> None:
    if ready_fd >= 0:
        with open(ready_fd, "wb") as pipe:
            pipe.write(json.dumps(message).encode() + b"\n")
