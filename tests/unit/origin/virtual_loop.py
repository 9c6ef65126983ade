"""An event loop whose time passes at once when nothing else is to be done."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from headrace.testing import virtual_loop

Result = TypeVar("Result")


def run_virtual(work: Coroutine[Any, Any, Result], patch: pytest.MonkeyPatch) -> Result:
    return virtual_loop.run_virtual(work)
