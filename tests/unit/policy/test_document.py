"""A policy is parsed as a whole, or refused with all its faults."""

from __future__ import annotations

import math
import sys
import tomllib

import pytest

from headrace.base.priority import Priority
from headrace.base.write_modes import WriteMode
from headrace.origin.factory import parse_origin
from headrace.policy import values
from headrace.policy.document import PolicyFaultsError, parse_policy
from headrace.policy.effects import AUTO_REPLICAS, CacheAdmission, LifeStart, TimeToLive, WritePromise
from headrace.policy.limits import POLICY_TEXT_MAX

WHOLE = """
[[rule]]
match = ["/datasets/**"]
fresh = "5m"
admit = "second-read"
priority = "high"
[[rule]]
match = ["/scratch/**"]
ttl = "2d"
[tenant.vision]
paths = ["/datasets/imagenet/**", "/vision/**"]
guaranteed = "30%"
limit = "4TiB"
share = 2
"""


def faults_of(text: str) -> list[tuple[int, str]]:
    with pytest.raises(PolicyFaultsError) as raised:
        parse_policy(text)
    return [(fault.line, fault.text) for fault in raised.value.faults]


def test_a_policy_with_everything() -> None:
    document = parse_policy(WHOLE)
    first, second = document.rules
    assert first.effects == {
        "fresh_s": 300.0,
        "admit": CacheAdmission.SECOND_READ,
        "priority": Priority.HIGH,
    }
    assert (first.line, second.line) == (2, 7)
    assert second.effects == {"ttl": TimeToLive(172800.0)}
    vision = document.tenants["vision"]
    assert (vision.guaranteed, vision.limit, vision.share) == (0.3, 4 << 40, 2.0)


def test_a_key_of_thousands_of_parts_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tomllib, "loads", lambda _: pytest.fail("the parser needs minutes for it"))
    assert faults_of("\n" + "a." * 30000 + "b=1") == [(2, "a key has more than 16 dots")]


@pytest.mark.parametrize("text", ["a=" + "[" * 30000 + "]" * 30000, "a=" + "{a=" * 10000 + "1" + "}" * 10000])
def test_values_that_lie_too_deep_in_each_other_are_refused(text: str) -> None:
    assert faults_of(text) == [(1, "no TOML: its arrays lie too deep in each other")]


def test_an_empty_policy_decides_nothing() -> None:
    document = parse_policy("# nothing\n")
    assert not document.rules and not document.tenants and not document.origins


def test_all_faults_are_told_with_their_lines() -> None:
    text = """[[rule]]
match = ["/a/**"]
fresh = "soon"
admitt = "never"

[[rule]]
replicas = 0
tier = ["nvme",
        "tape"]
[tenant.a]
paths = ["/a/**"]
guaranteed = "60%"
[tenant.b]
paths = ["/b/**"]
guaranteed = "60%"
limit = "50%"
[tenant.c]
paths = ["/c/**"]
guaranteed = "101%"
parent = "nobody"
[orgin."s3://x"]
requests_s = 1
[origin."x"]
requests_s = "many"
budget_month = 1
"""
    faults = faults_of(text)
    assert [line for line, _ in faults] == sorted(line for line, _ in faults)
    known = {(line, text.partition(":")[0].partition(",")[0]) for line, text in faults}
    assert known == {
        (3, "fresh"),
        (4, "'admitt' is unknown"),
        (6, "match is missing"),
        (7, "replicas"),
        (8, "tier"),
        (15, "guaranteed"),
        (19, "guaranteed"),
        (20, "parent"),
        (21, "'orgin' is unknown"),
        (23, "'x' is no URL of an origin"),
        (24, "requests_s"),
        (25, "budget_month"),
    }


def test_each_rule_without_paths_is_a_fault_of_its_own() -> None:
    text = '[[rule]]\nmatch = []\nttl = "1d"\n[[rule]]\nttl = "1d"\n'
    assert [(line, text.split()[0]) for line, text in faults_of(text)] == [(2, "match:"), (4, "match")]


def test_over_all_guaranteed_is_refused_where_it_passes_the_whole() -> None:
    text = '[tenant.a]\npaths = ["/a/**"]\nguaranteed = "60%"\n[tenant.b]\npaths = ["/b/**"]\nguaranteed = "50%"\n'
    assert faults_of(text) == [(6, "guaranteed: 110% are guaranteed to the tenants so far")]


