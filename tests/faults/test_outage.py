"""An origin that goes away in the middle of a cold epoch, or refuses a share of what it is asked: every read waits, and
none fails. HEADRACE_EXAMPLES=2 and more: all that decision 0027 names, with its figures."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import requests

from headrace.config.secret_options import option_words
from headrace.testing.servers import S3Server
from tests.fault_proxy import FaultProxy, fault_proxy
from tests.faults.conftest import MakeHost
from tests.integration.cli.host import MIB, Host, wait_until

ALL = int(os.environ.get("HEADRACE_EXAMPLES", "1")) > 1
pytestmark = [
    pytest.mark.fuse,
    pytest.mark.timeout(600 if ALL else 90),
    pytest.mark.expected_warnings(
        "a slow listing failed", "the origin is unavailable", "the origin is overloaded"
    ),
]

READERS = 12 if ALL else 4
SMALL, SMALL_BYTES = (200, 60_000) if ALL else (40, 60_000)
LARGE, LARGE_BYTES = (4, 24 * MIB) if ALL else (1, 12 * MIB + 7)
BACK_WITHIN_S = 2.0


@dataclass(frozen=True, slots=True)
class Outage:
    """how: refused, or a mode of the proxy. share: of requests that it spoils. begun: before the first read."""

    how: str
    seconds: float
    share: float = 1.0
    begun: bool = False

    @property
    def name(self) -> str:
        return f"{self.how}-{self.share:g}-{self.seconds:g}{'-cold' if self.begun else ''}"


OUTAGES = [Outage("refused", 2.0), Outage("503", 1.8, begun=True), Outage("429", 1.5, 0.5)]
if ALL:
    OUTAGES = [Outage(how, seconds) for how in ("refused", "503") for seconds in (1.0, 4.0, 10.0, 30.0)]
    OUTAGES += [Outage(how, 10.0, share) for how in ("429", "503") for share in (0.3, 0.5)]
    OUTAGES += [Outage("429", 10.0)]
    OUTAGES += [Outage("refused", 10.0, begun=True), Outage("503", 10.0, begun=True)]


@pytest.fixture
def proxy(seaweed: S3Server) -> Iterator[FaultProxy]:
    with fault_proxy(seaweed) as proxy:
        yield proxy


def names_of(outage: Outage) -> list[str]:
    small = [f"{outage.name}/small{n}" for n in range(SMALL)]
    step = max(1, SMALL // LARGE)
    for n in range(LARGE):
        small.insert(n * step, f"{outage.name}/large{n}")
    return small


def fill(host: Host, seaweed: S3Server, outage: Outage) -> None:
    for name in names_of(outage):
        size = LARGE_BYTES if "large" in name else SMALL_BYTES
        seaweed.put(f"outage/{name}", host.put(name, size))


def test_no_read_fails_while_the_origin_is_away(
    make_host: MakeHost, seaweed: S3Server, proxy: FaultProxy
) -> None:
    host = make_host(sync_interval_s=3600)
    for outage in OUTAGES:
        fill(host, seaweed, outage)
    options = option_words(proxy.options(), str(host.base))
    host.up(proxy.url("outage"), host.mount, *options, cache=f"{host.cache}:4GiB")
    for outage in OUTAGES:
        go_through(host, proxy, outage, lambda names: host.assert_right(*names, limit_s=120.0))
    host.ok("down")
    host.assert_nothing_left()


@pytest.mark.parametrize("gateway", ["s3", "webhdfs"])
def test_no_request_of_a_gateway_fails_while_the_origin_is_away(
    make_host: MakeHost, seaweed: S3Server, proxy: FaultProxy, gateway: str
) -> None:
    outages = OUTAGES if ALL else OUTAGES[:1]
    host = make_host(sync_interval_s=3600)
    for outage in outages:
        fill(host, seaweed, outage)
    options = option_words(proxy.options(), str(host.base))
    host.up(proxy.url("outage"), host.mount, *options, cache=f"{host.cache}:4GiB")
    url_of = serve(host, gateway)

    def read(names: list[str]) -> None:
        with requests.Session() as session:
            for name in names:
                answer = session.get(url_of(name), timeout=120)
                assert answer.status_code == 200, (name, answer.status_code, answer.text[:500])
                assert answer.content == (host.truth / name).read_bytes(), name

    for outage in outages:
        go_through(host, proxy, outage, read)


def serve(host: Host, gateway: str) -> Callable[[str], str]:
    """Starts it. Returns what gives the URL of a file."""
    url = host.start(gateway, "--insecure", "--address", "127.0.0.1:0").wait_ready()["url"]
    if gateway == "s3":
        return lambda name: f"{url}/{name}"
    return lambda name: f"{url}/webhdfs/v1/{name}?op=OPEN&user.name=root"


def go_through(host: Host, proxy: FaultProxy, outage: Outage, read: Callable[[list[str]], object]) -> None:
    names = names_of(outage)
    proxy.share = outage.share
    before = proxy.requests
    if outage.begun:
        begin(proxy, outage)
    with ThreadPoolExecutor(READERS) as threads:
        reads = [threads.submit(read, names[n::READERS]) for n in range(READERS)]
        if not outage.begun:
            wait_until(lambda: proxy.requests > before + 3, hint=lambda: "no reads")
            begin(proxy, outage)
        asked, away_s = proxy.requests, time.monotonic()
        if outage.share == 1.0:
            wait_until(lambda: is_shown(host), hint=lambda: host.ok("status"))
        time.sleep(outage.seconds)  # the length is what is tested
        asked, away_s = proxy.requests - asked, time.monotonic() - away_s
        end(proxy, outage)
        back_s = time.monotonic()
        for task in reads:
            task.result()
    took_s = time.monotonic() - back_s
    later = [passed_s - back_s for passed_s in proxy.passed_s if passed_s > back_s]
    status = status_of(host)
    assert status["waiting"] == 0
    assert status["away_s"] == 0
    if outage.share == 1.0:
        assert later
    if ALL:
        first = f"first answer after {later[0]:.2f} s, " if later else ""
        print(f"{outage.name}: {asked} requests in {away_s:.1f} s, {first}all read after {took_s:.2f} s")
        assert outage.share < 1.0 or later[0] < BACK_WITHIN_S
        assert outage.share < 1.0 or asked < 64 + 8 * away_s


def begin(proxy: FaultProxy, outage: Outage) -> None:
    if outage.how == "refused":
        proxy.refuse()
    else:
        proxy.mode = outage.how


def end(proxy: FaultProxy, outage: Outage) -> None:
    if outage.how == "refused":
        proxy.accept()
    else:
        proxy.mode = "pass"


def status_of(host: Host) -> dict[str, Any]:
    report: dict[str, Any] = host.status()["origin"]["mounts"]["/"]
    return report


def is_shown(host: Host) -> bool:
    """While it is away both forms of `status` say so."""
    status = status_of(host)
    return bool(status["waiting"] and status["trouble"]) and "wait, next try in" in host.ok("status")


def test_down_does_not_wait_for_an_origin_that_is_away(
    make_host: MakeHost, seaweed: S3Server, proxy: FaultProxy
) -> None:
    host = make_host(sync_interval_s=3600)
    outage = Outage("refused", 0.0)
    fill(host, seaweed, outage)
    options = option_words(proxy.options(), str(host.base))
    up = host.up(proxy.url("outage"), host.mount, *options)
    small, large = names_of(outage)[1], names_of(outage)[0]
    host.ok("ls", f"/{outage.name}")
    proxy.refuse()
    with ThreadPoolExecutor(3) as threads:
        reads = [threads.submit(host.read, name, limit_s=60.0) for name in (small, large, "none/such")]
        wait_until(lambda: status_of(host)["waiting"] >= 3, hint=lambda: host.ok("status"))
        host.ok("down")
        for task in reads:
            assert all(row["error"] for row in task.result().values())
    host.assert_nothing_left()
    assert "Traceback" not in up.said
    proxy.accept()
