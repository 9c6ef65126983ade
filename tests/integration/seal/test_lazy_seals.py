"""`headrace seal --lazy` on a real node: missing files come on first use, and with all there no process is needed."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from headrace.cli.exit_codes import SOME_FAILED
from headrace.fuse import device
from headrace.seal.catalogue import Catalogue, SealId, SealRecord
from headrace.seal.mounted import seals_below, source_on_top
from tests.integration.cli.host import Host, drop_caches, wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(90)]
ALL = SealId("all", 1)


def record_of(host: Host, seal: SealId = ALL) -> SealRecord:
    return Catalogue.of_cache(str(host.cache)).record(seal)


def layers(host: Host) -> list[int]:
    """Return the processes of lazy layers."""
    return [pid for pid, words in host.processes().items() if "headrace.fuse.lazy_main" in words]


def sealed_lazily(host: Host, *words: object) -> Path:
    """Make a lazy seal of all files, and return where it is mounted."""
    sealed = host.base / "sealed"
    row = host.json("seal", host.mount, "--as", "all@1", "--at", sealed, "--lazy", *words)
    assert row["missing"] == record_of(host).missing > 0
    return sealed


def missing(host: Host) -> int:
    (row,) = host.status()["seals"]
    count: int = row["missing_files"]
    return count


def test_missing_files_come_on_first_use_and_then_no_process_is_needed(host: Host) -> None:
    host.up()
    host.ok("load", host.mount / "images/0")
    sealed = sealed_lazily(host)
    (layer,) = layers(host)
    assert missing(host) == 32 and "32 of them not cached yet" in host.ok("status")
    soft, hard = resource.prlimit(layer, resource.RLIMIT_NOFILE)
    assert soft == hard
    host.assert_right("images/1/11.bin", "images/0/5.bin", "images/large.tar", mount=sealed)
    wait_until(lambda: missing(host) == 30)
    host.assert_right(mount=sealed)
    wait_until(lambda: not record_of(host).is_lazy)
    wait_until(lambda: not layers(host))
    assert source_on_top(str(sealed)).count(":") == 3
    host.kill_all()
    drop_caches(host.cache)
    host.assert_right(mount=sealed)
    host.up()
    assert host.json("seal", "make", host.mount, "--as", "all@2")["id"] == record_of(host).id
    host.ok("seal", "verify", "all@1")
    host.ok("seal", "remove", "all@1")
    host.ok("seal", "remove", "all@2")
    host.ok("down")
    host.assert_nothing_left()


def test_a_part_of_a_large_file_is_never_read_with_holes(host: Host) -> None:
    host.up()
    with (host.mount / "images/large.tar").open("rb") as file:
        os.pread(file.fileno(), 100, 3 << 20)  # the cache file is there by now, with holes
    sealed = sealed_lazily(host)
    drop_caches(host.cache)
    host.assert_right("images/large.tar", mount=sealed)
    host.assert_right("images/large.tar", mode="mmap", mount=sealed)


def test_a_layer_that_was_killed_is_started_again_by_up(host: Host) -> None:
    up = host.up()
    sealed = sealed_lazily(host)
    host.assert_right("images/0/1.bin", mount=sealed)
    up.signal(signal.SIGSTOP)
    (pid,) = layers(host)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not layers(host))
    row = host.read("images/0/2.bin", mount=sealed)["images/0/2.bin"]
    assert row["error"], row
    up.signal(signal.SIGCONT)
    wait_until(lambda: layers(host) and pid not in layers(host))
    wait_until(lambda: not host.read("images/0/2.bin", mount=sealed)["images/0/2.bin"]["error"])
    host.assert_right(mount=sealed)
    assert len(seals_below(str(host.base))) == 1


@pytest.mark.expected_warnings("a file of a lazy seal can't be read")
def test_other_bytes_than_the_sealed_ones_are_never_shown(host: Host) -> None:
    host.up()
    host.ok("load", host.mount / "images/0")
    sealed = sealed_lazily(host)
    first = (host.truth / "images/0/5.bin").read_bytes()
    host.put("images/0/5.bin", 4000, seed=2)
    host.put("images/1/15.bin", (host.truth / "images/1/15.bin").stat().st_size, seed=2)
    (host.truth / "images/1/16.bin").unlink()
    assert (sealed / "images/0/5.bin").read_bytes() == first
    for name in ("images/1/15.bin", "images/1/16.bin"):
        with pytest.raises(OSError, match="Input/output"):
            (sealed / name).read_bytes()
    host.ok("sync", "/")
    for name in ("images/1/15.bin", "images/1/16.bin"):
        with pytest.raises(OSError, match="Input/output"):
            (sealed / name).read_bytes()
    done = host.headrace("seal", "complete", "all@1")
    assert done.returncode != 0 and "images/1/15.bin" in done.stderr
    assert record_of(host).is_lazy
    state = host.json("seal", "verify", "all@1", status=SOME_FAILED)
    assert {path for path, _ in state["failed"]} == {"images/1/15.bin", "images/1/16.bin"}


def test_complete_loads_the_rest_and_mounts_the_whole(host: Host) -> None:
    host.up()
    sealed = sealed_lazily(host)
    with (sealed / "images/2/25.bin").open("rb") as opened:
        host.ok("seal", "complete", "all@1")
        assert source_on_top(str(sealed)).count(":") == 3
        assert opened.read() == (host.truth / "images/2/25.bin").read_bytes()
    wait_until(lambda: not layers(host))
    host.kill_all()
    drop_caches(host.cache)
    host.assert_right(mount=sealed)


def test_in_place_jobs_keep_their_paths(host: Host) -> None:
    host.up()
    host.ok("seal", host.mount, "--in-place", "--lazy", "--as", "all@1")
    assert seals_below(str(host.base)) == [str(host.mount)]
    host.assert_right()
    wait_until(lambda: not record_of(host).is_lazy and not layers(host))
    host.assert_right()
    host.ok("down")
    host.assert_nothing_left()


def test_a_lazy_seal_comes_back_with_up(host: Host) -> None:
    host.up()
    sealed = sealed_lazily(host)
    host.assert_right("images/0/1.bin", mount=sealed)
    host.kill_all()
    assert (sealed / "other").stat().st_size == 5000
    for pid in layers(host):
        os.kill(pid, signal.SIGKILL)
    device.unmount(str(sealed), detach=True)
    host.up()
    assert seals_below(str(host.base)) == [str(sealed)]
    host.assert_right(mount=sealed)


def test_a_removed_lazy_seal_leaves_nothing(host: Host) -> None:
    host.up()
    sealed = sealed_lazily(host)
    host.assert_right("images/0/1.bin", mount=sealed)
    (row,) = host.json("seal", "list")
    assert row["missing"] == 42
    assert host.json("seal", "show", "all@1")["missing"] == 42
    host.ok("seal", "remove", "all@1")
    wait_until(lambda: not layers(host))
    assert seals_below(str(host.base)) == [] and (not sealed.exists() or os.listdir(sealed) == [])
    host.ok("down")
    host.assert_nothing_left()


def test_a_lazy_seal_that_would_not_fit_is_refused(host: Host) -> None:
    host.put("images/larger.tar", 80 << 20)
    host.up(host.truth, host.mount, cache=f"{host.cache}:64MiB")
    done = host.headrace("seal", host.mount, "--lazy", "--as", "all@1")
    assert done.returncode != 0 and "room" in done.stderr
    assert Catalogue.of_cache(str(host.cache)).seals() == []


def test_without_a_node_a_lazy_seal_is_not_mounted(host: Host) -> None:
    host.up()
    host.ok("seal", host.mount, "--lazy", "--as", "all@1")
    host.ok("down")
    done = host.headrace("seal", "mount", "all@1", "--at", host.base / "sealed", "--cache", host.cache)
    (line,) = done.stderr.splitlines()
    assert done.returncode != 0 and "the node that would fetch them is down" in line


@pytest.mark.parametrize("step", ["seal.generation", "seal.renewed"])
def test_a_node_that_is_killed_while_it_renews_a_seal_leaves_one_that_serves(host: Host, step: str) -> None:
    mark = host.base / "killed"
    host.environment["HEADRACE_FAILPOINT"] = f"{step}:1:{mark}"
    host.up()
    sealed = sealed_lazily(host)
    first = host.pid_of("node")
    host.assert_right(mount=sealed)
    wait_until(mark.exists)
    host.wait_pid("node", other_than=first)
    wait_until(lambda: not record_of(host).is_lazy and not layers(host))
    drop_caches(host.cache)
    host.assert_right(mount=sealed)
    host.ok("seal", "verify", "all@1")


def test_the_node_may_restart_while_files_are_missing(host: Host) -> None:
    host.up()
    sealed = sealed_lazily(host)
    host.assert_right("images/0/1.bin", mount=sealed)
    node = host.pid_of("node")
    os.kill(node, signal.SIGKILL)
    host.assert_right("images/0/1.bin", "images/2/21.bin", "images/large.tar", mount=sealed)
    assert host.wait_pid("node", other_than=node)
    host.assert_right(mount=sealed)
    wait_until(lambda: not record_of(host).is_lazy and not layers(host))


def test_a_lost_index_loses_no_missing_file(host: Host) -> None:
    host.up()
    host.ok("load", host.mount / "images/0")
    sealed = sealed_lazily(host)
    host.assert_right("images/1/11.bin", mount=sealed)
    host.kill_all()
    shutil.rmtree(host.cache / "index")
    host.up()
    drop_caches(host.cache)
    host.assert_right(mount=sealed)
    host.ok("seal", "complete", "all@1")
    wait_until(lambda: not layers(host))
    host.kill_all()
    drop_caches(host.cache)
    host.assert_right(mount=sealed)


def test_other_users_read_missing_files_where_they_may_enter(host: Host) -> None:
    host.up()
    with tempfile.TemporaryDirectory() as name:  # any user reaches it
        folder = Path(name)
        folder.chmod(0o755)
        try:
            host.ok("seal", host.mount, "--as", "all@1", "--lazy", "--at", folder / "private")
            host.ok("seal", "mount", "all@1", "--at", folder / "shared", "--allow-other")
            for place, status in ((folder / "private", 1), (folder / "shared", 0)):
                command = ["cmp", str(place / "images/1/12.bin"), "-"]
                body = (host.truth / "images/1/12.bin").read_bytes()
                done = subprocess.run(
                    command, input=body, user=65534, group=65534, capture_output=True, check=False
                )
                assert (done.returncode != 0) == status, done.stderr
        finally:
            for path in seals_below(name):
                device.unmount(path, detach=True)
    wait_until(lambda: not layers(host))
