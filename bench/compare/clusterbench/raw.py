"""The reference of the links: sendfile of a file in memory between network namespaces, no more than that.

Words: `serve ADDRESS`, until it is ended; `get GATE ADDRESS SIZE [ADDRESS SIZE …]`, which fetches so many bytes of each
at once, a connection each, says `ready`, begins when the file GATE is there, and prints seconds.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from headrace.entry.peer.server import avoid_bbr

PORT = 7499
FILE_BYTES = 64 << 20


def serve(address: str) -> None:
    fd = os.memfd_create("raw")
    os.ftruncate(fd, FILE_BYTES)

    def send(other: socket.socket) -> None:
        with other:
            left = int.from_bytes(other.recv(8, socket.MSG_WAITALL), "little")
            while left > 0:
                offset = left % FILE_BYTES
                left -= os.sendfile(other.fileno(), fd, offset, min(left, FILE_BYTES - offset))

    with socket.create_server((address, PORT)) as listener:
        avoid_bbr(listener)  # as the nodes do: the same TCP
        print("ready", flush=True)
        while True:
            threading.Thread(target=send, args=(listener.accept()[0],), daemon=True).start()


def get(gate: str, wanted: list[tuple[str, int]]) -> None:
    def one(address: str, size: int) -> bool:
        buffer = bytearray(1 << 18)
        with socket.create_connection((address, PORT)) as source:
            source.sendall(size.to_bytes(8, "little"))
            while size > 0 and (got := source.recv_into(buffer, min(size, len(buffer)))):
                size -= got
        return size == 0

    print("ready", flush=True)
    while not os.path.exists(gate):
        time.sleep(0.002)
    began_s = time.perf_counter()
    with ThreadPoolExecutor(len(wanted)) as pool:
        whole = all(pool.map(lambda pair: one(*pair), wanted))
    print(time.perf_counter() - began_s if whole else "nan", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        get(sys.argv[2], list(zip(sys.argv[3::2], map(int, sys.argv[4::2]), strict=True)))
