"""`headrace seal` on a real node: what is mounted, what it shows, and what is left."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.examples import FIELDS
from headrace.cli.exit_codes import SOME_FAILED
from headrace.fuse import device
from headrace.seal.mounted import seals_below
from headrace.seal.replaced_file import locked
from tests.integration.cli.host import READ_PAUSE_S, Host, drop_caches, wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(90)]


def attributes(top: Path) -> dict[str, tuple[int, int, int]]:
    """Return mode, size and mtime of everything below a directory."""
    return {
        str(path.relative_to(top)): (
            status.st_mode,
            status.st_size if path.is_file() else 0,
            status.st_mtime_ns,
        )
        for path in top.rglob("*")
        for status in [path.stat()]
    }


def refusal(host: Host, *words: object) -> str:
    """Return the single line of a command that fails."""
    done = host.headrace("seal", *words)
    assert done.returncode != 0
    (line,) = done.stderr.splitlines()
    return line


def enters(path: Path, uid: int) -> bool:
    return subprocess.run(["ls", path], user=uid, capture_output=True, check=False).returncode == 0


def test_a_seal_is_read_when_nothing_of_headrace_runs(host: Host) -> None:
    host.up()
    sealed = host.base / "sealed"
    row = host.json("seal", host.mount, "--as", "all@7", "--at", sealed)
    assert tuple(row) == FIELDS["seal make"] and row["mounted"] == str(sealed)
    assert attributes(sealed) == attributes(host.mount)
    host.kill_all()
    drop_caches(host.cache)
    host.assert_right(mount=sealed)
    with pytest.raises(OSError, match="Read-only"):
        (sealed / "new").write_text("x")
    host.up()
    host.assert_right(mount=sealed)
    host.ok("seal", "remove", "all@7")
    assert seals_below(str(host.base)) == []
    host.ok("down")
    host.assert_nothing_left()


def test_only_root_enters_unless_others_may(host: Host) -> None:
    host.up()
    with tempfile.TemporaryDirectory() as name:  # any user reaches it
        folder = Path(name)
        folder.chmod(0o755)
        try:
            host.ok("seal", "/images", "--at", folder / "private")
            host.ok("seal", "mount", "images@1", "--at", folder / "shared", "--allow-other")
            assert not enters(folder / "private", 65534)
            assert enters(folder / "shared", 65534)
        finally:
            for path in seals_below(name):
                device.unmount(path, detach=True)


def test_in_place_the_versions_change_at_once(host: Host) -> None:
    """Readers meet one version or the other, and never an error."""
    host.up()
    path, truth = host.mount / "images/0/5.bin", host.truth / "images/0/5.bin"
    first = truth.read_bytes()
    with path.open("rb") as opened:
        host.ok("seal", host.mount / "images", "--in-place")
        assert seals_below(str(host.base)) == [str(host.mount / "images")]
        assert opened.read() == first
    second = host.put("images/0/5.bin", 4000, seed=2)
    host.ok("sync", "/")
    assert path.read_bytes() == first
    bodies, errors, stop = set[bytes](), list[OSError](), threading.Event()

    def read() -> None:
        while not stop.wait(READ_PAUSE_S):
            try:
                bodies.add(path.read_bytes())
            except OSError as error:
                errors.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        host.ok("seal", host.mount / "images", "--in-place", "--as", "images@2")
        host.ok("seal", "mount", "images@1", "--in-place")
        host.ok("seal", "mount", "images@2", "--in-place")
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert errors == []
    assert bodies == {first, second}
    assert path.read_bytes() == second
    assert host.json("seal", "diff", "images@1", "images@2") == {
        "old": "images@1",
        "new": "images@2",
        "added": 0,
        "removed": 0,
        "changed": 1,
        "differences": [{"change": "changed", "path": "0/5.bin"}],
    }
    assert len(seals_below(str(host.base))) == 1


def test_seals_come_back_with_up_and_go_with_down(host: Host) -> None:
    host.up()
    sealed = host.base / "sealed"
    host.ok("seal", host.mount, "--as", "all", "--in-place")
    host.ok("seal", "/images", "--at", sealed)
    host.kill_all()
    host.up()
    assert seals_below(str(host.base)) == [str(host.mount), str(sealed)] or seals_below(str(host.base)) == [
        str(sealed),
        str(host.mount),
    ]
    host.assert_right()
    assert [row["seal"] for row in host.status()["seals"]] == ["all@1", "images@1"]
    host.ok("down")
    assert seals_below(str(host.base)) == [str(sealed)]
    assert host.mounts() == []
    assert (sealed / "0/1.bin").read_bytes() == (host.truth / "images/0/1.bin").read_bytes()
    host.ok("seal", "remove", "images@1", "--cache", host.cache)
    assert seals_below(str(host.base)) == []


def test_up_is_ready_while_another_command_mounts_a_seal(host: Host) -> None:
    """The user may have stopped that command."""
    host.up()
    sealed = host.base / "sealed"
    host.ok("seal", "/images", "--at", sealed)
    host.ok("down")
    device.unmount(str(sealed), detach=True)
    with locked(str(host.cache / "seals")):
        up = host.up()
        assert f"seal images@1 is not mounted at {sealed}" in up.said
        host.assert_right()
    wait_until(lambda: seals_below(str(host.base)) == [str(sealed)])
    assert (sealed / "0/1.bin").read_bytes() == (host.truth / "images/0/1.bin").read_bytes()


def test_sealed_files_outlive_their_objects_and_full_caches(host: Host) -> None:
    host.up(cache=f"{host.cache}:96MiB")
    sealed = host.base / "sealed"
    bodies = {name: (host.truth / name).read_bytes() for name in host.names() if name.startswith("images/")}
    host.ok("seal", "/images", "--at", sealed)
    host.put("images/0/1.bin", 7000, seed=3)
    (host.truth / "images/0/2.bin").unlink()
    for number in range(30):
        host.put(f"bulk/{number}", 8 << 20)
    host.ok("sync", "/")
    for number in range(30):
        assert (host.mount / f"bulk/{number}").stat().st_size == (
            host.mount / f"bulk/{number}"
        ).read_bytes().__len__()
    drop_caches(host.cache)
    for name, body in bodies.items():
        assert (sealed / name.removeprefix("images/")).read_bytes() == body, name
    assert host.json("seal", "verify", "images@1")["failed_files"] == 0
    freed = host.headrace("free", "/images")
    assert freed.returncode != 0 and "a seal holds the file" in freed.stderr
    host.ok("seal", "remove", "images@1")
    host.ok("free", "/images")


def test_an_overlay_over_a_seal_is_a_clone(host: Host) -> None:
    """Programs change files, names and modes there. The seal and the origin stay as they are."""
    host.up()
    sealed, clone = host.base / "sealed", host.base / "clone"
    host.ok("seal", "/images", "--at", sealed)
    folders = {name: host.base / name for name in ("upper", "work", "clone")}
    for folder in folders.values():
        folder.mkdir()
    layers = f"lowerdir={sealed},upperdir={folders['upper']},workdir={folders['work']}"
    subprocess.run(["mount", "-t", "overlay", "-o", layers, "none", clone], check=True)
    try:
        before = (clone / "0/5.bin").read_bytes()
        with (clone / "0/5.bin").open("r+b") as file:
            file.write(b"changed")
        (clone / "0/6.bin").chmod(0o600)
        (clone / "0/7.bin").rename(clone / "renamed")
        (clone / "0/8.bin").unlink()
        (clone / "1/new").write_bytes(b"new")
        host.kill_all()
        drop_caches(host.cache, folders["upper"])
        assert (clone / "0/5.bin").read_bytes() == b"changed" + before[7:]
        assert (clone / "renamed").read_bytes() == (host.truth / "images/0/7.bin").read_bytes()
        assert sorted(os.listdir(clone / "0")) == [f"{number}.bin" for number in (0, 1, 2, 3, 4, 5, 6, 9)]
        for path in (host.truth / "images").rglob("*.bin"):
            assert (sealed / path.relative_to(host.truth / "images")).read_bytes() == path.read_bytes()
    finally:
        device.unmount(str(clone), detach=True)


def test_damage_is_found(host: Host) -> None:
    host.up()
    host.ok("seal", "/images")
    cache_files = [path for path in (host.cache / "files").rglob("*") if path.is_file() and not path.suffix]
    largest = max(cache_files, key=lambda path: path.stat().st_size)
    with largest.open("r+b") as file:
        file.seek(1_500_000)
        file.write(b"damage")
    report = host.json("seal", "verify", "images@1", status=SOME_FAILED)
    assert report["failed_files"] == 1 and report["failed"][0][0] == "large.tar"


def test_each_command_prints_its_fields(host: Host) -> None:
    host.up()
    row = host.json("seal", "/images")
    assert tuple(row) == FIELDS["seal make"]
    assert host.json("seal", "list") == [row]
    shown = host.json("seal", "show", "images@1")
    assert tuple(shown) == FIELDS["seal show"]
    (mounted,) = host.json("seal", "mount", "images@1", "--at", host.base / "at")
    assert tuple(mounted) == FIELDS["seal mount"]
    again = host.json("seal", "/images")
    assert (again["seal"], again["id"]) == ("images@2", row["id"])
    assert tuple(host.json("seal", "diff", "images@1", "images@2")) == FIELDS["seal diff"]
    assert set(host.json("seal", "verify", "images@2")) == set(FIELDS["seal verify"])
    assert host.json("seal", "remove", "images@1") == {"seal": "images@1", "in_use": False}


def test_commands_at_the_same_time_make_versions_of_their_own(host: Host) -> None:
    host.up()
    commands = [host.start("seal", "/images", "--at", host.base / f"sealed{number}") for number in range(4)]
    rows = [command.wait_ready(60) for command in commands]
    assert [command.wait() for command in commands] == [0] * 4, [command.said for command in commands]
    assert sorted(row["seal"] for row in rows) == ["images@1", "images@2", "images@3", "images@4"]
    assert len({row["id"] for row in rows}) == 1
    assert sorted(row["mounted"] for row in rows) == [f"{host.base}/sealed{number}" for number in range(4)]
    for row in rows:
        for path in (host.truth / "images").rglob("*.*"):
            assert (Path(row["mounted"]) / path.relative_to(host.truth / "images")).read_bytes() == (
                path.read_bytes()
            )


def test_what_can_not_be_done_is_said_in_a_line(host: Host) -> None:
    host.up(host.truth, host.mount, "--write", "off,/written=local", cache=f"{host.cache}:96MiB")
    full = host.base / "full"
    full.mkdir()
    (full / "file").write_text("x")
    host.ok("seal", "/images")
    lines: dict[str, tuple[Any, ...]] = {
        "no such seal": ("show", "images@9"),
        "exists already": ("/images", "--as", "images@1"),
        "not NAME@VERSION": ("/images", "--as", "a/b@1"),
        "can be written": ("/written",),
        "not empty": ("mount", "images@1", "--at", full),
        "no place": ("mount", "images@1"),
        "only directories": ("/other",),
        "no such": ("/missing",),
    }
    for reason, words in lines.items():
        assert reason in refusal(host, *words), reason
    for number in range(14):
        host.put(f"bulk/{number}", 8 << 20)
    host.ok("sync", "/")
    assert "there is room for" in refusal(host, "/bulk")
    assert os.listdir(host.cache / "seals") == ["images@1"]


def test_a_node_that_is_killed_leaves_a_seal_or_none(host: Host) -> None:
    """It is killed while the command has a draft, whose files are not cached yet."""
    for turn in range(4):
        for number in range(150):
            host.put(f"many{turn}/{number}", 3000)
    host.up()
    for turn in range(4):
        sealing = host.start("seal", f"/many{turn}", "--as", f"many@{turn + 1}")
        wait_until(lambda: list((host.cache / "seals").glob(".*")), hint=lambda: "no draft")
        time.sleep(0.08 * turn)  # so that it is killed at another step each time
        pid = host.kill("node")
        sealing.process.wait(30)
        host.wait_pid("node", other_than=pid)
        host.ok("sync", "/")
        seals = {row["seal"] for row in host.json("seal", "list")}
        assert set(os.listdir(host.cache / "seals")) == seals
        if f"many@{turn + 1}" in seals:
            assert host.json("seal", "verify", f"many@{turn + 1}")["failed_files"] == 0
    host.ok("seal", "/", "--as", "all")
    assert host.json("seal", "verify", "all@1")["failed_files"] == 0
