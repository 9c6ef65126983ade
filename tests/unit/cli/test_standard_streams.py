"""Commands whose output goes to a full disk, to a pipe that nobody reads, or nowhere, and whose streams are closed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FULL = "headrace: standard output: no space left on device\n"


def run(script: str, folder: Path, **environment: str) -> tuple[int, str, str]:
    """Run a script of the shell in which `headrace` is the command. Return its status and what it printed."""
    script = f'headrace() {{ "{sys.executable}" -m headrace "$@"; }}\n{script}'
    done = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "HEADRACE_RUN_FOLDER": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("words", ["--version", "--help", "config explain", "config show --json"])
def test_output_to_a_full_disk_is_one_line_and_a_status(words: str, tmp_path: Path) -> None:
    assert run(f"headrace {words} > /dev/full", tmp_path) == (20, "", FULL)


@pytest.mark.parametrize(
    ("output", "status", "errors"),
    [("> /dev/full; exit $?", 20, FULL), ("| true; exit ${PIPESTATUS[0]}", 0, "")],
)
def test_the_text_of_a_policy_is_written_before_the_end(
    output: str, status: int, errors: str, tmp_path: Path
) -> None:
    """It is printed as it is, and the interpreter would write it when nothing catches an error any more."""
    program = (
        "import sys; from headrace.cli import main, policy; "
        "from headrace.wire.policy_messages import PolicyShown; "
        "policy._ask = lambda *_: PolicyShown(1, '[[rule]]', []); "
        "sys.argv = ['headrace', 'policy', 'show']; sys.exit(main.main())"
    )
    assert run(f'"{sys.executable}" -c "{program}" {output}', tmp_path) == (status, "", errors)


def test_output_that_can_not_be_written_is_one_line(tmp_path: Path) -> None:
    line = "headrace: standard output: bad file descriptor\n"
    assert run("headrace config explain 1< /dev/null", tmp_path) == (1, "", line)


@pytest.mark.parametrize("words", ["--version", "--help", "config explain"])
def test_output_to_a_pipe_that_nobody_reads_is_no_failure(words: str, tmp_path: Path) -> None:
    script = f"headrace {words} | true; exit ${{PIPESTATUS[0]}}"
    assert run(script, tmp_path) == (0, "", "")


def test_a_command_runs_with_closed_streams(tmp_path: Path) -> None:
    assert run("headrace config show <&- >&- 2>&-", tmp_path) == (0, "", "")
    assert run("headrace config explain nothing 2>&-", tmp_path) == (2, "", "")
    assert run("headrace policy check - <&-", tmp_path) == (0, "0 rules, 0 tenants, 0 origins\n", "")


def test_no_file_of_a_program_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    script = "headrace run -- readlink /proc/self/fd/0 /proc/self/fd/2 <&- 2>&-"
    assert run(script, tmp_path) == (0, "/dev/null\n/dev/null\n", "")


def test_characters_that_the_encoding_lacks_are_escaped(tmp_path: Path) -> None:
    (tmp_path / "headrace.toml").write_text('[mounts."/caf\u00e9"]\nurl = "/data"\n')
    words = f"config show --config {tmp_path}/headrace.toml"
    status, output, errors = run(f"headrace {words}", tmp_path, PYTHONIOENCODING="ascii")
    assert (status, errors) == (0, "")
    assert "/caf\\xe9 /data" in output


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("> /dev/full; exit $?", "headrace: the report can't be printed: No space left on device\n"),
        ("| true; exit ${PIPESTATUS[0]}", ""),
    ],
)
def test_diagnose_ends_after_its_job_also_if_nobody_reads_the_report(
    output: str, line: str, tmp_path: Path
) -> None:
    """The job outlives the report. A slow machine prints it after the job: the result is the same."""
    script = f"headrace diagnose --seconds 0.1 -- sh -c 'sleep 1; exit 7' {output}"
    assert run(script, tmp_path) == (7, "", line)
