"""Routes, parameters, errors, statuses and checksums: what needs no node."""

from __future__ import annotations

import hashlib
import itertools
import os
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.base.errors import PathNotFoundError, error_classes
from headrace.base.model import Attributes, Entry, FileId, Kind, Version
from headrace.http.messages import Request, parse_head
from headrace.ring.view import SEGMENT_BYTES, NodeInfo, next_view
from headrace.vfs.streams import Content
from headrace.webhdfs import responses
from headrace.webhdfs.checksum import file_checksum
from headrace.webhdfs.errors import ERROR_MAP, STATUS, RemoteError, remote_error_of
from headrace.webhdfs.file_status import file_status
from headrace.webhdfs.locations import PARTS_MAX, BlockLocation, Locations, block_locations, located_blocks
from headrace.webhdfs.read_ops import ReadOperations
from headrace.webhdfs.routes import WebHdfsCall, route


def request_of(line: str, **headers: str) -> Request:
    lines = [
        f"{line} HTTP/1.1",
        "Host: h:9870",
        *(f"{k.replace('_', '-')}: {v}" for k, v in headers.items()),
    ]
    return parse_head(("\r\n".join(lines) + "\r\n\r\n").encode())


def call_of(line: str, **headers: str) -> WebHdfsCall:
    return route(request_of(line, **headers))


def error_of(line: str) -> RemoteError:
    with pytest.raises(RemoteError) as raised:
        call_of(line)
    return raised.value


def test_every_error_of_ours_has_an_exception_of_hadoops() -> None:
    assert set(ERROR_MAP) == set(error_classes())
    for name in ERROR_MAP.values():
        assert RemoteError(name, "").status == STATUS[RemoteError(name, "").java_name]
    refusal = remote_error_of(PathNotFoundError("/a/b", why="no such file"))
    assert (refusal.java_name, refusal.status) == ("java.io.FileNotFoundException", 404)


def test_a_failure_is_a_remote_exception() -> None:
    """Also where its message names what is no UTF-8."""
    answer = responses.failed(RemoteError("InvalidToken", "a" + os.fsdecode(b"\xff")))
    about = msgspec.json.decode(answer.body)["RemoteException"]
    assert about == {
        "exception": "InvalidToken",
        "javaClassName": "org.apache.hadoop.security.token.SecretManager$InvalidToken",
        "message": "a?",
    }
    assert answer.status == 403


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("GET /webhdfs/v1/a/b?op=OPEN", ("open", b"/a/b")),
        ("GET /webhdfs/v1/a/b?op=open", ("open", b"/a/b")),
        ("GET /webhdfs/v1/?op=LISTSTATUS", ("list_status", b"/")),
        ("GET /webhdfs/v1?op=LISTSTATUS", ("list_status", b"/")),
        ("GET /webhdfs/v1//a//b/?op=GETFILESTATUS", ("get_status", b"/a/b")),
        ("PUT /webhdfs/v1/a%20b%2Bc+d?op=MKDIRS", ("make_directories", b"/a b+c+d")),
        ("GET http://proxy/webhdfs/v1/%ff?op=OPEN", ("open", b"/\xff")),
    ],
)
def test_routes(line: str, wanted: tuple[str, bytes]) -> None:
    call = call_of(line)
    assert (call.operation, call.path) == wanted


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("GET /a?op=OPEN", "FileNotFoundException"),
        ("GET /webhdfs/v1x/a?op=OPEN", "FileNotFoundException"),
        ("GET /webhdfs/v1/a", "IllegalArgumentException"),
        ("GET /webhdfs/v1/a?op=CREATE", "IllegalArgumentException"),
        ("GET /webhdfs/v1/a?op=NONE", "IllegalArgumentException"),
        ("POST /webhdfs/v1/a?op=CONCAT", "UnsupportedOperationException"),
        ("GET /webhdfs/v1/a/../b?op=OPEN", "InvalidPathException"),
        ("GET /webhdfs/v1/a/%2e%2e/b?op=OPEN", "InvalidPathException"),
        ("GET /webhdfs/v1/a%00b?op=OPEN", "InvalidPathException"),
        (f"GET /webhdfs/v1/{'x' * 256}?op=OPEN", "InvalidPathException"),
    ],
)
def test_what_is_no_route(line: str, name: str) -> None:
    assert error_of(line).name == name


def test_an_operation_that_is_not_there_is_told_as_hadoops_client_looks_for_it() -> None:
    message = error_of("GET /webhdfs/v1/a?op=GETNOTHING").message
    assert 'Invalid value for webhdfs parameter "op"' in message
    assert "GETNOTHING" in message


