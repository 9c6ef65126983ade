"""Serve GCS's XML interface for uploads, which obstore uses, before fake-gcs-server, which has only the JSON
interface.

A PUT and a multipart upload become an upload of the JSON interface, with its generation conditions and metadata. All
other requests pass unchanged. The server itself enforces conditions, stores objects and serves readers; this process
keeps the parts of an upload until it is complete. (XML interface: "XML API multipart uploads" and "Request headers"
in the reference of Cloud Storage.)
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
    """A running front. `endpoint` is the address for obstore. `uploads` are those neither completed nor aborted, by
    id."""

    endpoint: str
    uploads: dict[str, _Upload]


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_port: int
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
        self._respond(204, {}, b"")

    def do_PUT(self) -> None:
        (bucket, key), query = self._split()
        body = self._body()
        if "uploadId" not in query:
            self._store(bucket, key, body, dict(self.headers.items()))
            return
        upload = self.uploads.get(query["uploadId"])
        if upload is None:
            self._respond(404, {}, b"")
            return
        upload.parts[int(query["partNumber"])] = body
        self._respond(200, {"ETag": f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'}, b"")

    def do_POST(self) -> None:
        (bucket, key), query = self._split()
        body = self._body()
        if "uploads" in query:
            id = f"upload-{next(self.ids)}"
            self.uploads[id] = _Upload(key, dict(self.headers.items()))
            text = f"<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
            self._respond(200, {"Content-Type": "application/xml"}, text.encode())
        elif "uploadId" in query:
            upload = self.uploads.pop(query["uploadId"])
            numbers = [int(digits) for digits in re.findall(rb"<PartNumber>(\d+)</PartNumber>", body)]
            content = b"".join(upload.parts[number] for number in numbers)
            self._store(bucket, key, content, upload.headers, as_xml=True)
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
        fields = {field: lower[name] for name, field in _FIELDS.items() if name in lower}
        description = json.dumps({"name": key, "metadata": metadata, **fields}).encode()
        content_type = lower.get("content-type", "application/octet-stream").encode()
        query = {"uploadType": "multipart"}
        if "x-goog-if-generation-match" in lower:
            query["ifGenerationMatch"] = lower["x-goog-if-generation-match"]
        request_body = b"\r\n".join(
            [
                b"--%b\r\nContent-Type: application/json\r\n\r\n%b" % (_BOUNDARY.encode(), description),
                b"--%b\r\nContent-Type: %b\r\n\r\n%b" % (_BOUNDARY.encode(), content_type, body),
                b"--%b--\r\n" % _BOUNDARY.encode(),
            ]
        )
        path = f"/upload/storage/v1/b/{bucket}/o?{urllib.parse.urlencode(query)}"
        request_headers = {"Content-Type": f"multipart/related; boundary={_BOUNDARY}"}
        status, _, response = self._request("POST", path, request_body, request_headers)
        if status != 200:
            self._respond(status, {}, response)
            return
        info = json.loads(response)
        response_headers = {"ETag": f'"{info["etag"]}"', "x-goog-generation": info["generation"]}
        xml = f"<CompleteMultipartUploadResult><ETag>&quot;{info['etag']}&quot;</ETag></CompleteMultipartUploadResult>"
        self._respond(200, response_headers, xml.encode() if as_xml else b"")

    def _forward(self, body: bytes | None = None) -> None:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _DROPPED}
        request_body = self._body() if body is None else body
        status, response_headers, response = self._request(self.command, self.path, request_body, headers)
        length = (
            {"Content-Length": response_headers["Content-Length"]}
            if self.command == "HEAD" and response_headers
            else {}
        )
        self._respond(status, response_headers, response, length)

    def _request(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, dict[str, str], bytes]:
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self.server_port, timeout=60)
        ) as server:
            server.request(method, path, body=body or None, headers=headers)
            response = server.getresponse()
            return response.status, dict(response.getheaders()), response.read()

    def _respond(
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
    """Run a front before the server on that loopback port, in threads of this process."""
    uploads: dict[str, _Upload] = {}
    handler = type(
        "Handler", (_Handler,), {"server_port": port, "uploads": uploads, "ids": itertools.count(1)}
    )
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="gcs_front", daemon=True)
        thread.start()
        try:
            yield GcsFront(f"http://127.0.0.1:{server.server_address[1]}", uploads)
        finally:
            server.shutdown()
            thread.join()
