"""The suites' asserts are rewritten as those of tests are."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("headrace.testing.origin_suite")
