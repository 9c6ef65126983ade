"""Files written through a mount come to the origin, whole, in order, and never over what somebody else put there."""

from __future__ import annotations

import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.cli.host import Host
from tests.integration.persist.conftest import MakeHost, Writer, settled, tree_of, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(120)]


@pytest.fixture
def back(make_host: MakeHost) -> Host:
    host = make_host(write="back", persist_delay_s=0.05)
    host.put("low/a", 10_000)
    host.put("low/b", 20_000)
    host.put("top", 3_000_000)
    host.up()
    return host


def same(host: Host) -> None:
    """The mount and the origin have the same names and bytes."""
    assert Writer(host.mount).tree() == tree_of(host.truth)


def test_what_is_written_comes_to_the_origin_by_itself(back: Host) -> None:
    Writer(back.mount).run("os.makedirs('new/deep'); open('new/deep/f', 'wb').write(b'x' * 5_000_001)")
    wait_until(
        lambda: (
            (back.truth / "new/deep/f").exists() and (back.truth / "new/deep/f").stat().st_size == 5_000_001
        ),
        30.0,
    )
    settled(back)
    same(back)


def test_every_change_of_names_and_bytes(back: Host) -> None:
    Writer(back.mount).run(
        """
with open('top', 'ab') as file: file.write(b'more')
with open('low/a', 'r+b') as file: file.seek(5_000); file.write(b'middle')
os.truncate('low/b', 100)
os.rename('low/b', 'low/c')
os.makedirs('d/e')
open('d/e/f', 'w').write('f')
os.rename('d', 'g')
open('gone', 'w').write('gone')
os.unlink('gone')
os.symlink('top', 'link')
os.link('top', 'hard')
"""
    )
    status = settled(back)
    assert status["dirty"] == 0
    assert status["conflicts"] == []
    shown = Writer(back.mount).tree()
    assert shown.pop("link") == shown["top"]  # kept on this node only
    assert shown == tree_of(back.truth)
    assert shown["hard"] == shown["top"]
    assert shown["top"].endswith(b"more".hex())
    assert len(shown["low/c"]) == 200


def test_removed_and_made_again_before_and_after_persisting(back: Host) -> None:
    writer = Writer(back.mount)
    writer.run("os.unlink('low/a'); open('low/a', 'w').write('new')")
    settled(back)
    assert (back.truth / "low/a").read_text() == "new"
    writer.run("os.unlink('low/a'); os.unlink('low/b'); os.rmdir('low')")
    settled(back)
    assert not (back.truth / "low").exists()
    writer.run("os.mkdir('low'); open('low/a', 'w').write('newer')")
    settled(back)
    same(back)
    writer.run("os.unlink('top'); os.mkdir('top'); open('top/x', 'w').write('x')")
    settled(back)
    same(back)
    writer.run("os.unlink('top/x'); os.rmdir('top'); open('top', 'w').write('file again')")
    settled(back)
    same(back)


def test_a_folder_of_the_origin_is_renamed_with_all_that_is_in_it(back: Host) -> None:
    Writer(back.mount).run("os.rename('low', 'high')")
    settled(back)
    assert sorted(os.listdir(back.truth)) == ["high", "top"]
    same(back)


def test_a_renamed_file_is_never_missing_at_the_origin(back: Host) -> None:
    """The content comes under the new name before the old one goes."""
    data = (back.truth / "top").read_bytes()
    Writer(back.mount).run("os.rename('top', 'moved')")
    seen_missing = False
    limit = time.monotonic() + 30
    while (back.truth / "top").exists():
        assert time.monotonic() < limit
        if not (back.truth / "top").exists() and not (back.truth / "moved").exists():
            seen_missing = True
    assert not seen_missing
    assert (back.truth / "moved").read_bytes() == data


