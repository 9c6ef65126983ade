"""`--write /out=back,exclusive`: the node learns of changes by fanotify, and persists them."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.integration.cli.host import Host, Up, wait_until
from tests.integration.persist.conftest import Writer, settled, tree_of

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(180)]

MODES = "off,/out=back,exclusive"
OPEN = "sys.stdin.readline(); "


def start(host: Host, modes: str = MODES) -> Up:
    return host.up(host.truth, host.mount, "--write", modes)


def tree(folder: Path) -> dict[str, str]:
    return tree_of(folder) if folder.exists() else {}


def assert_persisted(host: Host) -> dict[str, str]:
    """Return the tree that both the programs and the origin have."""
    settled(host)
    shown = Writer(host.mount / "out").tree()
    wait_until(lambda: tree(host.truth / "out") == shown, hint=lambda: f"{tree(host.truth / 'out').keys()}")
    return shown


def test_changes_reach_the_origin(host: Host) -> None:
    up = start(host)
    out = Writer(host.mount / "out")
    out.run("os.makedirs('a/b'); open('a/b/f', 'wb').write(b'one'); open('g', 'wb').write(b'x' * 500_000)")
    assert set(assert_persisted(host)) == {"a", "a/b", "a/b/f", "g"}
    out.run("os.rename('a', 'c'); os.unlink('g'); open('c/b/f', 'ab').write(b'two'); open('c/new', 'w')")
    assert assert_persisted(host) == {
        "c": "dir", "c/b": "dir", "c/b/f": b"onetwo".hex(), "c/new": ""}  # fmt: skip
    out.run("import shutil; shutil.rmtree('c'); open('c', 'w').write('a file'); os.mkdir('h')")
    assert assert_persisted(host) == {"c": b"a file".hex(), "h": "dir"}
    out.run("os.unlink('c'); os.mkdir('c'); open('c/f', 'w').write('x'); os.rmdir('h'); os.symlink('/', 'h')")
    settled(host)
    wait_until(lambda: tree(host.truth / "out") == {"c": "dir", "c/f": b"x".hex()})
    out.run("os.truncate('c/f', 0); os.unlink('h')")
    assert assert_persisted(host) == {"c": "dir", "c/f": ""}
    host.ok("sync")
    host.assert_right()
    assert up.said == ""
    assert host.status()["write"]["conflicts"] == []


def test_changes_are_noticed_without_a_request(host: Host) -> None:
    """Nobody calls `persist`, and no scan of the layer takes place within its 30 s."""
    start(host)
    out = Writer(host.mount / "out")
    out.run("os.mkdir('d'); open('d/f', 'wb').write(b'one')")
    wait_until(lambda: tree(host.truth / "out") == {"d": "dir", "d/f": b"one".hex()}, 15)
    out.run("os.rename('d', 'e')")
    wait_until(lambda: tree(host.truth / "out") == {"e": "dir", "e/f": b"one".hex()}, 15)
    out.run("import shutil; shutil.rmtree('e')")
    wait_until(lambda: tree(host.truth / "out") == {}, 15)


def test_a_file_is_put_when_it_is_closed(host: Host) -> None:
    start(host)
    writer = Writer(host.mount / "out").start(
        "file = open('f', 'wb', 0); file.write(b'half'); print('half')\n"
        "sys.stdin.readline(); file.write(b'whole'); file.close()"
    )
    assert writer.stdin is not None and writer.stdout is not None
    assert writer.stdout.readline() == "half\n"
    Writer(host.mount / "out").run("open('g', 'w')")
    wait_until(lambda: (host.truth / "out/g").exists())
    wait_until(lambda: host.status()["write"]["dirty"] == 1)
    assert not (host.truth / "out/f").exists()
    writer.stdin.write("\n")
    writer.stdin.flush()
    assert writer.wait() == 0
    wait_until(lambda: tree(host.truth / "out") == {"f": b"halfwhole".hex(), "g": ""}, 15)


def test_what_changes_while_no_node_runs_is_persisted_later(host: Host) -> None:
    start(host)
    out = Writer(host.mount / "out")
    out.run("os.mkdir('d')\nfor name in ('d/a', 'd/b', 'c'): open(name, 'w').write(name)")
    assert_persisted(host)
    writer = out.start(
        OPEN + "os.unlink('d/a'); os.rename('d', 'e'); open('new', 'w').write('n'); os.unlink('c')"
    )
    host.kill_all()
    assert writer.communicate("\n")[0] == "" and writer.returncode == 0
    start(host)
    assert set(assert_persisted(host)) == {"e", "e/b", "new"}


def test_removals_are_kept_when_the_directory_is_exclusive_no_more(host: Host) -> None:
    start(host)
    out = Writer(host.mount / "out")
    out.run("os.mkdir('d')\nfor name in ('d/a', 'd/b', 'c'): open(name, 'w').write(name)")
    assert_persisted(host)
    writer = out.start(OPEN + "os.unlink('d/a'); os.rename('d', 'e'); os.unlink('c')")
    host.kill_all()
    assert writer.communicate("\n")[0] == "" and writer.returncode == 0
    start(host, "off,/out=back")
    assert set(Writer(host.mount / "out").tree()) == {"e", "e/b"}
    assert set(assert_persisted(host)) == {"e", "e/b"}
    host.ok("down")
    start(host)
    assert set(assert_persisted(host)) == {"e", "e/b"}


@pytest.mark.expected_warnings("node did not start")
def test_a_file_that_only_the_cache_has_is_never_removed(host: Host) -> None:
    """In another mode clean files leave the layer. An exclusive directory would show them as removed."""
    start(host, "off,/out=back")
    Writer(host.mount / "out").run("open('f', 'w').write('kept')")
    settled(host)
    host.ok("load", "/out")
    wait_until(lambda: not (host.cache / "upper/tree/out/f").exists())
    host.ok("down")
    refused = host.headrace("up", host.truth, host.mount, "--cache", f"{host.cache}:1GiB", "--write", MODES)
    assert refused.returncode == 2 and "/out/f among them" in refused.stderr
    assert (host.truth / "out/f").read_bytes() == b"kept"


def test_no_clean_file_leaves_the_directory(host: Host) -> None:
    start(host)
    Writer(host.mount / "out").run("open('f', 'w').write('kept')")
    assert_persisted(host)
    host.ok("load", "/out")
    assert Writer(host.mount / "out").run("print(open('f').read())") == "kept\n"
    assert (host.truth / "out/f").read_bytes() == b"kept"


@pytest.mark.expected_warnings("another writer changed a file at the origin")
def test_another_writer_at_the_origin_loses_nothing(host: Host) -> None:
    start(host)
    out = Writer(host.mount / "out")
    out.run("open('f', 'w').write('ours'); open('g', 'w').write('ours')")
    assert_persisted(host)
    for name in ("f", "g"):
        host.put(f"out/{name}", 10)
    theirs = (host.truth / "out/f").read_bytes()
    out.run("open('f', 'w').write('ours again'); os.unlink('g')")
    settled(host)
    assert (host.truth / "out/f").read_bytes() == theirs and (host.truth / "out/g").exists()
    kept = [name for name in tree(host.truth / "out") if name.startswith("f.conflict-")]
    assert len(kept) == 1 and (host.truth / "out" / kept[0]).read_bytes() == b"ours again"


@pytest.mark.expected_warnings("no origin accepts a name")
def test_a_name_that_no_origin_accepts_is_changed_and_the_status_has_it(host: Host) -> None:
    """A folder takes all names but those that its own uploads have."""
    start(host)
    out = Writer(host.mount / "out")
    out.run(
        "os.mkdir('.headrace-put-d')\n"
        "for name in (b'a\\xffb', b'.headrace-put-x', b'.headrace-put-d/f'): open(name, 'wb').write(name)"
    )
    wanted = {
        "a\udcffb": b"a\xffb".hex(),
        "%2Eheadrace-put-x": b".headrace-put-x".hex(),
        "%2Eheadrace-put-d": "dir",
        "%2Eheadrace-put-d/f": b".headrace-put-d/f".hex(),
    }
    assert assert_persisted(host) == wanted
    rows = {row["kept"]: row["why"] for row in host.status()["write"]["conflicts"]}
    assert set(rows) == {"/out/%2Eheadrace-put-x", "/out/%2Eheadrace-put-d"} and all(rows.values())


def test_links_and_devices_of_users_are_not_followed(host: Host) -> None:
    secret = host.base / "secret"
    secret.write_text("secret")
    start(host)
    out = Writer(host.mount / "out")
    out.run(
        f"os.mkdir('d'); open('d/f', 'w').write('ours')\n"
        f"os.symlink({str(secret)!r}, 'link'); os.mknod('zero', 0o20666, os.makedev(1, 5)); os.mkfifo('fifo')"
    )
    settled(host)
    assert tree(host.truth / "out") == {"d": "dir", "d/f": b"ours".hex()}
    out.run(f"os.rename('d', 'e'); os.symlink({str(host.base)!r}, 'd')")
    settled(host)
    wait_until(lambda: set(tree(host.truth / "out")) == {"e", "e/f"})
    assert secret.read_text() == "secret"


def test_a_flood_of_events_loses_no_change(host: Host) -> None:
    """More events than the kernel's queue takes, while the node stands still."""
    start(host)
    out = Writer(host.mount / "out")
    out.run("for n in range(50): open(f'gone{n}', 'w')")
    assert_persisted(host)
    host.kill("node", signal.SIGSTOP)
    out.run("os.mkdir('many')\nfor n in range(20_000): open(f'many/{n}', 'w'); os.unlink(f'many/{n}')")
    out.run("for n in range(50): os.unlink(f'gone{n}'); open(f'new{n}', 'w').write('x')")
    host.kill("node", signal.SIGCONT)
    wanted = {"many", *(f"new{n}" for n in range(50))}
    wait_until(lambda: set(tree(host.truth / "out")) == wanted, 60)


def test_the_persisted_directory_stays_mounted(host: Host) -> None:
    """The kernel drops a mount if the name below it changes, as when the origin has the directory, too."""
    up = start(host)
    Writer(host.mount / "out").run("open('f', 'w').write('kept')")
    assert_persisted(host)
    for role in ("session", "holder", "node"):
        pid = host.kill(role)
        host.wait_pid(role, other_than=pid)
        wait_until(lambda: host.headrace("sync").returncode == 0)
        Writer(host.mount).run("os.listdir('.'); open('out/g', 'w').write('more'); os.stat('out')")
    settled(host)
    assert "mounted again" not in up.said
    assert subprocess.run(["findmnt", "-n", host.mount / "out"], capture_output=True, check=False).stdout
    assert os.path.exists(host.truth / "out/g")
