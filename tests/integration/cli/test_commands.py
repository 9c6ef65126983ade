"""Every command that asks a node, as a user calls it: what it prints, its JSON, its exit status."""

from __future__ import annotations

import base64
import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator

import pytest

from headrace.cli.examples import FIELDS
from headrace.cli.exit_codes import SOME_FAILED
from tests.integration.cli.conftest import MakeHost
from tests.integration.cli.host import MIB, Host, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(60)]


@pytest.fixture
def up(host: Host) -> Iterator[Host]:
    started = host.up()
    yield host
    started.process.terminate()
    assert started.wait() == 0
    host.assert_nothing_left()


def test_ls_stat_cat(up: Host) -> None:
    assert up.ok("ls").splitlines() == ["empty", "images/", "large.tar"]
    assert up.ok("ls", up.mount / "images").splitlines() == [f"{n}.bin" for n in range(6)]
    long = up.ok("ls", "-lR").splitlines()
    assert len(long) == 9
    assert all(len(line) <= 80 for line in long)
    rows = [json.loads(line) for line in up.ok("ls", "-R", "--json").splitlines()]
    assert all(set(row) == set(FIELDS["ls"]) for row in rows)
    assert [row["name"] for row in rows] == [
        "empty", "images/", *[f"images/{n}.bin" for n in range(6)], "large.tar"
    ]  # fmt: skip
    found = up.json("stat", "large.tar")
    assert set(found) == set(FIELDS["stat"])
    assert found["size_bytes"] == (up.truth / "large.tar").stat().st_size
    assert found["origin"] == f"file://{up.truth}/large.tar"
    assert found["cached"] == "no"
    folder = up.json("stat", up.mount / "images")
    assert set(folder) == set(FIELDS["stat"]) - {"cached", "version", "origin"}
    whole = up.json("cat", "/large.tar")
    assert base64.b64decode(whole["base64"]) == (up.truth / "large.tar").read_bytes()
    plain = subprocess.run(
        [sys.executable, "-m", "headrace", "cat", "images/3.bin"],
        env=up.environment,
        capture_output=True,
        timeout=30,
        check=True,
    )
    assert plain.stdout == (up.truth / "images/3.bin").read_bytes()


def test_jobs(up: Host) -> None:
    size = sum(os.path.getsize(up.truth / "images" / f"{n}.bin") for n in range(6))
    loaded = up.json("load", up.mount / "images")
    assert set(loaded) == set(FIELDS["load"])
    assert (loaded["path"], loaded["files_done"], loaded["bytes_done"]) == ("/images", 6, size)
    assert up.json("load", up.truth / "images")["path"] == "/images"
    assert up.json("load", f"file://{up.truth}")["files_done"] == 8
    assert up.json("stat", "/large.tar")["cached"] == "yes"
    for kind, path, files in (
        ("pin", "/images", 6), ("unpin", "/images", 6), ("free", "/large.tar", 1), ("sync", "/", 2)
    ):  # fmt: skip
        done = up.json(kind, path)
        assert set(done) == set(FIELDS[kind])
        assert (done["kind"], done["files_done"], done["failed_files"]) == (kind, files, 0)
    assert up.json("stat", "/large.tar")["cached"] == "no"
    assert up.json("fsck")["files_done"] == 7
    line = up.ok("load")
    assert line.startswith("load /: 8 files, ")
    up.assert_right()


def test_status_config_and_mounts(up: Host) -> None:
    found = up.json("status", up.mount)
    assert set(found) == set(FIELDS["status"])
    assert found["sessions"][0]["mountpoint"] == str(up.mount)
    assert all(len(line) <= 80 for line in up.ok("status").splitlines() if str(up.base) not in line)
    added = up.json("mount", "add", "/more", up.truth / "images")
    assert set(added) == set(FIELDS["mount add"])
    rows = up.json("mount", "list")
    assert [row["path"] for row in rows] == ["/", "/more"]
    assert all(set(row) == set(FIELDS["mount list"]) for row in rows)
    wait_until(lambda: up.headrace("ls", "/more").stdout.split() == [f"{n}.bin" for n in range(6)])
    assert up.json("mount", "remove", "/more") == {"path": "/more"}
    assert up.headrace("mount", "remove", "/more").returncode == 3
    settings = up.json("config", "show")
    assert all(set(row) == set(FIELDS["config show"]) for row in settings)
    assert {row["setting"]: row["from"] for row in settings}["run_folder"].startswith("environment")
    (one,) = up.json("config", "explain", "readahead_bytes")
    assert set(one) == set(FIELDS["config explain"])
    assert one["default"] == "`64 MiB`"


