"""A class has at most 25 methods, a constructor at most 8 arguments, a function at most complexity 15.

Methods are the functions in a class's body, with properties and private ones. Arguments are those of `__init__`
without `self`, or the fields of a data class that has behaviour: one with a public method that is no property. Data
classes without one are options or records, however many fields they have. Complexity counts as radon does: one more
for each branch, loop, handler, condition, assertion, comprehension and case, and for each further operand of `and`
and `or`. Functions within a function count for both.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.tidy.survey import PACKAGE, Function, Module, survey, walk

METHODS_MAX = 25
ARGUMENTS_MAX = 8
COMPLEXITY_MAX = 15

FUSE = "the kernel dictates the operations: one method for each"
FSSPEC = "fsspec dictates the methods of a file system"
LIBRARY = "the public library: users call its methods by these names"
OPTIONS = "a record of options; its methods only derive values from them"
CALLS = "one method for each system call on a path"
SESSION = "what a FUSE session needs of a client (fuse/client_protocol.py)"
EXCEPTIONS = {
    "base/beneath.py:SafePath": CALLS,
    "bench/checkpoint_layout.py:Model": OPTIONS,
    "bench/workloads.py:Workload": OPTIONS,
    "client/node_client.py:NodeClient": SESSION,
    "fuse/namespace_ops.py:NamespaceOperations": FUSE,
    "fuse/operations.py:Operations": FUSE,
    "integrations/fsspec.py:HeadraceFileSystem": FSSPEC,
    "integrations/torch_data.py:Loader": LIBRARY,
    "origin/options.py:OriginOptions": OPTIONS,
}

BRANCHES = (
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.IfExp,
    ast.Assert,
    ast.comprehension,
)


def complexity(function: Function) -> int:
    count = 1
    for node in walk(function):
        if isinstance(node, (*BRANCHES, ast.match_case)):
            count += 1
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
    return count


def methods(definition: ast.ClassDef) -> list[Function]:
    return [node for node in definition.body if isinstance(node, Function)]


def arguments(definition: ast.ClassDef) -> int:
    """Return how many arguments the constructor takes; 0 for a record."""
    for method in methods(definition):
        if method.name == "__init__":
            taken = method.args
            return len(taken.posonlyargs) + len(taken.args) + len(taken.kwonlyargs) - 1
    is_data = any("dataclass" in ast.unparse(decorator) for decorator in definition.decorator_list)
    if is_data and any(is_behaviour(method) for method in methods(definition)):
        return sum(isinstance(node, ast.AnnAssign) for node in definition.body)
    return 0


def is_behaviour(method: Function) -> bool:
    return not method.name.startswith("_") and not method.decorator_list


@survey(PACKAGE)
def excesses(module: Module) -> Iterator[tuple[str, str]]:
    """(Name, what exceeds) of each class and function beyond a limit."""
    for definition in module.nodes(ast.ClassDef):
        if (count := len(methods(definition))) > METHODS_MAX:
            yield definition.name, f"{count} methods"
        if (count := arguments(definition)) > ARGUMENTS_MAX:
            yield definition.name, f"{count} arguments"
    for function in module.functions():
        if (count := complexity(function)) > COMPLEXITY_MAX:
            yield function.name, f"complexity {count}"


def test_nothing_is_larger_than_the_limits() -> None:
    large: dict[str, list[str]] = {}
    for module, findings in excesses.findings().items():
        for name, excess in findings:
            large.setdefault(f"{module.removeprefix(PACKAGE)}:{name}", []).append(excess)
    assert {name: excess for name, excess in large.items() if name not in EXCEPTIONS} == {}, "split it"
    assert [name for name in EXCEPTIONS if name not in large] == [], "no exception is needed any more"


def test_each_limit_is_checked() -> None:
    fields = "".join(f"    field{number}: int\n" for number in range(ARGUMENTS_MAX + 1))
    record = f"@dataclass\nclass Wide:\n{fields}"
    branches = "".join(f"    if {number}: pass\n" for number in range(COMPLEXITY_MAX))
    many = "class Many:\n" + "".join(f"    def m{number}(self): ...\n" for number in range(METHODS_MAX + 1))
    taken = ", ".join(f"a{number}" for number in range(ARGUMENTS_MAX + 1))
    constructor = f"class Taker:\n    def __init__(self, {taken}): ...\n"
    assert excesses.look(Module("a.py", record)) == []
    assert excesses.look(Module("a.py", f"{record}    def work(self): ...\n")) == [("Wide", "9 arguments")]
    assert excesses.look(Module("a.py", f"def branch():\n{branches}")) == [("branch", "complexity 16")]
    assert excesses.look(Module("a.py", many)) == [("Many", "26 methods")]
    assert excesses.look(Module("a.py", constructor)) == [("Taker", "9 arguments")]
