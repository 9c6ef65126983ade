"""One word names one thing: `docs/glossary.md` says which, and no name that it replaced comes back."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.survey import PACKAGE, Module, survey

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src" / "headrace").rglob("*.py"))
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()


@survey(PACKAGE)
def public_classes(module: Module) -> Iterator[str]:
    for statement in module.tree.body:
        if isinstance(statement, ast.ClassDef) and not statement.name.startswith("_"):
            yield statement.name


def _classes() -> dict[str, list[str]]:
    """Return the modules that define each public class, by its name."""
    modules = defaultdict(list)
    for module, names in public_classes.findings().items():
        for name in names:
            modules[name].append(module)
    assert len(modules) > 1000
    return modules


def _retired(kind: str) -> set[str]:
    """Return the names of one paragraph of the glossary."""
    (paragraph,) = re.findall(rf"^{kind}: (.*?)\.\n$", GLOSSARY, re.MULTILINE | re.DOTALL)
    names = set(re.split(r",\s+", paragraph))
    assert len(names) > 50
    return names


def test_a_class_name_is_defined_once() -> None:
    assert {name: modules for name, modules in _classes().items() if len(modules) > 1} == {}


def test_no_retired_name_comes_back() -> None:
    modules = {str(source.relative_to(ROOT / "src" / "headrace")) for source in SOURCES}
    assert _retired("Classes") & _classes().keys() == set()
    assert _retired("Modules") & modules == set()


def test_the_glossary_names_classes_that_exist() -> None:
    names = set(re.findall(r"`([A-Z][A-Za-z0-9]+)`", GLOSSARY))
    aliases = re.compile(r"^([A-Z][A-Za-z0-9]+) = ", re.MULTILINE)
    defined = _classes().keys() | {name for path in SOURCES for name in aliases.findall(path.read_text())}
    assert len(names) > 50
    assert names - defined == set()
