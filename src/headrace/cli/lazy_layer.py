"""Start the process that serves what a lazy seal lacks (`fuse/lazy_main.py`)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.base.errors import MountError, NodeUnavailableError
from headrace.base.interpreter import module_command
from headrace.base.proc_stat import began_at
from headrace.cli.process import error_of, open_log
from headrace.seal.places import LazyLayer

if TYPE_CHECKING:
    from headrace.seal.catalogue import Catalogue, SealRecord

READY_WITHIN_S = 120.0
"""Seconds within which a layer must be ready. It reads a content list of a million files in some seconds."""
_MESSAGE_BYTES_MAX = 65536


@contextmanager
def lazy_layer(
    catalogue: Catalogue, record: SealRecord, *, node_socket: str, log_path: str
) -> Iterator[LazyLayer | None]:
    """Start the layer that a seal needs, and yield it; None for a seal that lacks nothing. The layer ends with the
    context, unless the seal is mounted with it. Raises NodeUnavailableError or MountError."""
    if not record.is_lazy:
        yield None
        return
    if not node_socket:
        raise NodeUnavailableError(
            f"seal {record.seal}",
            why=f"{record.missing} of its files are not cached, and the node that would fetch them is down",
            hint="start it with `headrace up`",
        )
    ours, theirs = socket.socketpair()
    words = ["--catalogue", catalogue.folder, "--seal", str(record.seal), "--socket", node_socket]
    log = open_log(log_path or catalogue.path(record.seal, "log"))
    with ours:
        try:
            process = subprocess.Popen(
                module_command("headrace.fuse.lazy_main", *words, "--control-fd", str(theirs.fileno())),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        finally:
            os.close(log)
            theirs.close()
        process.wait()  # the layer itself is a child of this one
        layer = _received(ours, record)
    try:
        yield layer
    finally:
        os.close(layer.root)


def _received(control: socket.socket, record: SealRecord) -> LazyLayer:
    control.settimeout(READY_WITHIN_S)
    subject = f"cannot mount seal {record.seal}"
    try:
        message, descriptors, _, _ = socket.recv_fds(control, _MESSAGE_BYTES_MAX, 1)
    except TimeoutError as error:
        raise MountError(subject, why=f"its lazy layer is not ready after {READY_WITHIN_S:.0f} s") from error
    if not message:
        raise MountError(subject, why="the process of its lazy layer ended", hint="see the log of `up`")
    answer = json.loads(message)
    if "error" in answer:
        raise error_of(answer)
    (root,) = descriptors
    os.set_inheritable(root, False)
    pid = int(answer["pid"])
    layer = LazyLayer(root, pid, began_at(pid))
    if answer["list"] != record.id:
        os.close(root)
        raise MountError(subject, why="the node changed it at this moment", hint="repeat the command")
    return layer
