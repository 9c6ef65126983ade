"""The rules of the house that no other tool keeps."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.survey import Module, survey, walk

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
CODE = [*SOURCES, *sorted([*(ROOT / "tests").rglob("*.py"), *(ROOT / "bench").rglob("*.py")])]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "changes").glob("*.md")])
MODULE_LINES_MAX = 700
FUNCTION_LINES_MAX = 70
NO_NAMES = ("util", "utils", "common", "helper", "helpers", "misc")
NESTED_ASYNC = {
    "tests/security/test_broker.py: test_the_nodes_own_work_goes_on_between_requests",
    "tests/security/test_spoiled_records.py: test_copies_are_dropped_only_where_a_record_says_so",
    "tests/unit/testing/test_virtual_loop.py: test_a_day_passes_at_once_and_every_clock_of_a_task_agrees",
}
MARKS = re.compile("|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@survey("src/", "tests/", "bench/")
def lengths(module: Module) -> Iterator[tuple[str, int]]:
    """Yield the lines of the module, by the name "", and of each of its functions."""
    yield "", len(module.text.splitlines())
    for node in module.functions():
        yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def test_modules_and_functions_are_short() -> None:
    assert len(lengths.findings()) > 1000
    long = [
        f"{module}: {name}, {lines} lines"
        for module, findings in lengths.findings().items()
        for name, lines in findings
        if lines > (FUNCTION_LINES_MAX if name else MODULE_LINES_MAX)
    ]
    assert long == []


@survey("tests/")
def tests_with_nested_async(module: Module) -> Iterator[str]:
    if not Path(module.name).name.startswith("test_") or not module.nodes(ast.AsyncFunctionDef):
        return
    for test in module.nodes(ast.FunctionDef):
        is_nested = any(isinstance(node, ast.AsyncFunctionDef) for node in walk(test))
        if is_nested and test.name.startswith("test_"):
            yield f"{module.name}: {test.name}"


def test_an_async_test_is_an_async_function() -> None:
    """A test on several loops, or one for a loop of another thread, is named here."""
    assert set(tests_with_nested_async.findings_in("")) == NESTED_ASYNC


@survey("src/")
def bound_clocks(module: Module) -> Iterator[str]:
    """Yield where the time since 1970 is named without a call, or imported."""
    called = {id(node.func) for node in module.nodes(ast.Call)}
    for node in module.nodes(ast.Attribute):
        if ast.unparse(node) in ("time.time", "time.time_ns") and id(node) not in called:
            yield f"{module.name}:{node.lineno}"
    for statement in module.nodes(ast.ImportFrom):
        if statement.module == "time" and {"time", "time_ns"} & {alias.name for alias in statement.names}:
            yield f"{module.name}:{statement.lineno}"


def test_no_module_binds_the_clock_when_it_is_imported() -> None:
    """Else a fork that has another clock (tests/fork_server.py) would go by the first one there."""
    assert bound_clocks.findings_in("") == []
    text = "from time import time_ns\ndef f(clock=time.time): return time.time() + time.time_ns()\n"
    assert sorted(bound_clocks.look(Module("a.py", text))) == ["a.py:1", "a.py:2"]


def test_no_test_module_imports_another() -> None:
    """Code that tests of several modules use has a module of its own, or the conftest of its package."""
    importing = re.compile(
        r"^(?:from|import) (?:tests|\.)[\w.]*(?:\.| import (?:.*\b)?|\b)test_", re.MULTILINE
    )
    assert [
        name_of(path) for path in (ROOT / "tests").rglob("*.py") if importing.search(path.read_text())
    ] == []
    for line in (
        "from tests.unit.test_a import b",
        "from .test_a import b",
        "from tests.unit import test_a",
        "import tests.test_a",
    ):
        assert importing.search(line)
    assert not importing.search("from tests.unit.a import b\nimport test_a")


def test_no_room_for_everything() -> None:
    assert [name_of(path) for path in CODE if path.stem in NO_NAMES or path.parent.name in NO_NAMES] == []


def test_every_module_says_what_it_is_for() -> None:
    texts = {name_of(path): path.read_text() for path in SOURCES}
    assert [name for name, text in texts.items() if text.strip() and not text.startswith('"""')] == []


def test_tasks_have_an_owner() -> None:
    """`OwnedTasks` and asyncio's TaskGroup (by the name `group`) end what they start, and no failure is silent."""
    starts = re.compile(r"(?<!group\.)(?<!super\(\)\.)(?<!def )\b(ensure_future|create_task)\(")
    orphans = [name_of(path) for path in SOURCES if starts.search(path.read_text())]
    assert orphans == ["src/headrace/base/tasks.py"]
    assert starts.search("asyncio.create_task(work)") and not starts.search("group.create_task(work)")


def test_types_are_described_in_one_place() -> None:
    """msgspec must not describe a type in two threads at once: base/decoding.py has the lock."""
    decoding = re.compile(r"msgspec\.(convert|(json|msgpack|toml|yaml)\.(decode|Decoder))\(")
    fuzzing = (ROOT / "tests" / "fuzz").glob("*.py")  # its threads decode the reports of its workers
    elsewhere = [name_of(path) for path in [*SOURCES, *fuzzing] if decoding.search(path.read_text())]
    assert elsewhere == ["src/headrace/base/decoding.py"]


def test_nothing_is_left_for_later_in_a_comment() -> None:
    assert [name_of(path) for path in [*CODE, *PAGES] if MARKS.search(path.read_text())] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []


def test_the_readme_names_commands_that_exist() -> None:
    from typer.testing import CliRunner

    from headrace.cli.main import build_app

    named = set(re.findall(r"`headrace ([a-z0-9]+)", (ROOT / "README.md").read_text()))
    listed = CliRunner().invoke(build_app(), ["--help"]).output
    assert named
    assert [word for word in sorted(named) if not re.search(rf"\b{word}\b", listed)] == []


def test_a_limit_of_a_test_is_for_what_hangs() -> None:
    """A machine that does other things takes ten times as long for a while."""
    limits = re.compile(r"mark\.timeout\((\d+)\)")
    tests = {name_of(path): path.read_text() for path in (ROOT / "tests").rglob("*.py")}
    assert [name for name, text in tests.items() if any(int(s) < 60 for s in limits.findall(text))] == []


def test_folders_of_tests_hold_tests() -> None:
    folders = {path.parent for path in (ROOT / "tests").rglob("__init__.py")}
    leaves = [f for f in folders if not any(other != f and f in other.parents for other in folders)]
    assert [name_of(f) for f in leaves if not list(f.glob("test_*.py"))] == []
