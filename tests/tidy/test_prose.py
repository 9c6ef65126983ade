"""Names of variables say what they hold, and docstrings begin with a verb."""

from __future__ import annotations

import ast
import contextlib
import itertools
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.tidy.survey import PACKAGE, Function, Module, survey, walk
from tests.tidy.words import FRAGMENTS, RETIRED, spoken_verbs

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src" / "headrace"
VERBS = spoken_verbs()
EMPTY_NAMES = {"one", "found", "told", "seen", "made", "at", "what"}
PUBLIC_FIELDS = {
    f"{module} what"
    for module in ("base/errors.py", "wire/api.py", "wire/broker_messages.py", "wire/messages.py")
}
"""Fields of errors (what, why, hint), which the public API and the protocols name."""
LOG_METHODS = ("debug", "info", "warning", "error", "exception", "critical", "log")
PACKAGES = sorted(path.name for path in SOURCES.iterdir() if path.name not in ("__pycache__", "py.typed"))


def _of_package(package: str) -> str:
    """Return how names of its modules begin."""
    return f"{PACKAGE}{package}" if package.endswith(".py") else f"{PACKAGE}{package}/"


def test_each_module_is_of_a_package_that_is_asked_for() -> None:
    prefixes = tuple(map(_of_package, PACKAGES))
    modules = [path.relative_to(ROOT).as_posix() for path in SOURCES.rglob("*.py")]
    assert [module for module in modules if not module.startswith(prefixes)] == []


