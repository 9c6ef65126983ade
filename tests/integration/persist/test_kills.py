"""kill -9 of the node at every step of persisting, and of the session while it writes: nothing that was acknowledged is
lost, nothing that was removed comes back, nothing is there twice."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.integration.cli.host import Host
from tests.integration.persist.conftest import MakeHost, Writer, settled, tree_of, wait_until
from tests.integration.persist.kill_script import NAMES, SCRIPT, STEPS

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(120)]

EXAMPLES = int(os.environ.get("HEADRACE_EXAMPLES", "1"))


def make(make_host: MakeHost, **settings: object) -> Host:
    host = make_host(write="back", persist_delay_s=0.02, **settings)
    for name in ("low/a", "low/b", "low/c", "top", "over", "old/x/y", "old/z"):
        host.put(name, 3000)
    return host


@pytest.mark.parametrize("hit", range(1, 1 + EXAMPLES))
@pytest.mark.parametrize("step", STEPS)
def test_the_node_dies_at_a_step(make_host: MakeHost, tmp_path: Path, step: str, hit: int) -> None:
    died = tmp_path / "died"
    host = make(make_host, failpoint=f"{step}:{hit}:{died}")
    host.up()
    writer = Writer(host.mount)
    writer.run(SCRIPT)
    if hit == 1:  # a later one is perhaps not reached: some steps are taken once
        wait_until(died.exists, 30.0, hint=lambda: f"{step} was not hit")
    settled(host)
    assert writer.tree() == tree_of(host.truth), step
    assert set(tree_of(host.truth)) == NAMES
    assert host.status()["write"]["conflicts"] == []


def test_what_is_removed_while_the_node_is_dead_does_not_come_back(
    make_host: MakeHost, tmp_path: Path
) -> None:
    """The put had landed, and nobody had noted it: the session knew of no object to remove."""
    died = tmp_path / "died"
    host = make_host(write="back", persist_delay_s=0.02, failpoint=f"persist.put:1:{died}")
    up = host.up()
    up.signal(signal.SIGSTOP)  # so that it starts no node yet
    writer = Writer(host.mount)
    writer.run("open('f', 'w').write('f')")
    wait_until(lambda: died.exists(), 30.0)
    wait_until(lambda: (host.truth / "f").exists())
    removing = writer.start("os.unlink('f'); print('done')")
    assert removing.stdout is not None
    os.kill(up.pid, signal.SIGCONT)
    assert removing.stdout.readline() == "done\n"
    removing.wait(30)
    settled(host)
    assert tree_of(host.truth) == {}
    assert writer.tree() == {}


def test_what_is_removed_before_the_next_node_looks_does_not_come_back(
    make_host: MakeHost, tmp_path: Path
) -> None:
    """The put had landed, and nobody had noted it; the next node has begun when the file goes, and had no time yet."""
    died = tmp_path / "died"
    host = make_host(write="back", persist_delay_s=2, failpoint=f"persist.put:1:{died}")
    host.up()
    writer = Writer(host.mount)
    writer.run("os.mkdir('d'); open('d/f', 'w').write('f')")
    wait_until(died.exists, 30.0)
    wait_until(lambda: host.headrace("status").returncode == 0, 30.0)
    writer.run("os.unlink('d/f')")
    settled(host)
    host.ok("sync")
    assert tree_of(host.truth) == writer.tree() == {"d": "dir"}


def test_what_is_written_while_the_node_is_dead_is_no_conflict(make_host: MakeHost, tmp_path: Path) -> None:
    """The put had landed, and nobody had noted it; the origin then has bytes that are nowhere here any more."""
    died = tmp_path / "died"
    host = make_host(write="back", persist_delay_s=0.02, failpoint=f"persist.put:1:{died}")
    up = host.up()
    up.signal(signal.SIGSTOP)  # so that it starts no node yet
    writer = Writer(host.mount)
    writer.run("open('f', 'w').write('first')")
    wait_until(died.exists, 30.0)
    wait_until(lambda: (host.truth / "f").read_text() == "first")
    writing = writer.start("open('f', 'w').write('and second'); print('done')")
    assert writing.stdout is not None
    os.kill(up.pid, signal.SIGCONT)
    assert writing.stdout.readline() == "done\n"
    writing.wait(30)
    writing.stdout.close()
    assert settled(host)["conflicts"] == []
    assert writer.tree() == tree_of(host.truth) == {"f": b"and second".hex()}


def test_the_session_dies_while_files_are_written(make_host: MakeHost) -> None:
    """Open files go on; every call that was answered has happened; none fails."""
    host = make(make_host)
    host.up()
    writer = Writer(host.mount)
    chance = random.Random(4)
    work = writer.start(
        """
import hashlib
file = open('log', 'ab', buffering=0)
count = 0
while not os.path.exists('stop'):
    file.write(b'%08d\\n' % count)
    with open(f'n{count}', 'wb') as new: new.write(b'%d' % count)
    os.rename(f'n{count}', f'm{count}')
    if count % 3 == 0: os.unlink(f'm{count}')
    count += 1
print(count)
"""
    )
    for _ in range(6):
        time.sleep(0.2 + chance.random() * 0.4)  # the moment is what is tested
        host.wait_pid("session", other_than=host.kill("session"))
    Writer(host.mount).run("open('stop', 'w').close()")
    out, _ = work.communicate(timeout=60)
    assert work.returncode == 0
    count = int(out)
    settled(host)
    shown = writer.tree()
    assert bytes.fromhex(shown["log"]) == b"".join(b"%08d\n" % n for n in range(count))
    for n in range(count):
        assert f"n{n}" not in shown
        assert shown.get(f"m{n}") == (None if n % 3 == 0 else str(n).encode().hex())
    assert shown == tree_of(host.truth)


def test_everything_dies_and_is_started_again(make_host: MakeHost) -> None:
    host = make(make_host)
    for number in range(3):
        up = host.up()
        Writer(host.mount).run(f"[open(f'r{number}-{{n}}', 'wb').write(os.urandom(9000)) for n in range(40)]")
        time.sleep(0.05 * number)  # somewhere in the middle of persisting
        up.process.kill()
        up.process.wait()
        host.close()
    host.up()
    settled(host)
    shown_now = Writer(host.mount).tree()
    assert len([name for name in shown_now if name.startswith("r")]) == 120
    assert shown_now == tree_of(host.truth)
