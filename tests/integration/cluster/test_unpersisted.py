"""The other nodes see what a node wrote and has not persisted, read it from there, and replace it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headrace.testing.etcd import EtcdServer, etcd_server
from tests.integration.cli.host import Host
from tests.integration.cluster.cluster_fixture import same
from tests.integration.persist.conftest import Writer, settled, tree_of, wait_until

from .cluster_fixture import ClusterFixture
from .conftest import UNREACHABLE, MakeCluster

NEVER_S = 600
SOON_S = 5.0
"""Who looks so much later sees it: docs/semantics/nodes.md says a second, on a machine that does nothing else."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, etcd: EtcdServer) -> Iterator[ClusterFixture]:
    """Two nodes that persist nothing by themselves; both have listed all."""
    cluster = ClusterFixture(
        tmp_path_factory.mktemp("pair"), etcd.address, write="back", persist_delay_s=NEVER_S
    )
    try:
        cluster.put("low/a", 50_000)
        cluster.put("low/b", 60_000)
        cluster.put("low/deep/c", 70_000)
        cluster.start(2)
        for host in cluster.hosts:
            assert Writer(host.mount).tree() == tree_of(cluster.truth)
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def two(cluster: ClusterFixture) -> tuple[Writer, Writer]:
    first, second = (Writer(host.mount) for host in cluster.hosts)
    return first, second


def recorded(cluster: ClusterFixture, host: Host) -> int:
    """Return the number of directories that the host announced to the others as written."""
    return int(cluster.status(host)["write"]["directories_announced"])


def conflicts(host: Host, path: str) -> list[str]:
    """Return where the host kept its own files of that path, or below it, after all was persisted."""
    return [row["kept"].lstrip("/") for row in settled(host)["conflicts"] if row["path"].startswith(path)]


def soon(other: Writer, expected: dict[str, str]) -> None:
    """It takes an interpreter to look, which may take seconds itself."""
    began_s = look_s = time.monotonic()
    while (tree := other.tree()) != expected:
        assert look_s - began_s < SOON_S, f"{tree.keys()} {expected.keys()}"
        look_s = time.monotonic()


def failing(call: str) -> str:
    """Prints the errno."""
    return f"try: {call}\nexcept OSError as error: print(errno.errorcode[error.errno])"


def test_others_see_what_is_not_persisted(cluster: ClusterFixture, two: tuple[Writer, Writer]) -> None:
    before = tree_of(cluster.truth)
    first, second = two
    for step in (
        "open('low/new', 'wb').write(os.urandom(30_000)); open('empty', 'w')",
        "os.makedirs('d/e'); open('d/e/large', 'wb').write(os.urandom(3_000_000))",
        "open('low/a', 'ab').write(b'more'); os.unlink('low/b')",
        "open('d/e/large', 'r+b').write(b'other bytes')",
        "os.rename('d', 'moved'); os.rename('low/new', 'low/newer')",
        "os.unlink('low/deep/c'); os.rmdir('low/deep')",
        "open('low/b', 'w').write('again'); os.unlink('empty')",
        "os.mkdir('many')\nfor n in range(300): open(f'many/{n}', 'w').write(str(n))",
    ):
        first.run(step)
        soon(second, first.tree())
    assert tree_of(cluster.truth) == before
    assert recorded(cluster, cluster.hosts[0]) <= 10
    expected = first.tree()
    settled(cluster.hosts[0])
    assert tree_of(cluster.truth) == expected
    same(second, expected)
    wait_until(lambda: not recorded(cluster, cluster.hosts[0]), 30.0)
    same(second, expected)


def test_attributes_and_absence_follow_at_once(two: tuple[Writer, Writer]) -> None:
    """Also where the other's kernel believed in something else."""
    first, second = two
    watcher = second.start(
        """
import time
def until(look):
    began = time.monotonic()
    while not look():
        assert time.monotonic() < began + 20
        time.sleep(0.02)
    print(time.monotonic() - began)
def ready():
    print('ready')
    sys.stdin.readline()
assert not os.path.exists('f')
ready()
until(lambda: os.path.exists('f') and os.stat('f').st_size == 1000)
ready()
until(lambda: os.stat('f').st_size == 1003 and open('f', 'rb').read() == b'f' * 1000 + b'end')
ready()
until(lambda: not os.path.exists('f') and 'f' not in os.listdir('.'))
"""
    )
    assert watcher.stdin is not None
    assert watcher.stdout is not None
    try:
        for step in ("open('f', 'w').write('f' * 1000)", "open('f', 'a').write('end')", "os.unlink('f')"):
            assert watcher.stdout.readline() == "ready\n"
            first.run(step)
            watcher.stdin.write("\n")
            watcher.stdin.flush()
            assert float(watcher.stdout.readline()) < SOON_S
    finally:
        watcher.kill()
        watcher.wait()


