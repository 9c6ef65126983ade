"""Operations that only look, as raw requests, held against what the origin has."""

from __future__ import annotations

import getpass
import os
from typing import Any

import pytest
import requests

from tests.integration.door.webhdfs.conftest import READ, WRITE, WebHdfs

NAMES = ("empty.bin", "one.bin", "small.bin", "block.bin", "more.bin", "large.tar")


def test_bytes_are_those_of_the_origin(webhdfs: WebHdfs) -> None:
    for _ in ("cold", "cached"):
        for name in NAMES:
            assert webhdfs.bytes_of(f"/{READ}/{name}") == (webhdfs.truth / name).read_bytes()


def test_ranges(webhdfs: WebHdfs) -> None:
    data = (webhdfs.truth / "large.tar").read_bytes()
    for start, count in ((0, 1), (0, 4096), (1 << 20, 5 << 20), (len(data) - 1, 1), (len(data), 5), (7, 0)):
        body = webhdfs.bytes_of(f"/{READ}/large.tar", offset=start, length=count)
        assert body == data[start : start + count], (start, count)
    assert webhdfs.bytes_of(f"/{READ}/large.tar", offset=21 << 20) == data[21 << 20 :]
    assert webhdfs.bytes_of(f"/{READ}/large.tar", offset=21 << 20, length=1 << 40) == data[21 << 20 :]


def test_the_place_of_the_bytes(webhdfs: WebHdfs) -> None:
    """The test asks as Hadoop's client does at first, and as clients do that want no redirect."""
    data = (webhdfs.truth / "small.bin").read_bytes()
    redirect = webhdfs.ask("GET", f"/{READ}/small.bin", "OPEN", buffersize=4096)
    assert (redirect.status_code, redirect.content) == (307, b"")
    said = webhdfs.ask("GET", f"/{READ}/small.bin", "OPEN", noredirect="true")
    assert said.status_code == 200
    for url in (redirect.headers["Location"], said.json()["Location"]):
        assert requests.get(url, allow_redirects=False, timeout=60).content == data
        assert requests.get(f"{url}&offset=4000", allow_redirects=False, timeout=60).content == data[4000:]
    missing = webhdfs.ask("GET", f"/{READ}/nothing", "OPEN", buffersize=4096)
    assert webhdfs.failure(missing) == ("FileNotFoundException", 404)


def test_statuses(webhdfs: WebHdfs) -> None:
    about = webhdfs.get(f"/{READ}/more.bin", "GETFILESTATUS")["FileStatus"]
    stat = (webhdfs.truth / "more.bin").stat()
    assert (about["type"], about["length"], about["pathSuffix"]) == ("FILE", (1 << 20) + 1, "")
    assert about["modificationTime"] == stat.st_mtime_ns // 1_000_000
    assert (about["owner"], about["permission"]) == (getpass.getuser(), "644")
    assert about["blockSize"] == 128 << 20
    for path in ("/", f"/{READ}", f"/{READ}/names/b/", f"//{READ}//names"):
        folder = webhdfs.get(path, "GETFILESTATUS")["FileStatus"]
        assert (folder["type"], folder["length"], folder["permission"]) == ("DIRECTORY", 0, "755"), path


def test_listings(webhdfs: WebHdfs) -> None:
    rows = webhdfs.get(f"/{READ}/names", "LISTSTATUS")["FileStatuses"]["FileStatus"]
    wanted = sorted(os.fsencode(file) for file in os.listdir(webhdfs.truth / "names"))
    assert [row["pathSuffix"].encode() for row in rows] == wanted
    assert {row["pathSuffix"]: row["type"] for row in rows}["b"] == "DIRECTORY"
    for row in rows:
        if row["type"] == "FILE":
            name = f"names/{row['pathSuffix']}"
            assert webhdfs.bytes_of(f"/{READ}/{name}") == (webhdfs.truth / name).read_bytes()
    (itself,) = webhdfs.get(f"/{READ}/names/a", "LISTSTATUS")["FileStatuses"]["FileStatus"]
    assert (itself["pathSuffix"], itself["length"]) == ("", 10)


