"""A layer for each test."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.testing.virtual_loop import run_virtual
from tests.unit.writeback.layer_fixture import LayerFixture


@pytest.fixture
def layer(tmp_path: Path) -> Iterator[LayerFixture]:
    fixture = LayerFixture(tmp_path)
    yield fixture
    fixture.crash()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run tests that are coroutines on loops of their own: a crash cancels all tasks of a loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    run_virtual(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
