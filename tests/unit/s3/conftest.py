"""Parse requests as a client of S3 sends them."""

from __future__ import annotations

from headrace.http.messages import Request, parse_head


def request_of(line: str, host: str = "127.0.0.1:9000", **headers: str) -> Request:
    lines = [
        f"{line} HTTP/1.1",
        f"Host: {host}",
        *(f"{k.replace('_', '-')}: {v}" for k, v in headers.items()),
    ]
    return parse_head(("\r\n".join(lines) + "\r\n\r\n").encode())
