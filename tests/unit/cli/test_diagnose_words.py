"""A timeline of `headrace diagnose` that can't be written is refused before a job starts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import UsageError
from headrace.cli import diagnose
from headrace.diagnose import sampler, timeline
from headrace.diagnose.recording import Recording
from headrace.diagnose.timeline import check_timeline


@pytest.mark.parametrize("name", ["none/line.json", "file/line.json", "folder", "dangling/"])
def test_a_timeline_that_cannot_be_written_is_refused_before_the_job_starts(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    started = tmp_path / "started"
    with pytest.raises(UsageError, match=r"^--timeline .*: the file can't be written: [a-z ]+$"):
        diagnose.diagnose(["touch", str(started)], timeline=str(tmp_path / name))
    assert not started.exists()


def test_the_check_of_a_timeline_changes_nothing(tmp_path: Path) -> None:
    check_timeline(str(tmp_path / "new.json"))
    old, pipe = tmp_path / "old.json", tmp_path / "pipe"
    old.write_text("{}")
    os.mkfifo(pipe)
    check_timeline(str(old))
    check_timeline(str(pipe))  # nobody reads it
    assert {path.name for path in tmp_path.iterdir()} == {"old.json", "pipe"}
    assert old.read_text() == "{}"


def test_of_a_running_job_a_timeline_that_fails_at_the_end_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(recording: Recording, path: str) -> None:
        raise OSError(28, "No space left on device")

    class SamplerOfNothing:
        def __init__(self, *words: Any) -> None:
            pass

        def run(self, ended: Any, limit_s: float) -> None:
            pass

        def recording(self) -> Recording:
            return Recording((), 1)

    monkeypatch.setattr(timeline, "write_timeline", fail)
    monkeypatch.setattr(sampler, "Sampler", SamplerOfNothing)
    assert diagnose.diagnose(None, pid=os.getpid(), timeline=str(tmp_path / "line.json")) == 1
    assert "line.json: the file can't be written: no space left on device" in capsys.readouterr().err