def test_wrong_words_are_one_line_and_a_status(up: Host) -> None:
    wrong: list[tuple[int, tuple[str, ...]]] = [
        (2, ("lod",)),
        (2, ("load", "--nope")),
        (2, ("stat",)),
        (2, ("mount", "add", "/x")),
        (2, ("mount", "add", "/x", "s4://bucket")),
        (2, ("mount", "add", "x", "/tmp")),
        (2, ("config", "explain", "nothing")),
        (2, ("up", "s3:/bucket/prefix")),
        (2, ("up", "/tmp", "--io", "fast")),
        (2, ("up", "-o", "region")),
        (2, ("load", "s3://other/prefix")),
        (3, ("load", "/nothing")),
        (3, ("cat", "/images/nothing")),
        (3, ("ls", str(up.mount / "nothing"))),
        (4, ("stat", "/empty/below")),
        (5, ("cat", "/images")),
        (13, ("mount", "add", "/x", "/nothing/here")),
        (30, ("ls", "--socket", "/nothing.sock")),
        (30, ("ls", "--cache", "/nothing")),
        (30, ("down", "/nothing")),
    ]
    for status, words in wrong:
        done = up.headrace(*words)
        assert (done.returncode, done.stdout) == (status, ""), (words, done)
        assert len(done.stderr.splitlines()) == 1, (words, done.stderr)
        assert done.stderr.startswith("headrace: "), done.stderr


def test_a_load_with_files_that_fail_names_them(up: Host) -> None:
    up.ok("ls", "-R")
    (up.truth / "images/2.bin").unlink()
    done = up.headrace("load", "/images")
    assert done.returncode == SOME_FAILED
    assert "5 files" in done.stdout
    assert "1 failed" in done.stdout
    assert "/images/2.bin" in done.stderr
    up.ok("load", "/images")  # by now it is known that the file is gone


def test_output_into_a_pipe_that_closes(up: Host) -> None:
    for number in range(2000):
        (up.truth / "images" / f"{number:050d}").touch()
    up.ok("sync")
    script = f"{sys.executable} -m headrace ls -R 2>&1 | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", script], env=up.environment, capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "empty\n", "")


def test_no_node(make_host: MakeHost) -> None:
    one = make_host()
    for words in (["ls"], ["status"], ["load"], ["cat", "/x"], ["mount", "list"], ["fuse", str(one.mount)]):
        done = one.headrace(*words)
        assert done.returncode == 30, words
        assert "start one with `headrace up`" in done.stderr
    assert one.headrace("down").returncode == 30


def test_two_nodes_are_told_apart(make_host: MakeHost) -> None:
    one = make_host()
    one.put("a/1", 1000)
    one.put("b/2", 2000)
    ups = []
    for name in ("a", "b"):
        (one.base / f"mnt-{name}").mkdir()
        ups.append(one.up(one.truth / name, one.base / f"mnt-{name}", cache=f"{one.base}/cache-{name}:1GiB"))
    which = one.headrace("status")
    assert which.returncode == 2
    for name in ("a", "b"):
        assert f"--cache {one.base}/cache-{name} at {one.base}/mnt-{name}" in which.stderr
        assert one.ok("ls", one.base / f"mnt-{name}").split() == [{"a": "1", "b": "2"}[name]]
        assert one.json("load", one.base / f"mnt-{name}")["files_done"] == 1
        assert one.json("load", one.truth / name)["files_done"] == 1
        assert one.json("status", "--cache", one.base / f"cache-{name}")["index"]["files"] == 1
    assert one.headrace("down").returncode == 2
    one.ok("down", one.base / "mnt-a")
    assert one.ok("ls").split() == ["2"]
    one.ok("down", "--all")
    assert [up.wait() for up in ups] == [0, 0]
    one.assert_nothing_left()


def test_a_load_shows_its_progress_and_control_c_breaks_it_off(make_host: MakeHost) -> None:
    one = make_host()
    for number in range(12):
        one.put(f"{number}.tar", 4 * MIB)
    up = one.up(one.truth, one.mount, "-o", f"bytes_limit_per_s={12 * MIB}")
    ours, theirs = pty.openpty()
    load = subprocess.Popen(
        [sys.executable, "-m", "headrace", "load"],
        env=one.environment | {"TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=_take_terminal,
    )
    os.close(theirs)
    seen = b""
    while b"/12 files, " not in seen or b"MiB/s" not in seen:
        seen += os.read(ours, 4096)
    os.write(ours, b"\x03")
    try:
        while part := os.read(ours, 4096):
            seen += part
    except OSError:  # EIO: nobody has the terminal open any more
        pass
    os.close(ours)
    assert load.wait(10) == 130
    assert b"cancelled; finished files stay as they are" in seen
    assert b"Traceback" not in seen
    wait_until(lambda: one.json("status")["fill"]["in_flight"] == 0)
    up.process.terminate()
    assert up.wait() == 0


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
