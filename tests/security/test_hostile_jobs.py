"""Root watches the job of a user (`headrace diagnose --pid`): the job's memory and descriptors say what root opens
(docs/security/threat-model.md, U)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.diagnose import source_lines
from headrace.diagnose.source_lines import SourceLines
from headrace.diagnose.stacks import lines_of
from headrace.diagnose.timeline import write_timeline
from tests.security.nobody import NOBODY
from tests.unit.diagnose.moments import recording, waiting

SHRINKS = """
import os, struct
from headrace.diagnose import marks
fd = os.memfd_create(marks.PAGE_NAME)
os.ftruncate(fd, marks.PAGE_BYTES)
os.pwrite(fd, struct.pack("<8sIIQQ", b"headrac1", os.getpid(), 1, 3, 4), 0)
reader = marks.MarksReader.find(os.getpid())
before = reader.read()
os.ftruncate(fd, 0)
after = reader.read()
print(before.in_step, before.steps, before.samples, after.in_step, after.steps, after.samples)
"""


def text_of(file: str, line: int = 1) -> str:
    """Return the text that diagnose has of a line, as of a stack in which a job names the file."""
    thread = {"pid": 7, "tid": 1400, "ph": "B", "ts": 1, "args": {"filename": "", "line": 0}}
    frame = thread | {"name": "step", "args": {"filename": file, "line": line}}
    last = thread | {"name": "end", "ts": 2, "ph": "E"}
    (stack,) = lines_of([thread | {"name": "thread (71): Main"}, frame, last], began_s=0.0)[71].stacks
    return stack[-1].text


@pytest.mark.timeout(60)
def test_a_pipe_that_a_job_names_as_its_program_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.py")
    (tmp_path / "link.py").symlink_to("train.py")
    assert text_of(str(tmp_path / "train.py")) == text_of(str(tmp_path / "link.py")) == ""


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "path", ["/dev/zero", "/dev/tty", "/proc/kmsg", "/proc/self/mem", "/sys", "a\0b", "\udcff", ""]
)
def test_what_is_no_file_of_lines_is_not_opened(path: str) -> None:
    """The memory was used up by /dev/zero."""
    assert text_of(path) == ""


def test_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_lines, "FILE_BYTES_MAX", 100)
    monkeypatch.setattr(source_lines, "BYTES_MAX", 150)
    for name, size in (("large", 101), ("first", 100), ("second", 60), ("third", 40)):
        (tmp_path / name).write_text("x" * (size - 1) + "\n")
    lines = SourceLines()
    names = ("large", "first", "second", "third", "first")
    texts = [lines.text(str(tmp_path / name), 1) for name in names]
    assert list(map(len, texts)) == [0, 99, 0, 39, 99]
    assert [lines.text(str(tmp_path / "third"), number) for number in (-1, 0, 2, 10**30)] == [""] * 4


def test_a_page_of_marks_that_shrinks_ends_no_reader() -> None:
    """It was mapped, so a job that truncated it killed the reader by SIGBUS."""
    command = [sys.executable, "-P", "-c", SHRINKS]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "True 3 4 False 0 0\n"), ended.stderr


@pytest.mark.root
@pytest.mark.parametrize("name", ["users/trace", "link/trace", "users/new"])
def test_a_timeline_is_written_through_no_link_of_another_user(tmp_path: Path, name: str) -> None:
    (tmp_path / "users").mkdir()
    (tmp_path / "roots").mkdir()
    (tmp_path / "roots/trace").write_text("root's")
    (tmp_path / "users/trace").symlink_to(tmp_path / "roots/trace")
    (tmp_path / "users/new").symlink_to(tmp_path / "roots/missing")
    (tmp_path / "link").symlink_to("roots")
    watched: Any = recording((3, waiting()))
    for path in ("users/trace", "users/new", "link"):
        os.chown(tmp_path / path, NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(OSError):
        write_timeline(watched, str(tmp_path / name))
    assert (tmp_path / "roots/trace").read_text() == "root's"
    assert os.listdir(tmp_path / "roots") == ["trace"]


def test_a_timeline_is_written_by_own_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "link").symlink_to("own")
    (tmp_path / "old").write_text("x" * 1_000_000)
    (tmp_path / "there").symlink_to("old")
    monkeypatch.chdir(tmp_path)
    watched: Any = recording((3, waiting()))
    for path in ("new", "link/new", "there", str(tmp_path / "absolute"), "own/../up"):
        write_timeline(watched, path)
        assert Path(path).read_text().startswith('{"traceEvents"')
        assert Path(path).read_text().endswith("}")
