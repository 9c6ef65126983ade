"""Know the order in which jobs will read files, and decide by it. Pure, but for `watch`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    watch: Callable[..., bool]

__all__ = ["watch"]


def __getattr__(name: str) -> Any:
    """Import `watch` at its first use, from far above this package: programs of users call it by this name."""
    if name != "watch":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("headrace.sdk.watched_loader").watch
