"""A start that fails says why in a line, and leaves nothing behind that it created."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli.host import Host

pytestmark = [pytest.mark.timeout(120)]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    try:
        host.put("file", 5000)
        yield host
    finally:
        host.close()


def names(host: Host) -> list[str]:
    return sorted(path.name for path in host.base.iterdir() if not path.name.startswith("stderr-"))


def refusal(host: Host, *words: object) -> str:
    """Return the single line of a command that fails."""
    done = host.headrace(*words, limit_s=60)
    assert done.returncode != 0
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize("words", [("up", "TRUTH"), ("node", "run")])
def test_a_cache_below_a_missing_directory_is_refused(host: Host, words: tuple[str, ...]) -> None:
    before = names(host)
    folder = host.base / "tpyo/cache"
    command = [host.truth if word == "TRUTH" else word for word in words]
    line = refusal(host, *command, "--cache", f"{folder}:1GiB")
    assert f"cache directory {folder}: {folder.parent} does not exist" in line
    assert f"mkdir -p {folder.parent}" in line
    assert names(host) == before


def test_the_cache_of_the_default_place_is_created(host: Host) -> None:
    with_default = host.start("up", host.truth)
    with_default.wait_ready(60)
    assert (host.base / "home-cache/headrace/capacity").exists()


@pytest.mark.fuse
@pytest.mark.expected_warnings("node did not start")
@pytest.mark.parametrize("missing", ["no mountpoint", "full mountpoint", "no origin"])
def test_a_failed_start_leaves_nothing(host: Host, missing: str) -> None:
    origin, mountpoint = host.truth, host.mount
    if missing == "no mountpoint":
        mountpoint = host.base / "missing"
    elif missing == "full mountpoint":
        (host.mount / "name").write_bytes(b"x")
    else:
        origin = host.base / "missing"
    before = names(host)
    caches = [word for name in ("a", "b") for word in ("--cache", f"{host.base / name}:1GiB")]
    for options in ([], ["--detach"]):
        assert str(origin if missing == "no origin" else mountpoint) in refusal(
            host, "up", origin, mountpoint, *caches, *options
        )
        assert [name for name in names(host) if name != "run"] == before
        assert [path.suffix for path in host.run_folder.glob("*")] in ([], [".log"])


@pytest.mark.parametrize("words", [("up", "TRUTH"), ("node", "run")])
def test_a_cache_that_can_not_be_created_takes_the_others_with_it(host: Host, words: tuple[str, ...]) -> None:
    (host.base / "no directory").touch()
    before = names(host)
    command = [host.truth if word == "TRUTH" else word for word in words]
    caches = [f"--cache={host.base / name}:1GiB" for name in ("a", "no directory/b")]
    assert f"{host.base}/no directory/b" in refusal(host, *command, *caches)
    assert [name for name in names(host) if name != "run"] == before


@pytest.mark.fuse
def test_a_failed_start_leaves_what_was_there(host: Host) -> None:
    """A cache that was there before keeps its files, and an empty directory stays."""
    host.up(host.truth)
    host.ok("load", "/")
    host.ok("down")
    empty = host.base / "empty"
    empty.mkdir()
    before = {path for path in host.cache.rglob("*") if path.is_file()}
    refusal(host, "up", host.truth, host.base / "missing", "--cache", f"{host.cache}:1GiB")
    refusal(host, "up", host.truth, host.base / "missing", "--cache", f"{empty}:1GiB")
    assert before <= {path for path in host.cache.rglob("*") if path.is_file()}
    assert empty.is_dir()
    host.up(host.truth)
    assert host.json("stat", "/file")["cached"]


@pytest.mark.fuse
@pytest.mark.expected_warnings("node did not start")
def test_a_second_start_leaves_the_cache_of_the_first(host: Host) -> None:
    host.up()
    other = host.base / "other"
    other.mkdir()
    line = refusal(host, "up", host.truth, other, "--cache", f"{host.cache}:1GiB")
    assert str(host.cache) in line
    host.assert_right()
    assert (host.cache / "index/data.mdb").exists() and os.listdir(host.cache / "files")


@pytest.mark.fuse
def test_a_node_that_ends_after_its_start_keeps_its_cache(host: Host) -> None:
    host.up()
    host.ok("down")
    assert (host.cache / "index/data.mdb").exists()
