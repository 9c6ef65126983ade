"""A node of another host that is a handler of a test, with the namespace that reads from it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from headrace.http.node_connection import Address
from headrace.vfs.remote.cluster_client import ClusterClient
from headrace.vfs.remote.remote_vfs import RemoteVfs


@contextlib.contextmanager
def remote_namespaces() -> Iterator[Callable[[type[BaseHTTPRequestHandler]], RemoteVfs]]:
    """Yield what starts a node with a handler and opens its namespace. All of them end with the block."""
    with contextlib.ExitStack() as undo:

        def open_one(handler: type[BaseHTTPRequestHandler]) -> RemoteVfs:
            server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
            server.daemon_threads = True
            undo.callback(server.server_close)
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
            undo.callback(server.shutdown)
            address = Address(f"http://127.0.0.1:{server.server_port}", None)
            vfs = RemoteVfs(ClusterClient([address], None, patience_s=0))
            undo.callback(vfs.close)
            return vfs

        yield open_one
