"""An origin that answers 500, 503, half a body, or nothing: through a proxy that spoils a real server's answers."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from headrace.cli.exit_codes import SOME_FAILED
from headrace.config.secret_options import option_words
from headrace.testing.servers import S3Server
from tests.fault_proxy import FaultProxy, fault_proxy
from tests.faults.conftest import MakeHost
from tests.integration.cli.host import MIB, Host, wait_until

pytestmark = [
    pytest.mark.fuse,
    pytest.mark.timeout(90),
    pytest.mark.expected_warnings(
        "a slow listing failed", "the origin is unavailable", "the origin is overloaded"
    ),
]

TIMEOUT_S = 1.0
SIZES = {"small": 60_000, "large": 3 * MIB + 5}
LASTING = ("500", "503", "half", "close", "hang")
ERRNOS = ("EHOSTUNREACH", "ETIMEDOUT", "EIO")


@pytest.fixture
def proxy(seaweed: S3Server) -> Iterator[FaultProxy]:
    with fault_proxy(seaweed) as proxy:
        yield proxy


@pytest.fixture
def faulty(make_host: MakeHost, seaweed: S3Server, proxy: FaultProxy) -> Host:
    """Up on the proxy, each mode with files of its own, and one file that is cached."""
    host = make_host(origin_timeout_s=TIMEOUT_S, sync_interval_s=3600)
    for mode in LASTING:
        for name, size in SIZES.items():
            seaweed.put(f"faults/{mode}/{name}", host.put(f"{mode}/{name}", size))
    seaweed.put("faults/warm", host.put("warm", 2 * MIB))
    host.up(proxy.url("faults"), host.mount, *option_words(proxy.options(), str(host.base)))
    host.ok("ls", "-R")
    host.ok("load", "/warm")
    return host


def test_lasting_faults_are_errors_in_time_and_pass(faulty: Host, proxy: FaultProxy) -> None:
    for mode in LASTING:
        proxy.mode = mode
        for name in SIZES:
            began = time.monotonic()
            row = faulty.read(f"{mode}/{name}")[f"{mode}/{name}"]
            assert row["error"] in ERRNOS, (mode, row)
            assert row["wrong"] == -1, (mode, row)
            assert time.monotonic() - began < 30 * TIMEOUT_S, (mode, name)
        faulty.assert_right("warm")
        proxy.mode = "pass"
        faulty.assert_right(*[f"{mode}/{name}" for name in SIZES])
    faulty.ok("down")
    faulty.assert_nothing_left()


def test_a_load_under_a_fault_names_what_failed_and_the_next_one_mends_it(
    faulty: Host, proxy: FaultProxy
) -> None:
    proxy.mode = "503"
    done = faulty.headrace("load", "/500")
    assert done.returncode == SOME_FAILED
    assert "2 failed" in done.stdout
    assert "/500/small: " in done.stderr
    assert "/500/large: " in done.stderr
    proxy.mode = "hang"
    done = faulty.headrace("load", "/503")
    assert done.returncode == SOME_FAILED
    proxy.mode = "pass"
    assert faulty.json("load")["failed_files"] == 0
    faulty.assert_right()
    faulty.ok("down")
    faulty.assert_nothing_left()


def test_a_few_faults_are_not_seen_by_a_reader(faulty: Host, proxy: FaultProxy) -> None:
    for mode in ("500", "503", "half", "close"):
        for name in SIZES:
            proxy.fail_next(mode, 2)
            faulty.assert_right(f"{mode}/{name}")
    faulty.ok("down")
    faulty.assert_nothing_left()


@pytest.mark.expected_warnings("node did not start")
@pytest.mark.parametrize("mode", ["500", "503", "close", "hang"])
def test_up_on_an_origin_that_fails(make_host: MakeHost, proxy: FaultProxy, mode: str) -> None:
    host = make_host(origin_timeout_s=TIMEOUT_S)
    proxy.mode = mode
    began = time.monotonic()
    done = host.headrace(
        "up",
        proxy.url("faults"),
        host.mount,
        *option_words(proxy.options(), str(host.base)),
        "--cache",
        f"{host.cache}:1GiB",
    )
    assert done.returncode == (15 if mode == "hang" else 11), done.stderr
    assert time.monotonic() - began < 30 * TIMEOUT_S
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert proxy.url("faults") in done.stderr or "s3://data/faults" in done.stderr
    host.assert_nothing_left()


def test_a_node_whose_mounts_fail_starts_again_without_them(make_host: MakeHost, seaweed: S3Server) -> None:
    """Mounts of a command are tried again after a restart: warm files are served, whatever the origin does."""
    host = make_host(origin_timeout_s=TIMEOUT_S, sync_interval_s=3600)
    host.put("local", 1000)
    seaweed.put("more/one", host.put("more/one", 2 * MIB + 1))
    (host.truth / "more").rename(host.base / "more")
    with fault_proxy(seaweed) as proxy:
        host.up()
        host.ok("mount", "add", "/more", proxy.url("more"), *option_words(proxy.options(), str(host.base)))
        host.ok("load", "/more")
        (host.base / "more").rename(host.truth / "more")
        host.assert_right()
    host.assert_right()  # the origin is gone
    host.ok("down")
    host.assert_nothing_left()


@pytest.mark.expected_warnings("the origin is unavailable, old listings stay in use")
def test_a_node_killed_while_its_origin_is_away_starts_again(faulty: Host, proxy: FaultProxy) -> None:
    """The new node serves what is cached, and the rest as soon as the origin is back."""
    proxy.mode = "close"
    old = faulty.kill("node")

    def answers() -> bool:
        return faulty.headrace("status").returncode == 0 and faulty.pid_of("node") not in (0, old)

    wait_until(answers, hint=lambda: "no new node")
    faulty.assert_right("warm")
    assert faulty.read("500/large")["500/large"]["error"] in ERRNOS
    proxy.mode = "pass"
    faulty.assert_right("warm", "500/large")
    faulty.ok("down")
    faulty.assert_nothing_left()
