"""An object is complete when it is built: nobody assigns the attributes of another one afterwards.

Two kinds of assignment are counted, by the name of the attribute, since types are not known here. A callable is
never assigned from outside. Any attribute of a class with behaviour is assigned within its own package only. Fields of
records (data classes, structs) are free, and so are attributes of objects that are no class of ours.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.tidy.survey import PACKAGE, Module, survey, walk

RECORDS = ("dataclass", "Struct", "NamedTuple", "local")
EXCEPTIONS = {
    "base/logs.py: record.message",  # a record of the standard library's logging
    "fuse/session.py: call.work",  # what a waiting call does next: its state
    "origin/fsspec_write.py: out.closed",  # a file of fsspec, which has no other way to be given up
}


@dataclass
class ModuleAssignments:
    """Holds what one module says of attributes. callables, fields, own: names of those that hold a callable, that a
    record has, that a class with behaviour assigns. foreign: (name, text) of each that is assigned from outside."""

    callables: set[str] = field(default_factory=set)
    fields: set[str] = field(default_factory=set)
    own: set[str] = field(default_factory=set)
    foreign: list[tuple[str, str]] = field(default_factory=list)


def is_record(definition: ast.ClassDef) -> bool:
    words = [ast.unparse(node) for node in (*definition.decorator_list, *definition.bases)]
    return any(record in word for word in words for record in RECORDS)


def assigned(nodes: Iterable[ast.AST], *, own: bool) -> Iterator[ast.Attribute]:
    """Attributes that are assigned: of `self` and `cls`, or of anything else."""
    for target in nodes:
        if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store):
            is_own = isinstance(target.value, ast.Name) and target.value.id in ("self", "cls")
            if is_own is own:
                yield target


def callables(nodes: Iterable[ast.AST]) -> Iterator[str]:
    annotated = (node for node in nodes if isinstance(node, ast.AnnAssign))
    for target in (node.target for node in annotated if "Callable" in ast.unparse(node.annotation)):
        if isinstance(target, ast.Attribute):
            yield target.attr
        elif isinstance(target, ast.Name):
            yield target.id


@survey(PACKAGE)
def assignments(module: Module) -> Iterator[ModuleAssignments]:
    names = ModuleAssignments()
    for definition in module.nodes(ast.ClassDef):
        nodes = walk(definition)
        names.callables.update(callables(nodes))
        if is_record(definition):
            annotated = [node.target for node in definition.body if isinstance(node, ast.AnnAssign)]
            names.fields.update(target.id for target in annotated if isinstance(target, ast.Name))
        else:
            names.own.update(attribute.attr for attribute in assigned(nodes, own=True))
    foreign = assigned(module.nodes(ast.Attribute), own=False)
    names.foreign = [(attribute.attr, ast.unparse(attribute)) for attribute in foreign]
    yield names


@functools.cache
def patched() -> set[str]:
    modules = {name.removeprefix(PACKAGE): names for name, (names,) in assignments.findings().items()}
    callable_names = set().union(*(names.callables for names in modules.values()))
    fields = set().union(*(names.fields for names in modules.values()))
    packages: dict[str, set[str]] = {}
    for path, names in modules.items():
        for attribute in names.own:
            packages.setdefault(attribute, set()).add(path.split("/")[0])
    return {
        f"{path}: {text}"
        for path, names in modules.items()
        for attribute, text in names.foreign
        if attribute in callable_names
        or (
            attribute in packages
            and path.split("/")[0] not in packages[attribute]
            and (attribute not in fields or attribute.startswith("_"))
        )
    }


def test_no_attribute_of_another_object_is_assigned() -> None:
    assert patched() - EXCEPTIONS == set()


def test_the_exceptions_are_still_there() -> None:
    assert EXCEPTIONS - patched() == set()
