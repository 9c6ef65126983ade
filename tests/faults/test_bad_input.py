"""Bad input at the start: one clear line, the documented exit status, nothing left, nothing lost."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace
from headrace.config.secret_options import option_words
from headrace.testing.servers import S3Server, free_ports
from tests.faults.conftest import MakeDisk, MakeHost, run
from tests.integration.cli.host import Host

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(60)]


def refused(host: Host, status: int, *words: object, says: tuple[str, ...], cache: object = None) -> None:
    """`headrace up` ends with that status and one line that says all of `says`."""
    done = host.headrace("up", *words, "--cache", cache or f"{host.cache}:1GiB")
    assert done.returncode == status, (words, done.returncode, done.stderr)
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("headrace: ")
    for word in says:
        assert word in done.stderr, done.stderr
    host.assert_nothing_left()


@pytest.mark.expected_warnings("node did not start")
def test_origins(host: Host) -> None:
    mount = host.mount
    refused(host, 2, "s4://bucket/x", mount, says=("s4://", "unknown scheme", "s3"))
    refused(host, 2, "s3://", mount, says=("s3://", "bucket name is missing", "s3://bucket/prefix"))
    refused(host, 2, "s3://b", mount, "-o", "speed=1", says=("s3://b", "'speed'", "region"))
    refused(host, 13, host.base / "nothing", mount, says=(f"{host.base}/nothing", "No such file"))
    refused(host, 13, host.truth / "empty", mount, says=(f"{host.truth}/empty", "Not a directory"))
    refused(host, 12, "s3://bucket/x", mount, says=("s3://bucket/x", "no credentials", "access_key_id"))


@pytest.mark.expected_warnings("node did not start")
def test_an_object_store_that_says_no(make_host: MakeHost, seaweed: S3Server) -> None:
    host = make_host(origin_timeout_s=3)
    good = seaweed.options()

    def words(**changed: str) -> list[str]:
        return option_words(good | changed, str(host.base))

    url = seaweed.url("x", bucket="no-such-bucket")
    refused(host, 13, url, host.mount, *words(), says=(url, "no-such-bucket"))
    refused(
        host, 12, seaweed.url(), host.mount, *words(secret_access_key="wrong"), says=(seaweed.url(), "403")
    )
    refused(host, 12, seaweed.url(), host.mount, *words(access_key_id="nobody"), says=(seaweed.url(),))
    nobody = f"http://127.0.0.1:{free_ports(1)[0]}"
    refused(host, 11, seaweed.url(), host.mount, *words(endpoint=nobody), says=(seaweed.url(), nobody))
    refused(host, 11, f"{nobody}/x", host.mount, says=(f"{nobody}/x",))
    nowhere = "http://no-such-host.invalid"
    refused(host, 11, seaweed.url(), host.mount, *words(endpoint=nowhere), says=(seaweed.url(), nowhere))


def test_mountpoints(host: Host, make_disk: MakeDisk) -> None:
    missing, full, file = host.base / "missing", host.base / "full", host.base / "file"
    full.mkdir()
    (full / "data").write_bytes(b"mine")
    file.write_bytes(b"mine")
    refused(host, 40, host.truth, missing, says=(str(missing), "does not exist", "mkdir"))
    refused(host, 40, host.truth, full, says=(str(full), "not empty", "'data'"))
    refused(host, 40, host.truth, file, says=(str(file), "not a directory"))
    assert (full / "data").read_bytes() == file.read_bytes() == b"mine"
    up = host.up()
    busy = host.headrace("up", host.truth, host.mount, "--cache", f"{host.base}/other:1GiB")
    assert busy.returncode == 40
    assert "is a mountpoint already" in busy.stderr
    host.assert_right()
    up.process.terminate()
    assert up.wait() == 0
    host.assert_nothing_left()


def test_cache_folders(host: Host, make_disk: MakeDisk) -> None:
    def cache(folder: Path, size: str = "1GiB") -> str:
        return f"{folder}:{size}"

    file, locked, full = host.base / "file", host.base / "locked", host.base / "full"
    file.write_bytes(b"mine")
    refused(
        host, 21, host.truth, host.mount, cache=cache(file), says=(str(file), "Not a directory", "--cache")
    )
    refused(host, 21, host.truth, host.mount, cache=cache(file / "in"), says=(str(file), "Not a directory"))
    assert file.read_bytes() == b"mine"
    make_disk(locked, "bind").remount("ro,bind")
    refused(
        host, 21, host.truth, host.mount, cache=cache(locked), says=(str(locked), "Read-only file system")
    )
    make_disk(full, "tmpfs:1m")
    with (full / "ballast").open("wb") as ballast:
        ballast.write(bytes(1 << 20))
    refused(host, 21, host.truth, host.mount, cache=cache(full), says=(str(full),))
    refused(host, 2, host.truth, host.mount, cache=cache(host.cache, "1MiB"), says=("too small", "64 MiB"))
    refused(host, 2, host.truth, host.mount, cache=cache(host.cache, "many"), says=("'many'", "500GiB"))


@pytest.mark.expected_warnings("node did not start")
def test_a_cache_folder_of_another_node(host: Host) -> None:
    up = host.up()
    host.ok("load")
    (host.base / "mnt2").mkdir()
    for word in (f"{host.cache}:1GiB", f"{host.base}/new:1GiB,{host.cache}:1GiB"):
        words = [part for folder in word.split(",") for part in ("--cache", folder)]
        done = host.headrace("up", host.truth, host.base / "mnt2", *words)
        assert done.returncode == 22, done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert str(host.cache) in done.stderr
        assert str(up.ready["node_pid"]) in done.stderr
    host.assert_right()
    assert host.status()["index"]["files"] == 8
    up.process.terminate()
    assert up.wait() == 0
    host.assert_nothing_left()


@pytest.mark.expected_warnings("the capacity exceeds the disk", "is limited to its disk")
def test_a_cache_folder_larger_than_its_disk_is_used_as_far_as_it_goes(
    make_host: MakeHost, make_disk: MakeDisk
) -> None:
    """A capacity of 1 GiB on a disk of 40 MiB: files are dropped for others when the disk is full."""
    host = make_host(fill_range_bytes=1 << 20)  # small beside the disk, as the default is beside real ones
    make_disk(host.cache, "tmpfs:40m")
    for number in range(10):
        host.put(f"{number}.tar", 7 << 20)
        host.put(f"small/{number}", 70_000)
    up = host.up()
    for _ in range(2):
        host.assert_right()
    host.assert_right("3.tar", mode="mmap")
    host.put("too-large.tar", 60 << 20)
    host.ok("sync")
    row = host.read("too-large.tar")["too-large.tar"]
    assert row["wrong"] == -1
    assert row["error"] in ("ENOSPC", "EAGAIN", "")
    host.assert_right("1.tar", "small/1")
    up.process.terminate()
    assert up.wait() == 0
    host.assert_nothing_left()


@pytest.fixture
def open_host() -> Iterator[Host]:
    """Another user's."""
    base = Path(tempfile.mkdtemp(prefix="headrace-test-", dir="/tmp"))
    host = Host(base)
    host.put("file", 3 * 1000 * 1000)
    run("chown", "-R", "65534:65534", base)
    yield host
    host.close()
    shutil.rmtree(base)