def test_listings_in_batches(webhdfs: WebHdfs) -> None:
    wanted = [f"n-{number:05d}" for number in range(2345)]
    folder = webhdfs.truth / "many"
    folder.mkdir()
    for name in wanted:
        (folder / name).touch()
    webhdfs.host.ok("sync", f"/{READ}")
    names: list[str] = []
    pages = 0
    left = 1
    while left:
        listing = webhdfs.get(f"/{READ}/many", "LISTSTATUS_BATCH", startAfter=names[-1] if names else "")
        rows = listing["DirectoryListing"]["partialListing"]["FileStatuses"]["FileStatus"]
        names += [row["pathSuffix"] for row in rows]
        left = listing["DirectoryListing"]["remainingEntries"]
        pages += 1
        assert left == min(1000, len(wanted) - len(names))
    assert (names, pages) == (wanted, 3)


def test_sums(webhdfs: WebHdfs) -> None:
    files = [file for file in (webhdfs.truth / "names").rglob("*") if file.is_file()]
    about = webhdfs.get(f"/{READ}/names", "GETCONTENTSUMMARY")["ContentSummary"]
    assert (about["fileCount"], about["directoryCount"]) == (len(files), 3)
    assert about["length"] == about["spaceConsumed"] == sum(file.stat().st_size for file in files)
    assert (about["quota"], about["spaceQuota"]) == (-1, -1)
    quota = webhdfs.get(f"/{READ}/names", "GETQUOTAUSAGE")["QuotaUsage"]
    assert quota["fileAndDirectoryCount"] == len(files) + 3
    summary = webhdfs.get(f"/{READ}/small.bin", "GETCONTENTSUMMARY")["ContentSummary"]
    assert (summary["fileCount"], summary["directoryCount"], summary["length"]) == (1, 0, 4096)


def test_checksums(webhdfs: WebHdfs) -> None:
    small, again = (webhdfs.get(f"/{READ}/small.bin", "GETFILECHECKSUM")["FileChecksum"] for _ in range(2))
    assert small == again
    assert (small["algorithm"], small["length"]) == ("MD5-of-0MD5-of-512CRC32C", 28)
    assert len(bytes.fromhex(small["bytes"])) == 28
    assert small != webhdfs.get(f"/{READ}/more.bin", "GETFILECHECKSUM")["FileChecksum"]


def test_places(webhdfs: WebHdfs) -> None:
    (part,) = webhdfs.get(f"/{READ}/more.bin", "GETFILEBLOCKLOCATIONS")["BlockLocations"]["BlockLocation"]
    assert (part["offset"], part["length"]) == (0, (1 << 20) + 1)
    assert part["names"] == [f"{part['hosts'][0]}:0"]
    located = webhdfs.get(f"/{READ}/more.bin", "GET_BLOCK_LOCATIONS", offset=5, length=1)["LocatedBlocks"]
    assert located["fileLength"] == (1 << 20) + 1
    assert [block["block"]["numBytes"] for block in located["locatedBlocks"]] == [(1 << 20) + 1]
    empty = webhdfs.get(f"/{READ}/empty.bin", "GETFILEBLOCKLOCATIONS")["BlockLocations"]["BlockLocation"]
    assert empty == []


def test_the_file_system(webhdfs: WebHdfs) -> None:
    query = {"user.name": "somebody"}
    assert webhdfs.get("/", "GETHOMEDIRECTORY", **query) == {"Path": "/user/somebody"}
    assert webhdfs.get("/x", "GETTRASHROOT", **query) == {"Path": "/user/somebody/.Trash"}
    assert webhdfs.get("/", "GETDELEGATIONTOKEN", renewer="x") == {"Token": None}
    assert webhdfs.get("/", "GETSERVERDEFAULTS")["FsServerDefaults"]["blockSize"] == 128 << 20
    room = webhdfs.get("/", "GETSTATUS")["FsStatus"]
    assert room["used"] + room["remaining"] == room["capacity"] > 0
    assert webhdfs.get(f"/{READ}", "GETACLSTATUS")["AclStatus"]["entries"] == []
    assert webhdfs.get(f"/{READ}/one.bin", "GETXATTRS") == {"XAttrs": []}
    assert webhdfs.get(f"/{READ}/one.bin", "LISTXATTRS") == {"XAttrNames": "[]"}
    for action, status in (("r--", 200), ("r-x", 200), ("rw-", 403)):
        assert webhdfs.ask("GET", f"/{READ}/one.bin", "CHECKACCESS", fsaction=action).status_code == status
    assert webhdfs.ask("GET", f"/{WRITE}", "CHECKACCESS", fsaction="rwx").status_code == 200


