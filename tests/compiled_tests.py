"""Share the work of a first run: each of several processes compiles a part of the tests' modules for all of them.

Each process of a run imports all tests. pytest rewrites their assertions and keeps the result, which takes some 5 s of
processor time. In a fresh clone, each process would do that for all modules.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from _pytest.assertion import rewrite


def compile_part(config: pytest.Config, folder: Path, *, number: int, count: int) -> None:
    """Compile part `number` of `count` of the test modules that nobody has compiled. pytest itself looks whether what
    it finds is of the text as it is now."""
    if sys.dont_write_bytecode:
        return
    for path in sorted(folder.rglob("test_*.py"))[number::count]:
        compiled = rewrite.get_cache_dir(path) / f"{path.stem}{rewrite.PYC_TAIL}"
        if not compiled.exists() and rewrite.try_makedirs(compiled.parent):
            state = config.stash[rewrite.assertstate_key]
            digest, code = rewrite._rewrite_test(path, config)
            rewrite._write_pyc(state, code, digest, compiled)
