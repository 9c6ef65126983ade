"""The reference of a link: sendfile of a file in memory from one network namespace to another, no more than that.

Words: `serve ADDRESS SIZE` or `get ADDRESS SIZE`; `get` prints seconds.
"""

from __future__ import annotations

import os
import socket
import sys
import time

PORT = 7499


def serve(address: str, size: int) -> None:
    fd = os.memfd_create("raw")
    os.ftruncate(fd, size)
    with socket.create_server((address, PORT)) as listener:
        print("ready", flush=True)
        other, _ = listener.accept()
        with other:
            sent = 0
            while sent < size:
                sent += os.sendfile(other.fileno(), fd, sent, size - sent)


def get(address: str, size: int) -> None:
    began_s, left, buffer = time.perf_counter(), size, bytearray(1 << 20)
    with socket.create_connection((address, PORT)) as one:
        while left > 0 and (got := one.recv_into(buffer)):
            left -= got
    print(time.perf_counter() - began_s if left == 0 else "nan", flush=True)


if __name__ == "__main__":
    {"serve": serve, "get": get}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
