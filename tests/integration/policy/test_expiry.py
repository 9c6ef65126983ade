"""Times to live on a real node: copies go in time, nothing else goes, and readers read the right bytes."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from tests.integration.cli.host import Host, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(120)]

HOUR_S = 3600


def set_policy(host: Host, *rules: str) -> None:
    path = host.base / "policy.toml"
    path.write_text("".join(f"[[rule]]\n{rule}\n" for rule in rules))
    host.ok("policy", "set", path)


def cached(host: Host, *names: str) -> list[str]:
    return [name for name, row in zip(names, host.stats(*names), strict=True) if row["cached"] != "no"]


def expiry(host: Host) -> dict[str, Any]:
    counts: dict[str, Any] = host.status()["expiry"]
    return counts


def test_copies_go_and_their_bytes_are_fetched_again(host: Host) -> None:
    for name in ("short/a", "short/b", "long/a", "other/a"):
        host.put(name, 200_000)
    host.up()
    host.assert_right()
    set_policy(host, 'match = ["/short/**"]\nttl = "2s"', 'match = ["/long/**"]\nttl = "1h"')
    wait_until(lambda: not cached(host, "short/a", "short/b"))
    assert cached(host, "long/a", "other/a") == ["long/a", "other/a"]
    assert expiry(host) == {
        "files_watched": 1,
        "files_expired": 2,
        "bytes_expired": expiry(host)["bytes_expired"],
    }
    assert expiry(host)["bytes_expired"] >= 400_000
    host.assert_right()  # fetched again, under a rule that exists already
    wait_until(lambda: expiry(host)["files_expired"] == 4)


def test_a_file_in_use_stays(host: Host) -> None:
    for name in ("d/used", "d/idle"):
        host.put(name, 100_000)
    host.up()
    set_policy(host, 'match = ["/d/**"]\nttl = "4s"')
    host.assert_right()

    def idle_is_gone() -> bool:
        host.assert_right("d/used")
        return not cached(host, "d/idle")

    wait_until(idle_is_gone)
    assert cached(host, "d/used") == ["d/used"]


def test_pinned_files_stay_and_go_by_hand(host: Host) -> None:
    for name in ("d/pinned", "d/other"):
        host.put(name, 1000)
    host.up()
    host.ok("pin", host.mount / "d/pinned")
    host.assert_right()
    set_policy(host, 'match = ["/d/**"]\nttl = "1s"')
    wait_until(lambda: not cached(host, "d/other"))
    assert cached(host, "d/pinned") == ["d/pinned"]


def test_a_time_since_the_file_was_made(host: Host) -> None:
    host.put("d/old", 1000)
    host.put("d/new", 1000)
    os.utime(host.truth / "d/old", (time.time() - 2 * HOUR_S,) * 2)
    host.up()
    host.assert_right()
    set_policy(host, 'match = ["/d/**"]\nttl = "made+1h"')
    wait_until(lambda: cached(host, "d/old", "d/new") == ["d/new"])


def test_times_count_over_a_restart(host: Host) -> None:
    """The cache file is what remembers: here it is told that two hours passed."""
    for name in ("fetched/a", "used/a", "used/b"):
        host.put(name, 1000 + len(name))
    host.up()
    set_policy(host, 'match = ["/fetched/**"]\nttl = "fetched+1h"', 'match = ["/used/**"]\nttl = "1h"')
    host.assert_right()
    host.ok("down", "--all")
    old = time.time() - 2 * HOUR_S
    files = [path for path in (host.cache / "files").rglob("*") if path.is_file()]
    assert len(files) == 3
    used = next(path for path in files if path.read_bytes() == (host.truth / "used/b").read_bytes())
    for path in files:
        os.utime(path, (time.time() if path == used else old, old))
    host.up()
    wait_until(lambda: expiry(host)["files_expired"] == 2)
    assert cached(host, "used/b") == ["used/b"]


def test_a_file_that_was_written_here_is_persisted_first(host: Host) -> None:
    host.environment["HEADRACE_WRITE"] = "back"
    host.environment["HEADRACE_PERSIST_DELAY_S"] = "3"
    host.up()
    set_policy(host, 'match = ["/**"]\nttl = "1s"')
    (host.mount / "written").write_bytes(b"bytes of a user")
    wait_until(lambda: (host.truth / "written").exists())
    assert (host.truth / "written").read_bytes() == b"bytes of a user"
    host.assert_right("written")


def test_a_rule_that_goes_lets_files_stay(host: Host) -> None:
    host.put("d/a", 1000)
    host.up()
    host.assert_right()
    set_policy(host, 'match = ["/d/**"]\nttl = "1h"')
    wait_until(lambda: expiry(host)["files_watched"] == 1)
    set_policy(host, 'match = ["/elsewhere/**"]\nttl = "1h"')
    wait_until(lambda: expiry(host)["files_watched"] == 0)
    assert cached(host, "d/a") == ["d/a"]
