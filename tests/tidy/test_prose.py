"""Names of variables say what they hold, and docstrings begin with a verb."""

from __future__ import annotations

import ast
import contextlib
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.words import FRAGMENTS, RETIRED, spoken_verbs

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src" / "headrace"
EMPTY_NAMES = {"one", "found", "told", "seen", "made", "at", "what"}
PUBLIC_FIELDS = {
    f"{module} what"
    for module in ("base/errors.py", "wire/api.py", "wire/broker_messages.py", "wire/messages.py")
}
"""Fields of errors (what, why, hint), which the public API and the protocols name."""
LOG_CALL = r"log\.(debug|info|warning|error|exception|critical|log)"
PACKAGES = sorted(path.name for path in SOURCES.iterdir() if path.name not in ("__pycache__", "py.typed"))


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


def _programs(text: str) -> Iterator[ast.Module]:
    """Yield the module, and the programs that it has as texts of several lines."""
    module = ast.parse(text)
    yield module
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" in node.value:
            with contextlib.suppress(SyntaxError, ValueError):
                yield ast.parse(textwrap.dedent(node.value))


@pytest.mark.parametrize("folder", ["bench", "tests", "tools"])
def test_a_variable_of_a_script_or_test_is_the_noun_of_what_it_holds(folder: str) -> None:
    empty = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for program in _programs(path.read_text())
        for node in ast.walk(program)
        for name, line in _bound_names(node)
        if name in EMPTY_NAMES
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


def _log_messages(tree: ast.Module) -> Iterator[tuple[int, ast.expr]]:
    """Yield the line and the message of each call of `log`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and re.fullmatch(LOG_CALL, ast.unparse(node.func)):
            yield node.lineno, node.args[1 if ast.unparse(node.func) == "log.log" else 0]


def is_log_message(message: ast.expr) -> bool:
    """Return whether it is a constant of several words, without retired ones, followed by `key=value`."""
    if not (isinstance(message, ast.Constant) and isinstance(message.value, str)):
        return False
    sentence = re.split(r" \w+=%", message.value)[0]
    return " " in sentence and "%" not in sentence and not RETIRED.search(sentence)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_log_message_is_a_constant_sentence(package: str) -> None:
    wrong = [
        f"{module}:{line} {ast.unparse(message)}"
        for module, tree in _modules(package)
        for line, message in _log_messages(tree)
        if not is_log_message(message)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "call", ["f'file {path}'", "'%s failed', name", "'failed'", "'node told again'", "text"]
)
def test_other_log_messages_are_found(call: str) -> None:
    tree = ast.parse(f"log.warning({call})\nlog.log(level, 'a file was dropped id=%x', id)")
    (_, wrong), (_, right) = _log_messages(tree)
    assert not is_log_message(wrong)
    assert is_log_message(right)
