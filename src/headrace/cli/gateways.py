"""The gateways of a node. `up` runs those that the settings name: a process each, started again when it ends."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import msgspec

from headrace.base.errors import HeadraceError
from headrace.base.logs import log_to_stderr
from headrace.base.missing_extras import require
from headrace.cli.process import Child, start_gateway
from headrace.cli.render import print_json, say, warn
from headrace.cli.state import RunState, make_run_folder, remove_state, write_state
from headrace.config.schema import Config

if TYPE_CHECKING:
    from headrace.http.process import Ready, Serve

STOP_S = 12.0
PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class GatewayKind:
    """word: of the module, headrace.WORD.main, of the command and of the state. setting: where it listens. certificate:
    the setting by which it speaks TLS."""

    word: str
    name: str
    setting: str
    certificate: str = ""

    def how_to_sign(self, credentials: str, url: str) -> str:
        """Return what a user of this host does to be let in, by a file that the gateway made; "" where it made none."""
        if not credentials:
            return ""
        if self.word == "s3":
            return f". {shlex.quote(credentials)}; export AWS_ENDPOINT_URL={url}"
        return f"token in {credentials}"

    def url(self, config: Config, address: object) -> str:
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


def wanted(config: Config) -> list[GatewayKind]:
    """Return those that the settings give an address. MissingExtraError where their packages are not installed."""
    kinds = [kind for kind in KINDS if getattr(config, kind.setting)]
    for kind in kinds:
        require(("httptools",), f"setting {kind.setting}", extra=kind.word)
    return kinds


class KeptGateway:
    """Its clients try again by themselves, so one that ended is started again and nothing else happens."""

    def __init__(self, kind: GatewayKind, config: Config, socket: str, log_path: str) -> None:
        self.kind = kind
        self._config, self._socket, self._log_path = config, socket, log_path
        self.child = self._start()
        self.again_at_s: float | None = None
        self._running = True

    def _start(self) -> Child:
        return start_gateway(self.kind.name, self.kind.word, self._config, self._socket, self._log_path)

    def descriptors(self) -> list[int]:
        """To wait for."""
        return [self.child.ready_fd, self.child.exit_fd] if self._running else []

    def look(self, ready: list[int]) -> None:
        if self.again_at_s is not None and time.monotonic() >= self.again_at_s:
            self.again_at_s = None
            self.child, self._running = self._start(), True
        if not self._running:
            return
        try:
            if self.child.ready_fd in ready:
                self.child.hear()
            if self.child.exit_fd not in ready:
                return
            why = f"status {self.child.process.wait()}"
        except HeadraceError as error:
            why = str(error)
        self.stop(1)
        self.again_at_s = time.monotonic() + PAUSE_S
        warn(f"the {self.kind.name} ended: {why} (started again in {PAUSE_S:.0f} s)")

    def stop(self, patience_s: float = STOP_S) -> None:
        if self._running:
            self._running = False
            self.child.stop(patience_s)


def serve_here(
    kind: GatewayKind,
    config: Config,
    socket: str,
    serve: Serve,
    *,
    default_address: str,
    ready: Callable[[str, Ready], str],
    json: bool,
) -> NoReturn:
    """A gateway in the command's own process, until it is told to end. socket: the node's. ready: what is said of its
    URL, and of where it listens."""
    found = config
    if not getattr(config, kind.setting):
        found = msgspec.structs.replace(config, **{kind.setting: default_address})
    state = RunState(kind=kind.word, pid=os.getpid(), socket=socket)
    make_run_folder(found.run_folder)

    def on_ready(bound: Ready) -> None:
        url = kind.url(found, bound.address)
        setattr(state, kind.word, url)
        if bound.credentials:
            state.credentials[kind.word] = bound.credentials
        write_state(found.run_folder, state)
        if json:
            about = {"url": url, "credentials": bound.credentials, "socket": state.socket}
            print_json({"ready": True, **about, "pid": state.pid})
        else:
            say(ready(url, bound))
            if how := kind.how_to_sign(bound.credentials, url):
                say(how)

    log_to_stderr(found.log_level)
    try:
        serve(found, state.socket, on_ready)
    finally:
        remove_state(found.run_folder, state.pid)
    os._exit(0)  # threads of the pool may be waiting for the node