def test_parameters() -> None:
    call = call_of("GET /webhdfs/v1/a?op=OPEN&Offset=7&overwrite=TRUE&permission=1755&destination=%2Fx+y%2F")
    assert call.number("offset", 0) == 7
    assert call.number("length", 9) == 9
    assert call.flag("overwrite")
    assert not call.flag("recursive")
    assert call.permission(0o644) == 0o1755
    assert call.path_of("destination") == b"/x y"
    for bad in (
        "offset=1.5",
        "offset=",
        "overwrite=maybe",
        "permission=8",
        "permission=77777",
        "destination=x",
    ):
        other = call_of(f"GET /webhdfs/v1/a?op=OPEN&{bad}")
        if bad == "offset=":
            assert other.number("offset", 3) == 3
            continue
        with pytest.raises(RemoteError):
            (
                other.number("offset", 0),
                other.flag("overwrite"),
                other.permission(0),
                other.path_of("destination"),
            )


def test_who_asks() -> None:
    assert call_of("GET /webhdfs/v1/a?op=OPEN&user.name=ann").user == "ann"
    assert call_of("GET /webhdfs/v1/a?op=OPEN&user.name=ann&doas=ben").user == "ben"
    assert call_of("GET /webhdfs/v1/a?op=OPEN").user


def test_where_the_bytes_are() -> None:
    call = call_of("PUT /webhdfs/v1/a%20b?op=CREATE&overwrite=true&noredirect=true")
    assert call.url_of_data() == "http://h:9870/webhdfs/v1/a%20b?op=CREATE&overwrite=true&data=true"
    assert route(parse_head(b"PUT " + call.url_of_data().encode() + b" HTTP/1.1\r\nHost: h\r\n\r\n")).flag(
        "data"
    )
    behind = call_of("PUT /webhdfs/v1/a?op=CREATE", X_Forwarded_Proto="https")
    assert behind.url_of_data().startswith("https://h:9870/")


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("", False),
        ("&buffersize=4096", True),
        ("&buffersize=4096&offset=0", False),
        ("&buffersize=4096&data=true", False),
        ("&offset=1&length=2", False),
        ("&noredirect=true", True),
        ("&noredirect=false", False),
    ],
)
def test_who_wants_the_place_and_not_the_bytes(query: str, wanted: bool) -> None:
    assert ReadOperations.wants_location(call_of(f"GET /webhdfs/v1/a?op=OPEN{query}")) is wanted


def test_statuses_of_what_only_the_origin_has() -> None:
    entry = Entry(FileId(7), FileId(1), b"x", Kind.FILE, Version(5, 1_500_000_000_999_999_999))
    about = file_status(entry, b"x", writable=False)
    assert (about["type"], about["length"], about["permission"], about["fileId"]) == ("FILE", 5, "444", 7)
    assert about["modificationTime"] == 1_500_000_000_999
    known = Entry(
        entry.id, entry.parent, b"x", Kind.FILE, entry.version, Attributes(mode=0o4751, uid=0, gid=0)
    )
    assert file_status(known, b"x", writable=False)["permission"] == "751"
    folder = Entry(FileId(8), FileId(1), b"f", Kind.DIRECTORY, Version(0, 0))
    about = file_status(folder, b"f\xff", writable=True)
    assert (about["type"], about["permission"], about["blockSize"]) == ("DIRECTORY", "755", 0)
    assert about["pathSuffix"] == "f\ufffd"


def crc32c(data: bytes) -> int:
    """By the definition, bit by bit (RFC 3720, B.4)."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


@pytest.mark.parametrize("size", [1, 512, 513, 4096, 4097, 12_288, 20_000])
def test_checksums_are_those_of_hdfs(tmp_path: Path, size: int) -> None:
    """Made here once more from HDFS's description, with blocks of 4 KiB."""
    data = bytes(range(256)) * 100
    (tmp_path / "file").write_bytes(data[:size])
    content = Content(size, fd=os.open(tmp_path / "file", os.O_RDONLY))
    try:
        checksum = file_checksum(content, block_bytes=4096)
    finally:
        content.close()
    blocks = [data[offset : min(size, offset + 4096)] for offset in range(0, size, 4096)]
    buffer = bytearray(32)  # HDFS hashes all of a buffer that doubles
    for number, block in enumerate(blocks):
        crcs = b"".join(
            struct.pack(">I", crc32c(block[offset : offset + 512])) for offset in range(0, len(block), 512)
        )
        while len(buffer) < 16 * number + 16:
            buffer += bytes(len(buffer))
        buffer[16 * number : 16 * number + 16] = hashlib.md5(crcs).digest()
    crcs_a_block = 8 if len(blocks) > 1 else 0
    wanted = struct.pack(">iq", 512, crcs_a_block) + hashlib.md5(buffer).digest()
    assert bytes.fromhex(checksum["bytes"]) == wanted
    assert checksum["algorithm"] == f"MD5-of-{crcs_a_block}MD5-of-512CRC32C"
    assert checksum["length"] == 28


