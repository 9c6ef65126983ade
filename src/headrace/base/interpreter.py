"""Start modules of this program as processes."""

from __future__ import annotations

import sys


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of Headrace. With -P, Python does not look for modules in the working
    directory, where anybody may have put some."""
    return [sys.executable, "-P", "-m", module, *arguments]