def test_what_replaces_an_unpersisted_file_waits_for_it(
    cluster: ClusterFixture, two: tuple[Writer, Writer]
) -> None:
    """Each node has its say in turn; nothing is in conflict, though nobody persisted in between."""
    first, second = two
    first.run("os.mkdir('r'); [open(f'r/{n}', 'w').write(n) for n in 'fgh']")
    soon(second, first.tree())
    second.run(
        "os.chdir('r'); open('f', 'a').write('two'); os.unlink('g'); open('t', 'w').write('t'); os.rename('t', 'h')"
    )
    assert second.tree()["r/f"] == b"ftwo".hex()
    assert conflicts(cluster.hosts[1], "/r/") == conflicts(cluster.hosts[0], "/r/") == []
    expected = {"r": "dir", "r/f": b"ftwo".hex(), "r/h": b"t".hex()}
    assert {name: data for name, data in tree_of(cluster.truth).items() if name[0] == "r"} == expected
    same(first, tree_of(cluster.truth))
    same(second, tree_of(cluster.truth))


@pytest.mark.expected_warnings("another writer changed a file at the origin")
def test_what_was_written_again_is_kept_beside(cluster: ClusterFixture, two: tuple[Writer, Writer]) -> None:
    first, second = two
    first.run("open('twice', 'w').write('one')")
    soon(second, first.tree())
    second.run("open('twice', 'w').write('two')")
    first.run("open('twice', 'w').write('three')")
    assert conflicts(cluster.hosts[0], "/twice") == []
    (kept,) = conflicts(cluster.hosts[1], "/twice")
    assert bytes.fromhex(tree_of(cluster.truth)["twice"]) == b"three"
    assert bytes.fromhex(tree_of(cluster.truth)[kept]) == b"two"


RACE = """
won = []
for n in range({count}):
    for kind, make in (
        ('f', lambda: os.close(os.open(f'race/{{n}}', os.O_CREAT | os.O_EXCL | os.O_WRONLY))),
        ('d', lambda: os.mkdir(f'race/d{{n}}')),
        ('l', lambda: os.link('race/own{me}', f'race/l{{n}}')),
    ):
        try:
            make()
            won.append(f'{{kind}}{{n}}')
        except FileExistsError:
            pass
print(json.dumps(won))
"""


def test_one_of_two_makes_the_name(cluster: ClusterFixture, two: tuple[Writer, Writer]) -> None:
    first, second = two
    first.run("os.mkdir('race'); open('race/own0', 'w')")
    soon(second, first.tree())
    second.run("open('race/own1', 'w')")
    racers = [writer.start(RACE.format(count=30, me=me)) for me, writer in enumerate(two)]
    won: list[str] = []
    for racer in racers:
        settled(cluster.hosts[0])  # what is persisted in between is seen, too
        out, _ = racer.communicate(timeout=60)
        assert racer.returncode == 0
        won += json.loads(out)
    assert sorted(won) == sorted(f"{kind}{n}" for kind in "fdl" for n in range(30))


@pytest.mark.expected_warnings(*UNREACHABLE)
def test_a_reader_never_sees_two_states(cluster: ClusterFixture, two: tuple[Writer, Writer]) -> None:
    first, second = two
    first.run("open('states', 'wb').write(bytes(3_000_000))")
    soon(second, first.tree())
    writer = first.start(
        """
import time
for n in range(1, 250):
    open('states', 'wb').write(bytes([n]) * 3_000_000)
    time.sleep(0.2)
"""
    )
    try:
        states = json.loads(
            second.run(
                """
import time
states, end = [], time.monotonic() + 3
while time.monotonic() < end:
    try:
        data = open('states', 'rb').read()
    except OSError as error:
        assert error.errno in (errno.ESTALE, errno.ENOENT, errno.EIO), error
        continue
    assert len(set(data)) <= 1, sorted(set(data))
    if len(data) == 3_000_000:
        states.append(data[0])
print(json.dumps(states))
"""
            )
        )
    finally:
        writer.kill()
        writer.wait()
    assert states == sorted(states)
    assert len(set(states)) > 1
    settled(cluster.hosts[0])


