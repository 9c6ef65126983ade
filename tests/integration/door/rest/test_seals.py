"""Seals by the REST API, and by the library of a host without a node."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.base.tokens import Tokens
from headrace.sdk.cache import Cache, cache_over
from headrace.vfs.remote.cluster_client import ClusterClient
from headrace.vfs.remote.remote_registry import address_of
from headrace.vfs.remote.remote_vfs import RemoteVfs
from tests.integration.door.rest.conftest import Api, serving

pytestmark = pytest.mark.timeout(90)


@pytest.fixture(scope="module")
def sealing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with serving(tmp_path_factory.mktemp("seals"), write="/out=back,off") as running:
        yield running


@pytest.fixture
def cache(sealing: Api) -> Iterator[Cache]:
    tokens = Tokens(str(sealing.host.base / "token"), "rest_token")
    with cache_over(
        RemoteVfs(ClusterClient([address_of(sealing.url, None)], tokens, patience_s=10.0))
    ) as cache:
        yield cache


def ended(api: Api, kind: str, **options: str) -> dict[str, Any]:
    answer = api.ask("POST", "/v1/jobs", body={"kind": kind, "path": "/data", "options": options})
    assert answer.status == 202, answer.body
    job: dict[str, Any] = answer.json
    limit_s = time.monotonic() + 30
    while job["state"] == "running":
        assert time.monotonic() < limit_s
        job = api.ask("GET", f"/v1/jobs/{job['id']}?wait_s=5").json
    return job


def test_seals_are_made_listed_and_read(sealing: Api, cache: Cache) -> None:
    assert ended(sealing, "seal", seal="data@4")["state"] == "done"
    assert ended(sealing, "push-seal", seal="data@4")["state"] == "done"
    (row,) = sealing.ask("GET", "/v1/seals").json["seals"]
    assert row["seal"] == "data@4" and row["path"] == "/data"
    assert sealing.ask("GET", "/v1/seals?origin=true").json["seals"] == [row]
    truth = {path.name: path.read_bytes() for path in sealing.truth.iterdir() if path.is_file()}
    for name, body in truth.items():
        assert sealing.ask("GET", f"/v1/content?path=/data@4/{name}").body == body
        assert cache.read(f"/data@4/{name}") == body
    entries = sealing.ask("GET", "/v1/entries?path=/data@4").json["entries"]
    assert [entry["path"] for entry in entries if entry["kind"] == "file"] == [
        f"/data@4/{name}" for name in sorted(truth)
    ]
    assert sealing.ask("PUT", "/v1/content?path=/data@4/new", body=b"x").status == 403
    assert cache.seal("/data", "data@5").id == row["id"]
    assert cache.seal("/data").seal == "data@6"
    assert ended(sealing, "seal", seal="data")["data"] == {"data@7": row["id"]}
    assert [row.seal for row in cache.seals()] == [f"data@{version}" for version in (4, 5, 6, 7)]
    assert ended(sealing, "verify-seal", seal="data@4")["state"] == "done"
    for version in (4, 5, 6, 7):
        assert ended(sealing, "unseal", seal=f"data@{version}")["state"] == "done"


@pytest.mark.expected_warnings("a file of a seal can't be read")
def test_a_changed_object_is_an_error_with_a_reason(sealing: Api) -> None:
    name = "changing"
    sealing.host.put(name, 2000)
    sealing.host.ok("sync", "/")
    assert ended(sealing, "seal", seal="data@9")["state"] == "done"
    assert ended(sealing, "push-seal", seal="data@9")["state"] == "done"
    assert ended(sealing, "unseal", seal="data@9")["state"] == "done"
    sealing.host.put(name, 2000, seed=3)
    sealing.host.ok("sync", "/")
    answer = sealing.ask("GET", f"/v1/content?path=/data@9/{name}")
    assert answer.status >= 400 and answer.json["code"] == "origin.version_changed", answer.body
    assert "sealed" in answer.json["why"]
