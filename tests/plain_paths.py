"""Says where something of a layer lies, for tests that look at it, or change it, by plain calls."""

from __future__ import annotations

from headrace.base.beneath import SafePath


def plain(safe_path: SafePath) -> bytes:
    return safe_path.root.path + safe_path.path
