"""Run a proxy before an object store. It counts the store's responses, and can delay and throttle them.

`python -m headrace.bench.counting HOST ENDPOINT BYTES_S LATENCY_S` prints its port, then answers each line with its
counts. Requests are forwarded unchanged, so their signatures stay valid. Bodies of responses pass through the kernel
(splice). Each connection has a thread. The proxy supports only plain HTTP: behind TLS a signed request would be for
another host.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
import urllib.parse

import msgspec

HEAD_BYTES_MAX = 256 << 10
"""Most bytes of a message's head."""
PIPE_BYTES = 1 << 20
"""Size of the pipe for splice, and most bytes of one call."""
_F_SETPIPE_SZ = 1031


class StoreCounts(msgspec.Struct):
    """Count the requests that the store has answered. bytes_out: bytes of all bodies."""

    gets: int = 0
    lists: int = 0
    heads: int = 0
    others: int = 0
    bytes_out: int = 0
    errors: int = 0

    @property
    def requests(self) -> int:
        return self.gets + self.lists + self.heads + self.others

    def since(self, before: StoreCounts) -> StoreCounts:
        """Return the difference to earlier counts."""
        names = self.__struct_fields__
        return StoreCounts(**{name: getattr(self, name) - getattr(before, name) for name in names})


class RateLimit:
    """Limit the bytes per second of all connections together; 0 for no limit."""

    def __init__(self, bytes_s: float) -> None:
        self._bytes_s, self._lock, self._free_s = bytes_s, threading.Lock(), 0.0

    def wait(self, size: int) -> None:
        """Block until that many bytes may be sent."""
        if not self._bytes_s:
            return
        with self._lock:
            now_s = time.monotonic()
            start_s = max(now_s, self._free_s)
            self._free_s = start_s + size / self._bytes_s
        if start_s > now_s:
            time.sleep(start_s - now_s)


class CountingProxy:
    """Forward connections to the store, and count."""

    def __init__(self, host: str, endpoint: str, *, bytes_s: float, latency_s: float) -> None:
        split = urllib.parse.urlsplit(endpoint)
        self._upstream = (split.hostname or "", split.port or 80)
        self._rate, self._latency_s = RateLimit(bytes_s), latency_s
        self._counts, self._lock = StoreCounts(), threading.Lock()
        self._socket = socket.socket()
        self._socket.bind((host, 0))
        self._socket.listen(1024)
        self.port: int = self._socket.getsockname()[1]

    def counts(self) -> StoreCounts:
        with self._lock:
            return msgspec.structs.replace(self._counts)

    def serve(self) -> None:
        """Accept connections until the process ends."""
        while True:
            client, _ = self._socket.accept()
            threading.Thread(target=self._connection, args=(client,), daemon=True).start()

    def _connection(self, client: socket.socket) -> None:
        with (
            contextlib.suppress(OSError, ValueError),
            client,
            socket.create_connection(self._upstream) as store,
        ):
            for end in (client, store):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client_side, store_side = _Half(client), _Half(store)
            with _Pipe() as pipe:
                while self._exchange(client_side, store_side, pipe):
                    pass

    def _exchange(self, client_side: _Half, store_side: _Half, pipe: _Pipe) -> bool:
        """Forward a request and its response. Return False if the connection ends."""
        head = client_side.head()
        if head is None:
            return False
        if self._latency_s:
            time.sleep(self._latency_s)
        store_side.socket.sendall(head.raw)
        if head.fields.get("expect", "").lower() == "100-continue":
            client_side.socket.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        client_side.pass_body(head, store_side.socket, pipe, None)
        answer = store_side.head()
        while answer is not None and answer.words[1].startswith(
            "1"
        ):  # the proxy has sent its own interim response
            answer = store_side.head()
        if answer is None:
            return False
        self._count(head, answer)
        client_side.socket.sendall(answer.raw)
        bodiless = head.words[0] == "HEAD" or answer.words[1] in ("204", "304")
        if not bodiless:
            size = store_side.pass_body(answer, client_side.socket, pipe, self._rate, to_the_end=True)
            with self._lock:
                self._counts.bytes_out += size
        return "close" not in (
            answer.fields.get("connection", "").lower(),
            head.fields.get("connection", "").lower(),
        )

    def _count(self, head: _Head, answer: _Head) -> None:
        method, target = head.words[0], head.words[1]
        with self._lock:
            if method == "GET" and ("list-type=" in target or "prefix=" in target or "delimiter=" in target):
                self._counts.lists += 1
            elif method == "GET":
                self._counts.gets += 1
            elif method == "HEAD":
                self._counts.heads += 1
            else:
                self._counts.others += 1
            self._counts.errors += answer.words[1][0] in "45"


