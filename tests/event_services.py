"""Stand in for Pub/Sub over HTTP, and for services that answer what no service should."""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

PULL_WAIT_S = 2.0
"""Seconds for which a pull waits for a first message; the real service waits longer."""
Answer = tuple[int, bytes]


@dataclass
class Subscription:
    """One subscription of Pub/Sub: messages are delivered again until they are acknowledged in time."""

    name: str
    ack_deadline_s: float = 10.0
    address: str = ""
    pulls: int = 0
    unavailable: bool = False
    _messages: dict[str, dict[str, Any]] = field(default_factory=dict)
    _leased_until_s: dict[str, float] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def notify(self, bucket: str, key: str, kind: str = "OBJECT_FINALIZE") -> None:
        """Publish what GCS publishes about an object, with its JSON_API_V1 payload."""
        attributes = {
            "notificationConfig": f"projects/_/buckets/{bucket}/notificationConfigs/1",
            "eventType": kind,
            "payloadFormat": "JSON_API_V1",
            "bucketId": bucket,
            "objectId": key,
            "objectGeneration": str(time.time_ns()),
        }
        self.publish(
            attributes, json.dumps({"kind": "storage#object", "name": key, "bucket": bucket}).encode()
        )

    def publish(self, attributes: dict[str, str], data: bytes = b"") -> None:
        id = uuid.uuid4().hex
        message = {
            "data": base64.b64encode(data).decode(),
            "attributes": attributes,
            "messageId": id,
            "publishTime": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime()),
        }
        with self._changed:
            self._messages[id] = message
            self._changed.notify_all()

    @property
    def unacknowledged(self) -> int:
        with self._changed:
            return len(self._messages)

    def answer(self, path: str, body: bytes) -> Answer:
        if self.unavailable:
            return 503, b'{"error": {"code": 503, "status": "UNAVAILABLE"}}'
        name, _, action = path.removeprefix("/v1/").rpartition(":")
        if name != self.name or action not in ("pull", "acknowledge"):
            return 404, b'{"error": {"code": 404, "status": "NOT_FOUND"}}'
        request = json.loads(body)
        if action == "pull":
            return 200, json.dumps(self._pull(int(request["maxMessages"]))).encode()
        with self._changed:
            for id in request["ackIds"]:
                self._messages.pop(id, None)
        return 200, b"{}"

    def _pull(self, most: int) -> dict[str, Any]:
        with self._changed:
            self.pulls += 1
            self._changed.wait_for(self._ready, timeout=PULL_WAIT_S)
            chosen = self._ready()[:most]
            for id in chosen:
                self._leased_until_s[id] = time.monotonic() + self.ack_deadline_s
            if not chosen:
                return {}
            return {"receivedMessages": [{"ackId": id, "message": self._messages[id]} for id in chosen]}

    def _ready(self) -> list[str]:
        now_s = time.monotonic()
        return [id for id in self._messages if self._leased_until_s.get(id, 0.0) <= now_s]


@contextlib.contextmanager
def pubsub(name: str, **options: Any) -> Iterator[Subscription]:
    """Serve one subscription on loopback; `address` is the value of PUBSUB_EMULATOR_HOST."""
    subscription = Subscription(name, **options)
    with answering(lambda _, path, body: subscription.answer(path, body)) as address:
        subscription.address = address
        yield subscription


@contextlib.contextmanager
def answering(
    answer: Callable[[str, str, bytes], Answer],
    note_headers: Callable[[Mapping[str, str]], None] | None = None,
) -> Iterator[str]:
    """Serve what `answer` returns for a method, a path and a body. Yields HOST:PORT."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            return None

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            if note_headers is not None:
                note_headers(dict(self.headers))
            status, content = answer("POST", self.path, body)
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", content.decode())
                content = b""
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(content)

        do_GET = do_DELETE = do_POST

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="events", daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
