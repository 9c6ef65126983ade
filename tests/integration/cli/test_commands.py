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
from headrace.config.secret_options import option_words
from headrace.testing.servers import S3Server
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
    stat_row = up.json("stat", "large.tar")
    assert set(stat_row) == set(FIELDS["stat"])
    assert stat_row["size_bytes"] == (up.truth / "large.tar").stat().st_size
    assert stat_row["origin"] == f"file://{up.truth}/large.tar"
    assert stat_row["cached"] == "no"
    folder = up.json("stat", up.mount / "images")
    of_files = {"cached", "version", "origin", "location", "tier", "volume", "placed"}
    assert set(folder) == set(FIELDS["stat"]) - of_files
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


def test_names_of_any_bytes_are_one_line_each_and_json_has_all_their_bytes(host: Host) -> None:
    names = [
        b"nut\xff",
        b"nut\\xff",
        b"new\nline",
        b"esc\x1b]0;title\x07",
        "caf\u00e9".encode(),
        b"\xe2\x80\xae",
    ]
    odd = os.fsencode(host.truth) + b"/odd"
    os.mkdir(odd)
    for name in names:
        with open(odd + b"/" + name, "wb") as file:
            file.write(name * 3)
    started = host.up()
    rows = [json.loads(line) for line in host.ok("ls", host.mount / "odd", "--json").splitlines()]
    assert sorted(os.fsencode(row["name"]) for row in rows) == sorted(names)
    for row in rows:
        path, name = f"{host.mount}/odd/{row['name']}", os.fsencode(row["name"])
        assert base64.b64decode(host.json("cat", path)["base64"]) == name * 3
    assert os.fsencode(host.json("stat", path)["path"]) == b"/odd/" + name
    for words in (["ls", host.mount / "odd"], ["stat", path]):
        assert all(line.isprintable() for line in host.ok(*words).split("\n"))
    host.environment |= {"LC_ALL": "C", "LANG": "C"}
    lines = host.ok("ls", host.mount / "odd").split("\n")
    assert len(lines) == len(names) + 1 and all(line.isprintable() for line in lines)
    started.process.terminate()
    assert started.wait() == 0


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


def test_an_empty_origin_is_attached_with_a_warning(up: Host) -> None:
    """It may also be one that does not exist, which object stores don't tell."""
    empty = up.base / "empty"
    empty.mkdir()
    done = up.headrace("mount", "add", "/empty", empty)
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        f"headrace: file://{empty} is empty or does not exist: look at its name if files are expected"
    ]
    missing = up.headrace("mount", "add", "/missing", up.base / "missing")
    assert missing.returncode == 13 and "No such file or directory" in missing.stderr
    assert up.headrace("mount", "add", "/images", up.truth / "images").stderr == ""
    for path in ("/empty", "/images"):
        up.ok("mount", "remove", path)


def test_a_bucket_or_a_prefix_that_does_not_exist_is_named(up: Host, seaweed: S3Server) -> None:
    words = option_words(seaweed.options(), str(up.base))
    url = seaweed.url("nowhere")
    done = up.headrace("mount", "add", "/prefix", url, *words)
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        f"headrace: {url} is empty or does not exist: look at its name if files are expected"
    ]
    up.ok("mount", "remove", "/prefix")
    refused = up.headrace("mount", "add", "/bucket", "s3://no-such-bucket/data", *words)
    assert refused.returncode != 0
    (line,) = refused.stderr.splitlines()
    assert "no-such-bucket" in line
    assert "/bucket" not in [row["path"] for row in up.json("mount", "list")]


def test_a_directory_is_attached_from_the_working_directory_of_the_command(up: Host) -> None:
    """Commands run in `base`; the node may run in another directory."""
    for word in ("truth/images", "./truth/images"):
        added = up.json("mount", "add", "/relative", word)
        assert added["url"] == f"file://{up.truth}/images"
        up.ok("mount", "remove", "/relative")


def test_status_config_and_mounts(up: Host) -> None:
    report = up.json("status", up.mount)
    assert set(report) == set(FIELDS["status"])
    assert report["sessions"][0]["mountpoint"] == str(up.mount)
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
    (setting,) = up.json("config", "explain", "readahead_bytes")
    assert set(setting) == set(FIELDS["config explain"])
    assert setting["default"] == "`64 MiB`"


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
    host = make_host()
    for words in (["ls"], ["status"], ["load"], ["cat", "/x"], ["mount", "list"], ["fuse", str(host.mount)]):
        done = host.headrace(*words)
        assert done.returncode == 30, words
        assert "start one with `headrace up`" in done.stderr
    assert host.headrace("down").returncode == 30


def test_two_nodes_are_told_apart(make_host: MakeHost) -> None:
    host = make_host()
    host.put("a/1", 1000)
    host.put("b/2", 2000)
    ups = []
    for name in ("a", "b"):
        (host.base / f"mnt-{name}").mkdir()
        ups.append(
            host.up(host.truth / name, host.base / f"mnt-{name}", cache=f"{host.base}/cache-{name}:1GiB")
        )
    which = host.headrace("status")
    assert which.returncode == 2
    for name in ("a", "b"):
        assert f"--cache {host.base}/cache-{name} at {host.base}/mnt-{name}" in which.stderr
        assert host.ok("ls", host.base / f"mnt-{name}").split() == [{"a": "1", "b": "2"}[name]]
        assert host.json("load", host.base / f"mnt-{name}")["files_done"] == 1
        assert host.json("load", host.truth / name)["files_done"] == 1
        assert host.json("status", "--cache", host.base / f"cache-{name}")["index"]["files"] == 1
    assert host.headrace("down").returncode == 2
    host.ok("down", host.base / "mnt-a")
    assert host.ok("ls").split() == ["2"]
    host.ok("down", "--all")
    assert [up.wait() for up in ups] == [0, 0]
    host.assert_nothing_left()


def test_a_load_shows_its_progress_and_control_c_breaks_it_off(make_host: MakeHost) -> None:
    host = make_host()
    for number in range(12):
        host.put(f"{number}.tar", 4 * MIB)
    up = host.up(host.truth, host.mount, "-o", f"bytes_limit_per_s={12 * MIB}")
    ours, theirs = pty.openpty()
    load = subprocess.Popen(
        [sys.executable, "-m", "headrace", "load"],
        env=host.environment | {"TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=_take_terminal,
    )
    os.close(theirs)
    output = b""
    while b"/12 files, " not in output or b"MiB/s" not in output:
        output += os.read(ours, 4096)
    os.write(ours, b"\x03")
    try:
        while part := os.read(ours, 4096):
            output += part
    except OSError:  # EIO: nobody has the terminal open any more
        pass
    os.close(ours)
    assert load.wait(60) == 130
    assert b"cancelled; finished files stay as they are" in output
    assert b"Traceback" not in output
    wait_until(lambda: host.json("status")["fill"]["in_flight"] == 0)
    up.process.terminate()
    assert up.wait() == 0


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
