"""`seal = "auto"` on a real node: readers of the mount see right bytes before, during and after each change."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.mount_api import closing_descriptor
from headrace.seal.mounted import seals_below
from tests.integration.cli.host import READ_PAUSE_S, Host, wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]

FILES = 120


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A host whose origin has small files, and whose node seals them by itself."""
    host = Host(tmp_path, seal="auto", seal_quiet_s=1)
    try:
        for number in range(FILES):
            host.put(f"images/{number // 40}/{number}.bin", 1000 + number * 97)
        yield host
    finally:
        host.close()


def wait_sealed(host: Host, folder: str = "") -> None:
    """folder: a directory of the mount."""
    place = str(host.mount / folder)
    wait_until(lambda: place in seals_below(str(host.base)), hint=lambda: str(auto(host)))


def wait_unsealed(host: Host) -> None:
    wait_until(lambda: seals_below(str(host.base)) == [], hint=lambda: str(auto(host)))


def auto(host: Host) -> object:
    return host.json("status")["seal_auto"]


class Reader(threading.Thread):
    """Reads one file again and again, and notes each distinct body and each error."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._ended = threading.Event()
        self.bodies: list[bytes] = []
        self.errors: list[OSError] = []
        self.start()

    def run(self) -> None:
        while not self._ended.wait(READ_PAUSE_S):
            try:
                body = self._path.read_bytes()
            except OSError as error:
                self.errors.append(error)
                continue
            if not self.bodies or self.bodies[-1] != body:
                self.bodies.append(body)

    def end(self) -> None:
        self._ended.set()
        self.join()


def test_a_loaded_data_set_is_sealed_and_follows_its_origin(host: Host) -> None:
    host.up()
    name = "images/0/5.bin"
    first = (host.truth / name).read_bytes()
    reader = Reader(host.mount / name)
    try:
        host.ok("load", host.mount)
        wait_sealed(host)
        host.assert_right()
        second = host.put(name, 4321, seed=2)
        wait_unsealed(host)  # the node compares; no command says that it changed
        wait_until(lambda: reader.bodies[-1] == second)
        host.assert_right()
        wait_sealed(host)
        host.assert_right()
    finally:
        reader.end()
    assert reader.errors == [] and reader.bodies == [first, second]
    host.ok("free", host.mount)
    assert seals_below(str(host.base)) == []
    host.assert_right()
    host.ok("down")
    host.assert_nothing_left()


def test_a_sealed_data_set_is_read_while_nothing_runs_and_comes_back(host: Host) -> None:
    host.up()
    host.ok("load", host.mount)
    wait_sealed(host)
    host.kill_all()
    host.assert_right()
    host.up()
    wait_sealed(host)
    host.assert_right()
    host.ok("down")
    host.environment["HEADRACE_SEAL"] = "off"
    host.up()
    wait_unsealed(host)
    wait_until(lambda: host.json("seal", "list") == [])
    host.assert_right()
    host.ok("down")
    host.assert_nothing_left()


@pytest.mark.expected_warnings("another command mounts a seal")
def test_a_command_that_stands_still_keeps_a_seal_from_being_mounted_and_nothing_else(host: Host) -> None:
    """`headrace seal mount` holds this lock, and its user stopped it. A dead node was not started again."""
    up = host.up()
    catalogue = host.cache / "seals"
    catalogue.mkdir(0o700, exist_ok=True)
    with closing_descriptor(os.open(catalogue, os.O_RDONLY)) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        host.ok("load", host.mount)
        wait_until(lambda: "another command mounts a seal" in up.said, 60.0, hint=lambda: str(auto(host)))
        node = host.kill("node")
        host.wait_pid("node", other_than=node)
        host.assert_right()
        assert seals_below(str(host.base)) == []
    wait_sealed(host)
    host.assert_right()
    assert up.said.count("another command mounts a seal") == 1
    host.ok("down")
    assert up.wait() == 0
    host.assert_nothing_left()


def test_a_directory_that_disappears_is_unsealed_before(host: Host) -> None:
    """Readers meet the right bytes, and then that there is no file: what the mount alone would answer."""
    host.up()
    host.ok("load", host.mount)
    wait_sealed(host)
    names = [f"images/{folder}/{folder * 40 + 7}.bin" for folder in range(3)]
    bodies = {name: (host.truth / name).read_bytes() for name in names}
    readers = [Reader(host.mount / name) for name in names]
    try:
        shutil.rmtree(host.truth / "images/0")
        wait_until(lambda: readers[0].errors)
        shutil.rmtree(host.truth / "images")
        host.ok("sync", "/")
        wait_until(lambda: all(reader.errors for reader in readers))
    finally:
        for reader in readers:
            reader.end()
    assert [reader.bodies for reader in readers] == [[bodies[name]] for name in names]
    assert {type(error) for reader in readers for error in reader.errors} == {FileNotFoundError}
    assert seals_below(str(host.base)) == [] and os.listdir(host.mount) == []


def test_a_rule_seals_one_directory_of_a_mount(host: Host) -> None:
    """The configuration says off. Readers see right bytes while the rule comes, changes and goes."""
    host.environment["HEADRACE_SEAL"] = "off"
    for number in range(FILES):
        host.put(f"other/{number}.bin", 500 + number)
    host.up()
    host.ok("load", host.mount)
    assert auto(host) == []
    reader = Reader(host.mount / "images/1/45.bin")
    try:
        for folder in ("images", "other"):
            host.ok("policy", "rule", f"/{folder}/**", "seal=auto")
            wait_sealed(host, folder)
            host.assert_right()
        changed = host.put("other/7.bin", 700, seed=3)
        wait_until(lambda: (host.mount / "other/7.bin").read_bytes() == changed)
        wait_until(lambda: len(seals_below(str(host.base))) == 2, hint=lambda: str(auto(host)))
        host.ok("policy", "rule", "/**", "seal=off")
        wait_unsealed(host)
        wait_until(lambda: host.json("seal", "list") == [])
        host.assert_right()
    finally:
        reader.end()
    assert reader.errors == [] and len(reader.bodies) == 1
    host.ok("down")
    host.assert_nothing_left()
