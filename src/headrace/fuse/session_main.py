"""Run the session process: `python -m headrace.fuse.session_main`, started by the FD store with its descriptors.

It reports on the control socket, in one JSON line, that it is ready, or why not. When the other end closes, the FD
store has died: this process starts another and hands it the descriptors.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from typing import Any

from headrace.base.descriptor_limit import raise_descriptor_limit
from headrace.base.errors import HeadraceError
from headrace.base.interpreter import module_command
from headrace.base.logs import log_to_stderr
from headrace.base.write_modes import WriteModes
from headrace.fuse import auto_io_mode, probe
from headrace.fuse.backings import FdStoreBackings
from headrace.fuse.client_protocol import ReadingClient
from headrace.fuse.handover_state import HandoverState
from headrace.fuse.mountpoints import sealed_paths
from headrace.fuse.operations import Mode
from headrace.fuse.servers import Role, Servers, has_ended
from headrace.seal.catalogue import Catalogue

log = logging.getLogger(__name__)

DEFAULT_CLIENT = "headrace.client.node_client:connect"


def choose_mode(io: str, client: ReadingClient, probed: probe.Result | None = None) -> tuple[Mode, str]:
    """Return the I/O mode and the reason for it. `io` is auto, passthrough, splice or noopen. A writable mount needs
    OPEN requests: it is never noopen. `probed` is the probe of a process that may mount, where this one may not."""
    writable = WriteModes.parse(getattr(client, "write", "")).any
    if io == "splice" or (io == "noopen" and not writable):
        return Mode(io), "requested by --io"
    small = auto_io_mode.small_files(client) if io == "auto" and not writable else ""
    if small:
        return Mode.NOOPEN, small
    result = probed or probe.probe()
    if result.works:
        return Mode.PASSTHROUGH, result.reason
    return Mode.SPLICE, f"no passthrough: {result.reason}"


def load_client(name: str, socket_path: str) -> Any:
    """Import and call a client factory with the socket's path. `name` is module:function."""
    if name == DEFAULT_CLIENT:
        from headrace.client.node_client import PATIENCE_S, connect

        return connect(socket_path, role="session", patience_s=PATIENCE_S)
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)(socket_path)


def mountpoints_of(client: Any, mountpoint: str) -> list[bytes]:
    """Return the paths of seals in place and of exclusive directories below a mount. Blocks for small files."""
    local = getattr(client, "local", None)
    if local is None:  # a client of a test
        return []
    sealed = sealed_paths(Catalogue.of_cache(local.volumes[0]), mountpoint)
    return [*WriteModes.parse(client.write).exclusive_tops, *sealed]


class FdStoreWatch:
    """Watches the control socket to the FD store, and starts a new FD store when that one has died."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._control = socket.socket(fileno=arguments.control_fd)
        self._control.set_inheritable(False)

    def report(self, message: dict[str, object]) -> None:
        try:
            self._control.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            pass  # the FD store died; `follow` starts another

    @property
    def has_ended(self) -> bool:
        """Return whether the FD store has ended before `follow`."""
        return has_ended(self._control)

    def follow(self) -> None:
        threading.Thread(target=self._follow, daemon=True, name="fd-store-watch").start()

    def _follow(self) -> None:
        while True:
            try:
                if self._control.recv(1):
                    continue
            except OSError:
                pass
            if self._arguments.backings_fd >= 0:
                log.warning("the FD store died and only it may register files, headrace up starts both again")
                logging.shutdown()
                os._exit(1)
            log.warning("the FD store died, starting another")
            self._replace()

    def _replace(self) -> None:
        a = self._arguments
        own_end, fd_store_end = socket.socketpair()
        command = module_command("headrace.fuse.fd_store", "--mountpoint", a.mountpoint, "--socket", a.socket)
        command += ["--io", a.io, "--client", a.client, "--adopt-fuse-fd", str(a.fuse_fd)]
        command += [
            "--adopt-handover-fd",
            str(a.handover_fd),
            "--adopt-control-fd",
            str(fd_store_end.fileno()),
        ]
        command += ["--adopt-pid", str(os.getpid())]
        command += ["--lock-fd", str(a.lock_fd)]
        fds = (a.fuse_fd, a.handover_fd, fd_store_end.fileno(), *([a.lock_fd] if a.lock_fd >= 0 else []))
        # Without `preexec_fn` it starts by vfork(2). A fork would make the pages of this process copy-on-write, and a
        # request that a thread just reads into such a page fails with EIO when the process is killed.
        subprocess.Popen(command, pass_fds=fds, start_new_session=True)
        fd_store_end.close()
        self._control.close()
        self._control = own_end


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="headrace.fuse.session_main")
    parser.add_argument("--mountpoint", required=True)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--io", default="auto")
    parser.add_argument("--client", default=DEFAULT_CLIENT)
    parser.add_argument("--fuse-fd", type=int, required=True)
    parser.add_argument("--handover-fd", type=int, required=True)
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--lock-fd", type=int, default=-1)
    parser.add_argument(
        "--backings-fd", type=int, default=-1, help="Socket of the FD store's BackingsKeeper."
    )
    parser.add_argument("--passthrough", default="", help="Result of the probe: yes or no, and why.")
    return parser.parse_args()


def _serve(arguments: argparse.Namespace, watch: FdStoreWatch) -> None:
    handover = HandoverState(arguments.handover_fd)
    from headrace.fuse.session import Session

    client = load_client(arguments.client, arguments.socket)
    if handover.init_flags:
        mode, why = Mode(handover.mode), "taken over from the earlier session"
    else:
        works, _, reason = arguments.passthrough.partition(" ")
        probed = probe.Result(works == "yes", reason) if works else None
        mode, why = choose_mode(arguments.io, client, probed)
    backings = None
    if arguments.backings_fd >= 0:
        backings = FdStoreBackings(socket.socket(fileno=arguments.backings_fd))
    session = Session(
        *(arguments.fuse_fd, handover, client),
        mode=mode,
        backings=backings,
        mountpoints=lambda: mountpoints_of(client, arguments.mountpoint),
    )
    session.start()
    watch.follow()
    watch.report({"ready": True, "io": str(session.operations.mode), "why": why, "session_pid": os.getpid()})
    session.serve()


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the FD store handles a terminal's ^C
    log_to_stderr("warning", format="session %(levelname)s %(message)s")
    arguments = _arguments()
    for fd in (arguments.fuse_fd, arguments.handover_fd, arguments.control_fd):
        os.set_inheritable(fd, False)
    for fd in (arguments.lock_fd, arguments.backings_fd):
        if fd >= 0:
            os.set_inheritable(fd, False)
    Servers(arguments.lock_fd, arguments.mountpoint).enter(Role.SESSION)
    raise_descriptor_limit()
    watch = FdStoreWatch(arguments)
    if arguments.lock_fd >= 0 and watch.has_ended:
        return 1  # `headrace up` may have seen neither's lock; it starts both again
    try:
        _serve(arguments, watch)
    except HeadraceError as error:
        watch.report(error.as_report())
        return 1
    return 0


def _exit(call: Callable[[], int]) -> None:
    """Exit without the interpreter's shutdown, which waits for the pool, whose threads may be blocked on the node."""
    status = 1
    try:
        status = call()
    except Exception:
        log.exception("session failed")
    finally:
        logging.shutdown()
        os._exit(status)


if __name__ == "__main__":
    _exit(main)
