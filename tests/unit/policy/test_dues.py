from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.policy.dues import NO_TENANT, Entitlement, dues, most_over

AMOUNTS = st.integers(0, 1000)
ENTITLEMENTS = st.builds(
    Entitlement,
    guaranteed=st.integers(0, 300),
    limit=st.none() | st.integers(300, 1500),
    share=st.sampled_from([0.5, 1, 2, 7]),
)
TENANTS = st.dictionaries(
    st.sampled_from(["", "vision", "speech", "text", "maps"]), st.tuples(ENTITLEMENTS, AMOUNTS), min_size=1
)


def most_of(entitlement: Entitlement, demand: float) -> float:
    return demand if entitlement.limit is None else min(demand, entitlement.limit)


@settings(max_examples=150, deadline=None)
@given(TENANTS, st.integers(0, 3000))
def test_dues_are_weighted_max_min_fair(tenants: dict[str, tuple[Entitlement, int]], capacity: int) -> None:
    """No tenant could get more without taking from one that has no more of the surplus for its share."""
    entitlements = {name: entitlement for name, (entitlement, _) in tenants.items()}
    demands = {name: demand for name, (_, demand) in tenants.items()}
    due = dues(capacity, entitlements, demands)
    most = {name: most_of(entitlements[name], demand) for name, demand in demands.items()}
    assert sum(due.values()) == pytest.approx(min(capacity, sum(most.values())))
    guaranteed = sum(entitlement.guaranteed for entitlement in entitlements.values())
    kept = min(1.0, capacity / guaranteed) if guaranteed else 1.0
    floors = {name: min(most[name], entitlements[name].guaranteed * kept) for name in due}
    for name, part in due.items():
        assert floors[name] - 1e-6 <= part <= most[name] + 1e-6
    level = {name: (due[name] - floors[name]) / entitlements[name].share for name in due}
    for poor in due:
        if due[poor] < most[poor] - 1e-6:
            assert all(level[rich] <= level[poor] + 1e-6 for rich in due)


def test_what_nobody_is_guaranteed_is_divided_by_shares() -> None:
    entitlements = {"vision": Entitlement(guaranteed=30, share=2), "text": Entitlement(limit=10)}
    due = dues(100, entitlements, {"vision": 1000, "text": 1000, NO_TENANT: 1000})
    assert due == {"vision": 70, "text": 10, NO_TENANT: 20}


def test_a_small_demand_leaves_the_rest_to_others() -> None:
    assert dues(100, {}, {"vision": 5, "text": 1000}) == {"vision": 5, "text": 95}


def test_guarantees_beyond_the_capacity_shrink_in_proportion() -> None:
    entitlements = {"vision": Entitlement(guaranteed=300), "text": Entitlement(guaranteed=100)}
    assert dues(100, entitlements, {"vision": 900, "text": 900}) == {"vision": 75, "text": 25}


def test_the_tenant_furthest_above_its_due_is_found() -> None:
    entitlements = {"vision": Entitlement(guaranteed=60)}
    assert most_over(100, entitlements, {"vision": 60, "text": 50}) == "text"
    assert most_over(100, entitlements, {"vision": 90, "text": 15}) == "vision"


@settings(max_examples=100, deadline=None)
@given(TENANTS, st.integers(0, 3000))
def test_who_is_furthest_above_has_no_less_than_its_due(
    tenants: dict[str, tuple[Entitlement, int]], capacity: int
) -> None:
    entitlements = {name: entitlement for name, (entitlement, _) in tenants.items()}
    usage = {name: float(amount) for name, (_, amount) in tenants.items()}
    name = most_over(capacity, entitlements, usage)
    assert usage[name] >= dues(capacity, entitlements, usage)[name] - 1e-6
