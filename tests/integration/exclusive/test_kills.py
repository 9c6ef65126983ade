"""kill -9 of node, session, FD store and `up` while a program changes an exclusive directory: nothing that its calls
acknowledged is lost or comes back, and the origin never has a part of a file."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration.cli.host import Host
from tests.integration.exclusive.changing_program import is_whole
from tests.integration.persist.conftest import HIDDEN, MakeHost, Writer, settled, tree_of, wait_until
from tests.integration.persist.kill_script import STEPS

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(120)]

EXAMPLES = int(os.environ.get("HEADRACE_EXAMPLES", "1"))
FIRST = int(os.environ.get("HEADRACE_FIRST_SEED", "1"))
PROGRAM = Path(__file__).with_name("changing_program.py")
WORK_S, STEP_WORK_S = 4.0, 1.5
PASSED = [step for step in STEPS if step != "persist.emptied"]
"""Steps of an exclusive directory. No whiteout is left in it that a removal would have to empty."""


def make(make_host: MakeHost, **settings: object) -> Host:
    return make_host(write="off,/out=back,exclusive", persist_delay_s=0.02, **settings)


def begin(host: Host, seed: int, work_s: float = WORK_S) -> subprocess.Popen[bytes]:
    with (host.base / "program.json").open("w") as sink:
        return subprocess.Popen(
            [sys.executable, PROGRAM, str(seed), str(work_s)], cwd=host.mount / "out", stdout=sink
        )


def check_whole(host: Host) -> None:
    for folder, _, names in os.walk(host.truth / "out"):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                if not name.startswith(HIDDEN):
                    assert is_whole(Path(folder, name).read_bytes()), name


def check_end(host: Host, program: subprocess.Popen[bytes]) -> None:
    """The directory and the origin have what the program's calls acknowledged, and no more."""
    assert program.wait(60) == 0
    wanted = json.loads((host.base / "program.json").read_text())
    wait_until(lambda: Writer(host.mount / "out").tree() == wanted)
    settled(host)
    assert tree_of(host.truth / "out") == wanted
    assert host.status()["write"]["conflicts"] == []


@pytest.mark.parametrize("step", PASSED)
def test_the_node_dies_at_a_step(make_host: MakeHost, tmp_path: Path, step: str) -> None:
    died = tmp_path / "died"
    host = make(make_host, failpoint=f"{step}:2:{died}")
    host.up()
    program = begin(host, 7, STEP_WORK_S)
    while program.poll() is None:
        check_whole(host)
        time.sleep(0.05)
    check_end(host, program)
    assert died.exists()


@pytest.mark.parametrize("seed", range(FIRST, FIRST + EXAMPLES))
def test_processes_die_at_random(make_host: MakeHost, seed: int) -> None:
    host, chance = make(make_host), random.Random(seed)
    up = host.up()
    program = begin(host, seed)
    kills = sorted(chance.uniform(0.2, WORK_S) for _ in range(chance.randint(2, 4)))
    begun_s = time.monotonic()
    for kill_s in kills:
        while time.monotonic() - begun_s < kill_s:
            check_whole(host)
            time.sleep(0.02)
        role = chance.choice(("node", "node", "session", "holder", "up", "all"))
        if role in ("up", "all"):
            if role == "up":
                up.signal(9)
                up.wait()
                host.headrace("down")
            host.kill_all()
            up = host.up()
        else:
            host.kill(role)
    while program.poll() is None:
        check_whole(host)
        time.sleep(0.05)
    check_end(host, program)
