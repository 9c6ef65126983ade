"""The REST API: what the CLI does, by HTTP; every byte is the origin's, and errors say what they are."""

from __future__ import annotations

import http.client
import itertools
import os
import signal
import socket
import time
from typing import Any
from urllib.parse import quote

import pytest
import xxhash

from headrace.config.schema import rest_socket_of
from headrace.wire.api import OPERATIONS
from tests.integration.cli.host import wait_until, with_settings
from tests.integration.door.rest.conftest import Api

pytestmark = pytest.mark.timeout(60)
MIB = 1 << 20


def content(path: str) -> str:
    return f"/v1/content?path={quote(path)}"


def ended(api: Api, job: dict[str, Any]) -> dict[str, Any]:
    for _ in range(20):
        if job["state"] != "running":
            return job
        job = api.ask("GET", f"/v1/jobs/{job['id']}?wait_s=5").json
    raise AssertionError(job)


def job(api: Api, kind: str, path: str, **options: str) -> dict[str, Any]:
    answer = api.ask("POST", "/v1/jobs", body={"kind": kind, "path": path, "options": options})
    assert answer.status == 202, answer
    assert answer.headers["Location"] == f"/v1/jobs/{answer.json['id']}"
    return ended(api, answer.json)


def sums(data: bytes, start: int = 0) -> str:
    cuts = [0, *range(MIB - start % MIB, len(data), MIB), len(data)]
    pieces = [data[begin:end] for begin, end in itertools.pairwise(cuts)]
    return ",".join(xxhash.xxh3_64_hexdigest(piece) for piece in pieces)


def test_every_byte_whole_and_by_ranges(api: Api) -> None:
    for round in ("cold", "cached"):
        for name in ("empty", "one", "small", "block", "more", "large"):
            truth = (api.truth / name).read_bytes()
            whole = api.ask("GET", content(f"/data/{name}"))
            assert (whole.status, whole.body) == (200, truth), (round, name)
            head = api.ask("HEAD", content(f"/data/{name}"))
            assert (head.status, head.body, head.headers["Content-Length"]) == (200, b"", str(len(truth)))
            for start, end in (
                (0, 10),
                (1, len(truth) - 1),
                (MIB - 5, MIB + 5),
                (len(truth) - 1, len(truth) + 9),
            ):
                if not 0 <= start < min(end, len(truth)):
                    continue
                part = api.ask("GET", content(f"/data/{name}"), Range=f"bytes={start}-{end - 1}")
                assert (part.status, part.body) == (206, truth[start:end]), (round, name, start, end)
        assert job(api, "free" if round == "cached" else "load", "/data")["state"] == "done"


def test_checksums_of_what_is_sent(api: Api) -> None:
    truth = (api.truth / "large").read_bytes()
    for start, end in ((0, len(truth)), (MIB, 3 * MIB), (MIB + 7, 2 * MIB + 9), (5 * MIB, len(truth))):
        answer = api.ask(
            "GET", content("/data/large"), Range=f"bytes={start}-{end - 1}", headrace_checksums="xxh3-64"
        )
        assert answer.body == truth[start:end]
        assert answer.headers["headrace-checksums"] == sums(truth[start:end], start), (start, end)


def test_a_rotten_block_is_never_sent_as_a_good_one(api: Api) -> None:
    """A byte on the disk flips: whole blocks come with the checksum they were fetched with, parts are refused."""
    name = "rotten"
    truth = api.host.put(name, 3 * MIB)
    assert job(api, "sync", "/data")["state"] == "done"
    assert job(api, "load", f"/data/{name}")["state"] == "done"
    row = api.ask("GET", f"/v1/entry?path=/data/{name}").json
    number = f"{row['id']:012x}"
    (file,) = api.host.cache.rglob(number)
    with open(file, "r+b") as out:
        out.seek(MIB + 100)
        out.write(bytes([truth[MIB + 100] ^ 255]))
    whole = api.ask("GET", content(f"/data/{name}"), Range="bytes=0-3145727", headrace_checksums="xxh3-64")
    assert whole.headers["headrace-checksums"] == sums(truth) != sums(whole.body)
    part = api.ask(
        "GET", content(f"/data/{name}"), Range=f"bytes={MIB}-{MIB + 9}", headrace_checksums="xxh3-64"
    )
    assert (part.status, part.json["code"]) == (503, "store.corrupt_block")
    job(api, "fsck", f"/data/{name}")
    again = api.ask("GET", content(f"/data/{name}"))
    assert again.body == truth


