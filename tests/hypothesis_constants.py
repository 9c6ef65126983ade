"""Share the work of a first run: each of several processes looks for the constants of a part of Headrace's modules.

Hypothesis draws constants of the code under test now and then. It reads all modules for them, which takes some 2 s of
processor time, and keeps what it finds. In a fresh clone, each process of a run would do that for all modules.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from hypothesis.internal.constants_ast import constants_from_module


def read_part(package: Path, *, number: int, count: int) -> None:
    """Keep the constants of part `number` of `count` of the package's modules, if nobody has kept them."""
    for path in sorted(package.rglob("*.py"))[number::count]:
        module = ModuleType(path.stem)
        module.__file__ = str(path)
        constants_from_module(module)
