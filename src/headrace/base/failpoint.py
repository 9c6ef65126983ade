"""Where a test can end the process: `hit` names a step of a commit; nothing happens unless the environment arms it.

HEADRACE_FAILPOINT=name kills this process by SIGKILL at the first hit of that name, name:N at the Nth.
"""

from __future__ import annotations

import os
import signal

_ARMED, _, _COUNT = os.environ.get("HEADRACE_FAILPOINT", "").partition(":")
_left = int(_COUNT or 1)


def hit(name: str) -> None:
    """The process may end here, as by kill -9."""
    global _left
    if name == _ARMED:
        _left -= 1
        if _left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