def test_the_checksum_of_nothing() -> None:
    assert file_checksum(Content(0)) == {
        "algorithm": "MD5-of-0MD5-of-0CRC32",
        "bytes": "00" * 12 + hashlib.md5(bytes(32)).hexdigest(),
        "length": 28,
    }


def test_places_in_both_forms() -> None:
    parts = [BlockLocation(0, 100, ("one:1", "two:1")), BlockLocation(100, 130, ("three:1",))]
    rows = block_locations(parts)
    assert [(row["offset"], row["length"], row["hosts"]) for row in rows] == [
        (0, 100, ["one", "two"]),
        (100, 30, ["three"]),
    ]
    located = located_blocks(parts, 5, 130)
    assert [row["startOffset"] for row in located["locatedBlocks"]] == [0, 100]
    assert located["lastLocatedBlock"]["locations"][0]["hostName"] == "three"
    assert located_blocks([], 5, 0)["lastLocatedBlock"] is None


def test_hosts_are_those_of_the_owners() -> None:
    """The nodes find them in the same way; one that is draining owns nothing."""
    nodes = {
        f"n{number}": NodeInfo(
            f"n{number}", "i", f"host-{number}:7000", "", 10 << 30, "1", 1, draining=number == 3
        )
        for number in range(4)
    }
    view = next_view(None, nodes, epoch=1)
    rows = [
        {name: getattr(node, name) for name in ("id", "address", "zone", "capacity_bytes", "draining")}
        for node in nodes.values()
    ]
    places = Locations(lambda: {"cluster": {"members": rows}}, replicas=2)
    size = 2 * SEGMENT_BYTES + 5
    for number in range(50):
        path = b"/a/%d" % number
        parts = places.parts(path, 0, size, size_bytes=size, part_bytes=128 << 20)
        assert [(part.start, part.end) for part in parts[-2:]] == [
            (size - 5 - (128 << 20), size - 5),
            (size - 5, size),
        ]
        for part in parts:
            owners = view.owners(path, part.start // SEGMENT_BYTES, replicas=2)
            assert part.names == tuple(owner.address for owner in owners)
    assert [
        part.start for part in places.parts(b"/a", 200 << 20, 1 << 30, size_bytes=size, part_bytes=128 << 20)
    ][:2] == [128 << 20, 256 << 20]


@pytest.mark.parametrize("size", [8 << 40, (8 << 40) + 1, 4 << 60, (1 << 63) - 1])
def test_a_file_of_any_size_has_a_limited_number_of_parts(size: int) -> None:
    places = Locations(dict, replicas=1)
    parts = places.parts(b"/a", 0, size, size_bytes=size, part_bytes=128 << 20)
    assert PARTS_MAX // 2 < len(parts) <= PARTS_MAX
    assert (parts[0].start, parts[-1].end) == (0, size)
    assert all(part.end == following.start for part, following in itertools.pairwise(parts))
    of_range = places.parts(b"/a", parts[5].start + 1, parts[6].end, size_bytes=size, part_bytes=128 << 20)
    assert of_range == parts[5:7]


def test_hosts_that_are_known_are_used_while_the_node_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answered = threading.Event(), threading.Event()
    answered.set()

    def status() -> dict[str, Any]:
        asked.set()
        answered.wait(60)
        return {}

    def names() -> list[tuple[str, ...]]:
        parts = places.parts(b"/a", 0, 5, size_bytes=5, part_bytes=1 << 20)
        return [part.names for part in parts]

    monkeypatch.setattr("headrace.webhdfs.locations.MEMBERS_MAX_AGE_S", 600.0)
    places = Locations(status, replicas=2)
    expected = names()
    asked.clear()
    answered.clear()
    places._until_s = 0.0
    with ThreadPoolExecutor(2) as threads:
        try:
            first = threads.submit(names)
            assert asked.wait(30)
            assert threads.submit(names).result(30) == expected
            assert not first.done()
        finally:
            answered.set()
        assert first.result(30) == expected
