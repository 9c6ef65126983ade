"""A file that is replaced, truncated or deleted at its origin: what a reader gets is one version, or an error."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.config.secret_options import option_words
from headrace.testing.servers import S3Server
from tests.faults.conftest import MakeHost
from tests.integration.cli.host import MIB, READER, Host, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(60)]

SIZES = {"small": 50_000, "large": 12 * MIB + 77}
CHANGES = ("replaced", "truncated", "deleted")


@dataclass
class Source:
    """The origin under test, beside the folder that holds the truth of it."""

    host: Host
    server: S3Server | None
    prefix: str

    def put_all(self) -> None:
        for change in CHANGES:
            for size in SIZES:
                self.put(f"{change}/{size}", SIZES[size], 0)

    def put(self, name: str, size_bytes: int, seed: int) -> None:
        data = self.host.put(name, size_bytes, seed)
        if self.server is not None:
            self.server.put(f"{self.prefix}/{name}", data)

    def change(self, kind: str) -> None:
        """All files that are to be changed so."""
        for size, size_bytes in SIZES.items():
            name = f"{kind}/{size}"
            if kind == "deleted":
                (self.host.truth / name).unlink()
                if self.server is not None:
                    self.server.delete(f"{self.prefix}/{name}")
            else:
                self.put(name, size_bytes if kind == "replaced" else size_bytes // 2, 1)

    def up(self, *words: str) -> None:
        origin: object = self.host.truth
        if self.server is not None:
            origin = self.server.url(self.prefix)
            words += tuple(option_words(self.server.options(), str(self.host.base)))
        self.host.up(origin, self.host.mount, *words)


MakeSource = Callable[..., Source]


@pytest.fixture(params=["folder", "s3"])
def make_source(request: pytest.FixtureRequest, make_host: MakeHost, tmp_path: Path) -> MakeSource:
    def make(**settings: object) -> Source:
        host = make_host(**settings)
        server = request.getfixturevalue("seaweed") if request.param == "s3" else None
        return Source(host, server, tmp_path.name)

    return make


def test_before_it_was_read(make_source: MakeSource) -> None:
    """Its name and size are known for an hour, its bytes are not cached."""
    source = make_source(sync_interval_s=3600)
    host = source.host
    source.put_all()
    source.up()
    host.ok("ls", "-R", host.mount)
    for kind in CHANGES:
        source.change(kind)
    for kind in ("replaced", "truncated"):
        for size in SIZES:
            first = host.read(f"{kind}/{size}")[f"{kind}/{size}"]
            if first["error"]:  # it was opened as what it was; the next who opens it has the new one
                assert first["error"] == "ESTALE", first
                assert first["bytes"] == 0, first
            host.assert_right(f"{kind}/{size}")
    for size in SIZES:
        first = read_against(host, host.base, f"deleted/{size}")
        assert (first["bytes"], first["error"]) in ((0, "ENOENT"), (0, "ESTALE")), first
        assert read_against(host, host.base, f"deleted/{size}")["error"] == "ENOENT"
    host.ok("sync")
    host.assert_right()
    host.ok("down")
    host.assert_nothing_left()


def test_while_it_is_filled(make_source: MakeSource) -> None:
    source = make_source(sync_interval_s=3600, readahead_bytes=2 * MIB, fill_range_bytes=MIB)
    host = source.host
    source.put_all()
    old = keep_old(host)
    source.up("-o", f"bytes_limit_per_s={8 * MIB}")
    host.ok("ls", "-R", host.mount)
    readers = {kind: start_reader(host, old, f"{kind}/large") for kind in CHANGES}
    wait_until(lambda: host.status()["origin"]["bytes_read"] > 4 * MIB)
    for kind in CHANGES:
        source.change(kind)
    for kind, reader in readers.items():
        row = finish(reader)
        assert row["wrong"] == -1, (kind, row)
        assert row["error"] in ("", "ESTALE", "ENOENT"), (kind, row)
        assert row["error"] or row["bytes"] == SIZES["large"], (kind, row)
    host.ok("sync")
    host.assert_right()
    assert read_against(host, old, "deleted/large")["error"] == "ENOENT"
    host.ok("down")
    host.assert_nothing_left()


def test_after_it_was_filled(make_source: MakeSource) -> None:
    source = make_source(sync_interval_s=3600)
    host = source.host
    source.put_all()
    old = keep_old(host)
    source.up()
    host.ok("load")
    names = [f"{kind}/{size}" for kind in CHANGES for size in SIZES]
    for kind in CHANGES:
        source.change(kind)
    for name in names:  # until the origin is asked again: the version that is cached, whole
        row = read_against(host, old, name)
        assert (row["error"], row["wrong"], row["bytes"]) == ("", -1, (old / name).stat().st_size), row
    host.ok("sync", host.mount)
    host.assert_right()
    for size in SIZES:
        assert read_against(host, old, f"deleted/{size}")["error"] == "ENOENT"
    host.ok("load")
    host.assert_right(mode="mmap")
    host.ok("down")
    host.assert_nothing_left()


def keep_old(host: Host) -> Path:
    """A copy of the truth as it is now."""
    old = host.base / "old"
    subprocess.run(["cp", "-r", host.truth, old], check=True, timeout=60)
    return old


def start_reader(host: Host, truth: Path, name: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, str(READER), "read", str(host.mount), str(truth), name]
    return subprocess.Popen(words, stdout=subprocess.PIPE)


def finish(reader: subprocess.Popen[bytes]) -> dict[str, object]:
    out, _ = reader.communicate(timeout=30)
    row: dict[str, object] = json.loads(out)
    return row


def read_against(host: Host, truth: Path, name: str) -> dict[str, object]:
    return finish(start_reader(host, truth, name))