@pytest.mark.expected_warnings("another writer changed a file at the origin, the local version is kept")
def test_what_somebody_else_changed_is_not_overwritten(back: Host) -> None:
    writer = Writer(back.mount)
    writer.run("open('top').close(); os.stat('low/a')")
    held = writer.start(
        "f = open('top', 'r+b'); print('open'); sys.stdin.readline(); f.write(b'ours'); f.close()"
    )
    assert held.stdout is not None
    assert held.stdin is not None
    assert held.stdout.readline() == "open\n"
    theirs = back.put("top", 50_000, seed=2)
    held.communicate("go\n", timeout=30)
    assert held.returncode == 0
    wait_until(lambda: back.status()["write"]["conflicts"], 30.0)
    settled(back)
    (conflict,) = back.status()["write"]["conflicts"]
    assert conflict["path"] == "/top"
    assert (back.truth / "top").read_bytes() == theirs
    kept = conflict["kept"].lstrip("/")
    assert (back.truth / kept).read_bytes().startswith(b"ours")
    shown = writer.tree()
    assert shown["top"] == theirs.hex()
    assert bytes.fromhex(shown[kept]).startswith(b"ours")
    back.ok("persist", "--forget-conflicts")
    assert back.status()["write"]["conflicts"] == []


@pytest.mark.expected_warnings("another writer changed a file at the origin, it is not removed")
def test_what_somebody_else_changed_is_not_removed(make_host: MakeHost) -> None:
    host = make_host(write="back", persist_delay_s=3.0)
    host.put("f", 1000)
    host.up()
    Writer(host.mount).run("assert len(open('f', 'rb').read()) == 1000; os.unlink('f')")
    theirs = host.put("f", 2000, seed=9)
    settled(host)
    assert (host.truth / "f").read_bytes() == theirs
    assert [row["path"] for row in host.status()["write"]["conflicts"]] == ["/f"]
    assert Writer(host.mount).tree() == {"f": theirs.hex()}


def test_what_somebody_else_puts_where_something_was_removed_stays(back: Host) -> None:
    """At the very moment of the removal, before the node has looked at the folder again."""
    for turn in range(8):
        target = back.truth / f"low/{turn}"
        target.write_bytes(b"old")
        back.ok("sync", "/")
        theirs = f"theirs {turn}".encode()
        instead = back.truth.parent / "instead"
        instead.write_bytes(theirs)

        def put(target: Path = target, instead: Path = instead) -> None:
            while target.exists():
                pass
            instead.rename(target)

        with ThreadPoolExecutor(1) as pool:
            putting = pool.submit(put)
            Writer(back.mount).run(f"os.unlink('low/{turn}')")
            putting.result(timeout=30)
        settled(back)
        back.ok("sync", "/")
        assert target.read_bytes() == theirs
        assert bytes.fromhex(Writer(back.mount).tree()[f"low/{turn}"]) == theirs


def test_through_means_that_close_waits_for_the_origin(make_host: MakeHost) -> None:
    host = make_host(write="through")
    host.put("old", 5000)
    host.up()
    truth = str(host.truth)
    Writer(host.mount).run(
        f"""
truth = {truth!r}
for size in (0, 1, 100_000, 3_000_000):
    with open(f'f{{size}}', 'wb') as file: file.write(os.urandom(size))
    assert open(f'{{truth}}/f{{size}}', 'rb').read() == open(f'f{{size}}', 'rb').read()
os.mkdir('d')
assert os.path.isdir(f'{{truth}}/d')
os.rename('f1', 'd/f1')
assert os.path.exists(f'{{truth}}/d/f1') and not os.path.exists(f'{{truth}}/f1')
os.unlink('old')
assert not os.path.exists(f'{{truth}}/old')
with open('d/f1', 'ab') as file:
    file.write(b'more'); file.flush(); os.fsync(file.fileno())
    assert open(f'{{truth}}/d/f1', 'rb').read().endswith(b'more')
"""
    )
    same(host)


def test_local_is_never_persisted(make_host: MakeHost) -> None:
    host = make_host(write="local", persist_delay_s=0.05)
    host.put("low", 5000)
    before = tree_of(host.truth)
    host.up()
    Writer(host.mount).run("open('f', 'w').write('f'); os.unlink('low')")
    settled(host)
    assert tree_of(host.truth) == before
    assert Writer(host.mount).tree() == {"f": b"f".hex()}


def test_modes_of_single_paths(make_host: MakeHost) -> None:
    host = make_host(write="off,/scratch=local,/out=back", persist_delay_s=0.05)
    host.put("in/f", 100)
    host.up()
    Writer(host.mount).run(
        """
open('scratch/s', 'w').write('s')
open('out/o', 'w').write('o')
for name in ('new', 'in/f', 'in/g'):
    try: open(name, 'w')
    except OSError as error: assert error.errno == errno.EROFS, error
    else: raise AssertionError(name)
try: os.rename('out/o', 'scratch/o')
except OSError as error: assert error.errno == errno.EXDEV, error
else: raise AssertionError('renamed')
"""
    )
    settled(host)
    assert tree_of(host.truth).keys() == {"in", "in/f", "out", "out/o"}
    assert Writer(host.mount).tree().keys() == {"in", "in/f", "out", "out/o", "scratch", "scratch/s"}