def test_children_are_guaranteed_parts_of_their_own() -> None:
    text = '[tenant.a]\npaths = ["/a/**"]\nguaranteed = "60%"\n'
    for child in ("b", "c"):
        text += f'[tenant.{child}]\npaths = ["/a/{child}/**"]\nguaranteed = "50%"\nparent = "a"\n'
    assert parse_policy(text).tenants["c"].parent == "a"


@pytest.mark.parametrize("size", [1, 3, 7])
def test_a_cycle_of_tenants_is_refused_at_each_of_them(size: int) -> None:
    text = "".join(
        f'[tenant.t{number}]\npaths = ["/{number}/**"]\nparent = "t{(number + 1) % size}"\n'
        for number in range(size)
    )
    assert faults_of(text) == [(3 * number + 3, "parent: the tenants are a cycle") for number in range(size)]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("fresh", "5"),
        ("fresh", 5),
        ("fresh", "-5m"),
        ("fresh", "99999999999w"),
        ("ttl", "0s"),
        ("ttl", "used+2d"),
        ("ttl", "born+2d"),
        ("ttl", "made+"),
        ("admit", "maybe"),
        ("replicas", True),
        ("replicas", 65),
        ("replicas", "two"),
        ("priority", "HIGH"),
        ("tier", "nvme"),
        ("tier", []),
        ("tier", ["nvme", "nvme"]),
        ("write", "back,exclusive"),
        ("write", "/a=back"),
        ("write", "backk"),
        ("match", []),
        ("match", [""]),
        ("match", ["#a"]),
        ("match", ["!"]),
        ("match", ["[z-a]"]),
        ("match", ["**/a/**/b/**/c"]),
        ("match", ["a" * 2000]),
    ],
)
def test_a_bad_value_is_one_fault_that_names_the_key(key: str, value: object) -> None:
    shown = repr(value).replace("'", '"').replace("True", "true")
    lines = ["[[rule]]", 'match = ["/a/**"]', 'admit = "never"']
    lines = [line for line in lines if not line.startswith(f"{key} ")] + [f"{key} = {shown}"]
    ((line, text),) = faults_of("\n".join(lines))
    assert line == len(lines) and text.startswith(f"{key}: ")


def test_effects_that_no_node_obeys_are_refused() -> None:
    text = '[[rule]]\nmatch = ["/a/**"]\ntier = ["nvme", "hdd"]\nwrite = "back:2"\n'
    assert faults_of(text) == [
        (4, "write: this release does not obey it yet"),
    ]
    assert values.replicas("auto") == AUTO_REPLICAS
    assert values.tiers(["nvme", "hdd"]) == ("nvme", "hdd")
    assert values.write_promise("back:2") == WritePromise(WriteMode.BACK, 2)


def test_rates_and_prices_of_origins() -> None:
    text = '[origin."s3://training-data"]\nrequests_s = 2000\nbytes_s = "10Gbit"\n'
    origin = parse_policy(text).origins["s3://training-data"]
    assert (origin.requests_s, origin.bytes_s) == (2000.0, 1.25e9)
    priced = parse_policy(text + "egress_per_gib = 0.09\nbudget_month = 500\n").origins["s3://training-data"]
    assert (priced.egress_per_gib, priced.budget_month) == (0.09, 500.0)
    assert faults_of(text + "budget_month = 500\n") == [(4, "budget_month: it needs a price, egress_per_gib")]
    assert (values.rate_bytes_s("10Gbit"), values.rate_bytes_s("500MB")) == (1.25e9, 5e8)
    assert values.positive(1e-6) == 1e-6
    with pytest.raises(ValueError, match="not above"):
        values.positive(5e-324)
    for rate in ("0Gbit", "fast", "-1MB", 3):
        with pytest.raises(ValueError):
            values.rate_bytes_s(rate)


def test_values_at_their_limits() -> None:
    text = '[[rule]]\nmatch = ["/**"]\nfresh = "{}"\nttl = "{}"\n'
    always, never = (
        parse_policy(text.format("always", "1s")),
        parse_policy(text.format("never", "fetched+1.5h")),
    )
    assert always.rules[0].effects["fresh_s"] == 0.0
    assert never.rules[0].effects["fresh_s"] == math.inf
    assert never.rules[0].effects["ttl"] == TimeToLive(5400.0, LifeStart.FETCHED)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[[rule]]\nmatch = [\n", 3),
        ("a = 1\na = 2\n", 2),
        ("\n\nx y\n", 3),
        ("x = " + "[" * 5000, 1),
        ("x" * (POLICY_TEXT_MAX + 1), 1),
        (f"\n# 1\nx = {'1' * 5000}\n", 3),
    ],
)
def test_what_is_no_toml_is_refused_with_a_line(text: str, line: int) -> None:
    ((refused_line, _),) = faults_of(text)
    assert refused_line == line


