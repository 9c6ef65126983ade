"""Bytes that a node reads from an origin have a price, a month has a budget, and the reads tell what to change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.cli.host import MIB, Host, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(180)]

GIB = 1 << 30
FILE_BYTES = 100_000


def set_policy(host: Host, text: str) -> None:
    path = host.base / "policy.toml"
    path.write_text(text)
    host.ok("policy", "set", path)


def price(host: Host, budget: float) -> str:
    """Return a policy by which a byte costs 1."""
    return (
        f'[origin."file://{host.truth}"]\negress_per_gib = {GIB}\nbudget_month = {budget}\n'
        '[tenant.vision]\npaths = ["/vision/**"]\n'
    )


def fill(host: Host, folder: str, count: int, size_bytes: int = FILE_BYTES) -> list[str]:
    names = [f"{folder}/{number:03d}" for number in range(count)]
    for name in names:
        host.put(name, size_bytes)
    return names


def costs(host: Host) -> dict[str, Any]:
    return dict(host.status()["costs"])


def waits_for(host: Host, is_right: Callable[[dict[str, Any]], bool]) -> None:
    wait_until(lambda: is_right(costs(host)), hint=lambda: str(costs(host)))


def test_costs_and_savings_are_told(host: Host) -> None:
    vision, others = fill(host, "vision", 5), fill(host, "others", 3)
    host.up()
    set_policy(host, price(host, 1e9))
    host.ok("load", host.mount / "others")
    for _ in range(3):
        host.assert_right(*vision, *others)
    waits_for(host, lambda counts: counts["mounts"]["/"]["opened_bytes"] >= 20 * FILE_BYTES)
    counts = costs(host)
    assert counts["mounts"]["/"]["bytes"] == counts["mounts"]["/"]["cost"] == 8 * FILE_BYTES
    assert counts["mounts"]["/"]["saved_bytes"] == counts["mounts"]["/"]["opened_bytes"] - 8 * FILE_BYTES
    assert counts["tenants"]["vision"]["cost"] == 5 * FILE_BYTES
    assert counts["jobs"]["load /others"]["bytes"] == 3 * FILE_BYTES
    assert counts["jobs"]["programs"]["bytes"] == 5 * FILE_BYTES
    (origin,) = counts["origins"].values()
    assert (origin["cluster_cost"], origin["background"]) == (8 * FILE_BYTES, "free")
    shown = host.ok("status")
    assert f"{8 * FILE_BYTES}.00 in {counts['month']} of 1e+09" in shown
    assert "the cache saved about" in shown


@pytest.mark.expected_warnings("background work at an origin is limited by budget_month")
def test_a_spent_budget_stops_loads_and_no_reader(host: Host) -> None:
    read, loaded = fill(host, "read", 10), fill(host, "loaded", 3)
    host.up()
    set_policy(host, price(host, 5 * FILE_BYTES))
    host.assert_right(*read[:8])
    waits_for(host, lambda counts: all(row["background"] == "stopped" for row in counts["origins"].values()))
    done = host.headrace("load", host.mount / "loaded")
    assert done.returncode == 50
    assert "budget_month of the policy, 500000, is spent" in done.stderr + done.stdout
    assert "background work is stopped" in host.ok("status")
    host.assert_right(*read, *loaded)
    saved = host.cache / "costs.json"  # within seconds
    wait_until(lambda: saved.exists() and str(13 * FILE_BYTES) in saved.read_text())
    host.wait_pid("node", other_than=host.kill("node"))
    waits_for(host, lambda counts: [row["cost"] for row in counts["origins"].values()] == [13 * FILE_BYTES])
    set_policy(host, price(host, 1e9))
    fill(host, "later", 2)
    host.ok("sync", host.mount)
    host.ok("load", host.mount / "later")


def test_advice_names_what_to_change(host: Host) -> None:
    names = fill(host, "set", 100, MIB)
    host.up(host.truth, host.mount, "--io", "splice", cache=f"{host.cache}:70MiB")  # each open is seen
    set_policy(host, '[[rule]]\nmatch = ["/typo/**"]\nfresh = "1m"\n')
    first = host.json("policy", "advise")
    assert [row["name"] for row in first["outlooks"]] == [""]
    assert "too few" in first["advice"][0]["text"]
    for _ in range(11):
        for name in names:
            (host.mount / name).open("rb").close()
    wait_until(lambda: host.json("policy", "advise")["outlooks"][0]["reads"] >= 1090)
    advised = host.json("policy", "advise")
    whole = advised["outlooks"][0]
    assert whole["unique_bytes"] == 100 * MIB
    assert whole["hits"]["1"] == 0 and whole["hits"]["2"] > 0.9
    subjects = {row["subject"] for row in advised["advice"]}
    assert subjects == {"cache", "rule 1", "/set"}
    assert "it does not fit" in host.ok("policy", "advise")
