"""Origins answer with headers, ETags, metadata, index pages."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime

from headrace.base.decoding import convert
from headrace.base.errors import UsageError
from headrace.base.model import Attributes, Kind, Version
from headrace.base.namespace_path import check_name
from headrace.origin import digest, far_cluster, metadata, non_ascii_headers, retry_after, web
from headrace.overlay.pending_version import is_pending
from headrace.store import schema
from headrace.wire.api import ApiEntries
from tests.fuzz.fuzzer import Fuzzer
from tests.fuzz.mutations import mutate_text

_NOW = datetime(2026, 11, 23, tzinfo=UTC)
_SIZE_BYTES = 20 << 20


def _retry_after(data: bytes) -> None:
    assert 0 <= retry_after.parse_retry_after(data.decode("latin-1"), _NOW) <= retry_after.LONGEST_S


def _etag(data: bytes) -> None:
    token = data.decode("utf-8", "replace")
    checksum = digest.digest_of(Version(_SIZE_BYTES, 0, token))
    form, packed = schema._pack_token(token)
    assert schema._unpack_token(form, packed) == token
    if checksum is not None:
        assert digest.value_of_body(b"x", checksum)
        assert len(digest.part_sizes(_SIZE_BYTES, checksum.parts)) <= digest.PARTS_TRIED_MAX


def _metadata(data: bytes) -> None:
    """A name and a value on each line."""
    pairs = (line.partition(":") for line in data.decode("utf-8", "replace").split("\n")[:64])
    headers = {name.strip(): value.strip() for name, _, value in pairs}
    attributes = metadata.from_metadata(headers)
    if attributes is not None:
        assert attributes.mode is None or 0 <= attributes.mode <= 0o7777
        again = metadata.from_metadata(metadata.to_metadata(attributes))
        assert again is not None or attributes == Attributes()
        schema.pack_entry(Kind.FILE, 5, Version(1, 2, "x"), attributes)
    non_ascii_headers._metadata({name: value for name, value in headers.items() if _is_latin(value)})


def _is_latin(value: str) -> bool:
    return all(ord(character) < 256 for character in value)


def _index_page(data: bytes) -> None:
    page = data.decode("utf-8", errors="surrogateescape")
    for name in web.index_names(page, "/data/"):
        bare = name.removesuffix("/")
        assert bare not in ("", ".", "..") and "/" not in bare


def _far_answer(data: bytes) -> None:
    """Decode what a far cluster lists of a directory."""
    try:
        page = convert(json.loads(data), ApiEntries)
    except (ValueError, RecursionError):
        return
    listed = far_cluster._list_page("d", "/top/d", page)
    names = [info.key.removeprefix("d/") for info in listed.objects]
    for name in (*names, *listed.directories):
        check_name(os.fsencode(name))
    assert len(set(names)) == len(names)
    for info in listed.objects:
        form, packed = schema._pack_token(info.version.token)
        assert schema._unpack_token(form, packed) == info.version.token
        assert info.version.token.isascii() and info.version.token.isprintable()
        assert not is_pending(info.version)
        schema.pack_entry(Kind.FILE, 5, info.version, None)


def _far_url(data: bytes) -> None:
    nodes, path = far_cluster.parse_far_url(data.decode("utf-8", "surrogateescape"))
    assert nodes and all(0 < int(node.rpartition(":")[2]) < 65536 for node in nodes)
    assert path == "" or (path.startswith("/") and ".." not in path.split("/"))


FUZZERS = [
    Fuzzer(
        "far-answers",
        "listings of a far cluster (origin/far_cluster.py)",
        _far_answer,
        (),
        [
            b'{"entries": [{"path": "/top/d/f", "kind": "file", "size_bytes": 5, "mtime_ns": 1, "version": "\\"v\\""}, '
            b'{"path": "/top/d/e", "kind": "directory", "size_bytes": 0, "mtime_ns": 0}], "next": null}',
        ],
        words=[
            b"/top/d/",
            b"..",
            b"\\u0000",
            b"\\ud800",
            b"\\udc80",
            b"written-by/n/5-6",
            b"W/",
            b"link",
            b"1e99",
            b"-1",
        ],
        mutate=mutate_text,
    ),
    Fuzzer(
        "far-urls",
        "URLs of far clusters (origin/far_cluster.py)",
        _far_url,
        (UsageError,),
        [b"host:7480,host-2:7480/data", b"[::1]:80/", b"a:1"],
        words=[b":", b",", b"/", b"..", b"@", b"[", b"]", b"%2f", b"?", b"#", b"65536", b"\xff"],
        mutate=mutate_text,
    ),
    Fuzzer(
        "retry-after",
        "Retry-After of an overloaded store (origin/retry_after.py)",
        _retry_after,
        (),
        [b"5", b"Mon, 23 Nov 2026 12:00:00 GMT", b"Monday, 23-Nov-26 12:00:00 GMT"],
        words=[b"GMT", b"-0000", b"+9999", b"Dec", b"9999", b"0001", b":", b"99", b"UTC", b"EST"],
        mutate=mutate_text,
        input_bytes_max=256,
    ),
    Fuzzer(
        "etags",
        "ETags, and how the index keeps them (origin/digest.py, store/schema.py)",
        _etag,
        (),
        [
            b'"0123456789abcdef0123456789abcdef"',
            b'"0123456789abcdef0123456789abcdef-12"',
            b"a" * 64,
            b'W/"x"',
        ],
        words=[b'"', b"-", b"-65535", b"-0", b"W/", "²".encode(), "٣".encode()],
        mutate=mutate_text,
        input_bytes_max=256,
    ),
    Fuzzer(
        "origin-metadata",
        "metadata of objects (origin/metadata.py, non_ascii_headers.py)",
        _metadata,
        (),
        [
            b"mtime: 1700000000.5\nmode: 33188\nuid: 0\ngid: 0\nheadraceput: x\nheadracetags: a=b&c\nContent-Type: a/b",
            b"x-amz-meta-a: b\nheadraceusers: mode,uid\nheadraceput: y\nmode: 5",
        ],
        words=[
            b"mtime",
            b"mode",
            b"headraceput",
            b"headracetags",
            b"headraceusers",
            b": ",
            b"\n",
            b"-1.999999999999",
        ],
        mutate=mutate_text,
    ),
    Fuzzer(
        "index-pages",
        "index pages of web servers (origin/web.py)",
        _index_page,
        (ValueError,),
        [
            b'<html><body><a href="../">..</a> <a href="a.txt">a</a> <a href="sub%2F">s</a> <a href="/data/b/">b</a>',
            b"<!DOCTYPE html><a href='x?C=N;O=D'><a href=\"//h/x\"><a href='%2e%2e%2fetc'>",
        ],
        words=[
            b"<a href=",
            b"</a>",
            b"<!--",
            b"<![CDATA[",
            b"&#x41;",
            b"%2e%2e",
            b"http://[",
            b"<?",
            b"&lt",
            b"<script>",
        ],
        mutate=mutate_text,
        input_bytes_max=8192,
    ),
]
