"""A missing extra names itself: the table against pyproject.toml, all modules and commands without what is optional."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from headrace.base.missing_extras import EXTRAS_OF

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
OF_DEVELOPERS = {"check", "test", "demo"}
DISTRIBUTION = {
    "google": "google-auth",
    "google_crc32c": "google-crc32c",
    "grpc": "grpcio",
    "pynvml": "nvidia-ml-py",
}
"""Where it is not the name that is imported."""
NO_EXTRA = {"tensorflow"}
"""What the user has, or has not: no extra brings it."""
PUBLIC = (
    "headrace.checkpoint",
    "headrace.integrations.fsspec",
    "headrace.integrations.fsspec_async",
    "headrace.integrations.safetensors",
    "headrace.integrations.torch_checkpoint",
    "headrace.integrations.torch_data",
)

CHILD = """
import contextlib, importlib, io, json, sys

blocked, modules, commands = json.load(sys.stdin)

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
importlib.util.find_spec = lambda name, find=importlib.util.find_spec: None if name in blocked else find(name)
outcome = {}
for module in modules:
    try:
        importlib.import_module(module)
    except ImportError as error:
        outcome[module] = [type(error).__name__, error.name or "", str(error)]
ran = []
from headrace.cli.main import main
for words in commands:
    said = io.StringIO()
    sys.argv = ["headrace", *words]
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            status = main()
        except SystemExit as end:
            status = end.code
    ran.append([status, said.getvalue()])
print(json.dumps([outcome, ran]))
"""


def without(
    packages: list[str], modules: list[str], commands: list[list[str]], folder: Path
) -> tuple[dict[str, list[str]], list[tuple[int, str]]]:
    """Module → class, name and text of its ImportError; and status and stderr of each command."""
    done = subprocess.run(
        [sys.executable, "-c", "import importlib.util\n" + CHILD],
        input=json.dumps([packages, modules, commands]),
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
        cwd=folder,
        env={"HOME": str(folder), "XDG_RUNTIME_DIR": str(folder), "PATH": "/usr/bin:/bin"},
    )
    outcome, ran = json.loads(done.stdout)
    return outcome, [(status, said) for status, said in ran]


def brought_by(extra: str) -> set[str]:
    packages = set()
    for requirement in EXTRAS[extra]:
        inner = re.match(r"headrace\[([^\]]+)\]", requirement)
        if inner:
            packages |= {package for name in inner[1].split(",") for package in brought_by(name.strip())}
        else:
            packages.add(re.match(r"[\w-]+", requirement)[0])  # type: ignore[index]
    return packages


def imports_of(path: Path, *, top: bool) -> set[str]:
    """The first words of what a module imports. top: what its own import needs, not what its functions do."""
    tree = ast.parse(path.read_text())
    nodes: list[Any] = [tree]
    names = set()
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add((node.module or "").partition(".")[0])
        elif isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            continue
        elif not (top and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))):
            nodes += ast.iter_child_nodes(node)
    return names


def all_modules() -> dict[str, Path]:
    base = ROOT / "src"
    paths = [path for path in (base / "headrace").rglob("*.py") if path.stem != "__main__"]
    return {
        ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__"): path
        for path in paths
        if "testing" not in path.parts
    }


@pytest.mark.parametrize("package", EXTRAS_OF)
def test_the_table_names_the_extras_that_bring_a_package(package: str) -> None:
    distribution = DISTRIBUTION.get(package, package)
    bringing = {extra for extra in EXTRAS if extra not in OF_DEVELOPERS and distribution in brought_by(extra)}
    assert set(EXTRAS_OF[package]) == bringing


def test_every_package_that_is_imported_is_a_dependency_or_in_the_table() -> None:
    required = {re.match(r"[\w-]+", requirement)[0] for requirement in PROJECT["dependencies"]}  # type: ignore[index]
    known = required | set(EXTRAS_OF) | NO_EXTRA | set(sys.stdlib_module_names) | {"headrace"}
    unknown = {name: imports_of(path, top=False) - known for name, path in all_modules().items()}
    assert {name: packages for name, packages in unknown.items() if packages} == {}


def test_every_hint_names_an_extra_that_there_is() -> None:
    for path in (ROOT / "src").rglob("*.py"):
        for names in re.findall(r"headrace\[([a-z0-9,]+)\]", path.read_text()):
            assert set(names.split(",")) <= set(EXTRAS), path


def test_without_optional_packages_every_module_works_or_names_its_extra(tmp_path: Path) -> None:
    refused, _ = without(sorted(EXTRAS_OF), sorted(all_modules()), [], tmp_path)
    for module, (kind, name, text) in refused.items():
        if kind == "MissingExtraError":
            assert re.search(r" is not installed \(pip install 'headrace\[\w+\]'\)", text), text
        else:  # a module of ours alone: its command says it, see below
            assert kind == "ModuleNotFoundError", (module, text)
            assert name.partition(".")[0] in EXTRAS_OF, (module, text)
    assert {refused[module][0] for module in PUBLIC} == {"MissingExtraError"}
    assert "headrace" not in refused
    assert "headrace.diagnose.sampler" not in refused


def test_each_package_alone_is_named_by_the_modules_that_need_it(tmp_path: Path) -> None:
    needing = {
        package: [name for name in PUBLIC if package in imports_of(all_modules()[name], top=True)]
        for package in ("fsspec", "numpy", "torch")
    }
    needing["numpy"] = ["headrace.checkpoint"]  # whose modules need it
    for package, modules in needing.items():
        blocked = [package] if package == "torch" else [package, "torch"]  # it takes seconds
        refused, _ = without(blocked, modules, [], tmp_path)
        assert modules
        for module in modules:
            kind, _name, text = refused[module]
            assert kind == "MissingExtraError"
            if package != "numpy" or module == "headrace.checkpoint":
                assert text.startswith(f"{module}: {package} is not installed"), text


def test_every_command_names_the_extra_that_it_lacks(tmp_path: Path) -> None:
    cluster = ["--cluster", "etcd://127.0.0.1:1/x", "--cache", f"{tmp_path}/cache:300MiB"]
    cases = [
        (["s3"], "s3"),
        (["webhdfs"], "webhdfs"),
        (["rest"], "rest"),
        (["bench", "training", "resnet50", str(tmp_path)], "bench"),
        (["bench", "compare", "resnet50"], "bench"),
        (["checkpoint", "list", str(tmp_path)], "checkpoint"),
        (["checkpoint", "verify", str(tmp_path)], "checkpoint"),
        (["node", "run", *cluster], "cluster"),
    ]
    _, ran = without(sorted(EXTRAS_OF), [], [words for words, _ in cases], tmp_path)
    for (words, extra), (status, said) in zip(cases, ran, strict=True):
        assert status == 27, (words, said)
        assert len(said.splitlines()) == 1, said
        assert f"(pip install 'headrace[{extra}]')" in said, (words, said)
        assert "defect" not in said
