"""SIGKILL of node, session and holder, alone and in pairs, at random moments, while other processes read.

Every byte they read is held against the origin's; no read may fail; the mount works afterwards, and `down` leaves
nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations

import pytest

from headrace.fuse.servers import Role, Servers
from tests.faults.conftest import MakeHost
from tests.integration.cli.host import MIB, READER, Host, one_each, send, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(120)]

ROLES = ("node", "session", "holder")
TARGETS = [*[(role,) for role in ROLES], *combinations(ROLES, 2)]
READERS = 3
LIMIT_S = 60.0


class Reading:
    """Processes that read and compare until told to stop."""

    def __init__(self, host: Host, seed: int, names: list[str]) -> None:
        words = [sys.executable, str(READER)]
        self._all = [
            subprocess.Popen(
                [*words, f"loop{seed + number}", str(host.mount), str(host.truth), *names],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for number in range(READERS)
        ]

    def stop(self) -> list[dict[str, object]]:
        rows = []
        for process in self._all:
            out, _ = process.communicate(timeout=60)
            assert process.returncode == 0, process.returncode
            rows.append(json.loads(out))
        return rows

    def kill(self) -> None:
        for process in self._all:
            process.kill()
            process.wait()


@pytest.mark.parametrize("io", ["auto", "splice"])
def test_killed_at_random_moments(make_host: MakeHost, io: str) -> None:
    host = make_host(fill_range_bytes=MIB)
    names = []
    for number in range(30):
        names.append(f"small/{number}")
        host.put(names[-1], 20_000 + number)
    for number in range(6):
        names.append(f"large/{number}")
        host.put(names[-1], 6 * MIB + number)
    up = host.up(host.truth, host.mount, "--io", io)
    host.ok("load", "/small")
    chance = random.Random(f"kills {io}")
    reading = Reading(host, 1, names)
    try:
        rounds = TARGETS * (2 if io == "auto" else 1)
        for target in chance.sample(rounds, len(rounds)):
            pids = [host.wait_pid(role) for role in target]
            time.sleep(chance.random() * 0.4)  # the moment is what is tested
            for pid in pids:
                kill(pid)
            if chance.random() < 0.5:
                host.headrace("free", "/large")  # cold again
        rows = reading.stop()
    finally:
        reading.kill()
    for row in rows:
        assert row["wrong"] == [], row
        assert row["errors"] == {}, row
        assert int(str(row["rounds"])) > 10, row
    for role in ROLES:
        host.wait_pid(role)
    host.assert_right(mode="mmap")
    host.ok("load")
    host.assert_right()
    assert host.json("fsck")["failed_files"] == 0
    host.ok("down")
    assert up.wait() == 0
    assert "Traceback" not in up.said
    host.assert_nothing_left()


def test_an_fd_store_whose_session_died_before_it_had_its_lock_ends(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`up` sees no process of the mount then, and starts an FD store and a session. With two, reads would fail."""
    monkeypatch.setattr(
        "tests.integration.cli.host.ForkingPopen", subprocess.Popen
    )  # they start as everywhere
    host = make_host()
    host.put("f", MIB)
    up = host.up()
    with contextlib.closing(Servers.open(str(host.run_folder), str(host.mount))) as servers:
        session, stopped = stop_next_fd_store(host, servers)
        kill(session)
        wait_until(
            lambda: new_servers(servers, session, stopped), LIMIT_S, hint=lambda: str(host.processes())
        )
        assert servers.pids(Role.FD_STORE) != [stopped]
    os.kill(stopped, signal.SIGCONT)
    wait_until(lambda: stopped not in host.processes(), LIMIT_S, hint=lambda: str(host.processes()))
    wait_until(lambda: one_each(host), LIMIT_S, hint=lambda: str(host.processes()))
    host.assert_right()
    assert one_each(host)
    host.ok("down")
    assert up.wait() == 0
    host.assert_nothing_left()


