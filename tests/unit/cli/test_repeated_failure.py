"""A failure that is tried again and again is named once for each reason."""

from __future__ import annotations

import pytest

from headrace.cli.repeated_failure import RepeatedFailure


def test_a_reason_is_named_once_in_a_row_and_again_after_a_success(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failure = RepeatedFailure()
    for reason in ("full", "full", "broken", "full"):
        failure.report(reason, f"the disk is {reason}")
    failure.end()
    failure.report("full")
    assert capsys.readouterr().err.splitlines() == [
        "headrace: the disk is full",
        "headrace: the disk is broken",
        "headrace: the disk is full",
        "headrace: full",
    ]
