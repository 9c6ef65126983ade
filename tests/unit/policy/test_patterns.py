"""Patterns of policies match the paths that git ignores, also where names have newlines."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.policy.document import PolicyFaultsError, parse_policy
from headrace.policy.effects import TimeToLive
from headrace.policy.patterns import PathPatterns
from headrace.policy.resolve import PolicyResolver

PATTERNS = [
    *("/d/**", "/d/*", "/d/", "/d", "d", "d/", "/d/f", "*", "**", "/*", "/**", "*/", "**/", "/*/", "/*/**"),
    *("**/d/**", "**/d", "d/**/f", "/d/**/f", "/*/f", "*.tmp", "/d/*.tmp", "d*", "*f", "*d*", "**/*f"),
    *("?", "/?", "d?", "?d", "/d/?", "f?", "/?/f", "[df]", "/d/[f]", "d[!x]", "d[^x]", "/[!x]/f", "[!x]*"),
    *("[$]", "d$", "/d/[|$)]", r"\d", "d.f", "d|f"),
    *(
        "/d[!x]f",
        "/d[^x]f",
        "/d[+-9]f",
        "/d[]+-9]f",
        "/x[!q]d",
        "/x[!q]d/**",
        "d[!q]x",
        "**/d[!q]f",
        r"/d\[!x]f",
    ),
]
NAMES = [  # ASCII: a ? of git is a byte, and here a character
    *("d", "f", "x", "\n", "\r", "\r\n", "d\n", "\nd", "d\r", "f\n", "\nf", "d\nf", "f\r\n", "\n\n", "d\n\n"),
    *("f.tmp", "f\n.tmp", "f.tmp\n", "f.t\nmp", "$", "$\n", "d$", "d$\n", "d|f", "d\x0b", "d\x1c"),
]
DIRECTORIES = [
    *("", "d", "d\n", "\nd", "x", "\n", "\r", "d/x", "d/\n", "x/d", "\n/d", "\n/d\n", "d/x\ny/z", "x\n/y\n")
]
PATHS = [f"{directory}/{name}".strip("/") for directory in DIRECTORIES for name in NAMES]


@pytest.mark.parametrize(
    "pattern", ["/d/**", "/d/*", "/d/", "/d", "d", "*", "**", "/**", "/d/**/*", "**/d/**"]
)
@pytest.mark.parametrize(
    "name", ["\n", "a\n", "\na", "a\nb", "\r", "a\r", "\r\n", "a\r\n", "\n/a", "a/\n", "\n/\n"]
)
def test_no_newline_in_a_name_evades_a_pattern(pattern: str, name: str) -> None:
    assert PathPatterns([pattern]).match(f"/d/{name}".encode())


@pytest.mark.parametrize("pattern", ["**/t/**", "t/", "**/t", "t", "**/t/*"])
@pytest.mark.parametrize("above", ["\n", "a\nb", "a/\n", "\n/a", "\r"])
def test_no_newline_in_a_directory_evades_a_pattern_for_any_depth(pattern: str, above: str) -> None:
    assert PathPatterns([pattern]).match(f"/{above}/t/f".encode())


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("/a", "/a\n"),
        ("a.tmp", "/d/a.tmp\n"),
        ("*.tmp", "/a.tmp\n"),
        ("/d/?", "/d/a\n"),
        ("/d/[a]", "/d/a\n"),
        ("/d/f", "/d\n/f"),
    ],
)
def test_a_newline_at_the_end_is_part_of_the_name(pattern: str, name: str) -> None:
    assert not PathPatterns([pattern]).match(name.encode())
    assert PathPatterns(["/**", f"!{pattern}"]).match(name.encode())


@pytest.mark.parametrize("pattern", ["/d/?", "/d/*", "/d/[!x]", "/?/?", "?", "[!x]"])
@pytest.mark.parametrize("name", ["\n", "\r", "\x0b", "\x85"])
def test_a_wildcard_stands_for_a_newline(pattern: str, name: str) -> None:
    assert PathPatterns([pattern]).match(f"/d/{name}".encode())


@pytest.mark.parametrize("pattern", ["!/d/x[!a]y", "!/d/x[^a]y", "!/d/x[+-9]y", "!/d/x[]!-~]y"])
def test_brackets_stand_for_no_slash(pattern: str) -> None:
    """A user could make a directory that leads out of a rule."""
    assert PathPatterns(["/d/**", pattern]).match(b"/d/x/y")
    assert not PathPatterns(["/d/**", pattern]).match(b"/d/x.y")


@pytest.mark.parametrize("pattern", ["/d/[a", "/d/x[!a", "!/d/[", "/d/[]", "/d/[^]f", "/d[a/b]c", "[a"])
def test_a_bracket_without_its_end_is_refused(pattern: str) -> None:
    """Git takes it as a pattern that matches nothing: a rule would seem to work."""
    with pytest.raises(PolicyFaultsError) as raised:
        parse_policy(f'[[rule]]\nttl = "1h"\nmatch = ["/e/**", "{pattern}"]\n')
    assert [fault.line for fault in raised.value.faults] == [3]
    assert r"write \[ for a bracket in a name" in str(raised.value)
    assert PathPatterns([r"/d/\[a"]).match(b"/d/[a")


def test_a_limit_and_a_life_hold_for_names_with_newlines() -> None:
    rule = '[[rule]]\nmatch = ["**/scratch/**"]\nttl = "1h"\n'
    text = f'{rule}[tenant.a]\npaths = ["**/a/**", "!*.free"]\nlimit = "1GiB"\n'
    policy = PolicyResolver(parse_policy(text))
    for path in (b"/\n/scratch/f", b"/x\ny/scratch/f\n", b"/scratch/\n", b"/scratch/\n\n/\r\n"):
        assert policy.of(path).ttl == TimeToLive(3600.0)
        assert policy.of_directory(os.path.dirname(path)).ttl == TimeToLive(3600.0)
    for path in (b"/\n/a/f", b"/x\ny/a/f\n", b"/a/\n", b"/a/f.free\n"):
        assert policy.of(path).tenant == "a"
        assert {decision.effect: decision.value for decision in policy.explain(path)}["tenant"] == "a"


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_git_ignores_the_same_paths(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, env=environment)
    for pattern in PATTERNS:
        (tmp_path / ".gitignore").write_text(pattern + "\n")
        command = ["git", "-C", str(tmp_path), "check-ignore", "--no-index", "-z", "--stdin"]
        shown = subprocess.run(
            command, input="\0".join(PATHS).encode(), stdout=subprocess.PIPE, env=environment, check=False
        )
        ignored = set(shown.stdout.split(b"\0"))
        patterns = PathPatterns([pattern])
        for path in PATHS:
            assert patterns.match(f"/{path}".encode()) == (path.encode() in ignored), (pattern, path)


@given(st.sampled_from(PATTERNS), st.text("df\n\r$", min_size=1, max_size=4), st.text("df\n\r$", max_size=4))
def test_a_newline_is_a_character_as_others(pattern: str, first: str, second: str) -> None:
    """Replace newlines by a letter that no pattern has: nothing else changes."""
    path = f"/{first}/{second}".rstrip("/")
    patterns = PathPatterns([pattern])
    assert patterns.match(path.encode()) == patterns.match(re.sub("[\r\n]", "q", path).encode())
