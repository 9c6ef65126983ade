"""Mode back:2: what was written is on another node when close returns, and outlives the one that wrote it."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import stat
import sys
from pathlib import Path

import pytest

from headrace.overlay.snapshot import EntryType, entry_type_of
from headrace.overlay.upper import Upper
from tests import fork_server
from tests.integration.cli.host import Host
from tests.integration.cluster.cluster_fixture import replica_names, same_everywhere
from tests.integration.persist.conftest import Writer, settled, tree_of, wait_until
from tests.integration.persist.kill_script import NAMES, SCRIPT
from tests.plain_paths import plain

from .cluster_fixture import ClusterFixture
from .conftest import UNREACHABLE, MakeCluster

pytestmark = pytest.mark.expected_warnings(*UNREACHABLE)
NEVER_S = 600
EXAMPLES = int(os.environ.get("HEADRACE_EXAMPLES", "1"))
STEPS = ("keep.fetched", "persist.put", "persist.removed", "failover.cleared")
MORE_STEPS = (
    "persist.chosen",
    "persist.begun",
    "persist.noted",
    "persist.removing",
    "failover.persisted",
    "persist.made",
)


def layer(folder: Path) -> dict[str, tuple[object, ...]]:
    """Path → shape, mode, target, bytes, of a layer and of a copy of one alike."""
    upper = Upper(str(folder))
    rows: dict[str, tuple[object, ...]] = {}
    for path, status in upper.walk():
        place = upper.at(path)
        shape = entry_type_of(place, status)
        inside = b""
        if shape is EntryType.FILE:
            inside = Path(os.fsdecode(plain(place))).read_bytes()
        elif shape is EntryType.LINK:
            inside = place.readlink()
        rows[os.fsdecode(path)] = (
            shape,
            inside,
            stat.S_IMODE(status.st_mode) if shape is EntryType.FILE else 0,
        )
    return rows


def id_of(cluster: ClusterFixture, host: Host) -> str:
    return f"n{cluster.hosts.index(host)}"


def assert_copied(cluster: ClusterFixture, writer: Host) -> None:
    """At once: whoever wrote has been answered, so it is there."""
    assert layer(copy_folder(cluster, writer)) == layer(writer.cache / "upper")


def copy_folder(cluster: ClusterFixture, writer: Host) -> Path:
    """At the holder that the writer names."""
    (id,) = cluster.status(writer)["write"]["copies_on"]
    return cluster.hosts[int(id.removeprefix("n"))].cache / "copies" / id_of(cluster, writer)


def test_what_was_acknowledged_is_on_another_node(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(write="back:2", persist_delay_s=NEVER_S)
    cluster.put("low/a", 50_000)
    cluster.put("low/b", 60_000)
    cluster.put("low/deep/c", 70_000)
    cluster.start(3)
    writer = cluster.hosts[0]
    run = Writer(writer.mount).run
    for step in (
        "open('small', 'wb').write(os.urandom(1000))",
        "open('large', 'wb').write(os.urandom(5_500_000))",
        "open('large', 'ab').write(os.urandom(700_000))",
        "f = os.open('large', os.O_RDWR); os.pwrite(f, b'in the middle', 2_000_000); os.fsync(f); os.close(f)",
        "os.truncate('large', 3_300_000); os.chmod('large', 0o640)",
        "os.makedirs('d/e'); open('d/e/f', 'w').write('f'); os.symlink('e/f', 'd/link')",
        "os.rename('large', 'd/large')",
        "os.rename('d', 'moved')",
        "open('low/a', 'ab').write(b'more'); os.unlink('low/b')",
        "os.unlink('low/deep/c'); os.rmdir('low/deep')",
        "open('moved/large', 'ab').write(b'again'); os.unlink('small')",
        "open('new', 'wb').write(b'x' * 300_000); os.replace('new', 'moved/e/f')",
    ):
        run(step)
        assert_copied(cluster, writer)
    others = [host for host in cluster.hosts[1:] if host.cache not in copy_folder(cluster, writer).parents]
    for host in others:  # the first to join held copies for a moment
        wait_until(lambda host=host: not replica_names(host), 30.0)  # type: ignore[misc]


def test_what_is_persisted_is_copied_no_more(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(write="back:2", persist_delay_s=0.05)
    cluster.start(2)
    writer = cluster.hosts[0]
    Writer(writer.mount).run(
        "os.mkdir('d')\nfor n in range(40): open(f'd/{n}', 'wb').write(os.urandom(30_000))\n"
        "open('large', 'wb').write(os.urandom(2_500_000))"
    )
    settled(writer)
    same_everywhere(cluster)
    folder = copy_folder(cluster, writer)
    wait_until(lambda: not [path for path in (folder / "tree").rglob("*") if path.is_file()], 30.0)
    assert not os.listdir(folder / "work")


LOOKER = """
import hashlib, select, time
large = open('large', 'rb', buffering=0)
first = os.read(large.fileno(), 1000)
wrong, looks = [], 0
print('begun')
while not select.select([sys.stdin], [], [], 0)[0]:
    looks += 1
    result = {}
    for folder, _, names in os.walk('new'):
        for name in names:
            path = os.path.join(folder, name)
            try:
                with open(path, 'rb') as file: result[path] = hashlib.file_digest(file, 'sha256').hexdigest()
            except OSError as error:
                result[path] = errno.errorcode[error.errno]
    wrong += [sorted(set(result.items()) ^ set(expected.items()))] if result != expected else []
    time.sleep(0.01)