def test_ranges_and_versions_that_are_refused(api: Api) -> None:
    beyond = api.ask("GET", content("/data/small"), Range="bytes=4096-")
    assert (beyond.status, beyond.headers["Content-Range"]) == (416, "bytes */4096")
    etag = api.ask("GET", content("/data/small")).headers["ETag"]
    assert api.ask("GET", content("/data/small"), If_Match=etag).status == 200
    other = api.ask("GET", content("/data/small"), If_Match='"other"')
    assert (other.status, other.json["code"]) == (412, "origin.version_changed")


def test_a_range_of_another_version_is_none(api: Api) -> None:
    """A client that continues a download would join bytes of two versions."""
    whole = api.ask("GET", content("/data/small"))
    etag, time = whole.headers["ETag"], whole.headers["Last-Modified"]
    part = api.ask("GET", content("/data/small"), Range="bytes=10-19", If_Range=etag)
    assert (part.status, part.body) == (206, whole.body[10:20])
    for other in ('"other"', f"W/{etag}", time):
        again = api.ask("GET", content("/data/small"), Range="bytes=10-19", If_Range=other)
        assert (again.status, again.body) == (200, whole.body)


def test_names_in_pages(api: Api) -> None:
    for number in range(7):
        api.host.put(f"many/{number}", 1)
    (api.truth / "many/\udcff-no-utf-8").write_bytes(b"x")
    assert job(api, "sync", "/data")["state"] == "done"
    paths: list[str] = []
    after: str | None = ""
    while after is not None:
        page = api.ask(
            "GET", f"/v1/entries?path=/data/many&limit=3&after={quote(after, errors='surrogateescape')}"
        ).json
        assert len(page["entries"]) <= 3
        paths += [row["path"] for row in page["entries"]]
        after = page["next"]
    assert paths == [*(f"/data/many/{number}" for number in range(7)), "/data/many/\udcff-no-utf-8"]
    assert api.ask("GET", content("/data/many/") + "%FF-no-utf-8").body == b"x"
    root = {row["path"]: row["kind"] for row in api.ask("GET", "/v1/entries?path=/").json["entries"]}
    assert root == {"/data": "directory", "/out": "directory"}


def test_what_is_written_is_at_the_origin_and_goes(api: Api) -> None:
    data = os.urandom(2 * MIB + 5)
    assert api.ask("PUT", content("/out/a/b"), body=data).status == 204
    assert api.ask("GET", content("/out/a/b")).body == data
    assert job(api, "persist", "/out")["state"] == "done"
    assert (api.origin / "a/b").read_bytes() == data
    exists = api.ask("PUT", content("/out/a/b") + "&replace=false", body=b"x")
    assert (exists.status, exists.json["code"]) == (409, "path.exists")
    moved = api.ask("POST", "/v1/rename", body={"source": "/out/a/b", "target": "/out/a/c"})
    assert moved.status == 204
    assert api.ask("PUT", "/v1/directory?path=/out/x/y").status == 204
    assert api.ask("DELETE", "/v1/entry?path=/out/a").json["code"] == "path.is_a_directory"
    assert api.ask("DELETE", "/v1/entry?path=/out/a&recursive=true").status == 204
    assert api.ask("GET", content("/out/a/c")).status == 404
    assert job(api, "persist", "/out")["state"] == "done"
    assert sorted(file.name for file in api.origin.iterdir()) == ["x"]


