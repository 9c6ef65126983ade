"""How this program starts its own modules as processes."""

from __future__ import annotations

import sys


def module_command(module: str, *words: str) -> list[str]:
    """Return the command that runs a module of ours. With -P, Python does not look for modules in the working
    directory, where anybody may have put some."""
    return [sys.executable, "-P", "-m", module, *words]
