"""Names of variables say what they hold, and docstrings begin with a verb."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "src" / "headrace"
VERBS_FILE = Path(__file__).with_name("verbs.txt")
EMPTY_NAMES = {"one", "found", "told", "seen", "made", "at", "what"}
PUBLIC_FIELDS = {
    f"{module} what"
    for module in ("base/errors.py", "wire/api.py", "wire/broker_messages.py", "wire/messages.py")
}
"""Fields of errors (what, why, hint), which the public API and the protocols name."""
FRAGMENTS = {
    *(
        "What",
        "Of",
        "Whether",
        "Who",
        "Whoever",
        "Whose",
        "As",
        "By",
        "So",
        "That",
        "Until",
        "In",
        "On",
        "At",
        "To",
    ),
    *(
        "Where",
        "When",
        "While",
        "How",
        "With",
        "Without",
        "For",
        "From",
        "After",
        "Before",
        "None",
        "None:",
        "Beside",
    ),
}
PACKAGES = sorted(path.name for path in SOURCES.iterdir() if path.name not in ("__pycache__", "py.typed"))


def spoken_verbs() -> set[str]:
    """Return verbs as docstrings begin with them: "Return", "Returns"."""
    verbs = set(VERBS_FILE.read_text().split())
    thirds = {verb[:-1] + "ies" for verb in verbs if verb.endswith("y")} | {verb + "es" for verb in verbs}
    return {word.capitalize() for word in verbs | thirds | {verb + "s" for verb in verbs}}


def _modules(package: str) -> Iterator[tuple[str, ast.Module]]:
    path = SOURCES / package
    for source in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
        yield str(source.relative_to(SOURCES)), ast.parse(source.read_text())


def _bound_names(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the names that a node binds, with their lines: variables, arguments, attributes."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id, node.lineno
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr, node.lineno
    elif isinstance(node, ast.arg):
        yield node.arg, node.lineno


@pytest.mark.parametrize("package", PACKAGES)
def test_a_variable_is_the_noun_of_what_it_holds(package: str) -> None:
    empty = [
        f"{module}:{line} {name}"
        for module, tree in _modules(package)
        for node in ast.walk(tree)
        for name, line in _bound_names(node)
        if name in EMPTY_NAMES and f"{module} {name}" not in PUBLIC_FIELDS
    ]
    assert empty == []


@pytest.mark.parametrize("package", PACKAGES)
def test_a_docstring_begins_with_a_verb(package: str) -> None:
    verbs = spoken_verbs()
    fragments = []
    for module, tree in _modules(package):
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
                continue
            first = (ast.get_docstring(node) or "").split(maxsplit=1)[:1]
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if first and (first[0] not in verbs if is_function else first[0] in FRAGMENTS):
                fragments.append(f"{module}:{getattr(node, 'lineno', 1)} {first[0]}")
    assert fragments == []
