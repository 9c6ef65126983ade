"""One job_server for all tests of the directory, and storage that is slow in one known way."""

from __future__ import annotations

import contextlib
import ctypes
import http.server
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.base.mount_table import mounted_at
from headrace.fuse import device
from headrace.testing.servers import free_ports
from tests.integration.diagnose.job_fork_server import JobForkServer

MOSTLY = 0.3
"""A share of the time that is most of it. Each script is made to lose far more: a machine of tests is never idle. But
its steps are long enough to be sampled on the busiest one: nothing can overlap with a step that was never seen."""

FUSERMOUNT = Path(__file__).with_name("fusermount.py")
BYTES_S = 4_000_000
FILE_BYTES = 1_000_000
FILES = 40
ANSWER_S = 0.03
MOUNTED_WITHIN_S = 30.0

Share = Callable[..., Path]


@pytest.fixture(scope="package")
def job_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobForkServer]:
    pytest.importorskip("torch")
    server = JobForkServer(tmp_path_factory.mktemp("job_server") / "log")
    yield server
    server.close()


def fill(folder: Path, count: int = FILES, size_bytes: int = FILE_BYTES) -> list[str]:
    names = [f"{number}.bin" for number in range(count)]
    for name in names:
        (folder / name).write_bytes(random.Random(name).randbytes(size_bytes))
    return names


@pytest.fixture
def share(needs_fuse: None, tmp_path: Path) -> Iterator[Share]:
    """rclone's FUSE mount of a remote, in place of a NAS. Call with its words; the mountpoint."""
    rclone = shutil.which("rclone", path=f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}")
    if rclone is None:
        pytest.skip("needs rclone, for a FUSE mount")
    program = tmp_path / "bin" / "fusermount3"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {FUSERMOUNT} "$@"\n')
    program.chmod(0o755)
    environment = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}", "RCLONE_CONFIG": ""}
    mount = tmp_path / "share"
    mount.mkdir()
    with contextlib.ExitStack() as stack:

        def start(*words: object) -> Path:
            process = subprocess.Popen(
                [rclone, "mount", *map(str, words), str(mount), "--vfs-cache-mode", "off", "--read-only"],
                env=environment,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(process.wait, 10)
            stack.callback(process.terminate)
            stack.callback(device.unmount, str(mount), detach=True)
            give_up_s = time.monotonic() + MOUNTED_WITHIN_S
            while mounted_at(str(mount)) is None:
                assert time.monotonic() < give_up_s and process.poll() is None
                time.sleep(0.02)
            return mount

        yield start


@pytest.fixture
def slow_server() -> Iterator[str]:
    """An HTTP server that takes its time for each answer; its URL. `/` lists names, whatever else is a small file."""
    (port,) = free_ports(1)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), _Slow)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{port}"
    server.shutdown()
    thread.join()
    server.server_close()


class _Slow(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        time.sleep(ANSWER_S)  # the server's latency, which is what is diagnosed
        page = "".join(f'<a href="{number}.json">{number}.json</a>' for number in range(64))
        body = page.encode() if self.path.endswith("/") else bytes(1000)
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # a job that was killed
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *words: object) -> None:
        pass


@pytest.fixture
def slow_disk(needs_root: None, tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A mounted disk, and the file that takes processes which may read only a little of it a second."""
    blkio = Path("/sys/fs/cgroup/blkio")
    if not (blkio / "cgroup.procs").exists() or shutil.which("mkfs.ext4") is None:
        pytest.skip("needs mkfs.ext4 and the blkio controller")
    image, mount, group = tmp_path / "image", tmp_path / "disk", blkio / f"headrace-{os.getpid()}"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(FILES * FILE_BYTES * 2)
    with contextlib.ExitStack() as stack:
        subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
        done = subprocess.run(["losetup", "-f", "--show", image], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"no loop device: {done.stderr}")
        loop = done.stdout.strip()
        stack.callback(subprocess.run, ["losetup", "-d", loop], check=True)
        subprocess.run(["mount", loop, mount], check=True)
        try:
            fill(mount)
        finally:
            subprocess.run(["umount", mount], check=True)
        subprocess.run(["mount", loop, mount], check=True)  # with nothing in memory
        stack.callback(_detach, mount)
        group.mkdir()
        stack.callback(_remove_group, group)
        number = Path(f"/sys/block/{Path(loop).name}/dev").read_text().strip()
        (group / "blkio.throttle.read_bps_device").write_text(f"{number} {BYTES_S}")
        yield mount, group / "cgroup.procs"


def _detach(mount: Path) -> None:
    ctypes.CDLL(None).umount2(os.fsencode(mount), device.MNT_DETACH)


def _remove_group(group: Path) -> None:
    """Processes that were killed leave it a moment later."""
    give_up_s = time.monotonic() + 10
    while (group / "cgroup.procs").read_text().strip() and time.monotonic() < give_up_s:
        time.sleep(0.02)
    group.rmdir()


def first_cause(report: dict[str, Any]) -> dict[str, Any]:
    assert report["causes"], report
    assert report["moments"] > 20, report
    cause: dict[str, Any] = report["causes"][0]
    assert not report["healthy"], report
    assert cause["share"] >= MOSTLY, report
    assert cause["gain"] > 1, report
    return cause