def test_a_mapping_that_is_written_after_the_file_was_persisted(back: Host) -> None:
    """Such stores come without any word to the session: the look over the layer finds them."""
    writer = Writer(back.mount)
    held = writer.start(
        """
import mmap
file = open('m', 'w+b'); file.truncate(8192)
m = mmap.mmap(file.fileno(), 8192); file.close()
m[0:5] = b'first'; print('first'); sys.stdin.readline()
m[5000:5006] = b'second'; print('second'); sys.stdin.readline(); m.close()
"""
    )
    assert held.stdout is not None
    assert held.stdin is not None
    assert held.stdout.readline() == "first\n"
    settled(back)
    assert (back.truth / "m").read_bytes().startswith(b"first")
    held.stdin.write("on\n")
    held.stdin.flush()
    assert held.stdout.readline() == "second\n"
    settled(back)
    data = (back.truth / "m").read_bytes()
    held.communicate("end\n", timeout=30)
    assert data[5000:5006] == b"second"


@pytest.mark.expected_warnings("a change was not persisted, retrying later")
def test_an_origin_that_is_away_costs_time_and_nothing_else(make_host: MakeHost) -> None:
    host = make_host(write="back", persist_delay_s=0.05, origin_timeout_s=2)
    host.up()
    assert Writer(host.mount).tree() == {}  # listed once: from here on the origin is not needed
    aside = host.base / "aside"
    os.rename(host.truth, aside)
    Writer(host.mount).run("open('f', 'wb').write(b'f' * 100_000)")
    wait_until(lambda: host.status()["write"]["errors"], 30.0)
    failed = host.headrace("persist", limit_s=60)
    assert failed.returncode != 0
    assert "/f" in failed.stderr
    os.rename(aside, host.truth)
    wait_until(lambda: (host.truth / "f").exists(), 60.0)
    settled(host)
    same(host)


def test_clean_files_leave_the_layer_when_it_is_too_large(make_host: MakeHost) -> None:
    host = make_host(write="back", persist_delay_s=0.05)
    up = host.up(host.truth, host.mount, cache=f"{host.cache}:64MiB")
    writer = Writer(host.mount)
    writer.run("[open(f'f{n}', 'wb').write(os.urandom(1_000_000)) for n in range(50)]")
    held = writer.start("f = open('f0', 'rb'); print('open'); sys.stdin.readline(); print(len(f.read()))")
    assert held.stdout is not None
    assert held.stdout.readline() == "open\n"
    settled(host)
    up.signal(15)
    layer = host.cache / "upper/tree"
    assert up.wait() == 0
    held.kill()
    held.wait()
    host.up(host.truth, host.mount, cache=f"{host.cache}:64MiB")  # looks over the layer at its start
    wait_until(lambda: host.status()["write"]["files_demoted"] > 0, 30.0)
    left = sum(path.stat().st_size for path in layer.iterdir())
    assert left <= 33 << 20
    same(host)
    assert host.status()["origin"]["bytes_read"] == 0  # they went into the cache
    writer.run("open('f1', 'ab').write(b'more')")
    settled(host)
    same(host)


def test_nothing_goes_while_it_is_open(make_host: MakeHost) -> None:
    """The unit of it is tested with a mount: the session's own descriptor counts."""
    host = make_host(write="back", persist_delay_s=0.05)
    host.up()
    writer = Writer(host.mount)
    writer.run("open('f', 'wb').write(b'f' * 1000)")
    held = writer.start("f = open('f', 'rb'); print('open'); sys.stdin.readline()")
    assert held.stdout is not None
    assert held.stdout.readline() == "open\n"
    settled(host)
    from headrace.overlay.upper import Upper
    from headrace.writeback.demotion import remove_clean_file
    from headrace.writeback.sync_journal import SyncJournal

    upper = Upper(str(host.cache / "upper"))
    table = SyncJournal(str(host.cache / "upper/known.db"))
    row = table.get(b"/f")
    assert row is not None
    assert remove_clean_file(upper, row, lambda _: True) == 0
    held.communicate("go\n", timeout=30)
    wait_until(lambda: remove_clean_file(upper, row, lambda _: True) > 0)
    table.close()
    assert writer.tree() == {"f": (b"f" * 1000).hex()}