rest = large.read()
while more := large.read(): rest += more
print(json.dumps([looks, wrong[:3], hashlib.sha256(first + rest).hexdigest()]))
"""


def test_others_see_and_read_on_while_a_dead_writer_is_replaced(make_cluster: MakeCluster) -> None:
    """From its death until its copies are gone, too: no name goes, and an open file is read to its end."""
    cluster = make_cluster(write="back:2", persist_delay_s=NEVER_S, take_over_s=0.5)
    cluster.start(3)
    writer = cluster.hosts[0]
    Writer(writer.mount).run(
        "os.makedirs('new/deep')\nfor n in range(30): open(f'new/deep/{n}', 'wb').write(os.urandom(20_000))\n"
        "open('large', 'wb').write(os.urandom(20_000_000))"
    )
    (id,) = cluster.status(writer)["write"]["copies_on"]
    holder = cluster.hosts[int(id.removeprefix("n"))]
    (third,) = [host for host in cluster.hosts if host not in (writer, holder)]
    small = {f"new/deep/{n}": digest_of(writer.mount / f"new/deep/{n}") for n in range(30)}
    large = digest_of(writer.mount / "large")
    wait_until(lambda: Writer(third.mount).run("print(*os.listdir('.'))").split() == ["large", "new"], 30.0)
    looker = Writer(third.mount).start(f"expected = {small}\n{LOOKER}")
    assert looker.stdin is not None and looker.stdout is not None
    assert looker.stdout.readline() == "begun\n"
    writer.kill_all()
    wait_until(lambda: not replica_names(holder), 60.0)
    out, _ = looker.communicate("end\n", timeout=60)
    looks, wrong, digest = json.loads(out)
    assert (wrong, digest) == ([], large), f"{looks} looks"
    assert looks > 10
    writer.close()


def digest_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def test_a_writer_that_dies_loses_nothing(make_cluster: MakeCluster) -> None:
    """Killed right after close; another node persists its files, and back again it has nothing to add."""
    cluster = make_cluster(write="back:2", persist_delay_s=NEVER_S, take_over_s=0.5)
    cluster.put("low/a", 50_000)
    cluster.put("low/b", 60_000)
    cluster.start(3)
    writer, *others = cluster.hosts
    Writer(writer.mount).run(
        """
os.makedirs('new/deep')
for number in range(30):
    open(f'new/deep/{number}', 'wb').write(os.urandom(20_000))
