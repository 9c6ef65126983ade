"""Import large packages when a test uses them, not when it is collected: each process of a run collects all tests."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import pytest


class LazyModule:
    """Imports a module at the first use of an attribute."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # what pytest asks of each object of a module that it collects
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)


def lazy_module(name: str, *, extra: str = "") -> Any:
    """Return a module that is imported later. extra: of Headrace, which brings it; the tests of the calling module are
    skipped without it."""
    if extra and importlib.util.find_spec(name) is None:
        pytest.skip(f"needs headrace[{extra}]", allow_module_level=True)
    return LazyModule(name)