def test_a_folder_of_which_the_cache_has_the_files_goes_with_them(back: Host) -> None:
    writer = Writer(back.mount)
    writer.run("os.makedirs('new/deep'); open('new/deep/f', 'w').write('f'); os.mkdir('mine')")
    settled(back)
    back.ok("load", back.mount)
    assert not (back.cache / "upper/tree/new/deep/f").exists()
    shutil.rmtree(back.truth / "new")
    back.ok("sync", back.mount)
    wait_until(lambda: "new" not in writer.tree())
    assert set(writer.tree()) == set(tree_of(back.truth)) >= {"mine", "low/a"}


def test_names_that_were_exchanged_are_so_at_the_origin(back: Host) -> None:
    writer = Writer(back.mount)
    writer.run("open('new', 'wb').write(b'new' * 100)")
    settled(back)
    before = {name: (back.truth / name).read_bytes() for name in ("new", "top", "low/a")}
    writer.run(
        """
import ctypes
def exchange(path, other):
    assert ctypes.CDLL(None).renameat2(-100, path, -100, other, 2) == 0
exchange(b'new', b'top')
exchange(b'top', b'low/a')
"""
    )
    assert settled(back)["conflicts"] == []
    same(back)
    after = {name: (back.truth / name).read_bytes() for name in before}
    assert after == {"new": before["top"], "top": before["low/a"], "low/a": before["new"]}


def test_two_mounts_of_one_node_see_each_other(back: Host) -> None:
    other = back.base / "other"
    other.mkdir()
    more = back.start("fuse", other)
    more.wait_ready()
    first, second = Writer(back.mount), Writer(other)
    second.run("os.stat('top'); os.listdir('low')")
    first.run("open('top', 'w').write('short'); os.unlink('low/a'); open('low/n', 'w').write('n')")
    wait_until(lambda: second.tree() == first.tree(), 20.0)
    second.run("open('low/n', 'a').write('m'); os.rename('low', 'lower')")
    wait_until(lambda: second.tree() == first.tree(), 20.0)
    assert bytes.fromhex(first.tree()["lower/n"]) == b"nm"
    settled(back)
    same(back)


@pytest.mark.expected_warnings("node did not start")
def test_writes_to_an_origin_that_can_not_be_written_are_refused_at_the_start(make_host: MakeHost) -> None:
    host = make_host(write="back")
    done = host.headrace("up", "synthetic://3/1MiB", host.mount, "--cache", f"{host.cache}:1GiB")
    assert done.returncode != 0
    assert "--write" in done.stderr


@pytest.mark.expected_warnings("files written under other settings are neither shown nor persisted")
def test_off_after_writing_says_what_is_left(make_host: MakeHost, tmp_path: Path) -> None:
    host = make_host(persist_delay_s=60)
    up = host.up(host.truth, host.mount, "--write", "back")
    Writer(host.mount).run("open('f', 'w').write('f')")
    up.signal(9)
    up.wait()
    host.close()
    up = host.up()
    log = next(host.run_folder.glob("*.log")).read_text()
    assert "neither shown nor persisted" in log
    up.signal(15)
    assert up.wait() == 0
    host.up(host.truth, host.mount, "--write", "back")
    settled(host)
    assert (host.truth / "f").read_text() == "f"


@pytest.mark.expected_warnings("the local version is kept path=/low")
def test_a_file_where_a_folder_was_removed_holds_nothing_up(make_host: MakeHost) -> None:
    """The folder made room for a file here, and for another one there."""
    back = make_host(write="back", persist_delay_s=600)
    back.put("low/a", 10_000)
    back.put("top", 10_000)
    back.up()
    Writer(back.mount).run(
        """
import shutil
os.listdir('low')
shutil.rmtree('low')
open('low', 'w').write('ours')
os.unlink('top')
"""
    )
    shutil.rmtree(back.truth / "low")
    (back.truth / "low").write_text("theirs")
    assert [row["path"] for row in settled(back)["conflicts"]] == ["/low"]
    contents = {name: bytes.fromhex(data) for name, data in tree_of(back.truth).items()}
    assert sorted(contents.values()) == [b"ours", b"theirs"]
    assert contents["low"] == b"theirs"
    wait_until(lambda: Writer(back.mount).tree() == tree_of(back.truth))