open('new/large', 'wb').write(os.urandom(5_000_000))
open('low/a', 'ab').write(b'more')
os.unlink('low/b')
"""
    )
    expected = Writer(writer.mount).tree()
    assert tree_of(cluster.truth) != expected
    writer.kill_all()
    cluster.wait_members(2, others)
    wait_until(lambda: tree_of(cluster.truth) == expected, 60.0)
    for host in others:
        wait_until(lambda host=host: Writer(host.mount).tree() == expected, 30.0)  # type: ignore[misc]
    Writer(others[0].mount).run("open('low/a', 'w').write('written since')")
    settled(others[0])
    writer.close()
    cluster.up(writer)
    cluster.wait_members(3)
    assert settled(writer)["conflicts"] == []
    same_everywhere(cluster)
    assert bytes.fromhex(tree_of(cluster.truth)["low/a"]) == b"written since"
    assert len(tree_of(cluster.truth)) == len(expected)


def test_a_writer_that_was_only_away_has_no_conflict_with_itself(make_cluster: MakeCluster) -> None:
    """It hung until another node had persisted its files in its place, and goes on with the same ones."""
    cluster = make_cluster(write="back:2", persist_delay_s=NEVER_S, take_over_s=0.2)
    cluster.put("low/a", 50_000)
    cluster.put("low/b", 50_000)
    cluster.start(2)
    writer, other = cluster.hosts
    Writer(writer.mount).run(
        """
open('new', 'w').write('first')
open('low/a', 'ab').write(b'more')
open('low/b', 'ab').write(b'more')
"""
    )
    expected = Writer(writer.mount).tree()
    node = writer.kill("node", signal.SIGSTOP)
    try:
        wait_until(lambda: tree_of(cluster.truth) == expected, 60.0)
        wait_until(lambda: bool(list((other.cache / "copies").rglob("taken.db"))))
    finally:
        os.kill(node, signal.SIGCONT)
    Writer(writer.mount).run(
        """
open('new', 'w').write('second')
open('low/a', 'ab').write(b'and more')
os.unlink('low/b')
"""
    )
    assert settled(writer)["conflicts"] == []
    assert settled(other)["conflicts"] == []
    truth = tree_of(cluster.truth)
    assert truth.keys() == {"new", "low", "low/a"}
    assert bytes.fromhex(truth["new"]) == b"second"
    assert bytes.fromhex(truth["low/a"]).endswith(b"moreand more")
    same_everywhere(cluster)
    wait_until(lambda: not list((other.cache / "copies").rglob("taken.db")))


def test_a_holder_that_dies_is_replaced(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(write="back:2", persist_delay_s=NEVER_S, take_over_s=NEVER_S)
    cluster.start(3)
    writer = cluster.hosts[0]
    Writer(writer.mount).run("[open(f'f{n}', 'wb').write(os.urandom(400_000)) for n in range(5)]")
    before = copy_folder(cluster, writer)
    holder = next(host for host in cluster.hosts if host.cache in before.parents)
    holder.kill_all()
    cluster.wait_members(2, [host for host in cluster.hosts if host is not holder])
    Writer(writer.mount).run("open('later', 'w').write('later')")
    after = copy_folder(cluster, writer)
    assert after != before
    wait_until(lambda: layer(after) == layer(writer.cache / "upper"), 30.0)
    holder.close()


def test_alone_the_origin_has_it_instead(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(write="back:2", persist_delay_s=NEVER_S)
    cluster.start(1)
    (writer,) = cluster.hosts
    Writer(writer.mount).run("open('f', 'wb').write(b'f' * 400_000); os.mkdir('d')")
    assert (cluster.truth / "f").read_bytes() == b"f" * 400_000
    assert (cluster.truth / "d").is_dir()


@pytest.mark.parametrize("step", (*STEPS, *(MORE_STEPS if EXAMPLES > 1 else ())))
def test_the_holder_dies_at_a_step_after_the_writer(
    make_cluster: MakeCluster, tmp_path: Path, step: str
) -> None:
    """While it keeps a copy, the writer has the origin; while it takes over, it goes on when it is started again."""
    died = tmp_path / "died"
    cluster = make_cluster(write="back:2", persist_delay_s=NEVER_S, take_over_s=0.2)
    for name in ("low/a", "low/b", "low/c", "top", "over", "old/x/y", "old/z"):
        cluster.put(name, 3000)
    writer = cluster.add()
    hit = 4 if step == "keep.fetched" else 1  # the first come while it starts
    holder = cluster.add(failpoint=f"{step}:{hit}:{died}")
    for host in (writer, holder):
        cluster.up(host)
    cluster.wait_members(2)
    Writer(writer.mount).run(SCRIPT, limit_s=90)
    expected = Writer(writer.mount).tree()
    assert expected.keys() == NAMES
    writer.kill_all()
    wait_until(
        lambda: tree_of(cluster.truth) == expected,
        60.0,
        hint=lambda: f"{step}: {tree_of(cluster.truth).keys()}",
    )
    wait_until(died.exists, 10.0, hint=lambda: f"{step} was not hit")
    wait_until(lambda: not replica_names(holder), 30.0)
    writer.close()
    cluster.up(writer)
    cluster.wait_members(2)
    assert settled(writer)["conflicts"] == settled(holder)["conflicts"] == []
    same_everywhere(cluster)
    assert tree_of(cluster.truth) == expected


@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_a_writer_dies_while_it_writes(make_cluster: MakeCluster, seed: int) -> None:
    """Whatever was acknowledged before is at the origin afterwards, whole; what was being written, perhaps."""
    choose = random.Random(seed)
    cluster = make_cluster(write="back:2", persist_delay_s=choose.choice([0.05, NEVER_S]), take_over_s=0.2)
    cluster.start(3)
    writer = cluster.hosts[0]
    process = Writer(writer.mount).start(
        f"""
