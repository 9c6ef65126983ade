"""docs/status.md names every field of `headrace status --json`, and none that is not there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.testing.servers import S3Server
from tests.integration.cli.host import Host, wait_until
from tests.integration.persist.conftest import Writer, settled

from .conftest import MakeCluster

PAGE = Path(__file__).resolve().parents[3] / "docs/status.md"
KEYS = {
    "cache.volumes": "DIR",
    "origin.mounts": "PATH",
    "events.receivers": "PATH",
    "cluster.peers": "NODE",
    "policy.tenants": "NAME",
    "costs.origins": "URL",
    "costs.mounts": "PATH",
    "costs.tenants": "NAME",
    "costs.jobs": "NAME",
}
"""What the page calls the keys of a map."""
OPERATIONS = ("head", "list", "read", "put", "remove", "directory")


def documented() -> set[str]:
    """Return the fields of the page's tables. A span that begins with a dot or a line has the prefix of the first."""
    fields: set[str] = set()
    for row in re.findall(r"^\| (`.*?) \|", PAGE.read_text(), re.MULTILINE):
        first, *others = re.findall(r"`([^`]+)`", row)
        prefixes = {".": first.rpartition(".")[0], "_": first.rpartition("_")[0]}
        for field in (first, *(prefixes.get(span[0], "") + span for span in others)):
            names = OPERATIONS if "OPERATION" in field else ("",)
            fields |= {field.replace("OPERATION", name) for name in names}
    return fields


def printed(value: object, name: str = "") -> Iterator[str]:
    """Yield the fields of a status, with the page's words for paths and nodes."""
    if isinstance(value, dict):
        for key, inner in value.items():
            field = KEYS.get(name, str(key))
            yield from printed(inner, f"{name}.{field}" if name else field)
    elif isinstance(value, list) and value and isinstance(value[0], dict) and name != "gateways":
        yield from printed(value[0], f"{name}[]")
    else:
        yield name


def configure(host: Host, server: S3Server) -> None:
    """Give the node a second mount, which has a queue of events. The queue need not exist."""
    path = host.base / "config/headrace/headrace.toml"
    path.parent.mkdir(parents=True)
    options = {**server.options(), "events": f"{server.endpoint}/123456789012/changes"}
    lines = [f"{name} = {json.dumps(value)}" for name, value in options.items()]
    path.write_text(
        "\n".join(['[mounts."/s3"]', f'url = "{server.url()}"', '[mounts."/s3".options]', *lines])
    )
    path.chmod(0o600)


@pytest.mark.server("moto")
@pytest.mark.expected_warnings("events of a mount can't be received")
def test_the_page_has_the_fields_of_a_nodes_status(make_cluster: MakeCluster, moto_bucket: S3Server) -> None:
    cluster = make_cluster(write="off,/out=back:2", seal="auto")
    cluster.put("data/a", 50_000)
    cluster.put("data/b", 60_000)
    hosts = [cluster.add(), cluster.add()]
    for host in hosts:
        configure(host, moto_bucket)
        cluster.up(host)
    cluster.wait_members(2)
    wait_until(lambda: any(host.status()["events"]["receivers"] for host in hosts))
    policy = cluster.base / "policy.toml"
    policy.write_text(
        '[tenant.a]\npaths = ["/data/**"]\n[origin."s3://b"]\nrequests_s = 10\nbytes_s = "1MB"\negress_per_gib = 1\n'
    )
    hosts[0].ok("policy", "set", policy)
    for host in hosts:
        host.ok("seal", "/data")
        assert (host.mount / "data/a").read_bytes() == (cluster.truth / "data/a").read_bytes()
    Writer(hosts[0].mount).run("open('out/file', 'wb').write(b'x' * 1000)")
    settled(hosts[0])
    status = [host.json("status") for host in hosts]
    assert set(printed(status[0])) | set(printed(status[1])) == documented()
