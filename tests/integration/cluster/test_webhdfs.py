"""WebHDFS gateways of two nodes: each names the owners of a file, and has the bytes from them."""

from __future__ import annotations

import pytest
import requests

from .conftest import MakeCluster

pytestmark = pytest.mark.timeout(60)
LIMIT_S = 60


def ask(url: str, name: str, op: str) -> requests.Response:
    answer = requests.get(f"{url}/webhdfs/v1/{name}?op={op}", timeout=LIMIT_S)
    assert answer.status_code == 200, answer.text
    return answer


def test_a_file_is_where_its_owner_is(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    truth = {f"folder/{number}": cluster.put(f"folder/{number}", 30_000 + number) for number in range(16)}
    cluster.start(2)
    urls = [
        host.start("webhdfs", "--insecure", "--address", "127.0.0.1:0").wait_ready()["url"]
        for host in cluster.hosts
    ]
    owners = cluster.owners(list(truth))
    assert {id(owner) for owner in owners.values()} == {id(node) for node in cluster.hosts}
    addresses = {id(host): cluster.status(host)["cluster"]["address"] for host in cluster.hosts}
    for url in urls:
        for name, data in truth.items():
            (part,) = ask(url, name, "GETFILEBLOCKLOCATIONS").json()["BlockLocations"]["BlockLocation"]
            assert part["names"] == [addresses[id(owners[name])]]
            assert part["length"] == len(data)
            assert ask(url, name, "OPEN").content == data
    assert cluster.origin() == cluster.truth_bytes()