def test_without_root_a_node_serves_and_a_mount_is_refused(open_host: Host) -> None:
    """Only where another user may run this Python and read this checkout."""
    host = open_host

    paths = f"{Path(headrace.__file__).parents[1]}:{sysconfig.get_path('purelib')}"

    def as_nobody(*words: object) -> subprocess.CompletedProcess[bytes]:
        change = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "env"]
        return subprocess.run(
            [*change, python, *map(str, words)],
            env=host.environment | {"HOME": str(host.base), "PYTHONPATH": paths},
            capture_output=True,
            timeout=30,
            check=False,
        )

    for python in (sys.executable, "/usr/bin/python3"):  # noqa: B007 - as_nobody uses it
        if as_nobody("-c", "import headrace.node.node, headrace.cli.main").returncode == 0:
            break
    else:
        pytest.skip("another user may not run a Python of this kind or read this checkout")
    cache = ("--cache", f"{host.cache}:1GiB")
    done = as_nobody("-m", "headrace", "up", host.truth, host.mount, *cache)
    assert done.returncode == 40, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert b"Permission denied" in done.stderr or b"root" in done.stderr
    host.assert_nothing_left()
    assert as_nobody("-m", "headrace", "up", host.truth, *cache, "--detach").returncode == 0
    assert as_nobody("-m", "headrace", "cat", "/file").stdout == (host.truth / "file").read_bytes()
    assert as_nobody("-m", "headrace", "down").returncode == 0
    host.assert_nothing_left()
