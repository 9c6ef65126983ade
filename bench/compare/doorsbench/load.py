"""One client: a connection that is kept, GETs one after the other, bodies thrown away. Prints one JSON line.

python load.py HOST:PORT SECONDS TARGETS_FILE FIRST; FIRST: which of the targets (one a line) it begins with.
"""

from __future__ import annotations

import json
import socket
import sys
import time

BUFFER_BYTES = 1 << 20


def main() -> None:
    address, seconds, targets_path, first = sys.argv[1:]
    host, _, port = address.rpartition(":")
    with open(targets_path, "rb") as source:
        targets = source.read().split()
    requests = [b"GET %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (target, address.encode()) for target in targets]
    buffer = bytearray(BUFFER_BYTES)
    count = size = 0
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begin = time.monotonic()
        while (now := time.monotonic()) - begin < float(seconds):
            size += get(connection, requests[(int(first) + count) % len(requests)], buffer)
            count += 1
    print(json.dumps({"requests": count, "bytes": size, "seconds": now - begin}))


def get(connection: socket.socket, request: bytes, buffer: bytearray) -> int:
    """Return the bytes of its body. SystemExit for any other answer than 200."""
    connection.sendall(request)
    got = connection.recv_into(buffer)
    while (end := buffer.find(b"\r\n\r\n", 0, got)) < 0:
        more = connection.recv_into(memoryview(buffer)[got:])
        if not more:
            raise SystemExit("the connection ended in the head of an answer")
        got += more
    head = bytes(buffer[:end]).lower()
    if not head.startswith(b"http/1.1 200"):
        raise SystemExit(head.split(b"\r\n")[0].decode())
    length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
    left = length - (got - end - 4)
    while left > 0:
        piece = connection.recv_into(buffer, min(left, BUFFER_BYTES))
        if not piece:
            raise SystemExit("the connection ended in a body")
        left -= piece
    return length


if __name__ == "__main__":
    main()
