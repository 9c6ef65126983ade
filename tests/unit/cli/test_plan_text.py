"""`headrace plan show JOB` prints this for a job without a plan."""

from __future__ import annotations

import pytest

from headrace.cli import request
from headrace.cli.plan import show
from headrace.wire.plan_answers import PlanRow, PlanRows

ROW = PlanRow("s", "resnet", 0, 1, "planned", 0, 0, 10, 0.0, 0.0, 0.0, 0, 0.0, 0, 0)


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ([ROW], "job vgg reports no plan; `headrace plan show` prints those that do\n"),
        (
            [],
            "no job reports a plan, and no reads are predicted; start a job with `headrace run -- COMMAND`\n",
        ),
    ],
)
def test_a_job_without_a_plan_is_named_beside_others(
    rows: list[PlanRow], line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(request, "ask", lambda *_: PlanRows(rows))
    show("vgg")
    assert capsys.readouterr().out == line
    show("vgg", json=True)
    assert capsys.readouterr().out == "[]\n"
