"""A large file in a cluster: all owners of its segments send, the origin sends each byte once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.models.model import run_ranks, write_model

from .cluster_fixture import run_first
from .conftest import MakeCluster

SMALL_SEGMENTS = "import headrace.ring.view\nheadrace.ring.view.SEGMENT_BYTES = 4 << 20\n"
"""24 MiB are a large file then: before any other module takes the number."""


@pytest.mark.timeout(110)
def test_a_model_is_fetched_once_for_all_hosts_from_all_owners(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    truth = cluster.truth / "model"
    truth.mkdir()
    write_model(truth, shards=1)
    (truth / "model.safetensors.index.json").unlink()
    for _ in range(3):
        host = cluster.add()
        run_first(host, SMALL_SEGMENTS)
        cluster.up(host)
    cluster.wait_members(3)
    with ThreadPoolExecutor(3) as pool:
        ranks = [
            pool.submit(run_ranks, host, how, host.mount / "model", 2, truth=truth)
            for host, how in zip(cluster.hosts, ("ours", "ours", "plain"), strict=True)
        ]
        for future in ranks:
            future.result()
    shares = [cluster.status(host)["origin"]["bytes_read"] for host in cluster.hosts]
    assert sum(share > 0 for share in shares) > 1, shares  # each fetches the segments that it owns
    assert max(shares) < cluster.truth_bytes()
    if not cluster.misses():
        assert sum(shares) == cluster.truth_bytes()
