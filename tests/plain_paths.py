"""Where something of a layer lies, for tests that look at it, or change it, by plain calls."""

from __future__ import annotations

from headrace.base.beneath import SafePath


def plain(at: SafePath) -> bytes:
    return at.root.path + at.path
