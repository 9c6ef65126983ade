"""Directories that a node seals by itself: of mounts, of rules, and of rules below and above mounts."""

from __future__ import annotations

import pytest

from headrace.jobs.data_sets import data_sets
from headrace.policy.document import parse_policy
from headrace.policy.resolve import PolicyResolver

MOUNTS = [b"/a", b"/b", b"/b/inner", b"/c/d"]


@pytest.mark.parametrize(
    ("rules", "by_default", "expected"),
    [
        ([], False, {}),
        ([], True, {b"/a": "", b"/b": "", b"/c/d": ""}),
        ([("/a/**", "off")], True, {b"/b": "", b"/c/d": ""}),
        ([("/a/**", "auto")], False, {b"/a": ""}),
        ([("/a", "auto")], False, {b"/a": ""}),
        ([("/**", "auto")], False, {b"/a": "", b"/b": "", b"/c/d": ""}),
        ([("/c/**", "auto")], False, {b"/c/d": ""}),
        ([("/a/x/**", "auto"), ("a/y/", "auto")], False, {b"/a/x": "", b"/a/y": ""}),
        ([("/a/x/**", "auto"), ("/a/x/z/**", "auto")], False, {b"/a/x": ""}),
        (
            [("/a/x/**", "auto"), ("/a/x/z/**", "off")],
            False,
            {b"/a/x": "a rule of the policy says off for /a/x/z"},
        ),
        (
            [("/a/x/**", "off")],
            True,
            {b"/a": "a rule of the policy says off for /a/x", b"/b": "", b"/c/d": ""},
        ),
        ([("/a/x/**", "off"), ("/a/x/**", "auto")], False, {b"/a/x": ""}),
        ([("/nowhere/**", "auto"), ("*.jpg", "auto")], False, {}),
        ([("/a/*/**", "auto")], False, {}),
        ([("/b/inner/**", "auto")], False, {b"/b/inner": ""}),
    ],
)
def test_data_sets_of_mounts_and_rules(
    rules: list[tuple[str, str]], by_default: bool, expected: dict[bytes, str]
) -> None:
    text = "".join(f'[[rule]]\nmatch = ["{match}"]\nseal = "{value}"\n' for match, value in rules)
    assert data_sets(MOUNTS, PolicyResolver(parse_policy(text)), by_default=by_default) == expected


@pytest.mark.timeout(60)
def test_many_mounts_are_no_load() -> None:
    """A node looks at them all every few seconds, on its loop. Comparing all pairs would take minutes."""
    mounts = [b"/%d/data" % number for number in range(20_000)]
    rules = "".join(f'[[rule]]\nmatch = ["/{number}/data/part/**"]\nseal = "off"\n' for number in range(9))
    chosen = data_sets([*mounts, b"/0/data/inner"], PolicyResolver(parse_policy(rules)), by_default=True)
    assert chosen.keys() == set(mounts)
    assert chosen[b"/8/data"] == "a rule of the policy says off for /8/data/part" and chosen[b"/9/data"] == ""
