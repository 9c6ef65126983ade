"""A port that others reach asks who is there, unless one switch for just that port says otherwise (findings 4, 13)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from headrace.base.errors import UsageError
from headrace.cluster.cluster import access_of
from headrace.config.load import load
from headrace.config.schema import Config
from headrace.node.member import listen_address
from headrace.rest.main import check_access
from headrace.s3.main import check_address as check_s3_address
from headrace.webhdfs.main import check_address

ETCD = "etcd.example:2379"
BEYOND_LOOPBACK = [
    "10.0.0.5",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "169.254.1.1",
    "8.8.8.8",
    "[fd00::1]",
]

PORTS: dict[str, tuple[str, str, Callable[[Config], object]]] = {
    "peers": ("listen", "{}:7412", lambda config: listen_address(config, ETCD)),
    "rest": ("rest_address", "{}:7412", check_access),
    "s3": ("s3_address", "{}:7412", check_s3_address),
    "webhdfs": ("webhdfs_address", "{}:7412", check_address),
    "cluster": ("cluster", "etcd://127.0.0.1:2379,{}:2379/training", access_of),
}


def settings(**values: object) -> Config:
    return msgspec.structs.replace(load().config, **values)


@pytest.mark.parametrize("host", BEYOND_LOOPBACK)
@pytest.mark.parametrize("port", PORTS)
def test_a_port_beyond_loopback_is_refused_without_credentials(port: str, host: str) -> None:
    setting, form, check = PORTS[port]
    with pytest.raises(UsageError):
        check(settings(**{setting: form.format(host)}))


@pytest.mark.parametrize("switch", PORTS)
@pytest.mark.parametrize("port", PORTS)
def test_a_switch_opens_its_own_port_only(port: str, switch: str) -> None:
    setting, form, check = PORTS[port]
    config = settings(**{setting: form.format("10.0.0.5"), f"{switch}_insecure": True})
    if port == switch:
        check(config)
    else:
        with pytest.raises(UsageError):
            check(config)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_peers_on_loopback_need_no_certificate(host: str) -> None:
    assert listen_address(settings(listen=f"{host}:7412"), ETCD) == (host.strip("[]"), 7412)


@pytest.mark.parametrize("url", ["etcd://localhost", "etcd://127.0.0.1:1,[::1]:2/x", "https://10.0.0.5/x"])
def test_etcd_on_loopback_or_by_tls_needs_no_switch(url: str) -> None:
    access_of(settings(cluster=url, cluster_authority="a" if url.startswith("https") else ""))


def test_no_switch_opens_all_ports() -> None:
    switches = [name for name in Config.__struct_fields__ if "insecure" in name]
    assert sorted(switches) == sorted(f"{port}_insecure" for port in PORTS)
