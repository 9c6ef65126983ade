"""What a node wrote and has not persisted: the others see it, read it from there, and replace it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.integration.cli.host import Host
from tests.integration.persist.conftest import Writer, settled, tree_of, wait_until

from .conftest import MakeTown
from .test_writing import same
from .town import Town

NEVER_S = 600
SOON_S = 1.5
"""What docs/semantics.md says, and what it takes to start an interpreter that looks."""


@pytest.fixture
def town(make_town: MakeTown) -> Town:
    """Two nodes that persist nothing by themselves. A file of the origin in a folder that both have listed."""
    town = make_town(write="back", persist_delay_s=NEVER_S)
    town.put("low/a", 50_000)
    town.put("low/b", 60_000)
    town.put("low/deep/c", 70_000)
    town.start(2)
    for host in town.hosts:
        assert Writer(host.mount).tree() == tree_of(town.truth)
    return town


def recorded(town: Town, host: Host) -> bool:
    """Whether the others are told where it wrote."""
    return bool(town.status(host)["write"]["folders_told"])


def soon(other: Writer, expected: dict[str, str]) -> None:
    wait_until(
        lambda: other.tree() == expected, SOON_S, what=lambda: f"{other.tree().keys()} {expected.keys()}"
    )


def test_others_see_what_is_not_persisted(town: Town) -> None:
    before = tree_of(town.truth)
    first, second = (Writer(host.mount) for host in town.hosts)
    for step in (
        "open('low/new', 'wb').write(os.urandom(30_000)); open('empty', 'w')",
        "os.makedirs('d/e'); open('d/e/large', 'wb').write(os.urandom(3_000_000))",
        "open('low/a', 'ab').write(b'more'); os.unlink('low/b')",
        "open('d/e/large', 'r+b').write(b'other bytes')",
        "os.rename('d', 'moved'); os.rename('low/new', 'low/newer')",
        "os.unlink('low/deep/c'); os.rmdir('low/deep')",
        "open('low/b', 'w').write('again'); os.unlink('empty')",
    ):
        first.run(step)
        soon(second, first.tree())
    assert tree_of(town.truth) == before
    expected = first.tree()
    settled(town.hosts[0])
    assert tree_of(town.truth) == expected
    same(second, expected)
    wait_until(lambda: not recorded(town, town.hosts[0]), 30.0)
    same(second, expected)


def test_attributes_and_absence_follow_at_once(town: Town) -> None:
    """Also where the other's kernel believed in something else."""
    first, second = town.hosts
    watcher = Writer(second.mount).start(
        """
import json
import time
def until(look):
    end = time.monotonic() + 5
    began = time.monotonic()
    while not look():
        assert time.monotonic() < end
        time.sleep(0.02)
    print(time.monotonic() - began)
assert not os.path.exists('f')
print('ready')
sys.stdin.readline()
until(lambda: os.path.exists('f') and os.stat('f').st_size == 1000)
print('ready')
sys.stdin.readline()
until(lambda: os.stat('f').st_size == 1003 and open('f', 'rb').read() == b'f' * 1000 + b'end')
print('ready')
sys.stdin.readline()
until(lambda: not os.path.exists('f') and 'f' not in os.listdir('.'))
"""
    )
    assert watcher.stdin is not None
    assert watcher.stdout is not None
    try:
        for step in ("open('f', 'w').write('f' * 1000)", "open('f', 'a').write('end')", "os.unlink('f')"):
            assert watcher.stdout.readline() == "ready\n"
            Writer(first.mount).run(step)
            watcher.stdin.write("\n")
            watcher.stdin.flush()
            assert float(watcher.stdout.readline()) < SOON_S
    finally:
        watcher.kill()
        watcher.wait()


def test_many_files_are_one_record(town: Town) -> None:
    first, second = (Writer(host.mount) for host in town.hosts)
    first.run("os.mkdir('many')\nfor n in range(2000): open(f'many/{n}', 'w').write(str(n))")
    soon(second, first.tree())
    assert town.status(town.hosts[0])["write"]["folders_told"] <= 3


def test_what_replaces_an_unpersisted_file_waits_for_it(make_town: MakeTown) -> None:
    """Each node has its say in turn; nothing is in conflict, though nobody persisted in between."""
    town = make_town(write="back", persist_delay_s=NEVER_S)
    town.start(2)
    first, second = (Writer(host.mount) for host in town.hosts)
    first.run("open('f', 'w').write('one'); open('g', 'w').write('g'); open('h', 'w').write('h')")
    soon(second, first.tree())
    second.run("open('f', 'a').write('two'); os.unlink('g'); open('t', 'w').write('t'); os.rename('t', 'h')")
    status = settled(town.hosts[1])
    assert status["conflicts"] == settled(town.hosts[0])["conflicts"] == []
    assert tree_of(town.truth) == {"f": b"onetwo".hex(), "h": b"t".hex()}
    same(first, tree_of(town.truth))
    same(second, tree_of(town.truth))