@pytest.mark.expected_warnings("no delegation tokens are issued here")
@pytest.mark.parametrize(
    ("method", "path", "op", "parameters", "wanted"),
    [
        ("GET", f"/{READ}/nothing", "OPEN", {}, ("FileNotFoundException", 404)),
        ("GET", f"/{READ}/nothing", "GETFILESTATUS", {}, ("FileNotFoundException", 404)),
        ("GET", f"/{READ}/nothing", "LISTSTATUS", {}, ("FileNotFoundException", 404)),
        ("GET", f"/{READ}/one.bin/below", "GETFILESTATUS", {}, ("FileNotFoundException", 404)),
        ("GET", f"/{READ}", "OPEN", {}, ("FileNotFoundException", 404)),
        ("GET", f"/{READ}/one.bin", "OPEN", {"offset": 2}, ("IOException", 403)),
        ("GET", f"/{READ}/one.bin", "OPEN", {"offset": -1}, ("IllegalArgumentException", 400)),
        ("GET", f"/{READ}/one.bin", "OPEN", {"length": "x"}, ("IllegalArgumentException", 400)),
        ("GET", f"/{READ}/one.bin", "NONSENSE", {}, ("IllegalArgumentException", 400)),
        ("GET", f"/{READ}/one.bin", "", {}, ("IllegalArgumentException", 400)),
        ("PUT", f"/{READ}/one.bin", "OPEN", {}, ("IllegalArgumentException", 400)),
        ("GET", f"/{READ}/../one.bin", "GETFILESTATUS", {}, ("InvalidPathException", 400)),
        ("GET", f"/{READ}/one.bin", "OPEN", {"delegation": "x"}, ("InvalidToken", 403)),
        ("GET", f"/{READ}/one.bin", "GETLINKTARGET", {}, ("IOException", 403)),
        ("GET", f"/{READ}/one.bin", "GETXATTRS", {"xattr.name": "user.x"}, ("IOException", 403)),
        ("PUT", f"/{READ}/new", "CREATE", {}, ("AccessControlException", 403)),
        ("POST", f"/{READ}/one.bin", "APPEND", {}, ("AccessControlException", 403)),
        ("POST", f"/{READ}/one.bin", "TRUNCATE", {"newlength": 0}, ("AccessControlException", 403)),
        ("PUT", f"/{READ}/folder", "MKDIRS", {}, ("AccessControlException", 403)),
        ("DELETE", f"/{READ}/one.bin", "DELETE", {}, ("AccessControlException", 403)),
        ("PUT", f"/{READ}/one.bin", "RENAME", {"destination": f"/{READ}/two"}, ("AccessControlException", 403)),
        ("PUT", f"/{READ}/one.bin", "SETPERMISSION", {"permission": 600}, ("AccessControlException", 403)),
        ("PUT", f"/{READ}/one.bin", "SETXATTR", {}, ("UnsupportedOperationException", 400)),
        ("POST", f"/{READ}/one.bin", "CONCAT", {"sources": "/a"}, ("UnsupportedOperationException", 400)),
    ],
)  # fmt: skip
def test_refusals(
    webhdfs: WebHdfs, method: str, path: str, op: str, parameters: dict[str, Any], wanted: tuple[str, int]
) -> None:
    if ".." in path:
        head = f"{method} /webhdfs/v1{path}?op={op} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        answer = webhdfs.raw(head.encode())
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert wanted[0].encode() in answer
        return
    assert webhdfs.failure(webhdfs.ask(method, path, op, **parameters)) == wanted
