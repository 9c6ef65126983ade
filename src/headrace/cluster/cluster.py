"""Parse the URL of a cluster: etcd://HOST:PORT[,HOST:PORT…][/NAME], or https:// where etcd uses TLS. Open this
first.

`records.py` defines the records that nodes share, `etcd.py` and `embedded.py` implement them, and `membership.py`
tracks which nodes are in the cluster.
"""

from __future__ import annotations

from headrace.base.errors import UsageError
from headrace.cluster.etcd_client import EtcdAccess
from headrace.config.schema import CLUSTER_SCHEMES, Config
from headrace.http.address import is_loopback

DEFAULT_NAME = "default"
DEFAULT_PORT = 2379


def parse_cluster(url: str) -> tuple[list[str], str]:
    """Return the endpoints as "host:port", and the cluster's name. Raise UsageError."""
    scheme, _, rest = url.partition("://")
    hosts, _, name = rest.partition("/")
    endpoints = []
    for endpoint in hosts.split(","):
        host, colon, port = endpoint.rpartition(":")
        if not colon or "]" in port:  # an IPv6 address without a port
            host, port = endpoint, str(DEFAULT_PORT)
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise UsageError(f"setting cluster = {url!r}", why=f"{endpoint!r} is not HOST:PORT")
        endpoints.append(f"{host}:{port}")
    if "/" in name or scheme not in CLUSTER_SCHEMES:
        raise UsageError(f"setting cluster = {url!r}", why="it is not etcd://HOST:PORT[,HOST:PORT…][/NAME]")
    return endpoints, name or DEFAULT_NAME


def access_of(config: Config) -> EtcdAccess:
    """Return this node's credentials for etcd. With TLS they are the node's own certificate, unless the
    configuration has others for etcd. Raise UsageError for an etcd without TLS that other hosts can reach."""
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
            why="other hosts reach that etcd, and without TLS anybody could read and change the cluster's records",
            hint="use https://HOST:PORT[/NAME], or set cluster_insecure = true on a private network",
        )
