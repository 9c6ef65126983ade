"""An object is complete when it is built: nobody assigns the attributes of another one afterwards.

Two kinds of assignment are counted, by the name of the attribute, since types are not known here. A callable is
never assigned from outside. Any attribute of a class with behaviour is assigned within its own package only. Fields of
records (data classes, structs) are free, and so are attributes of objects that are no class of ours.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "src" / "headrace"
RECORDS = ("dataclass", "Struct", "NamedTuple", "local")
EXCEPTIONS = {
    "base/logs.py: record.message",  # a record of the standard library's logging
    "fuse/session.py: call.work",  # what a waiting call does next: its state
    "origin/fsspec_write.py: out.closed",  # a file of fsspec, which has no other way to be given up
}


def is_record(definition: ast.ClassDef) -> bool:
    words = [ast.unparse(node) for node in (*definition.decorator_list, *definition.bases)]
    return any(record in word for word in words for record in RECORDS)


def assigned(tree: ast.AST, *, own: bool) -> Iterator[ast.Attribute]:
    """Attributes that are assigned: of `self` and `cls`, or of anything else."""
    targets = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    for target in targets:
        is_own = isinstance(target.value, ast.Name) and target.value.id in ("self", "cls")
        if isinstance(target.ctx, ast.Store) and is_own is own:
            yield target


def callables(tree: ast.AST) -> Iterator[str]:
    annotated = (node for node in ast.walk(tree) if isinstance(node, ast.AnnAssign))
    for target in (node.target for node in annotated if "Callable" in ast.unparse(node.annotation)):
        if isinstance(target, ast.Attribute):
            yield target.attr
        elif isinstance(target, ast.Name):
            yield target.id


@functools.cache
def patched() -> set[str]:
    trees = {path.relative_to(SOURCES): ast.parse(path.read_text()) for path in SOURCES.rglob("*.py")}
    classes = {
        path: [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        for path, tree in trees.items()
    }
    callable_names = {name for each in classes.values() for member in each for name in callables(member)}
    fields: set[str] = set()
    packages: dict[str, set[str]] = {}
    for path, definitions in classes.items():
        for definition in definitions:
            if is_record(definition):
                annotated = [node.target for node in definition.body if isinstance(node, ast.AnnAssign)]
                fields |= {target.id for target in annotated if isinstance(target, ast.Name)}
            else:
                for attribute in assigned(definition, own=True):
                    packages.setdefault(attribute.attr, set()).add(path.parts[0])
    return {
        f"{path}: {ast.unparse(attribute)}"
        for path, tree in trees.items()
        for attribute in assigned(tree, own=False)
        if attribute.attr in callable_names
        or (
            attribute.attr in packages
            and path.parts[0] not in packages[attribute.attr]
            and (attribute.attr not in fields or attribute.attr.startswith("_"))
        )
    }


def test_no_attribute_of_another_object_is_assigned() -> None:
    assert patched() - EXCEPTIONS == set()


def test_the_exceptions_are_still_there() -> None:
    assert EXCEPTIONS - patched() == set()
