"""A cluster by its name: etcd://HOST:PORT[,HOST:PORT…][/NAME], or https:// where etcd speaks TLS. Open this first.

`records.py` is what nodes know together, `etcd.py` and `embedded.py` are the two kinds of it, `membership.py` is who is
there.
"""

from __future__ import annotations

from headrace.base.errors import UsageError
from headrace.cluster.etcd_client import EtcdAccess
from headrace.config.schema import CLUSTER_SCHEMES, Config
from headrace.http.address import is_loopback

DEFAULT_NAME = "default"
DEFAULT_PORT = 2379


def parse_cluster(url: str) -> tuple[list[str], str]:
    """Endpoints as "host:port", and the cluster's name. UsageError."""
    scheme, _, rest = url.partition("://")
    hosts, _, name = rest.partition("/")
    endpoints = []
    for one in hosts.split(","):
        host, colon, port = one.rpartition(":")
        if not colon or "]" in port:  # an IPv6 address without a port
            host, port = one, str(DEFAULT_PORT)
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise UsageError(f"setting cluster = {url!r}", why=f"{one!r} is not HOST:PORT")
        endpoints.append(f"{host}:{port}")
    if "/" in name or scheme not in CLUSTER_SCHEMES:
        raise UsageError(f"setting cluster = {url!r}", why="not etcd://HOST:PORT[,HOST:PORT…][/NAME]")
    return endpoints, name or DEFAULT_NAME


def access_of(config: Config) -> EtcdAccess:
    """What this node shows etcd: by TLS what it shows other nodes, unless the configuration has more for etcd.
    UsageError: others reach it, and anybody could."""
    if not config.cluster.startswith("https://"):
        _check_plain(config)
        return EtcdAccess(user=config.cluster_user, password=config.cluster_password)
    return EtcdAccess(
        tls=True,
        authority=config.cluster_authority or config.tls_authority,
        certificate=config.cluster_certificate or config.tls_certificate,
        key=config.cluster_key or config.tls_key,
        user=config.cluster_user,
        password=config.cluster_password,
    )


def _check_plain(config: Config) -> None:
    hosts = [endpoint.rpartition(":")[0].strip("[]") for endpoint in parse_cluster(config.cluster)[0]]
    if not (config.cluster_insecure or all(is_loopback(host, "cluster") for host in hosts)):
        raise UsageError(
            f"setting cluster = {config.cluster!r}",
            why="others reach that etcd, and without TLS anybody there could read and change the cluster's records",
            hint="write https://HOST:PORT[/NAME]; or cluster_insecure = true, where nobody else is",
        )