# the killed node is a member until its lease ends, and may be chosen as a replica
@pytest.mark.expected_warnings(*UNREACHABLE)
def test_a_killed_writer_is_read_from_its_holder(make_cluster: MakeCluster) -> None:
    """kill -9 of everything on its host, right after close; nobody persists it meanwhile. The names that only it was to
    make there are the others' affair then."""
    cluster = make_cluster(write="back:2", persist_delay_s=NEVER_S, take_over_s=NEVER_S)
    cluster.put("low/a", 50_000)
    cluster.start(3)
    writer, *others = cluster.hosts
    for host in others:
        Writer(host.mount).tree()
    Writer(writer.mount).run(
        """
os.makedirs('new/deep')
open('new/deep/large', 'wb').write(os.urandom(5_000_000))
open('low/a', 'ab').write(b'more')
"""
    )
    expected = Writer(writer.mount).tree()
    Writer(writer.mount).run("open('last', 'wb').write(bytes(range(256)) * 100)")
    writer.kill_all()
    expected["last"] = (bytes(range(256)) * 100).hex()
    for host in others:
        same(Writer(host.mount), expected)
    assert tree_of(cluster.truth).keys() == {"low", "low/a"}
    Writer(others[0].mount).run("os.mkdir('new/other'); open('new/other/f', 'x').write('f')", limit_s=60)
    assert "EEXIST" in Writer(others[1].mount).run(failing("os.mkdir('new/other')"), limit_s=60)
    writer.close()


@contextmanager
def two_with_own_etcd(make_cluster: MakeCluster) -> Iterator[tuple[EtcdServer, Writer, Writer]]:
    """Run an etcd that a test may end, and two nodes that persist nothing. Yield it, and a writer on each mount."""
    with etcd_server() as own:
        cluster = make_cluster(server=own, write="back", persist_delay_s=NEVER_S)
        cluster.put("low/a", 1000)
        cluster.start(2)
        first, second = (Writer(host.mount) for host in cluster.hosts)
        yield own, first, second


@pytest.mark.expected_warnings(*UNREACHABLE)
def test_without_etcd_writing_goes_on(make_cluster: MakeCluster) -> None:
    with two_with_own_etcd(make_cluster) as (own, first, second):
        first.run("open('before', 'w').write('before')")
        soon(second, first.tree())
        own.kill()
        first.run("open('low/f', 'w').write('f'); os.rename('before', 'low/after')", limit_s=20)
        own.start()
        same(second, first.tree())


@pytest.mark.expected_warnings(*UNREACHABLE)
def test_without_etcd_a_directory_lease_ends_with_that_of_the_node(make_cluster: MakeCluster) -> None:
    """Names are created exclusively until then, fail after some seconds, and are created again when etcd is back."""
    with two_with_own_etcd(make_cluster) as (own, first, second):
        first.run("os.mkdir('0')")
        own.kill()
        output = first.run(
            """
import time
for number in range(1, 1000):
    try: os.mkdir(str(number))
    except OSError as error:
        print(number, errno.errorcode[error.errno])
        break
    time.sleep(0.1)
""",
            limit_s=60,
        )
        number, word = output.split()
        assert word == "EHOSTUNREACH"
        own.start()
        again = f"try: os.mkdir('{number}')\nexcept OSError as error: print(errno.errorcode[error.errno])"
        wait_until(lambda: first.run(again, limit_s=60) == "", 60.0)
        assert "EEXIST" in second.run(failing(f"os.mkdir('{number}')"), limit_s=60)


def test_the_folder_of_a_mode_comes_to_be_with_its_first_file(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(write="/out=back,off", persist_delay_s=0.05, sync_interval_s=3600)
    cluster.put("low/a", 50_000)
    cluster.start(2)
    first, second = (Writer(host.mount) for host in cluster.hosts)
    assert "low/a" in second.tree()  # it has listed all, for an hour
    first.run("open('out/new', 'wb').write(bytes(range(256)) * 100)")
    settled(cluster.hosts[0])
    wanted = (bytes(range(256)) * 100).hex()
    assert tree_of(cluster.truth)["out/new"] == wanted
    wait_until(lambda: second.tree().get("out/new") == wanted, 10, hint=lambda: f"{second.tree().keys()}")
