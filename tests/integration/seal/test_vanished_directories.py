"""A sealed directory that disappears at its origin goes on being readable at its own path."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from headrace.seal.mounted import seals_below
from tests.integration.cli.host import Host, wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]


def bodies(top: Path) -> dict[str, bytes]:
    return {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}


def test_a_sealed_directory_survives_changes_of_its_names_at_the_origin(host: Host) -> None:
    host.up()
    sealed = host.mount / "images"
    host.ok("seal", sealed, "--in-place")
    before = bodies(host.truth / "images")
    host.put("images/new", 5)
    shutil.rmtree(host.truth / "images/1")
    host.ok("sync", "/")
    assert bodies(sealed) == before
    assert seals_below(str(host.base)) == [str(sealed)]


def test_a_sealed_directory_outlives_its_origin(host: Host) -> None:
    """It goes, comes back as another directory, and goes again. Readers meet the snapshot each time."""
    host.up()
    sealed = host.mount / "images"
    before = bodies(host.truth / "images")
    host.ok("seal", sealed, "--in-place")
    for turn in range(2):
        shutil.rmtree(host.truth / "images")
        host.ok("sync", "/")
        assert bodies(sealed) == before
        assert sorted(os.listdir(host.mount)) == ["images", "other"]
        host.put(f"images/again{turn}", 10)
        host.ok("sync", "/")
        assert bodies(sealed) == before
    host.ok("seal", "remove", "images@1")
    assert bodies(sealed) == bodies(host.truth / "images")
    host.ok("down")
    host.assert_nothing_left()


def test_the_directories_above_a_seal_may_vanish(host: Host) -> None:
    host.put("a/b/c/1", 4000)
    host.put("a/other", 10)
    host.up()
    sealed = host.mount / "a/b/c"
    before = bodies(host.truth / "a/b/c")
    host.ok("seal", sealed, "--in-place")
    shutil.rmtree(host.truth / "a")
    host.ok("sync", "/")
    assert bodies(sealed) == before
    assert os.listdir(host.mount / "a") == ["b"] and os.listdir(host.mount / "a/b") == ["c"]
    host.put("a/new", 300)
    host.put("a/b/new", 301)
    host.ok("sync", "/")
    assert bodies(sealed) == before
    assert bodies(host.mount / "a") == bodies(host.truth / "a") | {
        f"b/c/{name}": body for name, body in before.items()
    }
    host.ok("seal", "remove", "c@1")
    wait_until(lambda: bodies(host.mount / "a") == bodies(host.truth / "a"))


def test_a_killed_session_and_a_restart_keep_what_vanished(host: Host) -> None:
    host.up()
    sealed = host.mount / "images"
    before = bodies(host.truth / "images")
    host.ok("seal", sealed, "--in-place")
    shutil.rmtree(host.truth / "images")
    host.ok("sync", "/")
    session = host.kill("session", signal.SIGKILL)
    host.wait_pid("session", other_than=session)
    assert bodies(sealed) == before
    host.ok("sync", "/")
    assert bodies(sealed) == before
    host.ok("down")
    host.up()
    assert bodies(sealed) == before
    host.kill_all()
    host.up()
    assert bodies(sealed) == before
    host.ok("seal", "remove", "images@1")
    wait_until(lambda: os.listdir(host.mount) == ["other"])


@pytest.mark.parametrize(
    "name", [b"sp ace\ttab\nline\\back#", b"\xc3\xbc\xe2\x80\xa8", b"a@1", b"n" * 255, b"-x"]
)
def test_names_that_a_user_chose_are_sealed_and_kept(host: Host, name: bytes) -> None:
    """The mount table escapes some of them. Names below may be any bytes."""
    top = os.path.join(os.fsencode(host.truth), name)
    os.makedirs(top + b"/sub")
    files = {b"f": b"first", b"sub/\xfe g\n": b"second"}
    for below, body in files.items():
        Path(os.fsdecode(os.path.join(top, below))).write_bytes(body)
    host.up()
    sealed = os.fsdecode(os.path.join(os.fsencode(host.mount), name))
    host.ok("seal", sealed, "--in-place", "--as", "odd@1")
    assert seals_below(str(host.base)) == [sealed]
    shutil.rmtree(top)
    host.ok("sync", "/")
    host.kill_all()
    host.up()
    for below, body in files.items():
        assert Path(os.fsdecode(os.path.join(os.fsencode(sealed), below))).read_bytes() == body
    host.ok("seal", "verify", "odd@1")
    host.ok("seal", "remove", "odd@1")
    assert seals_below(str(host.base)) == []


def test_a_name_that_is_no_text_is_refused_in_a_line(host: Host) -> None:
    (host.truth / "\udcff").mkdir()
    host.up()
    for words in (("seal", host.mount / "\udcff", "--as", "odd@1"), ("load", host.mount / "\udcff")):
        done = host.headrace(*words)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "not UTF-8" in done.stderr


def test_on_a_mount_that_can_be_written_elsewhere(host: Host) -> None:
    host.put("a/b/c/1", 4000)
    host.up(host.truth, host.mount, "--write", "back,/a=off,/images=off")
    nested, sealed = host.mount / "a/b/c", host.mount / "images"
    before = {top: bodies(top) for top in (nested, sealed)}
    for top in before:
        host.ok("seal", top, "--in-place")
    for name in ("images", "a"):
        shutil.rmtree(host.truth / name)
    host.ok("sync", "/")
    assert {top: bodies(top) for top in before} == before
    (host.mount / "new").write_bytes(b"new")
    assert {"images", "a", "new", "other"} == set(os.listdir(host.mount))
    session = host.kill("session", signal.SIGKILL)
    host.wait_pid("session", other_than=session)
    assert {top: bodies(top) for top in before} == before
    assert (host.mount / "new").read_bytes() == b"new"
    for seal in ("c@1", "images@1"):
        host.ok("seal", "remove", seal)
    wait_until(lambda: set(os.listdir(host.mount)) == {"new", "other"})
