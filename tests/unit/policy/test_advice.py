"""Advice follows from what was read: each sentence is compared with a replay or with a case that has none."""

from __future__ import annotations

import random

import pytest

from headrace.base.model import FileId
from headrace.policy.advice import (
    READS_MIN,
    Advice,
    ReadDataSet,
    UnmatchedRules,
    advise_capacity,
    advise_data_sets,
    advise_tenants,
    outlook,
    tenant_dues,
)
from headrace.policy.document import parse_policy
from headrace.policy.dues import Entitlement
from headrace.policy.miss_ratio import MissRatioCurve
from headrace.policy.read_sample import ReadSample


def read_all(sample: ReadSample, ids: list[int], size_bytes: int, tenant: str = "") -> None:
    for start in range(0, len(ids), 100):
        for read in sample.take([FileId(id) for id in ids[start : start + 100]]):
            sample.record(read, size_bytes, tenant)


def popular(files: int, count: int, seed: int) -> list[int]:
    weights = [rank**-0.7 for rank in range(1, files + 1)]
    return random.Random(seed).choices(range(files), weights, k=count)


def test_a_sample_of_the_reads_gives_the_curve_of_all() -> None:
    sample = ReadSample()
    sample.whole = MissRatioCurve(files_max=512)  # so that few reads are looked at
    ids = popular(20_000, 80_000, seed=1)
    read_all(sample, ids, 100, tenant="a")
    whole = MissRatioCurve(files_max=40_000)
    for id in ids:
        whole.read(FileId(id), 100)
    assert sample.threshold < 1 << 62
    for share in (0.1, 0.3, 0.6):
        capacity = share * 20_000 * 100
        assert sample.tenants["a"].miss_ratio(capacity) == pytest.approx(whole.miss_ratio(capacity), abs=0.05)
    assert sample.tenants["a"].unique_bytes == pytest.approx(len(set(ids)) * 100, rel=0.1)
    assert sample.tenants["a"].reads == pytest.approx(len(ids), rel=0.15)


def test_each_tenant_has_its_own_curve() -> None:
    sample = ReadSample()
    read_all(sample, list(range(500)) * 4, 100, tenant="small")
    read_all(sample, [10_000 + number for number in range(5000)], 100, tenant="scan")
    assert sample.tenants["small"].miss_ratio(500 * 100 * 1.05) == pytest.approx(0.25, abs=0.01)
    assert sample.tenants["scan"].miss_ratio(1e9) == 1.0


def test_too_few_reads_give_no_figures() -> None:
    curve = MissRatioCurve()
    for id in range(READS_MIN - 1):
        curve.read(FileId(id % 10), 100)
    whole = outlook("", curve, 1000)
    assert whole.hit_ratios == ()
    assert "too few" in advise_capacity(whole)[0].text


def test_more_capacity_is_advised_where_it_helps() -> None:
    curve = MissRatioCurve()
    for _ in range(5):
        for id in range(1000):  # each read of the cycle hits if all fit
            curve.read(FileId(id), 100)
    text = advise_capacity(outlook("", curve, 96_000))[0].text
    assert "10 % more cache would turn" in text and "→ 80.0%" in text
    assert "large enough" in advise_capacity(outlook("", curve, 200_000))[0].text


def test_a_tenant_that_starves_is_named() -> None:
    sample = ReadSample()
    read_all(sample, list(range(1000)) * 5, 100, tenant="starved")
    read_all(sample, list(range(5000, 5100)) * 50, 100, tenant="served")
    entitlements = {"starved": Entitlement(limit=80_000), "served": Entitlement()}
    spaces = tenant_dues(200_000, entitlements, sample.tenants)
    assert spaces == {"starved": 80_000, "served": pytest.approx(10_000)}
    outlooks = [outlook(name, sample.tenants[name], spaces[name]) for name in spaces]
    advice = advise_tenants(outlooks, sample.tenants)
    assert [row.subject for row in advice] == ["tenant starved"]
    assert "from 0.0% to 80.0%" in advice[0].text


def test_rules_that_match_nothing_are_named_by_number_and_line() -> None:
    rules = parse_policy(
        '[[rule]]\nmatch = ["/a/**"]\nfresh = "1m"\n\n[[rule]]\nmatch = ["/typo/**"]\nfresh = "1m"\n'
    ).rules

    def advice_after(*paths: bytes) -> list[Advice]:
        unmatched = UnmatchedRules(rules)
        for path in paths:
            unmatched.look_at(path)
        return unmatched.advise()

    advice = advice_after(b"/a/x", b"/b/y")
    assert [(row.subject, row.text.split(":")[0]) for row in advice] == [("rule 2", "line 5")]
    assert "none of 2 files" in advice[0].text
    assert advice_after() == []
    assert advice_after(b"/a/x", b"/typo/y") == []


def test_data_sets_that_do_not_fit_are_named() -> None:
    advice = advise_data_sets([ReadDataSet("/large", 4000), ReadDataSet("/small", 900)], 1000)
    assert [row.subject for row in advice] == ["/large"]
    assert "at most 25% of it" in advice[0].text
