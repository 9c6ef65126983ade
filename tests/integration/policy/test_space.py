"""Tenants and priorities on a real node: who gives way when the cache is full, and who doesn't."""

from __future__ import annotations

import pytest

from tests.integration.cli.host import MIB, Host, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(180)]

FILES, FILE_BYTES = 32, MIB - 5000


def fill(host: Host, folder: str, count: int) -> list[str]:
    names = [f"{folder}/{number:03d}" for number in range(count)]
    for name in names:
        host.put(name, FILE_BYTES)
    return names


def cached(host: Host, names: list[str]) -> int:
    return sum(row["cached"] == "yes" for row in host.stats(*names))


def set_policy(host: Host, text: str) -> None:
    path = host.base / "policy.toml"
    path.write_text(text)
    host.ok("policy", "set", path)


def test_a_scan_of_one_tenant_leaves_what_another_is_guaranteed(host: Host) -> None:
    kept, scanned = fill(host, "vision", FILES), fill(host, "scans", 3 * FILES)
    host.up(host.truth, host.mount, cache=f"{host.cache}:80MiB")
    set_policy(
        host,
        '[tenant.vision]\npaths = ["/vision/**"]\nguaranteed = "40MiB"\n'
        '[tenant.scans]\npaths = ["/scans/**"]\n',
    )
    host.assert_right(*kept)
    for _ in range(2):
        host.assert_right(*scanned)
    assert cached(host, kept) == FILES


def test_a_limit_holds_while_a_tenant_reads_more(host: Host) -> None:
    names = fill(host, "scans", 2 * FILES)
    host.up(host.truth, host.mount, cache=f"{host.cache}:256MiB")
    set_policy(host, '[tenant.scans]\npaths = ["/scans/**"]\nlimit = "16MiB"\n')
    host.assert_right(*names)
    assert 8 <= cached(host, names) <= 16
    shown = host.status()["policy"]
    assert shown["version"] == 1
    assert (
        8 * MIB
        < shown["tenants"]["scans"]["used_bytes"]
        <= 16 * MIB
        == shown["tenants"]["scans"]["limit_bytes"]
    )
    assert "tenant scans uses" in host.ok("status")
    host.assert_right(*names)
    assert 8 <= cached(host, names) <= 16


def test_a_limit_that_is_set_later_is_met_soon(host: Host) -> None:
    names = fill(host, "scans", FILES)
    host.up(host.truth, host.mount, cache=f"{host.cache}:256MiB")
    host.assert_right(*names)
    assert cached(host, names) == FILES
    set_policy(host, '[tenant.scans]\npaths = ["/scans/**"]\nlimit = "16MiB"\n')
    wait_until(lambda: cached(host, names) <= 16)
    host.assert_right(*names)


def test_a_limit_below_what_is_pinned_is_refused(host: Host) -> None:
    fill(host, "scans", 4)
    host.up()
    host.ok("pin", host.mount / "scans")
    path = host.base / "policy.toml"
    path.write_text('[tenant.scans]\npaths = ["/scans/**"]\nlimit = "2MiB"\n')
    refused = host.headrace("policy", "set", path)
    assert refused.returncode == 2
    assert "line 1: limit: 2.00 MiB on this node, where 3.98 MiB are pinned" in refused.stderr
    assert host.json("policy", "show")["number"] == 0


def test_low_priority_gives_way_and_high_stays_over_a_restart(host: Host) -> None:
    high, low, others = fill(host, "high", 16), fill(host, "low", 24), fill(host, "others", 60)
    up = host.up(host.truth, host.mount, cache=f"{host.cache}:80MiB")
    set_policy(
        host,
        '[[rule]]\nmatch = ["/high/**"]\npriority = "high"\n[[rule]]\nmatch = ["/low/**"]\npriority = "low"\n',
    )
    host.assert_right(*high, *low)
    host.ok("down", "--all")
    up.wait()
    host.up(host.truth, host.mount, cache=f"{host.cache}:80MiB")
    host.assert_right(*others)
    assert cached(host, high) == 16
    assert cached(host, low) < 24
    host.assert_right(*others, *low)
    assert cached(host, high) == 16
