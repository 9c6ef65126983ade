"""A cluster by its name: etcd://HOST:PORT[,HOST:PORT…][/NAME]. Open this first.

`records.py` is what nodes know together, `etcd.py` and `embedded.py` are the two kinds of it, `membership.py` is who is
there.
"""

from __future__ import annotations

from headrace.base.errors import UsageError

DEFAULT_NAME = "default"
DEFAULT_PORT = 2379


def parse_cluster(url: str) -> tuple[list[str], str]:
    """Endpoints as "host:port", and the cluster's name. UsageError."""
    rest = url.removeprefix("etcd://")
    hosts, _, name = rest.partition("/")
    endpoints = []
    for one in hosts.split(","):
        host, colon, port = one.rpartition(":")
        if not colon or "]" in port:  # an IPv6 address without a port
            host, port = one, str(DEFAULT_PORT)
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise UsageError(f"setting cluster = {url!r}", why=f"{one!r} is not HOST:PORT")
        endpoints.append(f"{host}:{port}")
    if "/" in name or not url.startswith("etcd://"):
        raise UsageError(f"setting cluster = {url!r}", why="not etcd://HOST:PORT[,HOST:PORT…][/NAME]")
    return endpoints, name or DEFAULT_NAME
