"""The result of a job names what it was about."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from headrace.cli import request, target
from headrace.cli.job_progress import run_job
from headrace.cli.target import Target
from headrace.wire.messages import JobStart, JobState


class Node:
    """A node whose jobs end at once."""

    def stream(self, start: JobStart) -> Iterator[JobState]:
        yield JobState(True, 3, 3, 0, 0, 0, [], False, state="done")

    def close(self) -> None:
        return None


@pytest.fixture(autouse=True)
def _node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "connection_to", lambda _: Node())
    monkeypatch.setattr(target, "find_target", lambda *_: Target("socket", "/"))


@pytest.mark.parametrize("kind", ["verify-seal", "complete-seal"])
def test_the_result_of_a_job_about_a_seal_names_the_seal(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_job(kind, "/", socket=None, cache=None, as_json=False, options={"seal": "imagenet@3"})
    assert capsys.readouterr().out.startswith(f"{kind} imagenet@3: 3 files")
    run_job(kind, "/", socket=None, cache=None, as_json=True, options={"seal": "imagenet@3"})
    assert json.loads(capsys.readouterr().out)["path"] == "/"


def test_the_result_of_another_job_names_its_path(capsys: pytest.CaptureFixture[str]) -> None:
    run_job("fsck", "/", socket=None, cache=None, as_json=False)
    assert capsys.readouterr().out.startswith("fsck /: 3 files")
