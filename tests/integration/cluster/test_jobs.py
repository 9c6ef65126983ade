"""Jobs over real nodes: who has what, what leaves the origin, and the death of the node that took the job."""

from __future__ import annotations

import os
import signal

import pytest

from .conftest import UNREACHABLE, MakeCluster

pytestmark = pytest.mark.timeout(120)
MIB = 1 << 20
FILES = 600


def test_a_load_brings_each_byte_once_and_free_drops_all(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(predict_reads=False)  # no node fetches a file by itself that was freed
    for number in range(60):
        cluster.put(f"small/{number}", 50_000 + number)
    cluster.put("large", 9 * MIB + 5)
    cluster.start(3)
    loaded = cluster.hosts[1].json("load", cluster.hosts[1].mount, "--priority", "high", "--verify")
    assert (loaded["state"], loaded["files_done"], loaded["failed_files"]) == ("done", 61, 0)
    assert loaded["bytes_done"] == cluster.truth_bytes() == cluster.origin()
    for host in cluster.hosts:
        (row,) = host.json("job", "list")
        assert (row["id"], row["node"], row["files_done"]) == (loaded["id"], "n1", 61)
        host.assert_right()
    assert cluster.origin() == cluster.truth_bytes()
    freed = cluster.hosts[2].json("free", cluster.hosts[2].mount)
    assert freed["state"] == "done"
    assert freed["files_done"] == 3 * 61  # the owner's copy, and what the others borrowed
    assert all(cluster.status(host)["cache"]["used_bytes"] == 0 for host in cluster.hosts)


@pytest.mark.expected_warnings(*UNREACHABLE)
def test_the_node_that_took_the_job_is_killed(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    for number in range(FILES):
        cluster.put(f"d/{number % 7}/{number}", 20_000 + number % 100)
    cluster.start(3)
    left = cluster.hosts[1:]
    held = left[1].kill("node", signal.SIGSTOP)  # so that the job can't be done before its node is killed
    try:
        taken = cluster.hosts[0].json("load", cluster.hosts[0].mount, "--detach")
        cluster.ups[0].signal(signal.SIGKILL)  # the supervisor: nobody starts the node again
        cluster.hosts[0].kill("node")
        assert left[0].json("job", "show", taken["id"])["state"] == "running"
    finally:
        os.kill(held, signal.SIGCONT)
    cluster.wait_for(lambda: left[0].json("job", "show", taken["id"])["state"] != "running", 60)
    row = left[1].json("job", "show", taken["id"])
    assert (row["state"], row["files_done"], row["files_total"], row["failed_files"]) == (
        "done",
        FILES,
        FILES,
        0,
    )
    before = cluster.origin(hosts=left)
    for host in left:
        host.assert_right()
    assert cluster.origin(hosts=left) == before  # all of it was there
