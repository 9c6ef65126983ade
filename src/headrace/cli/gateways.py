"""Runs the gateways of a node: each in a process that `up` restarts, or one in the process of its own command."""

from __future__ import annotations

import importlib
import os
import shlex
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import msgspec

from headrace.base.errors import HeadraceError
from headrace.base.logs import log_to_stderr
from headrace.base.missing_extras import require
from headrace.cli.process import Child, start_gateway
from headrace.cli.render import print_json, say, warn
from headrace.cli.repeated_failure import RepeatedFailure
from headrace.cli.state import RunState, make_run_folder, remove_state, write_state
from headrace.config.schema import Config

if TYPE_CHECKING:
    from headrace.http.process import Ready, Serve

STOP_S = 12.0
"""Seconds that a gateway has to end after SIGTERM."""
PAUSE_S = 1.0
"""Seconds before a gateway that ended is started again."""


@dataclass(frozen=True, slots=True)
class GatewayKind:
    """Describes one protocol that a node's namespace is served by.

    word: names the command, the field of the state and the module (headrace.WORD.main). setting: the name of the
    setting with its address. certificate: the name of the setting that turns TLS on.
    """

    word: str
    name: str
    setting: str
    certificate: str = ""

    def how_to_sign(self, credentials: str, url: str) -> str:
        """Return how a user of this host authenticates by the file that the gateway created; "" if there is none."""
        if not credentials:
            return ""
        if self.word == "s3":
            return f". {shlex.quote(credentials)}; export AWS_ENDPOINT_URL={url}"
        return f"token in {credentials}"

    def url(self, config: Config, address: object) -> str:
        """Return the URL of a gateway that listens at the address."""
        if str(address).startswith("unix:"):
            return str(address)
        secure = self.certificate and getattr(config, self.certificate)
        return f"{'https' if secure else 'http'}://{address}"


KINDS = (
    GatewayKind("s3", "S3 gateway", "s3_address", "s3_tls_certificate"),
    GatewayKind("webhdfs", "WebHDFS gateway", "webhdfs_address", "webhdfs_tls_certificate"),
    GatewayKind("rest", "REST API", "rest_address", "tls_certificate"),
)
WORDS = tuple(kind.word for kind in KINDS)


def kind_of(word: str) -> GatewayKind:
    return next(kind for kind in KINDS if kind.word == word)


def configured_kinds(config: Config) -> list[GatewayKind]:
    """Return the kinds whose address is set. Raises MissingExtraError when a package of one is not installed."""
    kinds = [kind for kind in KINDS if getattr(config, kind.setting)]
    for kind in kinds:
        require(("httptools",), f"setting {kind.setting}", extra=kind.word)
    return kinds


class KeptGateway:
    """Keeps a gateway running: starts its process again if it ends. Clients retry by themselves."""

    def __init__(self, kind: GatewayKind, config: Config, socket: str, log_path: str) -> None:
        self.kind = kind
        self._config, self._socket, self._log_path = config, socket, log_path
        self.child = self._start()
        self.again_at_s: float | None = None
        self._running = True
        self._failure = RepeatedFailure()

    def _start(self) -> Child:
        return start_gateway(self.kind.name, self.kind.word, self._config, self._socket, self._log_path)

    def descriptors(self) -> list[int]:
        """Return the descriptors to wait for; a readable one is for `handle`."""
        return [self.child.ready_fd, self.child.exit_fd] if self._running else []

    def handle(self, ready: list[int]) -> None:
        """Restart the process when its pause is over, and handle the readable descriptors of a running one."""
        if self.again_at_s is not None and time.monotonic() >= self.again_at_s:
            self._start_again()
        if not self._running:
            return
        try:
            if self.child.ready_fd in ready:
                self.child.read_ready()
            if self.child.exit_fd not in ready:
                return
            why = f"status {self.child.process.wait()}"
        except HeadraceError as error:
            why = str(error)
        self.stop(1)
        self.again_at_s = time.monotonic() + PAUSE_S
        warn(f"the {self.kind.name} ended: {why} (it restarts in {PAUSE_S:.0f} s)")

    def _start_again(self) -> None:
        """Start the process again. If it can't be started, the next try follows after a pause; stderr says why, once
        for each reason."""
        try:
            self.child, self._running = self._start(), True
        except OSError as error:
            line = f"the {self.kind.name} can't be started: {error} (tried every {PAUSE_S:.0f} s)"
            self._failure.report(str(error), line)
            self.again_at_s = time.monotonic() + PAUSE_S
        else:
            self.again_at_s = None
            self._failure.end()

    def stop(self, patience_s: float = STOP_S) -> None:
        if self._running:
            self._running = False
            self.child.stop(patience_s)


def serve_here(
    word: str,
    flags: dict[str, object],
    *,
    file: str | None,
    socket: str | None,
    cache: str | None,
    default_address: str,
    ready: Callable[[Config, str, Ready], str],
    json: bool,
) -> NoReturn:
    """Run a gateway in this process until SIGTERM or ^C, and exit the process.

    flags, file: the settings of the command line, and the file of the others. socket, cache: of the node. ready:
    returns the line to print, from the settings, the gateway's URL and its listening address.
    """
    from headrace.cli.lowered import account_for, start_as
    from headrace.cli.target import find_target
    from headrace.config.load import load

    kind = kind_of(word)
    serve: Serve = importlib.import_module(f"headrace.{word}.main").serve
    config = load(flags, file=file).config
    start_as(account_for(config), config)
    if not getattr(config, kind.setting):
        config = msgspec.structs.replace(config, **{kind.setting: default_address})
    state = RunState(kind=word, pid=os.getpid(), socket=find_target(socket, cache).socket)
    make_run_folder(config.run_folder)

    def on_ready(bound: Ready) -> None:
        url = kind.url(config, bound.address)
        setattr(state, word, url)
        if bound.credentials:
            state.credentials[word] = bound.credentials
        write_state(config.run_folder, state)
        if json:
            about = {"url": url, "credentials": bound.credentials, "socket": state.socket}
            print_json({"ready": True, **about, "pid": state.pid})
        else:
            say(ready(config, url, bound))
            with suppress(BrokenPipeError):  # the first line was enough for its reader
                if how := kind.how_to_sign(bound.credentials, url):
                    say(how)

    log_to_stderr(config.log_level)
    try:
        serve(config, state.socket, on_ready)
    finally:
        remove_state(config.run_folder, state.pid)
    os._exit(0)  # without joining threads of the pool, which may wait for the node
