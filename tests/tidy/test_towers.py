"""The two towers import each other only as listed, beyond what import-linter's layers say."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.survey import PACKAGE, Module, survey

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src/headrace"
NODE_TOWER = ("entry", "jobs", "dataplane", "writeback", "namespace", "origin", "store", "node")
ALLOWED = {
    "client": (
        "store.index",
        "store.reader",
        "store.schema",
        "store.volume",
    ),  # reads the cache, writes nothing
    "vfs": ("store.reader",),
    "sdk": (),
    "fuse": (),
    "checkpoint": (),
    "http": (),
    "s3": (),
    "rest": (),
    "webhdfs": (),
    "diagnose": (),
    "integrations": (),
    "cli": (
        "node.node",
        "node.cache",
        "origin.factory",
        "store.spill",
    ),  # `node run`, the mark of a corrupt index, the check of a policy's URLs, and the remains of a killed node
    "bench": (),
}
OUTSIDE = re.compile("|".join(("/wo" + "rk/", "/ro" + "ot/", "/opt/py" + "pi")))


@survey(PACKAGE)
def imports(module: Module) -> Iterator[str]:
    """Names below headrace, of imports anywhere in the file."""
    for node in module.nodes(ast.ImportFrom):
        if node.module and node.module.startswith("headrace."):
            yield node.module.removeprefix("headrace.")
        elif node.module == "headrace":
            yield from (alias.name for alias in node.names)
    for names in (node.names for node in module.nodes(ast.Import)):
        yield from (
            alias.name.removeprefix("headrace.") for alias in names if alias.name.startswith("headrace.")
        )


@pytest.mark.parametrize("room", ALLOWED)
def test_the_client_tower_sees_of_the_node_tower_only(room: str) -> None:
    assert imports.findings_in(f"{PACKAGE}{room}/")
    violations = {
        f"{module.removeprefix(PACKAGE)}: {name}"
        for module, names in imports.findings().items()
        if module.startswith(f"{PACKAGE}{room}/")
        for name in names
        if name.split(".")[0] in NODE_TOWER and name not in ALLOWED[room]
    }
    assert violations == set()


def test_only_the_index_speaks_lmdb_and_only_origins_speak_to_clouds() -> None:
    foreign = {
        "lmdb": {"store/index.py", "store/environment.py", "store/transactions.py"},
        "obstore": {
            "origin",
            "testing",
            "bench/storage.py",
        },  # which measures what the libraries do by themselves
        "fsspec": {
            *("origin", "testing", "bench/storage.py"),
            *("integrations/fsspec.py", "integrations/fsspec_async.py"),
        },
    }
    for path in sorted(SOURCE.rglob("*.py")):
        name = str(path.relative_to(SOURCE))
        for library, places in foreign.items():
            if re.search(rf"^\s*(?:import|from) {library}\b", path.read_text(), re.MULTILINE):
                assert name in places or name.split("/")[0] in places, f"{name} imports {library}"


def test_no_path_of_one_machine_is_written_down() -> None:
    kinds = (".py", ".md", ".toml", ".sh")
    files = [
        path
        for folder in ("src", "tests", "bench", "docs", "changes", ".ci")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in kinds or folder == ".ci"
    ]
    files += [ROOT / "README.md", ROOT / "pyproject.toml", ROOT / "dev"]
    named = [
        str(path.relative_to(ROOT))
        for path in files
        if path.is_file() and OUTSIDE.search(path.read_text(errors="replace"))
    ]
    assert named == []
