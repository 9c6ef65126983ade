"""A path gets the effects of the last rules that match it, whichever way they are remembered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.base.priority import Priority
from headrace.policy.document import parse_policy
from headrace.policy.effects import DEFAULT_EFFECTS, CacheAdmission, TimeToLive
from headrace.policy.resolve import CACHED_MAX, PolicyResolver

TEXT = """
[[rule]]
match = ["/datasets/**"]
priority = "high"
fresh = "never"
[[rule]]
match = ["/datasets/*/tmp/**", "!/datasets/keep/tmp/**"]
priority = "low"
[[rule]]
match = ["/datasets/list.txt"]
admit = "never"
[tenant.all]
paths = ["/datasets/**"]
[tenant.vision]
paths = ["/datasets/imagenet/"]
"""


def resolver(text: str = TEXT) -> PolicyResolver:
    return PolicyResolver(parse_policy(text))


def test_later_rules_win_effect_by_effect() -> None:
    policy = resolver()
    assert policy.of(b"/datasets/a/b").priority is Priority.HIGH
    low = policy.of(b"/datasets/a/tmp/x/y")
    assert low.priority is Priority.LOW and low.fresh_s == float("inf")
    assert policy.of(b"/datasets/keep/tmp/x").priority is Priority.HIGH
    assert policy.of(b"/other/x") is DEFAULT_EFFECTS


def test_a_literal_path_may_be_a_file_or_a_directory() -> None:
    policy = resolver()
    assert policy.of(b"/datasets/list.txt").admit is CacheAdmission.NEVER
    assert policy.of(b"/datasets/other.txt").admit is CacheAdmission.ALWAYS
    assert policy.of(b"/datasets/list.txt/below").admit is CacheAdmission.NEVER


def test_the_last_tenant_that_matches_has_the_file() -> None:
    policy = resolver()
    assert policy.of(b"/datasets/imagenet/a").tenant == "vision"
    assert policy.of(b"/datasets/a").tenant == "all"
    assert policy.of(b"/a").tenant == ""


def test_a_listing_has_the_effects_of_the_files_in_it() -> None:
    policy = resolver()
    assert policy.of_directory(b"/datasets").fresh_s == float("inf")
    assert policy.of_directory(b"/").fresh_s is None


def test_an_explanation_names_the_rule_and_the_line() -> None:
    decisions = {decision.effect: decision for decision in resolver().explain(b"/datasets/a/tmp/x")}
    assert (decisions["priority"].rule, decisions["priority"].line) == (2, 6)
    assert (decisions["fresh"].rule, decisions["fresh"].line) == (1, 2)
    assert (decisions["ttl"].value, decisions["ttl"].rule) == (None, 0)
    assert (decisions["tenant"].value, decisions["tenant"].line) == ("all", 12)


def test_patterns_of_names_decide_for_each_file() -> None:
    policy = resolver('[[rule]]\nmatch = ["*.tmp"]\nttl = "1h"\n')
    assert policy.of(b"/a/b.tmp").ttl == TimeToLive(3600.0)
    assert policy.of(b"/a/b.jpg").ttl is None
    assert policy.of(b"/a/b.tmp").ttl == TimeToLive(3600.0)


def test_what_is_remembered_has_a_limit() -> None:
    policy = resolver('[[rule]]\nmatch = ["*.tmp"]\nttl = "1h"\n')
    for number in range(CACHED_MAX + 10):
        policy.of(b"/%d.tmp" % number)
    assert policy.of(b"/3.tmp").ttl == TimeToLive(3600.0)


PARTS = st.sampled_from(["a", "b", "c.x", "tmp"])
PATTERNS = st.sampled_from(
    [
        "/a/**",
        "/a",
        "a",
        "*.x",
        "/a/*/tmp/**",
        "**/tmp/**",
        "/a/b/",
        "!/a/b/**",
        "/a/b/c.x",
        "b/",
        "!c.x",
        "/**",
    ]
)
PATHS = st.lists(PARTS, min_size=1, max_size=4).map(lambda parts: ("/" + "/".join(parts)).encode())


@given(
    st.lists(st.lists(PATTERNS, min_size=1, max_size=3), min_size=1, max_size=4), st.lists(PATHS, max_size=12)
)
def test_what_is_remembered_is_what_is_resolved_anew(rules: list[list[str]], paths: list[bytes]) -> None:
    text = "".join(
        f'[[rule]]\nmatch = {list(patterns)!r}\nttl = "{number}s"\n'
        for number, patterns in enumerate(rules, 1)
    )
    policy = resolver(text)
    for path in paths + paths:
        ttls = [rule.effects["ttl"] for rule in policy.document.rules if rule.patterns.match(path)]
        assert policy.of(path).ttl == (ttls[-1] if ttls else None)
