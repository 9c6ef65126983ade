"""Paths like `/images@1/0/0.bin`: in the library, by fsspec, by the node that sealed and by one that only reads."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace
from headrace.base.errors import (
    NotADirectoryPathError,
    PathExistsError,
    PathNotFoundError,
    ReadOnlyError,
    VersionChangedError,
)
from headrace.integrations.fsspec import HeadraceFileSystem
from headrace.sdk.cache import Cache
from headrace.vfs.client_registry import HOSTS
from tests.integration.cli.host import Host, wait_until
from tests.integration.seal.shared_origin import Origin

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]


@pytest.fixture
def caches(hosts: list[Host]) -> Iterator[list[Cache]]:
    """The library over each of two hosts. The first one sealed and pushed /images."""
    hosts[0].ok("seal", hosts[0].mount / "images", "--as", "images@1")
    hosts[0].ok("seal", "push", "images@1")
    with (
        headrace.connect(socket=_socket(hosts[0])) as first,
        headrace.connect(socket=_socket(hosts[1])) as second,
    ):
        yield [first, second]
    HOSTS.close()


def _socket(host: Host) -> str:
    (path,) = host.run_folder.glob("*.sock")
    return str(path)


def tree(cache: Cache, top: str) -> dict[str, bytes]:
    bodies: dict[str, bytes] = {}
    for stat in cache.list(top):
        if stat.is_directory:
            bodies |= {f"{stat.name}/{name}": body for name, body in tree(cache, stat.path).items()}
        else:
            bodies[stat.name] = cache.read(stat.path)
    return bodies


def test_the_files_are_those_of_the_directory(caches: list[Cache], hosts: list[Host]) -> None:
    for cache, host in zip(caches, hosts, strict=True):
        live = tree(cache, "/images")
        assert tree(cache, "/images@1") == live
        parts = cache.read_many([f"/images@1/{name}" for name in live])
        assert [part.data for part in parts] == list(live.values())
        files = HeadraceFileSystem(socket=_socket(host))
        assert files.cat_file("headrace:///images@1/large", 5, 1000) == live["large"][5:1000]
        assert files.find("headrace:///images@1") == sorted(f"/images@1/{name}" for name in live)
        with files.open("headrace:///images@1/0/0.bin") as file:
            assert file.read() == live["0/0.bin"]
        status = cache.stat("/images@1/0/0.bin")
        assert (status.size_bytes, status.version) == (3000, cache.stat("/images/0/0.bin").version)


def test_cached_bytes_are_shared(caches: list[Cache], hosts: list[Host]) -> None:
    tree(caches[1], "/images")
    read = hosts[1].status()["origin"]["bytes_read"]
    tree(caches[1], "/images@1")
    assert hosts[1].status()["origin"]["bytes_read"] - read < 5000  # the list


def test_what_changed_is_read_as_it_was_or_not_at_all(
    caches: list[Cache], hosts: list[Host], origin: Origin
) -> None:
    sealed = tree(caches[0], "/images@1")
    body = os.urandom(3000)
    origin.put("images/0/0.bin", body)
    origin.put("images/large", os.urandom((2 << 20) + 7))
    origin.delete("images/1/1.bin")
    for host in hosts:
        host.ok("sync", "/")
    assert tree(caches[0], "/images@1") == sealed  # the node that sealed has the bytes
    assert caches[0].read("/images/0/0.bin") == body
    for name in ("0/0.bin", "1/1.bin", "large"):
        with pytest.raises(VersionChangedError, match=r"since it was sealed|another version") as caught:
            caches[1].read(f"/images@1/{name}")
        assert isinstance(caught.value, OSError)
    assert caches[1].stat("/images@1/1/1.bin").size_bytes == len(sealed["1/1.bin"])
    assert caches[1].read("/images@1/0/2.bin") == sealed["0/2.bin"]
    hosts[0].ok("seal", hosts[0].mount / "images", "--as", "images@2")
    hosts[0].ok("seal", "push", "images@2")
    assert caches[1].read("/images@2/0/0.bin") == body
    assert [stat.name for stat in caches[1].list("/images@2/1")] == ["3.bin", "5.bin", "7.bin"]


@pytest.mark.parametrize("origin", ["directory"], indirect=True)
@pytest.mark.parametrize("is_cached", [False, True])
def test_other_bytes_with_the_sealed_version_are_refused(
    caches: list[Cache], hosts: list[Host], origin: Origin, is_cached: bool
) -> None:
    """A directory has no ETags: a file is replaced in place, and its time is set back."""
    sealed = tree(caches[0], "/images@1")
    changed = ("0/0.bin", "large")
    for name in changed:
        _replace_unseen(origin.folder / "images" / name)
    host, cache = hosts[1], caches[1]
    if is_cached:
        live = tree(cache, "/images")
        assert all(live[name] != sealed[name] for name in changed)
    files = HeadraceFileSystem(socket=_socket(host))
    for name in changed:
        path = f"/images@1/{name}"
        with pytest.raises(VersionChangedError, match="other bytes") as caught:
            cache.read(path, 5, 100)
        assert isinstance(caught.value, OSError)
        with pytest.raises(VersionChangedError, match="other bytes"):
            cache.open(path)
        with pytest.raises(VersionChangedError, match="other bytes"):
            files.cat_file(f"headrace://{path}")
        (part,) = cache.read_many([path], on_error="return")
        assert isinstance(part.error, VersionChangedError) and not part.data
        done = host.headrace("cat", path)
        assert done.returncode != 0 and "other bytes" in done.stderr
        assert cache.read(f"/images/{name}") == (origin.folder / "images" / name).read_bytes()
    for name in sealed.keys() - set(changed):
        assert cache.read(f"/images@1/{name}") == sealed[name]
    assert tree(caches[0], "/images@1") == sealed
    assert base64.b64decode(hosts[0].json("cat", "/images@1/large")["base64"]) == sealed["large"]


def _replace_unseen(file: Path) -> None:
    before = file.stat()
    file.write_bytes(os.urandom(before.st_size))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_program_seals_and_pushes(caches: list[Cache], hosts: list[Host], origin: Origin) -> None:
    first = caches[0].seals()[0]
    assert [row.seal for row in caches[1].seals()] == []
    assert caches[1].seals(from_origin=True) == [first]
    origin.put("images/new", b"new")
    hosts[0].ok("sync", "/")
    second = caches[0].seal("/images", push=True)
    assert (second.seal, second.files) == ("images@2", first.files + 1)
    assert caches[0].seals() == caches[1].seals(from_origin=True) == [first, second]
    assert caches[1].read("/images@2/new") == b"new" and not caches[1].exists("/images@1/new")
    third = caches[0].seal("/images/0", "some@7")
    assert (third.seal, third.path) == ("some@7", "/images/0")
    with pytest.raises(PathExistsError):
        caches[0].seal("/images/0", "some@7")


def test_names_that_are_no_sealed_path(caches: list[Cache]) -> None:
    for cache in caches:
        for path in ("/images@2", "/images@2/x", "/images@1/nothing", "/images@0", "/images@1/../../x"):
            assert not cache.exists(path), path
        with pytest.raises(NotADirectoryPathError):
            cache.stat("/images@1/large/x")
        with pytest.raises(PathNotFoundError):
            cache.read("/images@1/0/x")
        with pytest.raises(ReadOnlyError):
            cache.put("/images@1/new", b"x")


def test_a_removed_seal_is_gone(caches: list[Cache], hosts: list[Host], origin: Origin) -> None:
    assert caches[0].exists("/images@1")
    origin.delete(".headrace/seals/images@1.json")
    hosts[0].ok("seal", "remove", "images@1")
    wait_until(lambda: not caches[0].exists("/images@1"))


def test_a_lazy_seal_is_read_before_and_after_it_is_complete(caches: list[Cache], hosts: list[Host]) -> None:
    live = tree(caches[1], "/images/0")
    hosts[1].ok("free", hosts[1].mount / "images")
    hosts[1].ok("seal", hosts[1].mount / "images/0", "--as", "lazy@1", "--lazy")
    assert tree(caches[1], "/lazy@1") == live
    hosts[1].ok("seal", "complete", "lazy@1")
    assert tree(caches[1], "/lazy@1") == live


def test_a_checkpoint_names_the_data_of_a_run(
    caches: list[Cache], hosts: list[Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second node has the seal at its origin alone."""
    checkpoint = pytest.importorskip("headrace.checkpoint")
    (row,) = caches[0].seals()
    for step, host in enumerate(hosts):
        monkeypatch.setenv("HEADRACE_RUN_FOLDER", str(host.run_folder))
        checkpoint.save({"step": step}, str(tmp_path / "run"), step, data=["images@1"])
        shown = host.json("checkpoint", "show", tmp_path / "run", step)
        assert shown["data"] == {"images@1": row.id}
        with pytest.raises(PathNotFoundError, match="neither the node nor an origin"):
            checkpoint.save({}, str(tmp_path / "run"), 9, data=["images@7"])


