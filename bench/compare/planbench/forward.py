"""Forward connections to a port of this host by splice(2), until it is killed: `forward.py HOST PORT TO_PORT DELAY_S`.

Each request is held back for DELAY_S, as an object store of a cloud answers that late.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time

PIPE_BYTES = 1 << 20


def pump(source: socket.socket, target: socket.socket, delay_s: float) -> None:
    """Move all bytes of one direction, each piece after a delay, then end it."""
    readable, writable = os.pipe()
    try:
        while count := os.splice(source.fileno(), writable, PIPE_BYTES):
            if delay_s:
                time.sleep(delay_s)
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
    host, port, to_port, delay_s = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    with socket.create_server((host, port), backlog=256) as server:
        print("ready", flush=True)
        while True:
            client, _ = server.accept()
            store = socket.create_connection(("127.0.0.1", to_port))
            for ends in ((client, store, delay_s), (store, client, 0.0)):
                threading.Thread(target=pump, args=ends, daemon=True).start()


if __name__ == "__main__":
    main()