def stop_next_fd_store(host: Host, servers: Servers) -> tuple[int, int]:
    """Kill the FD store, and stop the next one before it has its lock. Return the pids of the session and of it."""
    for _ in range(10):
        session, earlier = host.wait_pid("session"), host.wait_pid("holder")
        kill(earlier)
        pid, limit_s = 0, time.monotonic() + LIMIT_S
        while pid in (0, earlier):  # without a pause: its modules are imported in 0.1 s
            assert time.monotonic() < limit_s
            pid = host.pid_of("holder")
        send(pid, signal.SIGSTOP)
        if servers.pids(Role.FD_STORE) == []:
            return session, pid
        os.kill(pid, signal.SIGCONT)
    raise AssertionError("each FD store had its lock before it was stopped")


def new_servers(servers: Servers, session: int, fd_store: int) -> bool:
    """Return whether a session and an FD store other than these serve the mount."""
    pids = {*servers.pids(Role.SESSION)} - {session}, {*servers.pids(Role.FD_STORE)} - {fd_store}
    return all(pids)


def test_a_command_waits_for_a_node_that_is_started_again(make_host: MakeHost) -> None:
    host = make_host()
    host.put("small", 1000)
    up = host.up()
    up.signal(signal.SIGSTOP)  # nobody starts it again for now
    kill(up.ready["node_pid"])
    done = host.headrace("ls", "/")
    assert done.returncode != 0
    assert "it is restarting" in done.stderr
    with ThreadPoolExecutor(1) as pool:
        later = pool.submit(host.ok, "ls", "/")
        time.sleep(1.0)  # long enough to be refused; a command that waits shows nowhere
        up.signal(signal.SIGCONT)
        assert "small" in later.result()
    host.ok("down")
    assert up.wait() == 0


def test_while_the_node_is_away_warm_files_read_and_cold_ones_wait(make_host: MakeHost) -> None:
    host = make_host()
    host.put("warm", 3 * MIB)
    host.put("small", 1000)
    host.put("cold", 2 * MIB + 1)
    up = host.up()
    host.ok("load", "/warm")
    host.ok("load", "/small")
    host.ok("ls", host.mount)
    up.signal(signal.SIGSTOP)  # nobody starts it again
    kill(up.ready["node_pid"])
    host.assert_right("warm", "small")
    host.assert_right("warm", "small", mode="mmap")
    status = host.headrace("status")
    assert status.returncode == 30
    assert len(status.stderr.splitlines()) == 1
    words = [sys.executable, str(READER), "read", str(host.mount), str(host.truth), "cold"]
    cold = subprocess.Popen(words, stdout=subprocess.PIPE)
    with pytest.raises(subprocess.TimeoutExpired):
        cold.wait(0.5)
    up.signal(signal.SIGCONT)
    out, _ = cold.communicate(timeout=60)
    assert json.loads(out) == {"name": "cold", "bytes": 2 * MIB + 1, "error": "", "wrong": -1}
    host.ok("down")
    assert up.wait() == 0
    host.assert_nothing_left()


def test_a_load_that_its_node_did_not_survive_says_so(make_host: MakeHost) -> None:
    host = make_host()
    for number in range(4):
        host.put(f"{number}", 8 * MIB)
    up = host.up(host.truth, host.mount, "-o", f"bytes_limit_per_s={8 * MIB}")
    load = host.start("load")
    wait_until(lambda: host.status()["origin"]["bytes_read"] > 0)
    kill(up.ready["node_pid"])
    assert load.wait() == 30
    assert len(load.said.splitlines()) == 1
    host.wait_pid("node", other_than=up.ready["node_pid"])
    wait_until(lambda: host.headrace("status").returncode == 0)
    host.assert_right("0")
    host.ok("down")
    assert up.wait() == 0
    host.assert_nothing_left()


def test_everything_killed_at_once_and_up_again(make_host: MakeHost) -> None:
    host = make_host()
    host.put("a", 5 * MIB)
    host.put("b", 5 * MIB)
    for _ in range(3):
        up = host.up()
        host.assert_right("a")
        kill(up.pid)
        up.wait()
        host.kill_all()
        assert host.read("a")["a"]["error"] == "ENOTCONN"  # nobody is there, and it says so at once
    up = host.up()  # over the dead mount, without a word from the user
    host.assert_right()
    host.ok("down", "--all")
    assert up.wait() == 0
    host.assert_nothing_left()


def kill(pid: int) -> None:
    assert pid > 1
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
