"""kill -9 at each step of sealing, renewing, exchanging and removing, and of any process at random moments.

Readers never meet wrong bytes, and at the end each file and each mount has an owner. HEADRACE_EXAMPLES is the number of
random kills."""

from __future__ import annotations

import json
import os
import random
import threading
from collections import Counter
from pathlib import Path

import pytest

from headrace.seal.catalogue import Catalogue, SealRecord
from headrace.seal.mounted import mountpoints
from tests.integration.cli.host import Host, Up, wait_until
from tests.integration.persist.conftest import AWAY

EXAMPLES = int(os.environ.get("HEADRACE_EXAMPLES", "3"))
pytestmark = [pytest.mark.root, pytest.mark.timeout(180 + 30 * EXAMPLES)]

STEPS = {
    "seal.draft": 1,
    "seal.published": 1,
    "seal.replacing": 2,
    "seal.beneath": 1,
    "seal.generation": 1,
    "seal.renewed": 1,
    "seal.image": 1,
    "seal.removed": 1,
}
"""Steps with the number of the hit that kills: the second replaced file is one of a renewal or of an exchange."""
CHANGED = "images/0/5.bin"


class Work:
    """Seals, renews, exchanges and removes, and repeats what a kill stopped. bodies: of both versions of the directory,
    the second one after `change`."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.running: Up = host.up()
        self.bodies = [self._truth()]
        self.kills = 0
        self.command: Up | None = None

    def _truth(self) -> dict[str, bytes]:
        top = self.host.truth / "images"
        return {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}

    def run(self, *words: object, done: str = "") -> None:
        """Run a command until it succeeds, or fails for the reason that an earlier attempt did its work."""
        for _ in range(6):
            if self.running.process.poll() is not None:
                self.host.kill_all()
                self.running = self.host.up()
            self.command = self.host.start(*words)
            try:
                status = self.command.wait()
            finally:
                said, self.command = self.command.said, None
            if status == 0 or (done and done in said):
                return
            self.kills += 1
            self.check_bytes()
        raise AssertionError((words, said))

    def check_bytes(self) -> None:
        """Each file has the bytes of a version, whoever was killed."""
        if self.running.process.poll() is not None:
            self.host.kill_all()
            self.running = self.host.up()
        for name, _ in self.bodies[0].items():
            bodies = [version[name] for version in self.bodies]
            wait_until(lambda: (self.host.mount / "images" / name).read_bytes() in bodies)  # noqa: B023

    def lazy(self) -> None:
        self.run("seal", "/images", "--in-place", "--lazy", "--as", "images@1", done="exists already")
        self.run("seal", "mount", "images@1", "--in-place")
        self.check_bytes()
        wait_until(lambda: not self.is_lazy())

    def is_lazy(self) -> bool:
        if self.running.process.poll() is not None:
            self.check_bytes()
        done = self.host.headrace("seal", "list", "--json")
        if done.returncode == AWAY:  # the node was killed while the command asked it
            return True
        assert done.returncode == 0, done.stderr
        return any(row["missing"] for row in json.loads(done.stdout))

    def change(self) -> None:
        self.host.put(CHANGED, 4000, seed=2)
        self.bodies.append(self._truth())
        self.run("sync", "/")

    def exchange(self) -> None:
        self.run("seal", "/images", "--in-place", "--as", "images@2", done="exists already")
        self.run("seal", "mount", "images@2", "--in-place")
        assert self._mounted() == self.bodies[1]
        self.run(
            "seal", "/images", "--as", "images@3", done="exists already"
        )  # the first one loses its image
        self.run("seal", "mount", "images@1", "--in-place")
        assert self._mounted() == self.bodies[0]

    def _mounted(self) -> dict[str, bytes]:
        return {name: (self.host.mount / "images" / name).read_bytes() for name in self.bodies[0]}

    def remove(self) -> None:
        for version in (1, 2, 3):
            self.run("seal", "verify", f"images@{version}")
            self.run("seal", "remove", f"images@{version}", done="no such seal")
        wait_until(lambda: self._mounted() == self.bodies[1])

    def restart(self) -> None:
        self.host.kill_all()
        self.running = self.host.up()
        if has_earlier_image(self.host):
            self.host.kill_all()
            self.running = self.host.up()


def owned_of(record: SealRecord) -> set[str]:
    """Return the names of the files of a seal."""
    return {"seal.json", "places.json", "verified", "cover", *map(record.file_name, ("list", "ids", "image"))}


def has_earlier_image(host: Host) -> bool:
    """Return whether a seal has the image of an earlier generation. One that is mounted when the seal is renewed stays
    until the next start of the node."""
    catalogue = Catalogue.of_cache(str(host.cache))
    return any(
        name.startswith("image")
        for seal in catalogue.seals()
        for name in set(os.listdir(catalogue.path(seal, ""))) - owned_of(catalogue.record(seal))
    )


def assert_owned(host: Host) -> None:
    """Every file below `seals/` belongs to the record of its seal, and every mount to a place."""
    catalogue = Catalogue.of_cache(str(host.cache))
    wait_until(lambda: not catalogue.in_use())  # the kernel may still unmount a removed one
    names = {name for name in os.listdir(catalogue.folder) if name != ".shared"}
    assert names == {str(seal) for seal in catalogue.seals()}
    places: Counter[tuple[str, str]] = Counter()
    for seal in catalogue.seals():
        record = catalogue.record(seal)
        assert owned_of(record) >= set(os.listdir(catalogue.path(seal, "")))
        places.update((str(seal), place.mountpoint) for place in catalogue.places(seal))
    mounts = Counter((seal, path) for seal, paths in mountpoints(catalogue).items() for path in paths)
    assert mounts == places and set(mounts.values()) <= {1}


@pytest.mark.expected_warnings("the FD store died, starting another")
@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_a_step_leaves_nothing_that_nobody_owns(host: Host, tmp_path: Path, step: str) -> None:
    mark = tmp_path / "killed"
    host.environment["HEADRACE_FAILPOINT"] = f"{step}:{STEPS[step]}:{mark}"
    work = Work(host)
    for part in (work.lazy, work.change, work.exchange):
        part()
    if step != "seal.removed":
        assert mark.exists()
    work.restart()
    assert_owned(host)
    work.check_bytes()
    work.remove()
    assert mark.exists()
    work.restart()
    assert_owned(host)
    assert list((host.cache / "seals").glob("*@*")) == []
    host.ok("down")
    host.assert_nothing_left()


@pytest.mark.expected_warnings("the FD store died", "the layer of a lazy seal failed", "Traceback")
def test_kills_at_random_moments_leave_nothing_that_nobody_owns(host: Host) -> None:
    """Each round kills the node, the session, `up` or the command."""
    chance = random.Random("kills of seals")
    kills = 0
    work = Work(host)
    while kills < EXAMPLES:
        host.put(CHANGED, 1000 + 5 * 997)
        work.bodies = [work._truth()]
        host.ok("sync", "/")
        host.ok("free", "/images")
        ended = threading.Event()
        killer = threading.Thread(target=_kill, args=(work, chance, ended))
        killer.start()
        try:
            for part in (work.lazy, work.change, work.exchange):
                part()
        finally:
            ended.set()
            killer.join()
        kills += 1
        work.restart()
        assert_owned(host)
        work.check_bytes()
        work.remove()
        work.restart()
        assert list((host.cache / "seals").glob("*@*")) == []
    host.ok("down")
    host.assert_nothing_left()


def _kill(work: Work, chance: random.Random, ended: threading.Event) -> None:
    """Kill one process, after a random time; nothing if the work has ended by then."""
    if ended.wait(chance.uniform(0.1, 4.0)):
        return
    victim = chance.choice(["node", "session", "up", "command"])
    if victim in ("node", "session"):
        pid = work.host.pid_of(victim)
    else:
        process = work.running if victim == "up" else work.command
        pid = 0 if process is None else process.pid
    if pid:
        os.kill(pid, 9)
