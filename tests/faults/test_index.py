"""An index that was damaged while the node was down: put aside and said, and every byte is right."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.faults.conftest import MakeHost
from tests.integration.cli.host import Host

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(120)]

PAGE_BYTES = 4096

Damage = Callable[[Path], None]


def garbage(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(path.stat().st_size))


def garbage_in_pages(path: Path, *, seed: int, share: float) -> None:
    """Its head is sound, so it opens: the damage is met where it is used."""
    chance, size = random.Random(seed), path.stat().st_size
    with path.open("r+b") as file:
        for page in range(2, size // PAGE_BYTES):
            if chance.random() < share:
                file.seek(page * PAGE_BYTES)
                file.write(chance.randbytes(PAGE_BYTES))


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2 // PAGE_BYTES * PAGE_BYTES)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def gone(path: Path) -> None:
    path.unlink()


WHOLE: list[Damage] = [garbage, zeros, cut, empty, gone]
PAGES: list[Damage] = [
    partial(garbage_in_pages, seed=seed, share=share) for seed, share in ((1, 0.05), (2, 0.05), (6, 0.5))
]


def host_with_files(make_host: MakeHost, count: int) -> Host:
    host = make_host()
    for number in range(count):
        host.put(f"{number % 7}/a-rather-long-name-so-that-the-index-has-pages-{number}.bin", 1000 + number)
    host.put("large.tar", (5 << 20) + 99)
    return host


@pytest.mark.expected_warnings("the index is corrupt")
@pytest.mark.parametrize(("damages", "files"), [(WHOLE, 60), (PAGES, 300)], ids=["whole", "pages"])
def test_damaged_after_an_end_in_order(make_host: MakeHost, damages: list[Damage], files: int) -> None:
    host = host_with_files(make_host, files)
    up = host.up()
    host.ok("load")
    host.ok("down")
    assert up.wait() == 0
    saved = host.base / "saved"
    shutil.copytree(host.cache, saved)
    for damage in damages:
        shutil.rmtree(host.cache)
        shutil.copytree(saved, host.cache)
        damage(host.cache / "index" / "data.mdb")
        up_and_right(host, expected_aside=damage in WHOLE and damage is not gone)


@pytest.mark.expected_warnings("the index is corrupt")
def test_damaged_after_a_kill(make_host: MakeHost) -> None:
    host = host_with_files(make_host, 300)
    up = host.up()
    host.ok("load")
    up.process.kill()  # so that the node is not started again
    os.kill(up.ready["node_pid"], 9)
    host.ok("down")
    up.wait()
    host.assert_nothing_left()
    garbage_in_pages(host.cache / "index" / "data.mdb", seed=4, share=0.3)
    up_and_right(host, expected_aside=False)


def up_and_right(host: Host, *, expected_aside: bool) -> None:
    up = host.up()
    host.assert_right()
    host.ok("load")
    check = host.headrace("fsck")
    # damage that nobody met so far may be met now: what it says of files is then repaired, and named
    assert check.returncode in (0, 50), check
    assert check.returncode == 0 or check.stderr, check
    host.assert_right()
    aside = list(host.cache.glob("index.corrupt-*"))
    assert aside or not expected_aside
    if aside:
        assert str(aside[0]) in Path(up.ready["log"]).read_text()
    host.ok("down")
    assert up.wait() == 0
    host.assert_nothing_left()
