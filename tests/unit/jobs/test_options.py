"""The options of a job are refused where it arrives."""

from __future__ import annotations

import pytest

from headrace.base.errors import UsageError
from headrace.jobs.options import parse_options
from headrace.policy import values


@pytest.mark.parametrize("text", ["1", "2", "64"])
def test_a_job_takes_as_many_replicas_as_a_policy(text: str) -> None:
    assert parse_options("load", {"replicas": text}).replicas == int(text) == values.replicas(int(text))
    assert parse_options("pin", {}).replicas == 0


@pytest.mark.parametrize("text", ["0", "65", "99", "-1", "two", "", "9" * 5000])
def test_other_replicas_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a number from 1 to 64"):
        parse_options("pin", {"replicas": text})
