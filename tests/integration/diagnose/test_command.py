"""`headrace diagnose` as a user calls it: a job that it starts, ^C, what it writes, what it can do without."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from headrace.testing.waiting import wait_for
from tests import fork_server
from tests.integration.diagnose.job_fork_server import SCRIPTS, JobForkServer

pytestmark = pytest.mark.timeout(90)
HEALTHY = str(SCRIPTS / "healthy.py")
STEPS = 16
"""After which the script ends, with status 7."""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return fork_server.run(
        [sys.executable, "-m", "headrace", "diagnose", *words], capture_output=True, text=True, timeout=60
    )


def test_a_job_that_is_started_keeps_its_exit_status_and_its_time_line_is_whole(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = run(
        "--rate", "50", "--timeline", str(tmp_path / "line.json"), "--", sys.executable, HEALTHY, str(STEPS)
    )
    assert done.returncode == 7, done.stderr
    assert "in steps without a problem" in done.stdout, done.stdout
    assert "s before the first step are left out" in done.stdout
    events = json.loads((tmp_path / "line.json").read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    tracks = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    (worker,) = [pid for pid, name in tracks.items() if name.startswith("loader worker")]
    (trainer,) = {event["pid"] for event in slices if event["pid"] != worker}
    assert HEALTHY in tracks[trainer]
    for pid in (worker, trainer):
        track = [event for event in slices if event["pid"] == pid]
        assert all(event["ts"] + event["dur"] <= other["ts"] for event, other in pairwise(track))
    assert {"imports", "own code"} <= {event["name"] for event in slices if event["pid"] == trainer}
    asleep = sum(event["dur"] for event in slices if event["pid"] == trainer and event["name"] == "own code")
    assert asleep > STEPS * 0.1 * 1e6  # of steps that sleep for 0.15 s each


def test_imports_and_a_model_that_is_built_after_the_loaders_start_are_no_cause(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = str(SCRIPTS / "late_setup.py")
    done = run("--rate", "50", "--json", "--", sys.executable, script, str(tmp_path), str(STEPS))
    assert done.returncode == 7, done.stderr
    report = json.loads(done.stdout)
    assert report["before_s"] > 2.5  # 1.5 s of an import and 1 s in build(), all on one core
    blamed = [line for cause in report["causes"] for line in cause["evidence"]]
    assert [line for line in blamed if "work (" in line or "build (" in line] == []


def test_interrupted_it_reports_what_was_seen_and_the_job_gets_the_signal_too(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text("import time\nprint('trains', flush=True)\nwhile True:\n    time.sleep(0.1)\n")
    words = [
        sys.executable,
        "-m",
        "headrace",
        "diagnose",
        "--rate",
        "50",
        "--json",
        "--",
        sys.executable,
        str(job),
    ]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as both:
        assert both.stderr is not None
        assert both.stderr.readline() == "trains\n"  # stdout is the report's
        time.sleep(1)  # some samples are taken: the report comes only at the end
        os.killpg(both.pid, signal.SIGINT)  # as a terminal does
        said, errors = both.communicate(timeout=30)
    assert both.returncode == 128 + signal.SIGINT, errors
    report = json.loads(said)
    assert report["before_s"] > 0.2
    assert report["summary"].startswith("no step of the job was seen in ")  # it sleeps
    assert "interrupted by ^C" in errors


def test_without_py_spy_it_says_so_and_goes_on_with_what_the_kernel_tells(
    job_server: JobForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.diagnose import stacks
    from headrace.diagnose.attribute import attribute
    from headrace.diagnose.sampler import Sampler

    monkeypatch.setattr(stacks, "find_py_spy", lambda: None)
    pid = job_server.start("too_few_workers")
    try:
        sampler = Sampler(pid, lambda mountpoint: None, rate_hz=50)
        sampler.run(lambda: False, 1.5)
        diagnosis = attribute(sampler.recording())
    finally:
        os.killpg(pid, signal.SIGKILL)
    assert any("py-spy is missing" in line for line in diagnosis.recording.missing)
    assert diagnosis.causes[0].cause in ("loader.too_few_workers", "loader.processor"), diagnosis.causes


def test_a_job_is_no_other_tests_after_a_test_that_ended_too_early(
    job_server: JobForkServer, tmp_path: Path
) -> None:
    """All later tests watched the job of the test before."""
    job_server.order("healthy", group=tmp_path / "first")
    pid = job_server.start("healthy", group=tmp_path / "second")
    try:
        wait_for(lambda: (tmp_path / "second").exists() and (tmp_path / "second").read_text() == str(pid))
    finally:
        os.killpg(pid, signal.SIGKILL)


def test_words_that_make_no_sense() -> None:
    assert run().returncode == 2
    assert run("--pid", "1", "--", "true").returncode == 2
    assert run("--pid", str(2**22 + 1)).returncode == 3
    assert "no process has this id" in run("--pid", str(2**22 + 1)).stderr
    assert run("--pid", "0").returncode == 2
    assert run("--seconds", "nan", "--", "true").returncode == 2
    assert "no finite number above 0" in run("--seconds", "inf", "--", "true").stderr
    assert run("--seconds", "-1", "--", "true").returncode == 2


def test_a_command_that_cannot_be_started_says_why_with_a_shells_status(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    cases = {
        "/no/such/program": (127, "no such program"),
        "no-such-program": (127, "no such program on PATH"),
        str(script): (126, "chmod +x"),
        str(tmp_path): (126, "the path is a directory"),
    }
    for program, (status, why) in cases.items():
        done = run("--", program)
        assert (done.returncode, done.stdout) == (status, ""), done.stderr
        assert done.stderr.count("\n") == 1
        assert program in done.stderr
        assert why in done.stderr


def test_a_job_that_ends_at_once_gives_its_status() -> None:
    for words, status in ((["true"], 0), (["sh", "-c", "exit 7"], 7), (["sh", "-c", "kill -KILL $$"], 137)):
        done = run("--json", "--", *words)
        assert done.returncode == status, done.stderr
        assert json.loads(done.stdout)["moments"] >= 0


def test_a_job_that_ended_before_it_was_looked_at_is_reported() -> None:
    from headrace.diagnose.attribute import attribute
    from headrace.diagnose.sampler import Sampler

    with subprocess.Popen(["true"]) as job:
        os.waitid(os.P_PID, job.pid, os.WEXITED | os.WNOWAIT)  # a zombie now: its mounts are nobody's
        sampler = Sampler(job.pid, lambda mountpoint: None)
        sampler.run(lambda: job.poll() is not None, 1.0)
        assert attribute(sampler.recording()).wall_s == 0


def test_a_job_that_is_no_python_is_told_apart() -> None:
    done = run("--", "sh", "-c", "sleep 0.3; exit 5")
    assert done.returncode == 5
    assert "the job has no Python process" in done.stdout
