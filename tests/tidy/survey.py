"""Read, parse and walk each Python file of the project once for all tests of this package.

A test module decorates a function that yields what it looks for in one file with `survey`. The first test that asks for
findings runs all surveys over each file in one pass. No syntax tree outlives its file: together they would take a
gigabyte. `tests/conftest.py` gives all tests of this package to one process of a run.
"""

from __future__ import annotations

import ast
import functools
import gc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Generic, TypeVar

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "src/headrace/"

Finding = TypeVar("Finding")
Node = TypeVar("Node", bound=ast.AST)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def walk(top: ast.AST) -> list[ast.AST]:
    """Return the node and all below it, in the order of `ast.walk` but in a third of its time. `Load`, `Store` and
    `Del` are left out: an attribute of their node says the same."""
    nodes = [top]
    for node in nodes:  # which grows
        for value in vars(node).values():
            if isinstance(value, list):
                nodes += [item for item in value if isinstance(item, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                nodes.append(value)
    return nodes


class Module:
    """One Python file. name: its path below the root of the project."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.tree = ast.parse(text)
        self._nodes: dict[type[ast.AST], list[Any]] = {}
        for node in walk(self.tree):
            self._nodes.setdefault(type(node), []).append(node)

    def nodes(self, kind: type[Node]) -> list[Node]:
        """Return the nodes of exactly this kind, in the order of `ast.walk`."""
        return self._nodes.get(kind, [])

    def functions(self) -> list[Function]:
        """Return the functions, those with `async` last."""
        return [*self.nodes(ast.FunctionDef), *self.nodes(ast.AsyncFunctionDef)]


class Survey(Generic[Finding]):
    """Holds what one function finds in each module of some folders."""

    def __init__(self, look: Callable[[Module], Iterable[Finding]], folders: tuple[str, ...]) -> None:
        self._look = look
        self._folders = folders

    def covers(self, name: str) -> bool:
        return name.startswith(self._folders)

    def look(self, module: Module) -> list[Finding]:
        """Return what the function finds in one module."""
        return list(self._look(module))

    def findings(self) -> dict[str, list[Finding]]:
        """Return the findings by the name of their module. Modules without any are left out."""
        return _run_all(len(_surveys))[self]

    def findings_in(self, folder: str) -> list[Finding]:
        """Return the findings of the modules whose names begin like this."""
        modules = self.findings().items()
        return [finding for name, findings in modules if name.startswith(folder) for finding in findings]


_surveys: list[Survey[Any]] = []


def survey(
    *folders: str,
) -> Callable[[Callable[[Module], Iterable[Finding]]], Survey[Finding]]:
    """Make a survey of a function. folders: paths below the root of the project, with a slash at their ends."""

    def decorate(look: Callable[[Module], Iterable[Finding]]) -> Survey[Finding]:
        _surveys.append(Survey(look, folders))
        return _surveys[-1]

    return decorate


@functools.cache
def _run_all(count: int) -> dict[Survey[Any], dict[str, list[Any]]]:
    """Return the findings of all surveys. count: how many there are, so that a later one has its own pass."""
    findings: dict[Survey[Any], dict[str, list[Any]]] = {each: {} for each in _surveys}
    gc.disable()  # a tree has no circles, and many nodes to look through
    try:
        for folder in ("src", "tests", "bench", "tools"):
            for path in sorted((ROOT / folder).rglob("*.py")):
                _look_through(path, findings)
    finally:
        gc.enable()
    return findings


def _look_through(path: Path, findings: dict[Survey[Any], dict[str, list[Any]]]) -> None:
    name = path.relative_to(ROOT).as_posix()
    wanted = [each for each in findings if each.covers(name)]
    module = Module(name, path.read_text()) if wanted else None
    for each in wanted:
        if module is not None and (found_here := each.look(module)):
            findings[each][name] = found_here
