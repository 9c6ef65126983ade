"""Forward connections to a port of this host by splice(2): `forward.py HOST PORT TO_PORT`, until it is killed."""

from __future__ import annotations

import os
import socket
import sys
import threading

PIPE_BYTES = 1 << 20


def pump(source: socket.socket, target: socket.socket) -> None:
    """Move all bytes of one direction, then end it."""
    readable, writable = os.pipe()
    try:
        while count := os.splice(source.fileno(), writable, PIPE_BYTES):
            while count:
                count -= os.splice(readable, target.fileno(), count)
    except OSError:
        pass
    finally:
        os.close(readable)
        os.close(writable)
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def main() -> None:
    host, port, to_port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with socket.create_server((host, port), backlog=256) as server:
        print("ready", flush=True)
        while True:
            client, _ = server.accept()
            store = socket.create_connection(("127.0.0.1", to_port))
            for source, target in ((client, store), (store, client)):
                threading.Thread(target=pump, args=(source, target), daemon=True).start()


if __name__ == "__main__":
    main()
