"""The surveys look at each Python file: a file that they pass over would make all tests of form pass."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.tidy import survey as surveys
from tests.tidy.survey import ROOT, Module, survey, walk

FOLDERS = ("src/", "tests/", "bench/", "tools/")


@survey(*FOLDERS)
def names(module: Module) -> Iterator[str]:
    yield module.name


def test_each_file_is_looked_at() -> None:
    files = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("*/**/*.py")}
    assert set(names.findings()) == {name for name in files if name.startswith(FOLDERS)}


def test_each_survey_covers_files_of_all_its_folders() -> None:
    looked_at = tuple(names.findings())
    empty = [
        (look, folder)
        for look, folders in ((each._look, each._folders) for each in surveys._surveys)
        for folder in folders
        if not any(name.startswith(folder) for name in looked_at)
    ]
    assert empty == []


def test_a_walk_reaches_all_nodes() -> None:
    """In the order of `ast.walk`, without the contexts of expressions."""
    tree = ast.parse((ROOT / "tests/tidy/survey.py").read_text())
    expected = [node for node in ast.walk(tree) if not isinstance(node, ast.expr_context)]
    assert walk(tree) == expected
    module = Module("a.py", ast.unparse(tree))
    assert sum(len(module.nodes(kind)) for kind in set(map(type, expected))) == len(expected)