def test_what_was_written_again_is_kept_beside(make_town: MakeTown) -> None:
    town = make_town(write="back", persist_delay_s=NEVER_S)
    town.start(2)
    first, second = (Writer(host.mount) for host in town.hosts)
    first.run("open('f', 'w').write('one')")
    soon(second, first.tree())
    second.run("open('f', 'w').write('two')")
    first.run("open('f', 'w').write('three')")
    settled(town.hosts[0])
    (conflict,) = settled(town.hosts[1])["conflicts"]
    kept = conflict["kept"].lstrip("/")
    assert tree_of(town.truth) == {"f": b"three".hex(), kept: b"two".hex()}


def test_a_killed_writer_is_read_from_its_holder(make_town: MakeTown) -> None:
    """kill -9 of everything on its host, right after close; nobody persists it meanwhile."""
    town = make_town(write="back:2", persist_delay_s=NEVER_S, take_over_s=NEVER_S)
    town.put("low/a", 50_000)
    town.start(3)
    writer, *others = town.hosts
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
    began_s = time.monotonic()
    for host in others:
        wait_until(lambda host=host: Writer(host.mount).tree() == expected, 20.0)  # type: ignore[misc]
    assert time.monotonic() - began_s < 15
    assert tree_of(town.truth).keys() == {"low", "low/a"}
    writer.close()


def test_without_etcd_writing_goes_on(make_town: MakeTown, tmp_path: Path) -> None:
    from headrace.testing.etcd import etcd_server

    with etcd_server() as own:
        town = make_town(server=own, write="back", persist_delay_s=NEVER_S)
        town.start(2)
        first, second = (Writer(host.mount) for host in town.hosts)
        first.run("open('before', 'w').write('before')")
        soon(second, first.tree())
        own.kill()
        first.run("os.mkdir('d'); open('d/f', 'w').write('f')", limit_s=20)
        own.start()
        wait_until(lambda: second.tree() == first.tree(), 30.0)


RACE = """
won = []
for n in range({count}):
    for make in (
        lambda: os.close(os.open(f'race/{{n}}', os.O_CREAT | os.O_EXCL | os.O_WRONLY)),
        lambda: os.mkdir(f'race/d{{n}}'),
        lambda: os.link('race/own{me}', f'race/l{{n}}'),
    ):
        try:
            make()
            won.append(f'{{n}}{{make.__code__.co_names[-1]}}')
        except FileExistsError:
            pass
print(json.dumps(won))
"""


def test_one_of_two_makes_the_name(make_town: MakeTown) -> None:
    town = make_town(write="back", persist_delay_s=0.5)
    town.start(2)
    first, second = (Writer(host.mount) for host in town.hosts)
    first.run("os.mkdir('race'); open('race/own0', 'w')")
    soon(second, first.tree())
    second.run("open('race/own1', 'w')")
    racers = [one.start(RACE.format(count=30, me=me)) for me, one in enumerate((first, second))]
    won: list[list[str]] = []
    for racer in racers:
        assert racer.stdout is not None
        out, _ = racer.communicate(timeout=60)
        assert racer.returncode == 0
        won.append(json.loads(out))
    assert sorted(won[0] + won[1]) == sorted(set(won[0]) | set(won[1]))
    assert len(won[0]) + len(won[1]) == 90
    for host in town.hosts:
        assert settled(host)["conflicts"] == []


def test_a_dead_node_keeps_nobody_from_making_names(make_town: MakeTown) -> None:
    town = make_town(write="back", persist_delay_s=NEVER_S)
    town.start(2)
    first, second = (Writer(host.mount) for host in town.hosts)
    first.run("os.mkdir('d'); os.close(os.open('d/lock', os.O_CREAT | os.O_EXCL))")
    second.run("assert os.path.exists('d/lock')")
    assert "EEXIST" in second.run(
        "try: os.open('d/lock', os.O_CREAT | os.O_EXCL)\nexcept OSError as e: print(errno.errorcode[e.errno])"
    )
    first.run("os.mkdir('d/again')")
    town.hosts[0].kill_all()
    began_s = time.monotonic()
    second.run("os.makedirs('d/mine')", limit_s=30)
    assert time.monotonic() - began_s < 20
    town.hosts[0].close()


def test_a_reader_never_sees_two_states(make_town: MakeTown) -> None:
    town = make_town(write="back", persist_delay_s=0.2)
    town.start(2)
    first, second = (Writer(host.mount) for host in town.hosts)
    first.run("open('f', 'wb').write(bytes(3_000_000))")
    soon(second, first.tree())
    writer = first.start(
        "import time\nfor n in range(1, 100):\n    open('f', 'wb').write(bytes([n]) * 3_000_000)\n    time.sleep(0.05)"
    )
    try:
        seen = json.loads(
            second.run(
                """
import json
import time
seen, end = [], time.monotonic() + 4
while time.monotonic() < end:
    try:
        data = open('f', 'rb').read()
    except OSError as error:
        assert error.errno in (errno.ESTALE, errno.ENOENT, errno.EIO), error
        continue
    assert len(set(data)) <= 1, sorted(set(data))
    if len(data) == 3_000_000:
        seen.append(data[0])
print(json.dumps(seen))
"""
            )
        )
    finally:
        writer.kill()
        writer.wait()
    assert seen == sorted(seen)
    assert len(set(seen)) > 1
