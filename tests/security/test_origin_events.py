"""Events come from whoever can write at an origin, or reaches the REST API: they cost little and prove nothing."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.events.changes import EVENTS_BYTES_MAX
from headrace.testing.servers import S3Server
from tests.integration.cli.host import wait_until
from tests.integration.door.rest.conftest import TOKEN, Api, serving

pytestmark = pytest.mark.timeout(90)

OF_EVENTS = "of-the-origin"
FLOODED = 250
"""Directories in which 16 names change: so many are looked up one by one."""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    base = tmp_path_factory.mktemp("events")
    token = base / "events-token"
    token.write_text(f"{OF_EVENTS}\n")
    token.chmod(0o600)
    with serving(base, write="off", events_token=token) as api:
        yield api


def record(key: str, bucket: str = "b", kind: str = "ObjectCreated:Put") -> dict[str, Any]:
    return {"eventName": kind, "s3": {"bucket": {"name": bucket}, "object": {"key": key}}}


def post(api: Api, body: object, token: str = OF_EVENTS) -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return api.ask("POST", "/v1/events", body=data, token=token, Content_Type="application/json")


def events_of(api: Api) -> Any:
    return api.ask("GET", "/v1/status").json["status"]["events"]


def test_the_token_of_events_permits_nothing_else(api: Api) -> None:
    assert post(api, {"Records": [record("k")]}).json == {"changes": 1, "refused": 0}
    assert post(api, {"Records": []}, token=TOKEN).status == 200
    for method, path in (
        ("GET", "/v1/status"),
        ("GET", "/v1/content?path=/data/one"),
        ("DELETE", "/v1/entry?path=/data/one"),
        ("POST", "/v1/mounts"),
        ("PUT", "/v1/policy"),
        ("GET", "/metrics"),
    ):
        assert api.ask(method, path, token=OF_EVENTS).status == 401, path


@pytest.mark.expected_warnings("refused interface=rest")
@pytest.mark.parametrize(
    "token", ["", "wrong", OF_EVENTS[:-1], OF_EVENTS + "x", "\u00fc".encode().decode("latin-1")]
)
def test_a_post_without_the_token_is_refused_unread(api: Api, token: str) -> None:
    before = events_of(api)["posts"]["posts"]
    for body in (
        {"Records": [record("k")]},
        [{"eventType": "Microsoft.EventGrid.SubscriptionValidationEvent"}],
    ):
        answer = post(api, body, token=token)
        assert answer.status == 401
        assert b"validation" not in answer.body
    assert events_of(api)["posts"]["posts"] == before


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b'{"Records":' * 10_000,
        b"\xff\xfe\x00",
        b'{"Records": [{"eventName": "ObjectCreated:Put"}]}',
        b'{"key": 5, "event_type": "create"}',
        b"5",
        json.dumps({"Records": [record("k")] * 6000}).encode(),
    ],
)
def test_a_body_that_is_no_event_is_refused(api: Api, body: bytes) -> None:
    answer = post(api, body)
    assert answer.status == 422
    assert answer.json["code"] == "usage"


def test_a_huge_body_is_refused_before_it_is_read(api: Api) -> None:
    host, _, port = api.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        head = f"POST /v1/events HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {OF_EVENTS}\r\n"
        connection.sendall(f"{head}Content-Length: {1 << 40}\r\n\r\n".encode())
        sent = 0
        try:
            while sent < 64 * EVENTS_BYTES_MAX:
                sent += connection.send(bytes(65536))
        except OSError:
            pass
        assert sent < 64 * EVENTS_BYTES_MAX
    assert post(api, {"Records": []}).status == 200


def test_keys_that_lead_elsewhere_are_counted_and_dropped(api: Api) -> None:
    keys = ["../../etc/passwd", "a/../../b", "/etc/shadow", "a//b", "a%00b", "n" * 300, "%2e%2e/%2e%2e/x"]
    answer = post(api, {"Records": [record(key) for key in keys]}).json
    assert answer["refused"] >= len(keys)
    assert answer["changes"] <= 2  # %00 and %2e, read as plain letters
    assert events_of(api)["directories_waiting"] == 0


def test_a_validation_is_answered_to_who_has_the_token(api: Api) -> None:
    event = {
        "eventType": "Microsoft.EventGrid.SubscriptionValidationEvent",
        "data": {"validationCode": "0000-1111", "validationUrl": "https://example.com/confirm"},
        "subject": "",
    }
    answer = post(api, [event])
    assert (answer.status, answer.json) == (200, {"validationResponse": "0000-1111"})
    long = {**event, "data": {"validationCode": "x" * 5000}}
    assert post(api, [long]).json == {"changes": 0, "refused": 0}


def test_a_flood_of_events_costs_bounded_work(tmp_path: Path, seaweed: S3Server) -> None:
    """Two hundred posts with 50,000 keys in ten directories and elsewhere: some listings, and the node answers.
    Keys of other buckets cost none. Each post names 17 keys of each directory, as so many are not looked up one by
    one."""
    for number in range(10):
        seaweed.put(f"costs/d{number}/file", b"x" * 10)
    with events_of_seaweed(tmp_path, seaweed) as api:
        mount(api, seaweed, "m", "costs")
        for number in range(10):
            assert api.ask("GET", f"/v1/entries?path=/m/d{number}").status == 200
        for bucket in ("other", "Data", "data2", "..", "/data", "b" * 255):
            assert bucket != seaweed.bucket
            assert post(api, {"Records": [record("costs/d3/x", bucket)]}).status == 200
        counts = events_of(api)
        assert (counts["directories_waiting"], counts["directories_listed"]) == (0, 0)
        before = api.ask("GET", "/v1/status").json["status"]["origin"]["mounts"]["/m"]["requests"]
        begun_s = time.monotonic()
        for number in range(200):
            keys = [record(f"costs/d{key % 10}/{number}-{key}", seaweed.bucket) for key in range(170)]
            keys += [
                record(f"costs/none{number}/{key}/x", seaweed.bucket, "ObjectRemoved:Delete")
                for key in range(80)
            ]
            assert post(api, {"Records": keys}).status == 200
        took_s = time.monotonic() - begun_s
        assert api.ask("GET", "/v1/entries?path=/m/d3").json["entries"][0]["path"] == "/m/d3/file"
        wait_until(lambda: events_of(api)["directories_waiting"] == 0, 60.0)
        status = api.ask("GET", "/v1/status").json["status"]
        listed = status["events"]["directories_listed"]
        requests = status["origin"]["mounts"]["/m"]["requests"] - before
        assert 0 < listed <= 100 * (time.monotonic() - begun_s) + 200, (listed, took_s)
        assert requests <= 3 * listed + 50, (requests, listed)


def test_a_flood_of_one_mount_delays_no_other(tmp_path: Path, seaweed: S3Server) -> None:
    """Its names wait for their lookups, 400 a second, while a change of another mount is shown."""
    for number in range(FLOODED):
        seaweed.put(f"flooded/d{number}/file", b"x" * 10)
    seaweed.put("other/d/file", b"y" * 10)
    with events_of_seaweed(tmp_path, seaweed, sync_interval_s=3600) as api:
        for name in ("flooded", "other"):
            mount(api, seaweed, name, name)
        for number in range(FLOODED):
            assert api.ask("GET", f"/v1/entries?path=/flooded/d{number}").status == 200
        assert names_of(api, "/other/d") == ["/other/d/file"]
        records = [
            record(f"flooded/d{number}/{name}", seaweed.bucket)
            for number in range(FLOODED)
            for name in range(16)
        ]
        seaweed.put("other/d/new", b"z" * 10)
        for start in range(0, len(records), 2000):
            assert post(api, {"Records": records[start : start + 2000]}).status == 200
        assert post(api, {"Records": [record("other/d/new", seaweed.bucket)]}).status == 200
        wait_until(lambda: "/other/d/new" in names_of(api, "/other/d"), 60.0)
        counts = events_of(api)
        assert counts["names_waiting"] > 0, counts
        assert counts["overflows"] == 0


@contextlib.contextmanager
def events_of_seaweed(tmp_path: Path, server: S3Server, **settings: object) -> Iterator[Api]:
    token = tmp_path / "events-token"
    token.write_text(f"{OF_EVENTS}\n")
    token.chmod(0o600)
    allowed = f"{server.url()},endpoint={server.endpoint}"
    with serving(tmp_path, write="off", events_token=token, allowed_origins=allowed, **settings) as api:
        yield api


def mount(api: Api, server: S3Server, name: str, prefix: str) -> None:
    body = {
        "path": f"/{name}",
        "url": server.url(prefix),
        "options": {**server.options(), "allow_http": "true"},
    }
    added = api.ask("POST", "/v1/mounts", body=body)
    assert added.status == 201, added.body


def names_of(api: Api, path: str) -> list[str]:
    return [entry["path"] for entry in api.ask("GET", f"/v1/entries?path={path}").json["entries"]]


def handshake(api: Api, **headers: str) -> Any:
    return api.ask("OPTIONS", "/v1/events", token="", **headers)


def test_a_sender_of_cloud_events_is_confirmed(api: Api) -> None:
    """Azure Event Grid asks without the token. The posts that follow need it."""
    answer = handshake(api, WebHook_Request_Origin="eventgrid.azure.net", WebHook_Request_Rate="120")
    assert answer.status == 200 and answer.body == b""
    headers = {name.lower(): value for name, value in answer.headers.items()}
    assert headers["webhook-allowed-origin"] == "eventgrid.azure.net"
    assert headers["webhook-allowed-rate"] == "120"
    event = {
        "specversion": "1.0",
        "type": "Microsoft.Storage.BlobCreated",
        "subject": "/blobServices/default/containers/b/blobs/k",
    }
    body = json.dumps(event).encode()
    kind = "application/cloudevents+json; charset=utf-8"
    assert api.ask("POST", "/v1/events", body=body, token=OF_EVENTS, Content_Type=kind).json["changes"] == 1
    batch = json.dumps([event, event]).encode()
    kind = "application/cloudevents-batch+json"
    assert api.ask("POST", "/v1/events", body=batch, token=OF_EVENTS, Content_Type=kind).json["changes"] == 2


@pytest.mark.parametrize("rate", ["", "*", "0", "-1", "9" * 50, "1e9", "999999999"])
def test_the_rate_of_posts_has_a_limit(api: Api, rate: str) -> None:
    answer = handshake(api, WebHook_Request_Origin="a.example", WebHook_Request_Rate=rate)
    headers = {name.lower(): value for name, value in answer.headers.items()}
    assert headers["webhook-allowed-rate"] == "6000"


@pytest.mark.parametrize("origin", ["", "x" * 256, "a b", "<script>", "a,b", "\u00e9"])
def test_a_handshake_of_something_else_permits_nothing(api: Api, origin: str) -> None:
    answer = handshake(api, WebHook_Request_Origin=origin)
    assert answer.status == 200
    names = {name.lower() for name in answer.headers}
    assert not any(name.startswith(("webhook", "access-control")) for name in names)


def test_other_paths_have_no_handshake(api: Api) -> None:
    for path in ("/v1/status", "/v1/content", "/v1/mounts"):
        answer = api.ask("OPTIONS", path, token="", WebHook_Request_Origin="a.example")
        assert answer.status == 405
