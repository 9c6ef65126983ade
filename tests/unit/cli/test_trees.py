"""A tree is printed as lines that a person reads."""

from __future__ import annotations

import pytest

from headrace.cli.render import print_tree


def test_a_tree_shows_a_time_as_a_date_beside_its_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    print_tree({"seal": {"created_s": 1795886721.433}}, as_json=False)
    assert capsys.readouterr().out == "seal.created_s  2026-11-28T17:25:21Z (1795886721.433)\n"
