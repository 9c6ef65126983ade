"""The suite's asserts are rewritten as those of tests are; said before conftest.py imports it."""

import pytest

pytest.register_assert_rewrite("tests.conformance.origin.origin_suite")
pytest.register_assert_rewrite("tests.conformance.origin.origin_write_suite")
