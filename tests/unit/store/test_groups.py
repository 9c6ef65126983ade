"""Eviction by priority and tenant, over the real policies and dues, without a disk."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.eviction_group import EvictionGroup
from headrace.base.model import FileId
from headrace.base.priority import Priority
from headrace.policy.dues import Entitlement
from headrace.policy.tenant_division import TenantDivision
from headrace.testing.shared_cache import SharedCache

CAPACITY = 1000
TENANTS = ("", "a", "b", "c")


def group_of(id: FileId) -> EvictionGroup:
    """Ids of a tenant begin at a million times its number; odd hundreds of thousands are of low priority."""
    tenant = TENANTS[id // 1_000_000]
    return EvictionGroup(Priority(1 + id // 100_000 % 2), (tenant,) if tenant else ())


def file_of(tenant: str, number: int, *, is_low: bool = False) -> FileId:
    return FileId(TENANTS.index(tenant) * 1_000_000 + is_low * 100_000 + number)


def shared(policy: str = "s3fifo", **entitlements: Entitlement) -> SharedCache:
    division = TenantDivision(group_of, CAPACITY)
    division.update(entitlements)
    return SharedCache(CAPACITY, division, policy=policy)


def fill(cache: SharedCache, tenant: str, count: int, *, is_low: bool = False) -> None:
    for number in range(count):
        cache.read(file_of(tenant, number, is_low=is_low))


def test_a_scan_of_one_tenant_leaves_the_hits_of_another() -> None:
    """Tenant b reads 10 times the cache, once, while tenant a reads its own files again and again."""
    for policy in ("lru", "s3fifo"):
        alone, disturbed = shared(policy), shared(policy, a=Entitlement(guaranteed=500))
        reads = random.Random(7)
        hits_alone = hits = 0
        for number in range(10 * CAPACITY):
            id = file_of("a", min(int(reads.expovariate(1 / 120)), 499))
            hits_alone += alone.read(id)
            hits += disturbed.read(id)
            before = disturbed.groups.used_bytes("a")
            disturbed.read(file_of("b", number))
            assert disturbed.groups.used_bytes("a") >= min(before, 500)
        assert hits >= 0.99 * hits_alone


def test_without_guarantees_a_scan_takes_no_more_than_an_equal_share() -> None:
    cache = shared()
    fill(cache, "a", 400)
    for number in range(10 * CAPACITY):
        cache.read(file_of("b", number))
    assert cache.tenant_bytes() == {"a": 400, "b": 600}


def test_a_large_request_lowers_the_largest_tenants_to_one_level() -> None:
    cache = shared()
    fill(cache, "a", 200)
    fill(cache, "b", 300)
    fill(cache, "c", 500)
    cache.trim(400)
    assert cache.tenant_bytes() == {"a": 200, "b": 200, "c": 200}


def test_shares_are_weights_of_what_nobody_is_guaranteed() -> None:
    cache = shared(a=Entitlement(share=2), b=Entitlement(guaranteed=100))
    for number in range(3 * CAPACITY):
        for tenant in ("a", "b", "c"):
            cache.read(file_of(tenant, number))
    held = cache.tenant_bytes()
    for tenant, due in {"a": 450, "b": 325, "c": 225}.items():
        assert abs(held[tenant] - due) <= 2


def test_low_priority_gives_way_before_the_dues_are_looked_at() -> None:
    cache = shared()
    fill(cache, "a", 300, is_low=True)
    fill(cache, "a", 100)
    fill(cache, "b", 600)
    fill(cache, "c", 250)
    assert cache.tenant_bytes() == {"a": 150, "b": 600, "c": 250}
    assert all(file_of("a", number) in cache.resident for number in range(100))


def test_low_priority_does_not_break_a_guarantee() -> None:
    cache = shared(a=Entitlement(guaranteed=350))
    fill(cache, "a", 400, is_low=True)
    fill(cache, "b", 2 * CAPACITY)
    assert cache.tenant_bytes() == {"a": 350, "b": 650}


def test_the_spare_of_the_watermark_goes_below_no_guarantee() -> None:
    cache = shared(a=Entitlement(guaranteed=600))
    fill(cache, "a", 600)
    fill(cache, "b", 400)
    cache.trim(900)
    assert cache.tenant_bytes() == {"a": 600}


def test_a_tenant_at_its_limit_evicts_its_own_files() -> None:
    cache = shared(a=Entitlement(limit=100))
    fill(cache, "b", 800)
    fill(cache, "a", 500)
    assert cache.tenant_bytes() == {"a": 100, "b": 800}


def test_a_tenant_that_can_evict_nothing_is_read_without_being_cached() -> None:
    cache = shared(a=Entitlement(limit=100))
    fill(cache, "a", 100)
    cache.pinned.update(cache.resident)
    assert not cache.read(file_of("a", 777))
    assert file_of("a", 777) not in cache.resident
    assert not cache.read(file_of("a", 778), 101)


def test_pinned_files_make_others_lose_more() -> None:
    cache = shared()
    fill(cache, "a", 700)
    cache.pinned.update(cache.resident)
    fill(cache, "b", 300)
    fill(cache, "c", 300)
    assert cache.tenant_bytes() == {"a": 700, "b": 150, "c": 150}


def test_a_change_of_groups_keeps_what_is_used() -> None:
    division = TenantDivision(lambda _: EvictionGroup(), CAPACITY)
    cache = SharedCache(CAPACITY, division)
    for _ in range(2):
        fill(cache, "a", 400)
    fill(cache, "b", 600)
    division = TenantDivision(group_of, CAPACITY)
    cache.groups.division = division
    for id in list(cache.resident):
        cache.regroup(id)
    assert {t: cache.groups.used_bytes(t) for t in ("a", "b")} == {"a": 400, "b": 600}
    fill(cache, "a", 400)
    assert cache.tenant_bytes() == {"a": 400, "b": 600}
    cache.trim(300)
    assert cache.tenant_bytes() == {"a": 350, "b": 350}


def of_parents(policy: str = "s3fifo", **entitlements: Entitlement) -> SharedCache:
    """Return a cache whose tenants a and b have the parent "ab"."""

    def group_of_child(id: FileId) -> EvictionGroup:
        priority, tenants = group_of(id)
        return EvictionGroup(priority, ("ab", *tenants) if tenants in (("a",), ("b",)) else tenants)

    division = TenantDivision(group_of_child, CAPACITY)
    division.update(entitlements, {"a": "ab", "b": "ab"})
    return SharedCache(CAPACITY, division, policy=policy)


def test_a_parent_is_compared_before_its_children() -> None:
    cache = of_parents()
    for number in range(2 * CAPACITY):
        for tenant in ("a", "b", "c"):
            cache.read(file_of(tenant, number))
    held = cache.tenant_bytes()
    assert [abs(held[tenant] - due) <= 2 for tenant, due in (("a", 250), ("b", 250), ("c", 500))] == [
        True
    ] * 3
    assert held["ab"] == held["a"] + held["b"]


def test_a_limit_of_a_parent_holds_for_all_its_children() -> None:
    cache = of_parents(ab=Entitlement(limit=300), a=Entitlement(guaranteed=100))
    fill(cache, "c", 500)
    fill(cache, "a", 200)
    fill(cache, "b", 500)
    assert cache.tenant_bytes() == {"c": 500, "ab": 300, "a": 200, "b": 100}
    fill(cache, "b", 1000)
    assert cache.tenant_bytes()["c"] == 500
    assert cache.groups.used_bytes("ab") == 300


def test_the_guarantee_of_a_parent_is_for_its_children_together() -> None:
    cache = of_parents(ab=Entitlement(guaranteed=600))
    fill(cache, "a", 300)
    fill(cache, "b", 300)
    fill(cache, "c", 3 * CAPACITY)
    assert cache.tenant_bytes() == {"ab": 600, "a": 300, "b": 300, "c": 400}
    cache.trim(700)
    assert cache.tenant_bytes() == {"ab": 600, "a": 300, "b": 300}


READS = st.lists(
    st.tuples(st.sampled_from(TENANTS), st.integers(0, 40), st.booleans(), st.sampled_from([1, 7, 30, 150])),
    max_size=120,
)
ENTITLEMENTS = st.dictionaries(
    st.sampled_from([*TENANTS[1:], "ab"]),
    st.builds(
        Entitlement,
        guaranteed=st.integers(0, 300),
        limit=st.none() | st.integers(300, 600),
        share=st.sampled_from([1, 3]),
    ),
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["lru", "s3fifo"]), ENTITLEMENTS, READS, st.sets(st.integers(0, 40), max_size=3))
def test_guarantees_and_limits_always_hold(
    policy: str,
    entitlements: dict[str, Entitlement],
    reads: list[tuple[str, int, bool, int]],
    pinned: set[int],
) -> None:
    cache = of_parents(policy, **entitlements)
    cache.pinned.update(file_of("a", number) for number in pinned)
    sizes: dict[FileId, int] = {}
    for tenant, number, is_low, size_bytes in reads:
        id = file_of(tenant, number, is_low=is_low)
        before = cache.tenant_bytes()
        cache.read(id, sizes.setdefault(id, size_bytes))
        after = cache.tenant_bytes()
        assert sum(size for name, size in after.items() if name != "ab") == cache.used_bytes <= CAPACITY
        for name, entitlement in entitlements.items():
            if name not in cache.groups.division.group_of(id).tenants:
                assert after.get(name, 0) >= min(before.get(name, 0), entitlement.guaranteed)
            if entitlement.limit is not None:
                assert after.get(name, 0) <= entitlement.limit
            assert cache.groups.used_bytes(name) == after.get(name, 0)
