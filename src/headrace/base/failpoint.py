"""Let a test end the process at a named step of a commit (`hit`). Nothing happens unless the environment arms that
name.

HEADRACE_FAILPOINT=name kills this process by SIGKILL at the first hit of that name, name:N at the Nth. name:N:FILE does
so only if FILE does not exist, and creates it: of all processes that share the setting one dies, once.
"""

from __future__ import annotations

import os
import signal

_ARMED, _COUNT, _ONCE = (os.environ.get("HEADRACE_FAILPOINT", "") + "::").split(":")[:3]
_left = int(_COUNT or 1)


def hit(name: str) -> None:
    """Pass a step; the process may end here, as by kill -9."""
    global _left
    if name == _ARMED:
        _left -= 1
        if _left <= 0 and _first():
            os.kill(os.getpid(), signal.SIGKILL)


def _first() -> bool:
    if not _ONCE:
        return True
    try:
        os.close(os.open(_ONCE, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    return True