def test_what_is_not_what_its_checksum_says_is_not_kept(api: Api) -> None:
    data = b"twelve bytes"
    wrong = api.ask("PUT", content("/out/sum"), body=data, headrace_checksum="0" * 16)
    assert (wrong.status, wrong.json["code"]) == (422, "protocol")
    assert api.ask("GET", "/v1/entry?path=/out/sum").status == 404
    right = xxhash.xxh3_64_hexdigest(data)
    assert api.ask("PUT", content("/out/sum"), body=data, headrace_checksum=right).status == 204
    assert api.ask("DELETE", "/v1/entry?path=/out/sum").status == 204


def test_a_put_that_breaks_off_leaves_nothing(api: Api) -> None:
    host, port = api.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        head = f"PUT {content('/out/half')} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {api.token}\r\n"
        connection.sendall(head.encode() + b"Content-Length: 1000000\r\n\r\n" + b"x" * 1000)
    wait_until(lambda: not list((api.host.cache / "upper/work").iterdir()))
    assert api.ask("GET", "/v1/entry?path=/out/half").status == 404


def test_nothing_is_written_where_nothing_may_be(api: Api) -> None:
    refused = api.ask("PUT", content("/data/new"), body=b"x")
    assert (refused.status, refused.json["code"]) == (403, "path.read_only")


@pytest.mark.expected_warnings("the request has no valid token")
def test_who_shows_no_token_is_told_nothing(api: Api) -> None:
    for operation in OPERATIONS:
        path = operation.path.replace("{id}", "1")
        for token in ("", "wrong"):
            answer = api.ask(operation.method, path, token=token)
            if operation.open:
                assert answer.status in (200, 503), operation.name
            else:
                assert (answer.status, answer.json["code"]) == (401, "node.denied"), operation.name
                assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_the_unix_socket_is_for_the_user_who_runs_it(api: Api) -> None:
    path = rest_socket_of(api.up.ready["socket"])
    assert os.stat(path).st_mode & 0o777 == 0o600
    connection = http.client.HTTPConnection("node")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(path)
    connection.request("GET", "/v1/status")
    assert connection.getresponse().status == 200
    connection.close()


def test_a_second_api_leaves_the_unix_socket_to_the_first(api: Api) -> None:
    path = rest_socket_of(api.up.ready["socket"])
    before = os.stat(path).st_ino
    with with_settings(api.host, rest_address=""):
        refused = api.host.headrace("rest")
    assert refused.returncode == 2
    assert "another REST API of this node listens there" in refused.stderr
    second = api.host.start("rest", "--address", "127.0.0.1:0")
    assert second.wait_ready()["url"] != api.url
    second.signal(signal.SIGTERM)
    assert second.wait() == 0
    assert os.stat(path).st_ino == before
    test_the_unix_socket_is_for_the_user_who_runs_it(api)


def test_mounts_come_and_go(api: Api) -> None:
    more = api.host.base / "more"
    more.mkdir()
    (more / "file").write_bytes(b"more")
    added = api.ask("POST", "/v1/mounts", body={"path": "/more", "url": f"file://{more}"})
    assert (added.status, added.json["path"]) == (201, "/more")
    assert api.ask("GET", content("/more/file")).body == b"more"
    assert "/more" in [row["path"] for row in api.ask("GET", "/v1/mounts").json["mounts"]]
    assert api.ask("DELETE", "/v1/mounts?path=/more").status == 204
    assert api.ask("GET", content("/more/file")).status == 404
    nowhere = api.ask("POST", "/v1/mounts", body={"path": "/no", "url": "nonsense://x"})
    assert nowhere.status == 422


def test_the_rule_of_a_mount_ends_with_it(api: Api) -> None:
    more = api.host.base / "ruled"
    more.mkdir()
    (more / "file").write_bytes(b"more")
    before = api.ask("GET", "/v1/policy").json["text"]
    api.host.ok("mount", "add", "/ruled", more, "--rule", "ttl=1h")
    assert '"/ruled/**"' in api.ask("GET", "/v1/policy").json["text"]
    assert api.ask("DELETE", "/v1/mounts?path=/ruled").status == 204
    assert api.ask("GET", "/v1/policy").json["text"] == before


