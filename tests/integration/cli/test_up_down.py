"""`up`, `down`, `fuse`, `node run`: what they start, what they say, and that they leave nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from headrace.base.proc_stat import began_at
from headrace.cli.examples import FIELDS
from headrace.config.secret_options import option_words
from headrace.testing.servers import S3Server
from tests.integration.cli.host import Host, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(60)]


def test_up_says_when_it_is_ready_serves_right_bytes_and_control_c_leaves_nothing(host: Host) -> None:
    up = host.up()
    assert set(up.ready) == set(FIELDS["up"])
    assert up.ready["ready"] is True
    assert up.ready["mountpoint"] == str(host.mount)
    assert up.ready["url"] == f"file://{host.truth}"
    host.assert_right()
    host.assert_right(mode="mmap")
    name = host.names()[0]
    assert os.getxattr(host.mount / name, "user.headrace.origin").decode() == f"file://{host.truth}/{name}"
    up.signal(signal.SIGINT)
    assert up.wait() == 0
    assert up.said == ""
    host.assert_nothing_left()


def test_the_ready_line_for_people(host: Host) -> None:
    up = host.start("up", host.truth, host.mount, "--cache", f"{host.cache}:1GiB", json_=False)
    assert up.process.stdout is not None
    first, second = up.process.stdout.readline().decode(), up.process.stdout.readline().decode()
    assert first.startswith("ready in ")
    assert str(host.mount) in first
    assert second.startswith("io: ")
    up.signal(signal.SIGTERM)
    assert up.wait() == 0
    host.assert_nothing_left()


def test_up_with_an_object_store(host: Host, seaweed: S3Server) -> None:
    for name in host.names():
        seaweed.put(f"up/{name}", (host.truth / name).read_bytes())
    options = option_words(seaweed.options(), str(host.base))
    up = host.up(seaweed.url("up"), host.mount, *options)
    host.assert_right()
    assert host.json("load")["failed_files"] == 0
    host.assert_right()
    up.signal(signal.SIGINT)
    assert up.wait() == 0
    host.assert_nothing_left()


@pytest.mark.expected_warnings("the index is corrupt")  # one that was not complete yet
def test_control_c_at_any_moment_of_the_start_leaves_nothing(host: Host) -> None:
    for number in range(12):
        up = host.start("up", host.truth, host.mount, "--cache", f"{host.cache}:1GiB")
        time.sleep(0.01 + number * 0.05)  # the moment is what is tested
        up.signal(signal.SIGINT if number % 2 else signal.SIGTERM)
        status = up.wait()
        # before our handlers: by the signal itself, or as Python says it
        assert status in (0, 130, -signal.SIGTERM, -signal.SIGINT), up.said
        assert ", in main\n" not in up.said, up.said  # a trace of Python's own, while it imports, is not ours
        host.assert_nothing_left()
    host.up()
    host.assert_right()


@pytest.mark.expected_warnings("node did not start")
def test_up_twice_at_one_mountpoint_or_over_one_cache_is_refused_and_harms_nothing(host: Host) -> None:
    up = host.up()
    second = host.headrace("up", host.truth, host.mount, "--cache", f"{host.base}/other:1GiB")
    assert second.returncode == 40
    assert f"{host.mount} is a mountpoint already" in second.stderr
    assert f"headrace down {host.mount}" in second.stderr
    (host.base / "mnt2").mkdir()
    third = host.headrace("up", host.truth, host.base / "mnt2", "--cache", f"{host.cache}:1GiB")
    assert third.returncode == 22
    assert str(up.ready["node_pid"]) in third.stderr
    for done in (second, third):
        assert len(done.stderr.splitlines()) == 1
    host.assert_right()
    host.ok("down")
    host.assert_nothing_left()


def test_down_from_another_shell_also_when_a_file_is_open(host: Host) -> None:
    up = host.up()
    host.ok("load")
    reader = Opened(host.mount / "large.tar")
    rows = host.json("down", host.mount)
    assert [set(row) for row in rows] == [set(FIELDS["down"])]
    assert up.wait(60) == 0
    reader.close()
    host.assert_nothing_left()
    assert host.headrace("down").returncode == 30


def test_down_cleans_up_after_an_up_that_was_killed(host: Host) -> None:
    up = host.up()
    up.signal(signal.SIGKILL)
    up.wait()
    host.assert_right()  # node and mount live on
    host.ok("down", host.mount)
    host.assert_nothing_left()


def test_down_cleans_up_after_an_up_that_dies_before_it_ends_in_order(host: Host) -> None:
    up = host.up()
    up.signal(signal.SIGKILL)
    up.wait()
    dying = subprocess.Popen(["sleep", "1000"])  # ends at SIGTERM, and cleans nothing up
    try:
        state = host.run_folder / f"{up.pid}.json"
        fields = json.loads(state.read_bytes()) | {"pid": dying.pid, "began": began_at(dying.pid)}
        state.with_name(f"{dying.pid}.json").write_text(json.dumps(fields))
        state.unlink()
        host.ok("down", host.mount)
    finally:
        dying.kill()
        dying.wait()
    host.assert_nothing_left()


@pytest.mark.expected_warnings("node did not start")
def test_detach_returns_when_ready(host: Host) -> None:
    ready = host.json("up", host.truth, host.mount, "--cache", f"{host.cache}:1GiB", "--detach")
    assert set(ready) == set(FIELDS["up"])
    host.assert_right()
    host.ok("down")
    host.assert_nothing_left()
    failed = host.headrace(
        "up", host.base / "nothing", host.mount, "--cache", f"{host.cache}:1GiB", "--detach"
    )
    assert failed.returncode == 13
    assert len(failed.stderr.splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_detach_broken_off_leaves_nothing(host: Host, number: int) -> None:
    up = host.start("up", host.truth, host.mount, "--cache", f"{host.cache}:1GiB", "--detach")
    host.wait_pid("node")
    up.signal(number)
    assert up.wait() in (0, 130)
    if up.process.returncode == 0:
        host.ok("down")
    assert "Traceback" not in up.said
    host.assert_nothing_left()


def test_node_run_and_fuse(host: Host) -> None:
    config = host.base / "headrace.toml"
    config.write_text(f'cache = ["{host.cache}:1GiB"]\n[mounts."/data"]\nurl = "{host.truth}"\n')
    node = host.start("node", "run", "--config", config)
    assert set(node.wait_ready()) == set(FIELDS["node run"])
    fuse = host.start("fuse", host.mount)
    assert set(fuse.wait_ready()) == set(FIELDS["fuse"])
    host.assert_right(mount=host.mount / "data")
    (host.base / "mnt2").mkdir()
    second = host.start("fuse", host.base / "mnt2")
    second.wait_ready()
    assert len(host.json("status")["sessions"]) == 2
    host.ok("down", host.base / "mnt2")
    assert second.wait() == 0
    assert len(host.json("down", "--all")) == 2
    assert (fuse.wait(), node.wait()) == (0, 0)
    host.assert_nothing_left()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_node_run_ends_in_order_by_each_signal(host: Host, number: int) -> None:
    node = host.start("node", "run", "--cache", f"{host.cache}:1GiB")
    node.wait_ready()
    node.signal(number)
    assert node.wait() == 0
    host.assert_nothing_left()


def test_an_unmount_by_somebody_else_ends_up(host: Host) -> None:
    up = host.up()
    assert os.system(f"umount {host.mount}") == 0
    assert up.wait() == 0
    assert "was unmounted" in up.said
    host.assert_nothing_left()


class Opened:
    """Another process that keeps a file open."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(["tail", "-f", path], stdout=subprocess.DEVNULL)
        wait_until(lambda: str(path) in self._open_paths())

    def _open_paths(self) -> set[str]:
        paths = set()
        for fd in Path(f"/proc/{self._process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed since the directory was listed
                paths.add(os.readlink(fd))
        return paths

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
