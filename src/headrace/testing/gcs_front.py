"""GCS's XML interface of uploads, which obstore speaks, in front of fake-gcs-server, which knows only JSON's.

A PUT and a multipart upload become an upload of the JSON interface, with its generation conditions and metadata; all
else goes through as it is. What a condition means, what is stored and what a reader sees is the server's own doing;
the parts of an upload are kept here until it is complete. (XML interface: "XML API multipart uploads" and "Request
headers" in the reference of Cloud Storage.)
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import http.server
import itertools
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field

_BOUNDARY = "headrace-front"
_FIELDS = {
    "content-type": "contentType",
    "content-encoding": "contentEncoding",
    "content-disposition": "contentDisposition",
    "content-language": "contentLanguage",
    "cache-control": "cacheControl",
}
_DROPPED = ("transfer-encoding", "connection", "content-length", "date", "server", "host")


@dataclass
class _Upload:
    key: str
    headers: dict[str, str]
    parts: dict[int, bytes] = field(default_factory=dict)


@dataclass
class GcsFront:
    """endpoint: where obstore is to be sent. uploads: those begun and neither completed nor aborted, by id."""

    endpoint: str
    uploads: dict[str, _Upload]


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    behind: int
    uploads: dict[str, _Upload]
    ids: itertools.count[int]

    def log_message(self, format: str, *args: object) -> None:
        return None

    def do_HEAD(self) -> None:
        self._forward()

    def do_GET(self) -> None:
        self._forward()

    def do_DELETE(self) -> None:
        _, query = self._split()
        if "uploadId" not in query:
            self._forward()
            return
        self.uploads.pop(query["uploadId"], None)
        self._answer(204, {}, b"")

    def do_PUT(self) -> None:
        (bucket, key), query = self._split()
        body = self._body()
        if "uploadId" not in query:
            self._store(bucket, key, body, dict(self.headers.items()))
            return
        upload = self.uploads.get(query["uploadId"])
        if upload is None:
            self._answer(404, {}, b"")
            return
        upload.parts[int(query["partNumber"])] = body
        self._answer(200, {"ETag": f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'}, b"")

    def do_POST(self) -> None:
        (bucket, key), query = self._split()
        body = self._body()
        if "uploads" in query:
            id = f"upload-{next(self.ids)}"
            self.uploads[id] = _Upload(key, dict(self.headers.items()))
            text = f"<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
            self._answer(200, {"Content-Type": "application/xml"}, text.encode())
        elif "uploadId" in query:
            upload = self.uploads.pop(query["uploadId"])
            numbers = [int(one) for one in re.findall(rb"<PartNumber>(\d+)</PartNumber>", body)]
            whole = b"".join(upload.parts[number] for number in numbers)
            self._store(bucket, key, whole, upload.headers, as_xml=True)
        else:
            self._forward(body)

    def _split(self) -> tuple[tuple[str, str], dict[str, str]]:
        path, _, query = self.path.partition("?")
        bucket, _, key = path.lstrip("/").partition("/")
        values = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        return (bucket, urllib.parse.unquote(key, errors="surrogateescape")), values

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _store(
        self, bucket: str, key: str, body: bytes, headers: dict[str, str], *, as_xml: bool = False
    ) -> None:
        lower = {name.lower(): value for name, value in headers.items()}
        prefix = "x-goog-meta-"
        metadata = {name[len(prefix) :]: value for name, value in lower.items() if name.startswith(prefix)}
        given = {field: lower[name] for name, field in _FIELDS.items() if name in lower}
        about = json.dumps({"name": key, "metadata": metadata, **given}).encode()
        kind_of_bytes = lower.get("content-type", "application/octet-stream").encode()
        query = {"uploadType": "multipart"}
        if "x-goog-if-generation-match" in lower:
            query["ifGenerationMatch"] = lower["x-goog-if-generation-match"]
        sent = b"\r\n".join(
            [
                b"--%b\r\nContent-Type: application/json\r\n\r\n%b" % (_BOUNDARY.encode(), about),
                b"--%b\r\nContent-Type: %b\r\n\r\n%b" % (_BOUNDARY.encode(), kind_of_bytes, body),
                b"--%b--\r\n" % _BOUNDARY.encode(),
            ]
        )
        path = f"/upload/storage/v1/b/{bucket}/o?{urllib.parse.urlencode(query)}"
        kind = {"Content-Type": f"multipart/related; boundary={_BOUNDARY}"}
        status, _, answer = self._ask("POST", path, sent, kind)
        if status != 200:
            self._answer(status, {}, answer)
            return
        found = json.loads(answer)
        told = {"ETag": f'"{found["etag"]}"', "x-goog-generation": found["generation"]}
        xml = f"<CompleteMultipartUploadResult><ETag>&quot;{found['etag']}&quot;</ETag></CompleteMultipartUploadResult>"
        self._answer(200, told, xml.encode() if as_xml else b"")

    def _forward(self, body: bytes | None = None) -> None:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _DROPPED}
        sent = self._body() if body is None else body
        status, told, answer = self._ask(self.command, self.path, sent, headers)
        length = {"Content-Length": told["Content-Length"]} if self.command == "HEAD" and told else {}
        self._answer(status, told, answer, length)

    def _ask(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, dict[str, str], bytes]:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.behind, timeout=60)) as server:
            server.request(method, path, body=body or None, headers=headers)
            answer = server.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()

    def _answer(
        self, status: int, headers: dict[str, str], body: bytes, length: dict[str, str] | None = None
    ) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in _DROPPED:
                self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", (length or {}).get("Content-Length", str(len(body))))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextlib.contextmanager
def gcs_front(port: int) -> Iterator[GcsFront]:
    """Before the server on that loopback port; served from threads of this process."""
    uploads: dict[str, _Upload] = {}
    handler = type("Handler", (_Handler,), {"behind": port, "uploads": uploads, "ids": itertools.count(1)})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="gcs_front", daemon=True)
        thread.start()
        try:
            yield GcsFront(f"http://127.0.0.1:{server.server_address[1]}", uploads)
        finally:
            server.shutdown()
            thread.join()
