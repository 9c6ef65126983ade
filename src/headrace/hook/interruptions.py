"""Tell errors of the hook from those that handlers of signals raise in the midst of its code: these are the program's.

A program may end a slow read by an alarm, whose handler raises an error. Python runs handlers between any two
instructions of the main thread, so also within the hook, which keeps its own errors to itself.
"""

from __future__ import annotations

import signal
from types import CodeType
from typing import Any


def is_interruption(error: BaseException) -> bool:
    """Return whether the program wants an error to be seen at once: it interrupts, or a handler of a signal raised
    it."""
    if not isinstance(error, Exception):
        return True
    traceback, raising = error.__traceback__, set()
    while traceback is not None:
        raising.add(traceback.tb_frame.f_code)
        traceback = traceback.tb_next
    return not raising.isdisjoint(_codes_of_handlers())


def raise_interruption(error: BaseException) -> None:
    """Raise an error again, if `is_interruption`."""
    if is_interruption(error):
        raise error


def _codes_of_handlers() -> set[CodeType]:
    """Return the code of the functions that handle signals in this process."""
    codes = set()
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        if callable(handler):
            handler = getattr(handler, "func", handler)  # of a partial
            function = handler if hasattr(handler, "__code__") else getattr(handler, "__func__", None)
            function = function or getattr(type(handler), "__call__", None)  # noqa: B004 - its code is wanted
            code = getattr(function, "__code__", None)
            codes |= {code} if isinstance(code, CodeType) else set()
    return codes
