"""Patterns of policies match the paths that git ignores, also where names have newlines."""

from __future__ import annotations

import contextlib
import os
import random
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
TOKENS = [
    *(
        "a",
        "d",
        "f",
        "x",
        "-",
        "/",
        "*",
        "?",
        "**",
        "[",
        "]",
        "!",
        "^",
        "\\",
        "$",
        "|",
        "#",
        " ",
        "(",
        ")",
        "{",
    ),
    *(
        "[a",
        "[!a",
        "[^a",
        "[]",
        "[a-f]",
        "[!a-d]",
        "[[:alpha:]]",
        "[\\",
        "[\\]",
        r"\[",
        r"\\",
        "+",
        "\t",
        "&&",
        "~~",
    ),
]
ODD_NAMES = [
    *(
        "a",
        "d",
        "f",
        "x",
        "ad",
        "da",
        "-",
        "]",
        "[",
        "\\",
        "^",
        "!",
        "a]",
        "d]f",
        "afx",
        "a-f",
        "$",
        "|",
        "#",
        "a ",
    ),
    *("a\t", " ", "a f", "\\d", "+", "(", "{", "&", "~", ":", "["),
]
ODD_DIRECTORIES = ["", "a/", "d/", "d/f/", "x/a/", "]/", "-/"]
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


@pytest.mark.parametrize(
    ("pattern", "path", "other"),
    [
        ("/a\nb", b"/a\nb", b"/axb"),
        ("\na", b"/d/\na", b"/d/a"),
        ("/a\nb/**", b"/a\nb/c", b"/ab/c"),
        ("/a\n*", b"/a\nx", b"/a"),
        ("[\n]x", b"/\nx", b"/nx"),
        ("/a\n\\ ", b"/a\n ", b"/a\n"),
    ],
)
def test_a_newline_in_a_pattern_is_a_character_as_others(pattern: str, path: bytes, other: bytes) -> None:
    assert PathPatterns([pattern]).match(path)
    assert not PathPatterns([pattern]).match(other)


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


@pytest.mark.parametrize(
    "pattern",
    ["/d/[[:alpha:]]", "[![:digit:]]", r"/d/[\]a]", r"[\d]", r"/d/[a-\z]", r"[\]", "[a[:space:]b]*", "[]\\]"],
)
def test_what_the_library_reads_in_brackets_unlike_git_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="in brackets: write the characters"):
        PathPatterns([pattern])


@pytest.mark.parametrize("pattern", ["a\t", "a\t ", "/d/f\r", "a\x0b", "a\u00a0"])
def test_white_space_at_the_end_that_git_keeps_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="ends with white space"):
        PathPatterns([pattern])


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        (r"/d\ e/f", "/d e/f"),
        (r"/d/\!f", "/d/!f"),
        (r"/\#d/f", "/#d/f"),
        (r"/a\b/c", "/ab/c"),
        ("/d/f ", "/d/f"),
        ("/a\\\\ ", "/a\\"),
        (r"/d/f\ ", "/d/f "),
        (r"/d\e/**", "/de/f"),
    ],
)
def test_a_rule_holds_for_names_with_backslashes_and_spaces(pattern: str, path: str) -> None:
    assert PathPatterns([pattern]).match(path.encode())
    policy = PolicyResolver(parse_policy(f"[[rule]]\nttl = \"1h\"\nmatch = ['{pattern}']\n"))
    assert policy.of(path.encode()).ttl == TimeToLive(3600.0)


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
    for pattern in PATTERNS:
        (tmp_path / ".gitignore").write_text(pattern + "\n")
        ignored = _ignored_by_git(tmp_path, PATHS)
        patterns = PathPatterns([pattern])
        for path in PATHS:
            assert patterns.match(f"/{path}".encode()) == (path.encode() in ignored), (pattern, path)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_git_ignores_the_same_paths_by_random_patterns(tmp_path: Path) -> None:
    """Each pattern has a directory of its own, so that git is asked once."""
    random_ = random.Random(7)
    patterns: dict[str, PathPatterns] = {}
    while len(patterns) < 400:
        pattern = "".join(random_.choices(TOKENS, k=random_.randint(1, 6)))
        if not pattern.startswith("!") and pattern not in ("/", "**/"):  # git asks about the directory itself
            with contextlib.suppress(ValueError):  # refused
                patterns[pattern] = PathPatterns([pattern])
    for number, pattern in enumerate(patterns):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / ".gitignore").write_text(f"{pattern}\n")
    paths = [f"{directory}{name}" for directory in ODD_DIRECTORIES for name in ODD_NAMES]
    ignored = _ignored_by_git(tmp_path, [f"{n}/{path}" for n in range(len(patterns)) for path in paths])
    for number, (pattern, compiled) in enumerate(patterns.items()):
        for path in paths:
            is_ignored = f"{number}/{path}".encode() in ignored
            assert compiled.match(f"/{path}".encode()) == is_ignored, (pattern, path)


def _ignored_by_git(top: Path, paths: list[str]) -> set[bytes]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(top), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", "init", "-q", str(top)], check=True, env=environment)
    command = ["git", "-C", str(top), "check-ignore", "--no-index", "-z", "--stdin"]
    shown = subprocess.run(
        command, input="\0".join(paths).encode(), stdout=subprocess.PIPE, env=environment, check=False
    )
    return set(shown.stdout.split(b"\0"))


@given(st.sampled_from(PATTERNS), st.text("df\n\r$", min_size=1, max_size=4), st.text("df\n\r$", max_size=4))
def test_a_newline_is_a_character_as_others(pattern: str, first: str, second: str) -> None:
    """Replace newlines by a letter that no pattern has: nothing else changes."""
    path = f"/{first}/{second}".rstrip("/")
    patterns = PathPatterns([pattern])
    assert patterns.match(path.encode()) == patterns.match(re.sub("[\r\n]", "q", path).encode())