def test_a_policy_made_from_another_version_is_a_conflict(api: Api) -> None:
    before = api.ask("GET", "/v1/policy").json
    rule = '[[rule]]\nmatch = ["/nowhere/**"]\nttl = "1d"\n'
    body = {"text": before["text"] + rule, "author": "me", "base": before["number"]}
    set_ = api.ask("PUT", "/v1/policy", body=body)
    assert (set_.status, set_.json["number"]) == (200, before["number"] + 1)
    assert api.ask("PUT", "/v1/policy", body=body).json["number"] == before["number"] + 1  # sent again
    refused = api.ask("PUT", "/v1/policy", body=body | {"text": "# another\n"})
    assert (refused.status, refused.json["code"]) == (409, "policy.conflict")
    assert f"version {before['number'] + 1} is in force by now" in refused.json["detail"]
    assert api.ask("GET", "/v1/policy").json["text"] == body["text"]
    assert api.ask("PUT", "/v1/policy", body={"text": before["text"]}).status == 200


def test_jobs_are_followed_cancelled_and_told_of(api: Api) -> None:
    done = job(api, "load", "/data/images")
    assert (done["state"], done["files_done"], done["scope"]) == ("done", 1, "node")
    failed = api.ask("POST", "/v1/jobs", body={"kind": "load", "path": "/nowhere"})
    assert (failed.status, failed.json["code"]) == (404, "path.not_found")
    assert done["id"] in [row["id"] for row in api.ask("GET", "/v1/jobs").json["jobs"]]
    over = api.ask("POST", f"/v1/jobs/{done['id']}/cancel")
    assert (over.status, over.json["state"]) == (202, "done")
    assert api.ask("GET", "/v1/jobs/nobody").status == 404
    alone = api.ask("POST", "/v1/jobs", body={"kind": "drain"})
    assert (alone.status, "belongs to no cluster" in alone.body.decode()) == (422, True)


def test_a_job_that_is_cancelled_ends(api: Api) -> None:
    """Its origin answers late, and takes 40 s for all: the mount is limited to one request in two seconds."""
    slow = api.host.base / "slow"
    slow.mkdir()
    for number in range(20):
        (slow / str(number)).write_bytes(b"x")
    options = {"request_limit_per_s": "0.5"}
    api.ask("POST", "/v1/mounts", body={"path": "/slow", "url": f"file://{slow}", "options": options})
    load_job = api.ask("POST", "/v1/jobs", body={"kind": "load", "path": "/slow"}).json
    assert load_job["state"] == "running"
    began_s = time.monotonic()
    assert api.ask("POST", f"/v1/jobs/{load_job['id']}/cancel").json["state"] == "cancelled"
    assert time.monotonic() - began_s < 20
    api.ask("DELETE", "/v1/mounts?path=/slow")


def test_status_metrics_health(api: Api) -> None:
    assert api.ask("GET", "/readyz", token="").json == {"ready": True}
    status = api.ask("GET", "/v1/status").json["status"]
    assert status["node"]["socket"] == api.up.ready["socket"]
    page = api.ask("GET", "/metrics")
    assert page.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    lines = page.body.decode().splitlines()
    capacity = next(line for line in lines if line.startswith("headrace_cache_capacity_bytes "))
    assert int(capacity.split()[1]) == 256 * MIB
    assert any(line.startswith('headrace_origin_read_bytes_total{mount="/data"} ') for line in lines)
    assert api.ask("GET", "/v1/cluster").json == {"node": "", "replicas": 1, "members": []}


def test_a_dead_node_is_not_ready_and_is_waited_for(api: Api) -> None:
    pid = api.ask("GET", "/v1/status").json["status"]["node"]["pid"]
    os.kill(pid, 9)
    assert api.ask("GET", "/healthz").status == 200
    assert api.ask("GET", content("/data/small")).body == (api.truth / "small").read_bytes()
    wait_until(lambda: api.ask("GET", "/readyz").status == 200, 20)
