"""The origin suite over every kind of origin (conftest.py), and over the synthetic one what applies to it."""

from __future__ import annotations

from headrace.testing.origin_suite import OriginSuite


class TestOrigin(OriginSuite):
    pass
