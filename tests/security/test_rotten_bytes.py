"""Bytes of cache files change on the disk, below the node, and nobody reads them (finding 18 of the audit): the scrub
finds them, and a mount with `verify=open` compares a file before it is opened first."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import fork_server
from tests.integration.cli.host import MIB, Host, Up, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(100)]

SIZES = {"small": 5000, "block": MIB, "large": 3 * MIB + 77, "folder/other": 2 * MIB, "sound": 3 * MIB}
ROTTEN = [name for name in SIZES if name != "sound"]
FAST = 1 << 30
"""Bytes a second: no test waits for the pace of a scrub."""

BY_LIBRARY = """
import sys, headrace
with headrace.connect() as cache:
    for name in sys.argv[2:]:
        want = open(f"{sys.argv[1]}/{name}", "rb").read()
        with cache.open(f"/{name}") as file:
            assert file.read() == want, name
        assert cache.read(f"/{name}") == want, name
    for part in cache.read_many([f"/{name}" for name in sys.argv[2:]]):
        assert bytes(part.data) == open(f"{sys.argv[1]}{part.path}", "rb").read(), part.path
"""


@pytest.fixture
def base(needs_fuse: None, tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def host(base: Path) -> Iterator[Host]:
    host = Host(base, scrub_bytes_s=0, webhdfs_insecure="true")
    for name, size in SIZES.items():
        host.put(name, size)
    yield host
    host.close()


def up(host: Host, *words: object) -> None:
    host.up(host.truth, host.mount, *words)


def fill_and_stop(host: Host, *words: object) -> None:
    up(host, *words)
    host.ok("load", "/")
    host.ok("down", host.mount)


def cache_file(host: Host, name: str) -> Path:
    """By its bytes."""
    want = (host.truth / name).read_bytes()
    (file,) = [
        path
        for path in (host.cache / "files").rglob("*")
        if path.is_file()
        and path.suffix == ""
        and path.stat().st_size == len(want)
        and path.read_bytes() == want
    ]
    return file


def rot(host: Host, names: list[str]) -> list[Path]:
    paths = [cache_file(host, name) for name in names]
    for path in paths:
        with path.open("r+b") as file:
            file.seek(path.stat().st_size * 2 // 3)
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 4]))
            os.fsync(file.fileno())
    return paths


def scrub_of(host: Host) -> dict[str, Any]:
    report: dict[str, Any] = host.status()["scrub"]
    return report


def run_node(host: Host) -> Up:
    config = host.base / "config.toml"
    config.write_text(f'[mounts."/"]\nurl = "{host.truth}"\n')
    node = host.start("node", "run", "--config", config, "--cache", f"{host.cache}:1GiB")
    node.wait_ready()
    return node


def end(node: Up) -> None:
    node.signal(signal.SIGTERM)
    assert node.wait() == 0


def test_a_scrub_finds_what_rotted_and_fetches_it_again(host: Host) -> None:
    node = run_node(host)
    host.ok("load", "/")
    end(node)
    rot(host, ROTTEN)
    host.environment["HEADRACE_SCRUB_BYTES_S"] = str(FAST)
    node = run_node(host)
    wait_until(lambda: scrub_of(host)["passes"] == 1, 30.0)
    scrub = scrub_of(host)
    assert (scrub["files_damaged"], scrub["files_repaired"]) == (len(ROTTEN), len(ROTTEN))
    assert sorted(scrub["last_damaged"]) == sorted(f"/{name}" for name in ROTTEN)
    assert scrub["last_pass_ended"]
    assert "4 files damaged, 4 fetched again" in host.ok("status")
    for name in SIZES:
        cache_file(host, name)
    end(node)
    node = run_node(host)
    again = scrub_of(host)
    assert again == scrub  # the next pass is an hour away
    end(node)


def test_a_file_is_compared_before_it_is_opened_first(host: Host) -> None:
    """Whoever opens it: each of them has files of its own, as the first one has them mended."""
    of_reader = {
        reader: [f"{reader}/{name}" for name in ROTTEN]
        for reader in ("mount", "mapped", "library", "gateway")
    }
    for names in of_reader.values():
        for name in names:
            host.put(name, SIZES[name.partition("/")[2]])
    fill_and_stop(host, "-o", "verify=open")
    rot(host, [name for names in of_reader.values() for name in names])
    up(host, "-o", "verify=open")
    host.assert_right(*of_reader["mount"])
    host.assert_right(*of_reader["mapped"], mode="mmap")
    words = [sys.executable, "-c", BY_LIBRARY, str(host.truth), *of_reader["library"]]
    fork_server.run(words, env=host.environment, timeout=30).check_returncode()
    url = str(host.start("webhdfs", "--address", "127.0.0.1:0").wait_ready()["url"])
    for name in of_reader["gateway"]:
        assert got(f"{url}/webhdfs/v1/{name}?op=OPEN&user.name=root") == (host.truth / name).read_bytes()


def got(url: str) -> bytes:
    import urllib.request

    with urllib.request.urlopen(url, timeout=60) as answer:
        data: bytes = answer.read()
        return data


def test_a_node_that_is_started_again_under_a_session_compares_again(host: Host) -> None:
    """The session lives on, and had the file open before. It reads as before until it is connected to the next node."""
    running = host.up(host.truth, host.mount, "-o", "verify=open")
    host.ok("load", "/")
    host.assert_right()
    before = host.kill("node", signal.SIGSTOP)
    rot(host, ["large"])
    os.kill(before, signal.SIGKILL)
    host.wait_pid("node", other_than=before)
    wait_until(lambda: "the node is ready again" in running.said)
    wait_until(lambda: host.read("large")["large"]["wrong"] == -1)
    host.assert_right("large", mode="read")