def test_commands_read_sealed_paths(caches: list[Cache], hosts: list[Host], origin: Origin) -> None:
    sealed = tree(caches[0], "/images@1")
    origin.put("images/0/0.bin", os.urandom(3000))
    origin.delete("images/1/1.bin")
    for number, host in enumerate(hosts):
        host.ok("sync", "/")
        names = host.ok("ls", "-R", "/images@1").split()
        assert [name for name in names if not name.endswith("/")] == sorted(sealed, key=_walk_order)
        read = host.json("cat", "/images@1/large")
        assert base64.b64decode(read["base64"]) == sealed["large"]
        assert host.json("stat", "/images@1/large")["cached"] == "yes"
        for name in ("0/0.bin", "1/1.bin", "empty"):
            lost = number == 1 and name != "empty"
            assert host.json("stat", f"/images@1/{name}")["size_bytes"] == len(sealed[name])
            done = host.headrace("cat", f"/images@1/{name}", "--json")
            assert (done.returncode != 0) is lost, done.stderr
            if not lost:
                assert base64.b64decode(json.loads(done.stdout)["base64"]) == sealed[name]
        assert "no such" in host.headrace("cat", "/images@1/nothing").stderr
        assert host.headrace("ls", "/images@1/large/x").returncode != 0


def _walk_order(name: str) -> list[str]:
    return name.split("/")
