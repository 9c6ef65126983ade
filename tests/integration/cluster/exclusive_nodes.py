"""Nodes with an exclusive directory /out: who holds it, and why another one is refused."""

from __future__ import annotations

import subprocess

from tests.integration.cli.host import Host, wait_until

from .cluster_fixture import ClusterFixture

NEVER_S = 600
OUT = "off,/out=back,exclusive"
LEASE_S = 2


def refused(cluster: ClusterFixture, host: Host) -> str:
    """Return why `up` fails: one line."""
    done = up(cluster, host)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def up(cluster: ClusterFixture, host: Host) -> subprocess.CompletedProcess[str]:
    return host.headrace("up", cluster.truth, host.mount, "--cache", f"{host.cache}:256MiB")


def claims(host: Host) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = host.status()["write"]["claims"]
    return rows


def held(host: Host) -> bool:
    return claims(host) == [{"path": "/out", "trouble": ""}]


def wait_held(host: Host) -> None:
    """A lease of two seconds may lapse for a moment on a busy machine. The claim is then read again."""
    wait_until(lambda: held(host), 30)
