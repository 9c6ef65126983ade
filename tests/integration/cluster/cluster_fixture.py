"""Run a cluster as its users do: several hosts with one origin and one etcd, on loopback ports."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from headrace.ring.view import NodeInfo, next_view
from headrace.testing.servers import free_ports
from headrace.testing.waiting import wait_for
from tests import fork_server
from tests.integration.cli.host import Host, Up, wait_until
from tests.integration.persist.conftest import Writer, tree_of

SEEN_WITHIN_S = 60.0


class ClusterFixture:
    """A cluster of nodes `n0`, `n1`, …, each with a mount. `settings` are those of every node."""

    def __init__(self, base: Path, etcd: str, **settings: object) -> None:
        self.base = base
        self.truth = base / "truth"
        self.truth.mkdir()
        self.hosts: list[Host] = []
        self.ups: list[Up] = []
        self._cluster = f"etcd://{etcd}/{base.name}"
        self._settings = {"lease_s": 2, "sync_interval_s": 3600, "log_level": "info", **settings}
        self._settings.setdefault("allowed_origins", f"file://{base}")

    def add(self, **settings: object) -> Host:
        """Add a host, without starting its node."""
        number = len(self.hosts)
        base = self.base / f"n{number}"
        base.mkdir()
        (port,) = free_ports(1)
        own = {"cluster": self._cluster, "node_id": f"n{number}", "listen": f"127.0.0.1:{port}"}
        host = Host(base, **{**self._settings, **own, **settings})
        host.truth = self.truth
        self.hosts.append(host)
        return host

    def start(self, count: int) -> None:
        """Start so many hosts. They see each other on return."""
        for _ in range(count):
            self.up(self.add())
        self.wait_members(count)

    def up(self, host: Host, *words: object) -> Up:
        process = (
            host.up(*words, cache=f"{host.cache}:256MiB")
            if words
            else host.up(self.truth, host.mount, cache=f"{host.cache}:256MiB")
        )
        self.ups.append(process)
        return process

    def put(self, name: str, size_bytes: int, seed: int = 0) -> bytes:
        return Host.put(self._any(), name, size_bytes, seed)

    def _any(self) -> Host:
        if self.hosts:
            return self.hosts[0]
        host = object.__new__(Host)
        host.truth = self.truth
        return host

    def owners(self, names: list[str]) -> dict[str, Host]:
        """By the members that the first host sees."""
        nodes = {
            row["id"]: NodeInfo(
                row["id"], "", row["address"], row["zone"], row["capacity_bytes"], "", 1, row["draining"]
            )
            for row in self.status(self.hosts[0])["cluster"]["members"]
        }
        view = next_view(None, nodes, epoch=1)
        ids = {name: view.owners(os.fsencode(f"/{name}"))[0].id for name in names}
        return {name: self.hosts[int(id.removeprefix("n"))] for name, id in ids.items()}

    def status(self, host: Host) -> dict[str, Any]:
        report: dict[str, Any] = host.status()
        return report

    def members(self, host: Host) -> list[str]:
        return [row["id"] for row in self.status(host)["cluster"]["members"]]

    def wait_members(self, count: int, hosts: list[Host] | None = None) -> None:
        for host in hosts if hosts is not None else self.hosts:
            wait_until(lambda host=host: len(self.members(host)) == count, SEEN_WITHIN_S)  # type: ignore[misc]

    def origin(self, key: str = "bytes_read", hosts: list[Host] | None = None) -> int:
        """Return what the nodes together had from the origin."""
        return sum(self.status(host)["origin"][key] for host in (hosts or self.hosts))

    def misses(self) -> int:
        """Reads that may have gone past an owner: on a machine that does other things, one may seem slow or dead."""
        counts = [self.status(host)["peers"] for host in self.hosts]
        return sum(row["reads_failed"] + row["reads_hedged"] for row in counts)

    def truth_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.truth.rglob("*") if path.is_file())

    def wait_for(self, condition: Callable[[], object], limit_s: float = SEEN_WITHIN_S) -> None:
        wait_for(condition, limit_s)

    def close(self) -> None:
        for host in self.hosts:
            host.close()
        for up in self.ups:
            if up.process.poll() is None:
                os.killpg(up.pid, 9)
            up.process.wait(60)


def run_first(host: Host, program: str, *, in_forks: bool = False) -> None:
    """Every Python process of the host runs it before all else: such as another clock. Before the host is up.
    in_forks: a process of which all modules are imported may run it (`tests/fork_server.py`)."""
    folder = host.base / (fork_server.FIRST if in_forks else "first")
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(program)
    host.environment["PYTHONPATH"] = str(folder)


def same_everywhere(cluster: ClusterFixture) -> None:
    truth = tree_of(cluster.truth)
    for host in cluster.hosts:
        same(Writer(host.mount), truth)


def same(writer: Writer, truth: dict[str, str]) -> None:
    """Wait until another node shows what a node has written."""

    def shown() -> dict[str, str]:
        return writer.tree(is_changed_elsewhere=True)

    wait_until(lambda: shown() == truth, 30.0, hint=lambda: short(shown(), truth))


def short(shown: dict[str, str], truth: dict[str, str]) -> str:
    """The names that differ."""
    rows = sorted((shown.items() | truth.items()) - (shown.items() & truth.items()))
    return str([(name, len(data), data[-20:], name in shown, name in truth) for name, data in rows])


def replica_names(host: Host) -> list[str]:
    """Names of all that is kept there for others, but folders."""
    return [
        name
        for top in (host.cache / "copies").glob("*")
        for _, _, names in os.walk(top / "tree")
        for name in names
    ]


def filled(cluster: ClusterFixture, *, small: int = 40, large: int = 2) -> None:
    for number in range(small):
        cluster.put(f"small/{number % 4}/{number}", 50_000 + number)
    for number in range(large):
        cluster.put(f"large/{number}", (9 << 20) + number)


def read_all_at_once(hosts: list[Host]) -> None:
    with ThreadPoolExecutor(len(hosts)) as pool:
        for done in [pool.submit(host.assert_right) for host in hosts]:
            done.result()


def set_policy(host: Host, text: str) -> int:
    path = host.base / "policy.toml"
    path.write_text(text)
    number: int = host.json("policy", "set", path)["number"]
    return number


def policy_shown(host: Host) -> dict[str, Any]:
    """Return the policy of a node; version 0 while it restarts."""
    done = host.headrace("policy", "show", "--json")
    answer: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {"number": 0, "text": ""}
    return answer
