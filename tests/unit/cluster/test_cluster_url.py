from __future__ import annotations

import pytest

from headrace.base.errors import UsageError
from headrace.cluster.cluster import parse_cluster


def test_endpoints_and_name() -> None:
    assert parse_cluster("etcd://h") == (["h:2379"], "default")
    assert parse_cluster("etcd://h:1,10.0.0.2:22/training") == (["h:1", "10.0.0.2:22"], "training")
    assert parse_cluster("etcd://[::1]:5/x") == (["[::1]:5"], "x")
    assert parse_cluster("https://h:1,g:2/x") == (["h:1", "g:2"], "x")


@pytest.mark.parametrize(
    "url", ["etcd://", "etcd://h:p", "etcd://h:0", "etcd://h/a/b", "http://h:1", "etcd://a,,b"]
)
def test_others_are_refused(url: str) -> None:
    with pytest.raises(UsageError):
        parse_cluster(url)
