"""The other nodes see what one node wrote and persisted: at once, without `headrace sync`."""

from __future__ import annotations

import time

import pytest

from tests.integration.cluster.cluster_fixture import same, same_everywhere
from tests.integration.persist.conftest import Writer, settled, tree_of

from .cluster_fixture import ClusterFixture
from .conftest import MakeCluster

ATTEMPTS = 20


def test_others_see_what_was_persisted(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(write="back", persist_delay_s=0.05)
    cluster.put("low/a", 50_000)
    cluster.put("low/b", 60_000)
    cluster.start(3)
    for host in cluster.hosts:
        assert Writer(host.mount).tree() == tree_of(cluster.truth)
    first, second, _ = cluster.hosts
    Writer(first.mount).run(
        """
os.makedirs('new/deep')
open('new/deep/f', 'wb').write(os.urandom(3_000_000))
open('low/a', 'ab').write(b'more')
os.unlink('low/b')
"""
    )
    settled(first)
    same_everywhere(cluster)
    Writer(second.mount).run("open('low/a', 'ab').write(b'and more'); os.rename('new', 'newer')")
    settled(second)
    same_everywhere(cluster)
    assert bytes.fromhex(Writer(first.mount).tree()["low/a"]).endswith(b"moreand more")


def test_what_its_owner_wrote_is_not_fetched_for_others(make_cluster: MakeCluster) -> None:
    """Each of two nodes owns some of the names, but with a probability of 2^-24."""
    cluster = make_cluster(write="back", persist_delay_s=0.05)
    cluster.start(2)
    first, second = cluster.hosts
    sizes = {f"f{n}": (2_000_000 if n % 5 == 0 else 40_000) for n in range(24)}
    Writer(first.mount).run(f"[open(name, 'wb').write(os.urandom(size)) for name, size in {sizes}.items()]")
    settled(first)
    same(Writer(second.mount), tree_of(cluster.truth))
    moved = {name for name in sizes if not (first.cache / "upper/tree" / name).exists()}
    assert 0 < len(moved) < len(sizes)
    assert cluster.misses() or cluster.origin() == sum(
        size for name, size in sizes.items() if name not in moved
    )
    same(Writer(first.mount), tree_of(cluster.truth))


def test_through_is_seen_on_the_others_when_close_returns(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(write="through")
    cluster.start(2)
    first, second = (Writer(host.mount) for host in cluster.hosts)
    assert first.tree() == second.tree() == {}
    for number in range(5):
        first.run(f"open('f', 'w').write('{number}' * 1000)")
        cluster.wait_for(lambda number=number: second.tree() == {"f": (f"{number}" * 1000).encode().hex()})  # type: ignore[misc]


@pytest.mark.expected_warnings("another writer changed a file at the origin")
def test_what_both_wrote_is_kept_from_both(make_cluster: MakeCluster) -> None:
    """At one time: neither knew of the other's. Where one came so late that it did, only its own is there."""
    cluster = make_cluster(write="back", persist_delay_s=2)
    cluster.start(2)
    before: dict[str, bytes] = {}
    for name in (f"f{number}" for number in range(ATTEMPTS)):
        both_write(cluster, name)
        conflicts = [row for host in cluster.hosts for row in settled(host)["conflicts"]]
        truth = {path: bytes.fromhex(data) for path, data in tree_of(cluster.truth).items()}
        if conflicts:
            break
        assert truth in ({**before, name: b"from 0"}, {**before, name: b"from 1"})
        before = truth
    (conflict,) = conflicts
    kept = conflict["kept"].lstrip("/")
    assert truth == {**before, name: truth[name], kept: truth[kept]}
    assert sorted((truth[name], truth[kept])) == [b"from 0", b"from 1"]
    same_everywhere(cluster)


def both_write(cluster: ClusterFixture, name: str) -> None:
    writers = [
        Writer(host.mount).start(
            f"import time; print(); at_s = float(sys.stdin.readline()); time.sleep(max(0, at_s - time.monotonic())); "
            f"open('{name}', 'w').write('from {number}')"
        )
        for number, host in enumerate(cluster.hosts)
    ]
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.readline()
    at_s = time.monotonic() + 0.2
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(f"{at_s}\n")
        writer.stdin.flush()
    for writer in writers:
        assert writer.wait(60) == 0


def test_drain_persists_first(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(write="back", persist_delay_s=600)
    cluster.start(2)
    Writer(cluster.hosts[0].mount).run("open('f', 'wb').write(b'f' * 100_000)")
    assert tree_of(cluster.truth) == {}
    cluster.hosts[0].ok("node", "drain", limit_s=60)
    assert tree_of(cluster.truth) == {"f": (b"f" * 100_000).hex()}