class _Head:
    def __init__(self, raw: bytes) -> None:
        lines = raw.decode("latin-1").split("\r\n")
        self.raw = raw
        self.words = lines[0].split(" ")
        pairs = (line.partition(":") for line in lines[1:] if line)
        self.fields = {name.strip().lower(): value.strip() for name, _, value in pairs}


class _Half:
    """Hold one side of a connection, with the bytes that were received but not forwarded yet."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket, self._left = connection, b""

    def head(self) -> _Head | None:
        """Read the head of a message; None at the end of the connection."""
        while b"\r\n\r\n" not in self._left:
            part = self.socket.recv(65536)
            if not part or len(self._left) > HEAD_BYTES_MAX:
                return None
            self._left += part
        raw, _, self._left = self._left.partition(b"\r\n\r\n")
        return _Head(raw + b"\r\n\r\n")

    def pass_body(
        self, head: _Head, to: socket.socket, pipe: _Pipe, rate: RateLimit | None, *, to_the_end: bool = False
    ) -> int:
        """Forward a body and return its bytes. to_the_end: a body without a length lasts until the sender closes."""
        if "chunked" in head.fields.get("transfer-encoding", "").lower():
            return self._pass_chunks(to, rate)
        if "content-length" in head.fields:
            return self._pass(int(head.fields["content-length"]), to, pipe, rate)
        return self._pass(1 << 62, to, pipe, rate) if to_the_end else 0

    def _pass(self, size: int, to: socket.socket, pipe: _Pipe, rate: RateLimit | None) -> int:
        done = min(size, len(self._left))
        if done:
            to.sendall(self._left[:done])
            self._left = self._left[done:]
        while done < size:
            moved = pipe.fill(self.socket, min(PIPE_BYTES, size - done))
            if not moved:
                if size < 1 << 62:
                    raise ConnectionError("the body ends too early")
                break
            if rate is not None:
                rate.wait(moved)
            pipe.empty(to, moved)
            done += moved
        return done

    def _pass_chunks(self, to: socket.socket, rate: RateLimit | None) -> int:
        total = 0
        while True:
            line = self._until(b"\r\n")
            size = int(line.split(b";")[0], 16)
            body = self._receive(size + 2) if size else self._until_blank()
            if rate is not None:
                rate.wait(size)
            to.sendall(line + body)
            total += size
            if not size:
                return total

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._left:
            self._receive_more()
        line, _, self._left = self._left.partition(mark)
        return line + mark

    def _until_blank(self) -> bytes:
        lines = b""
        while not lines.endswith(b"\r\n\r\n") and lines != b"\r\n":
            lines += self._until(b"\r\n")
        return lines

    def _receive(self, size: int) -> bytes:
        while len(self._left) < size:
            self._receive_more()
        body, self._left = self._left[:size], self._left[size:]
        return body

    def _receive_more(self) -> None:
        part = self.socket.recv(1 << 18)
        if not part:
            raise ConnectionError("the body ends too early")
        self._left += part


class _Pipe:
    def __enter__(self) -> _Pipe:
        import fcntl

        self._out, self._in = os.pipe()
        with contextlib.suppress(OSError):  # the limit for users may be lower
            fcntl.fcntl(self._in, _F_SETPIPE_SZ, PIPE_BYTES)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._out)
        os.close(self._in)

    def fill(self, source: socket.socket, size: int) -> int:
        return os.splice(source.fileno(), self._in, size)

    def empty(self, to: socket.socket, size: int) -> None:
        while size:
            size -= os.splice(self._out, to.fileno(), size)


def main() -> int:
    host, endpoint, bytes_s, latency_s = sys.argv[1:5]
    proxy = CountingProxy(host, endpoint, bytes_s=float(bytes_s), latency_s=float(latency_s))
    threading.Thread(target=proxy.serve, daemon=True).start()
    _send({"port": proxy.port})
    for _ in sys.stdin:
        _send(msgspec.to_builtins(proxy.counts()))
    return 0


def _send(message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
