"""Run the layer of a lazy seal: `python -m headrace.fuse.lazy_main`, started by the command that mounts the seal.

It makes a FUSE file system that is mounted nowhere, and sends a descriptor of its root, or an error, over the control
socket. It ends by itself when no view uses that file system any more. No process waits for its end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import signal
import socket
import threading

from headrace.base.descriptor_limit import raise_descriptor_limit
from headrace.base.errors import HeadraceError, MountError
from headrace.base.logs import log_to_stderr
from headrace.client.node_client import PATIENCE_S, connect
from headrace.fuse import device, handover_state
from headrace.fuse.handover_state import HandoverState
from headrace.fuse.lazy_files import LazyClient, LazyFiles
from headrace.fuse.operations import Mode
from headrace.fuse.session import Session
from headrace.seal.catalogue import Catalogue, SealId

log = logging.getLogger(__name__)


def make_layer(client: LazyClient) -> tuple[Session, int]:
    """Return the session of a new layer, and a descriptor of the layer's root. The caller must serve the session before
    any call on that descriptor. Raises MountError."""
    fd = device.open_device()
    try:
        root = device.mount_nowhere(fd, source="headrace-lazy")
    except OSError as error:
        raise MountError("cannot make the layer of a lazy seal", why=str(error)) from error
    # overlayfs takes no layer with passthrough, and without OPEN a small file needs one request less
    return Session(fd, HandoverState(handover_state.create()), client, mode=Mode.NOOPEN), root


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="headrace.fuse.lazy_main")
    parser.add_argument("--socket", required=True)
    parser.add_argument("--catalogue", required=True)
    parser.add_argument("--seal", required=True)
    parser.add_argument("--control-fd", type=int, required=True)
    return parser.parse_args()


def _serve(arguments: argparse.Namespace, control: socket.socket) -> None:
    catalogue = Catalogue(arguments.catalogue)
    record = catalogue.record(SealId.parse(arguments.seal))
    files = (entry for entry in catalogue.entries(record) if entry.is_file)
    lazy = LazyFiles(record.path, zip(files, catalogue.ids(record), strict=False))
    client = LazyClient(connect(arguments.socket, role="session", patience_s=PATIENCE_S), lazy)
    session, root = make_layer(client)
    session.start()
    thread = threading.Thread(target=session.serve, name="session")
    thread.start()  # the next call, and the receiver of the root, make requests
    device.set_read_ahead_of(root)
    answer = {"pid": os.getpid(), "list": record.id}
    socket.send_fds(control, [json.dumps(answer).encode()], [root])
    os.close(root)
    control.close()
    thread.join()


def main() -> int:
    arguments = _arguments()
    control = socket.socket(fileno=arguments.control_fd)
    control.set_inheritable(False)
    if os.fork():
        os._exit(0)  # no process waits for the layer, so its parent becomes init
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it runs as long as a mount needs it
    raise_descriptor_limit()
    log_to_stderr("warning", format="lazy %(levelname)s %(message)s")
    try:
        _serve(arguments, control)
    except HeadraceError as error:
        return _report(control, error)
    except ConnectionError:
        return 1  # the command ended, and takes no layer: the supervisor starts another one
    except OSError as error:  # of a disk, or of a system call that the kernel refuses
        return _report(
            control, MountError(f"cannot make the lazy layer of seal {arguments.seal}", why=str(error))
        )
    return 0


def _report(control: socket.socket, error: HeadraceError) -> int:
    """Send an error to the command, which prints it, unless it has ended."""
    with contextlib.suppress(OSError):
        control.sendall(json.dumps(error.as_report()).encode())
    return 1


if __name__ == "__main__":
    status = 1
    try:
        status = main()
    except Exception:
        log.exception("the layer of a lazy seal failed")
    finally:
        logging.shutdown()
        os._exit(status)  # threads may wait for the node
