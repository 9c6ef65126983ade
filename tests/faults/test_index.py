"""An index that was damaged while the node was down: put aside and said, and every byte is right."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.faults.conftest import MakeHost
from tests.integration.cli.host import Host

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(60)]


def _garbage_everywhere(path: Path) -> None:
    size = path.stat().st_size
    path.write_bytes(random.Random(1).randbytes(size))


def _garbage_in_the_middle(path: Path) -> None:
    chance, size = random.Random(2), path.stat().st_size
    with path.open("r+b") as file:
        for page in range(2, size // 4096):
            if chance.random() < 0.7:
                file.seek(page * 4096)
                file.write(chance.randbytes(4096))


def _zeros(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2 // 4096 * 4096)


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _gone(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [_garbage_everywhere, _garbage_in_the_middle, _zeros, _cut, _empty, _gone])
@pytest.mark.parametrize("how_it_ended", ["in order", "killed"])
def test_damaged(make_host: MakeHost, damage: object, how_it_ended: str) -> None:
    host = make_host()
    _fill(host)
    up = host.up()
    host.ok("load")
    host.assert_right()
    if how_it_ended == "killed":
        up.process.kill()  # so that the node is not started again
        os.kill(up.ready["node_pid"], 9)
    host.ok("down")
    up.wait()
    host.assert_nothing_left()
    assert callable(damage)
    damage(host.cache / "index" / "data.mdb")
    up = host.up()
    host.assert_right()
    host.ok("load")
    host.assert_right(mode="mmap")
    aside = list(host.cache.glob("index.corrupt-*"))
    log = Path(up.ready["log"]).read_text()
    if aside:
        assert str(aside[0]) in log
    else:  # nothing to put aside, or what is damaged is not in use
        assert damage in (_empty, _gone, _garbage_in_the_middle)
    assert host.json("fsck")["failed_files"] == 0
    host.ok("down")
    assert up.wait() == 0
    host.assert_nothing_left()


def _fill(host: Host) -> None:
    for number in range(300):
        host.put(f"{number % 7}/a-rather-long-name-so-that-the-index-has-pages-{number}.bin", 1000 + number)
    host.put("large.tar", (5 << 20) + 99)
