"""Rules of the command line enter a policy and leave it, and its other lines stay as they are."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import UsageError
from headrace.namespace.mounts import normal_path
from headrace.policy.document import parse_policy
from headrace.policy.patterns import PathPatterns
from headrace.policy.rule_text import (
    parse_effects,
    pattern_below,
    with_rule,
    without_rule,
    without_rule_of_mount,
)

HAND_WRITTEN = (
    '# ours\n[[rule]]\nmatch = ["/a/**"]   # all of it\nttl = "1d"\n\n[tenant.x]\npaths = ["/x/**"]\n'
)


def test_a_rule_is_added_changed_and_removed() -> None:
    first = with_rule(HAND_WRITTEN, "/scratch/**", parse_effects(["ttl=2d", "replicas=2", "tier=nvme,hdd"]))
    assert first.startswith(HAND_WRITTEN)
    effects = parse_policy(first).rules[1].effects
    assert effects["ttl"].seconds == 2 * 86400
    assert effects["replicas"] == 2
    assert tuple(effects["tiers"]) == ("nvme", "hdd")
    both = with_rule(first, "/other/**", parse_effects(["fresh=never"]))
    changed = with_rule(both, "/scratch/**", parse_effects(["admit=never"]))
    assert [rule.effects.keys() for rule in parse_policy(changed).rules[1:]] == [{"admit"}, {"fresh_s"}]
    assert without_rule(changed, "/scratch/**").startswith(HAND_WRITTEN)
    last = without_rule(without_rule(changed, "/scratch/**"), "/other/**")
    assert last == HAND_WRITTEN


def test_a_rule_of_a_mount_ends_with_it() -> None:
    mounted = with_rule(HAND_WRITTEN, "/m/**", parse_effects(["ttl=2d"]), of_mount=True)
    both = with_rule(mounted, "/m/x/**", parse_effects(["ttl=3d"]))
    assert without_rule_of_mount(both, "/m/x") == both  # a rule of the command line
    assert without_rule_of_mount(both, "/other") == both
    assert without_rule_of_mount(mounted, "/m") == HAND_WRITTEN
    assert len(parse_policy(without_rule_of_mount(both, "/m")).rules) == 2
    assert without_rule_of_mount(both, "/\udcff") == both
    replaced = with_rule(mounted, "/m/**", parse_effects(["ttl=4d"]))
    assert len(parse_policy(replaced).rules) == 2 and without_rule_of_mount(replaced, "/m") == replaced
    assert without_rule(mounted, "/m/**") == HAND_WRITTEN


def test_the_first_rule_of_all() -> None:
    text = with_rule("", "/**", parse_effects(["fresh=5m"]))
    assert parse_policy(text).rules[0].effects == {"fresh_s": 300.0}
    assert without_rule(text, "/**") == ""


def test_a_rule_that_somebody_wrote_is_not_removed() -> None:
    with pytest.raises(UsageError, match="no rule of the command line"):
        without_rule(HAND_WRITTEN, "/a/**")


@pytest.mark.parametrize("words", [["ttl"], ["size=3"], ["ttl=1d", "ttl=2d"], ["=1"], [""]])
def test_what_is_no_effect_is_refused(words: list[str]) -> None:
    with pytest.raises(UsageError):
        parse_effects(words)


@settings(max_examples=200, deadline=None)
@given(st.text(min_size=1, max_size=30), st.text(max_size=30))
def test_no_pattern_and_no_value_breaks_out_of_its_line(pattern: str, value: str) -> None:
    try:
        effects = parse_effects([f"ttl={value}"])
    except UsageError:
        return
    text = with_rule(HAND_WRITTEN, pattern, effects)
    assert len(text.splitlines(keepends=False)) >= len(HAND_WRITTEN.splitlines()) + 5
    assert text.count("\n") == HAND_WRITTEN.count("\n") + 5
    assert without_rule(text, pattern) == HAND_WRITTEN


@pytest.mark.parametrize("name", ["😀", "é", "\x7f", "\u2028", "\U000e0001", 'a"b\\c', "\t"])
def test_each_character_survives(name: str) -> None:
    text = with_rule(HAND_WRITTEN, f"/{name}/**", parse_effects(["ttl=2d"]))
    assert parse_policy(text).rules[1].patterns.texts == (f"/{name}/**",)
    assert without_rule(text, f"/{name}/**") == HAND_WRITTEN


@pytest.mark.parametrize("pattern", ["/\udcff/**", "/\ud83d/**"])
def test_what_is_not_utf8_is_refused_with_a_way_out(pattern: str) -> None:
    with pytest.raises(UsageError, match=r"\?"):
        with_rule("", pattern, parse_effects(["ttl=2d"]))
    assert PathPatterns(["/?/**"]).match(b"/\xff/a")


@pytest.mark.parametrize("path", ["/data[1]", "/a*b", "/a?b", "/a\\b", "/!x", "/#x", "/a ", "//x//y/", "/"])
def test_the_pattern_of_a_mount_is_for_its_files_alone(path: str) -> None:
    text = with_rule("", pattern_below(path), parse_effects(["ttl=2d"]))
    patterns = parse_policy(text).rules[0].patterns
    below = "" if path == "/" else normal_path(path)
    assert patterns.match(f"{below}/file".encode()) and patterns.match(f"{below}/d/file".encode())
    for other in ("/data1/file", "/axb/file", "/ab/file", "/a/file", "/x/file"):
        assert patterns.match(other.encode()) == (path == "/")
