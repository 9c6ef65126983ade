"""Programs use packages as attributes of `headrace`, as the guide writes them."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("attribute", ["checkpoint.Saver", "connect", "diagnose.watch", "plan.watch"])
def test_import_headrace_gives_what_the_guide_calls(attribute: str) -> None:
    code = f"import headrace; headrace.{attribute}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_an_unknown_attribute_is_an_attribute_error() -> None:
    import headrace

    assert not hasattr(headrace, "unknown")