import hashlib, random
choose = random.Random({seed})
for number in range(10_000):
    data = random.Random(number).randbytes(choose.choice([100, 30_000, 1_500_000]))
    name = f'f{{number % 50}}'
    with open(name + '.new', 'wb') as out:
        out.write(data)
    os.rename(name + '.new', name)
    print(number, name, hashlib.sha256(data).hexdigest(), len(data))
"""
    )
    assert process.stdout is not None
    wanted: dict[str, list[str]] = {}
    for _ in range(choose.randrange(20, 120)):
        number, name, digest, _ = process.stdout.readline().split()
        wanted[name] = [digest, number]
    writer.kill_all()
    for line in process.stdout.read().splitlines():
        if len(words := line.split()) == 4 and words[3].isdigit():
            wanted[words[1]] = [words[2], words[0]]
    process.kill()
    process.wait()
    holding = [host for host in cluster.hosts[1:] if replica_names(host)]
    wait_until(lambda: not any(replica_names(host) for host in holding), 60.0)
    last = max((int(number) for _, number in wanted.values()), default=-1)
    for name, (digest, number) in wanted.items():
        data = (cluster.truth / name).read_bytes()
        known = {digest}
        if (last + 1) % 50 == int(name[1:]):  # it was being replaced
            known |= {
                hashlib.sha256(random.Random(last + 1).randbytes(size)).hexdigest()
                for size in (100, 30_000, 1_500_000)
            }
        assert hashlib.sha256(data).hexdigest() in known, (name, number)
    writer.close()


def test_what_comes_through_the_door_is_copied_too(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(write="back:2", persist_delay_s=NEVER_S)
    cluster.start(2)
    writer = cluster.hosts[0]
    code = f"""
import fsspec
files = fsspec.filesystem("headrace", cache={str(writer.cache)!r})
files.makedirs("/d")
with files.open("/d/large", "wb") as out:
    out.write(bytes(range(256)) * 10_000)
files.pipe({{"/d/small": b"small"}})
files.mv("/d/small", "/d/moved")
"""
    done = fork_server.run([sys.executable, "-c", code], env=writer.environment, timeout=60)
    assert done.returncode == 0
    assert_copied(cluster, writer)
    assert Writer(writer.mount).tree().keys() == {"d", "d/large", "d/moved"}