@pytest.mark.parametrize("number", [f"1{'0' * 400}", f"-1{'0' * 400}", f"0x{'f' * 5000}"])
@pytest.mark.parametrize(
    ("table", "key"),
    [
        ('[tenant.a]\npaths = ["/a/**"]', "share"),
        ('[tenant.a]\npaths = ["/a/**"]', "limit"),
        ('[origin."s3://b"]\negress_per_gib = 1', "requests_s"),
        ('[[rule]]\nmatch = ["/a/**"]', "replicas"),
        ('[[rule]]\nmatch = ["/a/**"]', "tier"),
    ],
)
def test_a_number_that_is_much_too_large_is_one_fault_with_its_line(
    table: str, key: str, number: str
) -> None:
    for value in (number, f"[{number}]"):
        ((line, text),) = faults_of(f"{table}\n{key} = {value}\n")
        assert line == 3 and text.startswith(f"{key}: ") and len(text) < 200
        assert "limit (" not in text  # of Python, which is nothing to its user


@pytest.mark.parametrize(
    "text",
    [
        "rule = 1",
        "rule = [1]",
        "[rule]\nmatch = ['/a']",
        "tenant = [1]",
        "tenant.a = 1",
        "[origin]\n's3://a' = 3",
        "[[rule]]\nmatch=['/a/**']",
    ],
)
def test_tables_of_another_shape_are_faults(text: str) -> None:
    assert faults_of(text)


def test_a_rule_that_is_too_much_is_refused() -> None:
    assert faults_of('[[rule]]\nmatch=["/a"]\nttl="1d"\n' * 501)[0][1].startswith("there are 501 rules")


ORIGINS = """
[origin."s3://data"]
requests_s = 1
[origin."s3a://data/"]
requests_s = "many"
[origin."nothing://x"]
requests_s = 1
[origin."sftp://host/d"]
requests_s = 1
"""


def test_origins_are_checked_together_with_everything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fsspec", "fsspec.registry"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(PolicyFaultsError) as raised:
        parse_policy(ORIGINS, parse_origin)
    twice, value, *unknown = raised.value.faults
    assert (twice.line, twice.text) == (4, "origin: s3a://data/ is the origin of line 2")
    assert (value.line, value.text) == (5, "requests_s: 'many' is no number")
    assert [fault.line for fault in unknown] == [6, 8]
    assert all("fsspec is not installed" in fault.text for fault in unknown)


def test_two_urls_of_one_origin_on_one_line_are_refused() -> None:
    text = 'origin = {"s3://data" = {requests_s = 1}, "s3a://data" = {requests_s = 2}}\n'
    with pytest.raises(PolicyFaultsError, match="line 1: origin: s3a://data is the origin of line 1"):
        parse_policy(text, parse_origin)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('match = [""]', "match: [''] has an empty string"),
        ("match = []", "match: the list is empty"),
        ('match = "/a"', "match: '/a' is no list of strings"),
    ],
)
def test_a_list_is_refused_for_its_real_reason(line: str, reason: str) -> None:
    assert faults_of(f'[[rule]]\n{line}\nttl = "1d"\n') == [(2, reason)]


def test_a_wrong_rate_is_called_a_rate() -> None:
    reason = "bytes_s: '5Gbps' is no rate, for example 10Gbit or 500MB"
    assert faults_of('[origin."s3://x"]\nbytes_s = "5Gbps"\n') == [(2, reason)]


def test_the_child_of_a_tenant_with_a_fault_has_none() -> None:
    parent = '[tenant.a]\npaths = ["/a[/**"]\n'
    child = '[tenant.b]\npaths = ["/a/b/**"]\nparent = "a"\n'
    assert [line for line, _ in faults_of(parent + child)] == [2]
    assert faults_of(child) == [(3, "parent: there is no tenant 'a'")]


def test_each_bad_pattern_of_a_rule_is_named() -> None:
    faults = faults_of('[[rule]]\nmatch = ["/a[", "/good/**", "#b"]\nttl = "1d"\n')
    assert [(line, text.split()[1]) for line, text in faults] == [(2, "'/a['"), (2, "'#b'")]
