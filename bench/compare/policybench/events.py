"""A change at an origin, until two real nodes show it by their mounts: SeaweedFS posts its events to one of them."""

from __future__ import annotations

import os
import secrets
import time

from nodebench.headrace_mount import HeadraceMount
from nodebench.machine import NotRunError, Workplace, wait_until

from headrace.testing.etcd import etcd_server
from headrace.testing.servers import S3Server, ServerMissing, free_ports, seaweedfs_s3

from .cases import Bench

NODES, CHANGES = 2, 100
SEEN = "a change at the origin seen by event, on all of 2 nodes"
SEEN_P99 = "the same, 99th of 100 changes"
POLL_S = 0.002


class MemberMount(HeadraceMount):
    """A node of the cluster with its mount. settings: of the configuration, by name."""

    def __init__(self, place: Workplace, server: S3Server, number: int, settings: dict[str, object]) -> None:
        super().__init__(place, server.url(), io="auto", endpoint=server.endpoint)
        self.name = f"node-{number}"
        own = {"run_folder": place.folder(f"run-{number}"), "node_id": self.name, **settings}
        self._environment = {f"HEADRACE_{name.upper()}": str(value) for name, value in own.items()}
        self._environment |= {
            "AWS_ACCESS_KEY_ID": server.access_key,
            "AWS_SECRET_ACCESS_KEY": server.secret_key,
        }

    def environment(self) -> dict[str, str]:
        return {**os.environ, **self._environment}


def events(bench: Bench) -> None:
    """Objects are created, replaced and removed, one after the other; listings are fresh for an hour."""
    place = bench.place
    token = secrets.token_hex()
    ports = free_ports(2 * NODES)
    try:
        server = _serve(place, token, ports[0])
        etcd = place.undo.enter_context(etcd_server())
    except (ServerMissing, RuntimeError) as error:
        raise NotRunError(str(error)) from error
    server.put("d/first", b"x")
    nodes = [_node(place, server, etcd.address, number, ports, token) for number in range(NODES)]
    for node in nodes:
        node.start()
    wait_until(
        lambda: all(len(node.status()["cluster"]["members"]) == NODES for node in nodes),
        timeout_s=30,
        name="the cluster",
    )
    for node in nodes:
        os.listdir(f"{node.mountpoint}/d")
    for run in range(bench.repeat):
        times = sorted(_changes(server, nodes, run, bench.count(CHANGES, 10)))
        bench.results.add(SEEN, "median", times[len(times) // 2], unit="s")
        bench.results.add(SEEN_P99, "headrace", times[len(times) * 99 // 100], unit="s")


def _serve(place: Workplace, token: str, port: int) -> S3Server:
    folder = place.folder("seaweedfs")
    with open(os.path.join(folder, "notification.toml"), "w") as settings:
        settings.write(
            f'[notification.webhook]\nenabled = true\nendpoint = "http://127.0.0.1:{port}/v1/events"\n'
            f'bearer_token = "{token}"\n'
        )
    return place.undo.enter_context(seaweedfs_s3(folder))


def _node(
    place: Workplace, server: S3Server, etcd: str, number: int, ports: list[int], token: str
) -> MemberMount:
    folder = place.folder(f"tokens-{number}")
    paths = {name: os.path.join(folder, name) for name in ("rest_token", "events_token")}
    for name, path in paths.items():
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(token if name == "events_token" else secrets.token_hex())
    settings: dict[str, object] = {
        "cluster": f"etcd://{etcd}/bench",
        "listen": f"127.0.0.1:{ports[NODES + number]}",
        "rest_address": f"127.0.0.1:{ports[number]}",
        "sync_interval_s": 3600,
        **paths,
    }
    return MemberMount(place, server, number, settings)


def _changes(server: S3Server, nodes: list[MemberMount], run: int, count: int) -> list[float]:
    times = []
    for number in range(count):
        name, step = f"{run}-{number // 3}", number % 3
        data = (b"new", b"newer", b"")[step]
        start = time.monotonic()
        if step == 2:
            server.delete(f"d/{name}")
        else:
            server.put(f"d/{name}", data)
        for node in nodes:
            _wait_for(f"{node.mountpoint}/d/{name}", data)
        times.append(time.monotonic() - start)
    return times


def _shown(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _wait_for(path: str, data: bytes) -> None:
    end = time.monotonic() + 30
    while _shown(path) != data:
        if time.monotonic() > end:
            raise NotRunError("a change is not shown after 30 s")
        time.sleep(POLL_S)
