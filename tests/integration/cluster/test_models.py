"""A large file in a cluster: all owners of its segments send, the origin sends each byte once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.models.model import run_ranks, write_model

from .conftest import MakeTown
from .town import run_first

SMALL_SEGMENTS = "import headrace.ring.view\nheadrace.ring.view.SEGMENT_BYTES = 4 << 20\n"
"""24 MiB are a large file then: before any other module takes the number."""


@pytest.mark.timeout(110)
def test_a_model_is_fetched_once_for_all_hosts_from_all_owners(make_town: MakeTown) -> None:
    town = make_town()
    truth = town.truth / "model"
    truth.mkdir()
    write_model(truth, shards=1)
    (truth / "model.safetensors.index.json").unlink()
    for _ in range(3):
        host = town.add()
        run_first(host, SMALL_SEGMENTS)
        town.up(host)
    town.wait_members(3)
    with ThreadPoolExecutor(3) as pool:
        ranks = [
            pool.submit(run_ranks, host, how, host.mount / "model", 2, truth=truth)
            for host, how in zip(town.hosts, ("ours", "ours", "plain"), strict=True)
        ]
        for one in ranks:
            one.result()
    shares = [town.status(host)["origin"]["bytes_read"] for host in town.hosts]
    assert sum(share > 0 for share in shares) > 1, shares  # each fetches the segments that it owns
    assert max(shares) < town.truth_bytes()
    if not town.misses():
        assert sum(shares) == town.truth_bytes()