def _bound_names(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    """Yield the names that nodes bind, with their lines: variables, arguments, attributes."""
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno


def _empty_names(module: Module) -> Iterator[tuple[str, int]]:
    binding = (*module.nodes(ast.Name), *module.nodes(ast.Attribute), *module.nodes(ast.arg))
    return ((name, line) for name, line in _bound_names(binding) if name in EMPTY_NAMES)


@survey(PACKAGE)
def empty_names(module: Module) -> Iterator[str]:
    path = module.name.removeprefix(PACKAGE)
    for name, line in _empty_names(module):
        if f"{path} {name}" not in PUBLIC_FIELDS:
            yield f"{path}:{line} {name}"


@pytest.mark.parametrize("package", PACKAGES)
def test_a_variable_is_the_noun_of_what_it_holds(package: str) -> None:
    assert empty_names.findings_in(_of_package(package)) == []


def _programs(module: Module) -> Iterator[ast.Module]:
    """Yield the programs that a module has as texts of several lines."""
    for node in module.nodes(ast.Constant):
        if isinstance(node.value, str) and "\n" in node.value:
            with contextlib.suppress(SyntaxError, ValueError):
                yield ast.parse(textwrap.dedent(node.value))


@survey("bench/", "tests/", "tools/")
def empty_names_of_scripts(module: Module) -> Iterator[str]:
    """Yield those of the module, and of the programs in it."""
    yield from (f"{module.name}:{line} {name}" for name, line in _empty_names(module))
    for program in _programs(module):
        bound = _bound_names(walk(program))
        yield from (f"{module.name}:{line} {name}" for name, line in bound if name in EMPTY_NAMES)


@pytest.mark.parametrize("folder", ["bench", "tests", "tools"])
def test_a_variable_of_a_script_or_test_is_the_noun_of_what_it_holds(folder: str) -> None:
    assert empty_names_of_scripts.findings_in(f"{folder}/") == []


def test_each_way_to_bind_a_name_is_found() -> None:
    first, second, third, fourth, used, *_ = sorted(EMPTY_NAMES)
    text = f"def f({first}): pass\n{second} = {used}\nself.{third} = 1\nPROGRAM = '''\n{fourth} = 1\n'''\n"
    names = [finding.split()[1] for finding in empty_names_of_scripts.look(Module("a.py", text))]
    assert sorted(names) == [first, second, third, fourth]
    assert len(empty_names.look(Module(f"{PACKAGE}a.py", text))) == 3


@survey(PACKAGE)
def fragments(module: Module) -> Iterator[str]:
    """Yield the first words of docstrings that are no verbs, or of classes and modules, that begin no sentence."""
    documented: list[Function | ast.ClassDef | ast.Module] = [module.tree, *module.nodes(ast.ClassDef)]
    for node in [*documented, *module.functions()]:
        first = (ast.get_docstring(node) or "").split(maxsplit=1)[:1]
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if first and (first[0] not in VERBS if is_function else first[0] in FRAGMENTS):
            yield f"{module.name}:{getattr(node, 'lineno', 1)} {first[0]}"


@pytest.mark.parametrize("package", PACKAGES)
def test_a_docstring_begins_with_a_verb(package: str) -> None:
    assert fragments.findings_in(_of_package(package)) == []


def _texts_below_variables(module: Module) -> Iterator[ast.Constant]:
    """Yield the docstrings of constants and attributes: each stands below an assignment."""
    for node in [module.tree, *module.nodes(ast.ClassDef), *module.functions()]:
        for before, after in itertools.pairwise(node.body):
            text = after.value if isinstance(after, ast.Expr) else None
            if isinstance(before, ast.Assign | ast.AnnAssign) and isinstance(text, ast.Constant):
                yield text


@survey(PACKAGE)
def fragments_below_variables(module: Module) -> Iterator[str]:
    for text in _texts_below_variables(module):
        first = str(text.value).split(maxsplit=1)[:1]
        if first and first[0] in FRAGMENTS:
            yield f"{module.name}:{text.lineno} {first[0]}"


def test_a_docstring_of_a_variable_begins_a_sentence() -> None:
    assert fragments_below_variables.findings() == {}


@survey("tests/", "tools/")
def fragments_of_scripts(module: Module) -> Iterator[str]:
    """Yield the docstrings that complete the name above them: "Of the node." says nothing by itself."""
    documented: list[Function | ast.ClassDef | ast.Module] = [module.tree, *module.nodes(ast.ClassDef)]
    for node in [*documented, *module.functions()]:
        if (ast.get_docstring(node) or "").startswith("Of "):
            yield f"{module.name}:{getattr(node, 'lineno', 1)}"
    for text in _texts_below_variables(module):
        if str(text.value).startswith("Of "):
            yield f"{module.name}:{text.lineno}"


def test_no_docstring_of_a_script_or_test_completes_a_name() -> None:
    assert fragments_of_scripts.findings() == {}


CLAUSES = ("As", "How", "What", "When", "Where", "Whether", "Which", "Who", "Whose")
"""First words of docstrings that leave out what the function does: "What it reads."."""


@survey("bench/", "tests/", "tools/")
def clauses_of_scripts(module: Module) -> Iterator[str]:
    documented: list[Function | ast.ClassDef | ast.Module] = [module.tree, *module.nodes(ast.ClassDef)]
    for node in [*documented, *module.functions()]:
        first = (ast.get_docstring(node) or "").split(maxsplit=1)[:1]
        if first and first[0] in CLAUSES:
            yield f"{module.name}:{getattr(node, 'lineno', 1)} {first[0]}"


def test_no_docstring_of_a_script_or_test_begins_with_a_clause() -> None:
    assert clauses_of_scripts.findings() == {}


def test_a_clause_is_found() -> None:
    text = "'What it is.'\nclass A:\n    'As it is.'\ndef f():\n    'Whatever it is.'\n"
    assert clauses_of_scripts.look(Module("a.py", text)) == ["a.py:1 What", "a.py:2 As"]


def test_a_fragment_below_a_variable_is_found() -> None:
    text = "A = 1\n'What it is.'\nclass B:\n    c: int\n    'Of it.'\n    d = 1\n    'The other one.'\n"
    assert fragments_below_variables.look(Module("a.py", text)) == ["a.py:2 What", "a.py:5 Of"]
    functions = "def f():\n    'Of it.'\n"
    assert fragments_of_scripts.look(Module("a.py", functions + text)) == ["a.py:1", "a.py:7"]


def test_a_fragment_is_found() -> None:
    methods = "    def f(self):\n        'The name.'\n    async def g(self):\n        'Return it.'\n"
    module = Module("a.py", f"'What it is.'\nclass A:\n    'Of it.'\n{methods}")
    assert fragments.look(module) == ["a.py:1 What", "a.py:2 Of", "a.py:4 The"]


def _log_messages(module: Module) -> Iterator[tuple[int, ast.expr]]:
    """Yield the line and the message of each call of `log`."""
    for node in module.nodes(ast.Call):
        method = node.func
        if not isinstance(method, ast.Attribute) or not isinstance(method.value, ast.Name):
            continue
        if method.value.id == "log" and method.attr in LOG_METHODS:
            yield node.lineno, node.args[1 if method.attr == "log" else 0]


def is_log_message(message: ast.expr) -> bool:
    """Return whether it is a constant of several words, without retired ones, followed by `key=value`."""
    if not (isinstance(message, ast.Constant) and isinstance(message.value, str)):
        return False
    sentence = re.split(r" \w+=%", message.value)[0]
    return " " in sentence and "%" not in sentence and not RETIRED.search(sentence)


@survey(PACKAGE)
def other_log_messages(module: Module) -> Iterator[str]:
    for line, message in _log_messages(module):
        if not is_log_message(message):
            yield f"{module.name}:{line} {ast.unparse(message)}"


@pytest.mark.parametrize("package", PACKAGES)
def test_a_log_message_is_a_constant_sentence(package: str) -> None:
    assert other_log_messages.findings_in(_of_package(package)) == []


@pytest.mark.parametrize(
    "call", ["f'file {path}'", "'%s failed', name", "'failed'", "'node told again'", "text"]
)
def test_other_log_messages_are_found(call: str) -> None:
    module = Module("a.py", f"log.warning({call})\nlog.log(level, 'a file was dropped id=%x', id)")
    (_, wrong), (_, right) = _log_messages(module)
    assert not is_log_message(wrong)
    assert is_log_message(right)
