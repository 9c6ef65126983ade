"""Fork training jobs from one process that has imported torch already, because the import takes seconds."""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests import fork_server

SCRIPTS = Path(__file__).with_name("scripts")
ROOT = Path(__file__).parents[3]
WARM_UP_S = 0.5
REPORTING = ("healthy", "healthy_processor")
"""Scripts that report their first steps. Until then not even a healthy job is healthy, and a busy machine is slow."""
WATCHED_S = 2.0
RATE_HZ = "50"
LIMIT_S = 60.0


class JobForkServer:
    """Starts training jobs; `close` ends those left. Each job is a session of its own, so its workers end with it."""

    def __init__(self, log: Path) -> None:
        paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        self._reports = log.parent / "reports"
        self._reports.mkdir()
        # jobs are killed, and torch's workers leave sockets then
        self.environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(paths),
            "TMPDIR": str(log.parent),
            "JOB_REPORTS": str(self._reports),
        }
        self._orders = 0
        with log.open("wb") as sink:
            self._parent = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                env=self.environment,
            )

    def start(self, script: str, *words: object, group: Path | None = None) -> int:
        """The job's process id, when it has gone so far that it trains. group: the cgroup.procs that it joins."""
        number = self.order(script, *words, group=group)
        assert self._parent.stdout is not None
        while (answer := [int(word) for word in self._parent.stdout.readline().split()])[0] != number:
            # of a test that ended before the answer; it may be no group yet
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError):
                    kill(answer[1], signal.SIGKILL)
        pid = answer[1]
        if script in REPORTING:
            report, give_up_s = self._reports / str(pid), time.monotonic() + LIMIT_S
            while not report.exists():
                assert time.monotonic() < give_up_s, f"{script} doesn't train"
                time.sleep(0.02)
            report.unlink()
        else:
            time.sleep(WARM_UP_S)
        return pid

    def order(self, script: str, *words: object, group: Path | None = None) -> int:
        """Order a job; return the number of the answer."""
        assert self._parent.stdin is not None
        self._orders += 1
        order = json.dumps([self._orders, str(group or ""), str(SCRIPTS / f"{script}.py"), *map(str, words)])
        self._parent.stdin.write(order.encode() + b"\n")
        self._parent.stdin.flush()
        return self._orders

    def diagnose(
        self,
        script: str,
        *words: object,
        group: Path | None = None,
        run_folder: str = "",
        watched_s: float = WATCHED_S,
    ) -> dict[str, Any]:
        """Return what `headrace diagnose --pid --json` says of the script. run_folder: of the node whose mount it
        reads."""
        pid = self.start(script, *words, group=group)
        try:
            return self.watch(pid, run_folder=run_folder, watched_s=watched_s)
        finally:
            os.killpg(pid, signal.SIGKILL)

    def watch(
        self, pid: int, *extra: str, run_folder: str = "", watched_s: float = WATCHED_S
    ) -> dict[str, Any]:
        words = [
            "diagnose",
            "--pid",
            str(pid),
            "--seconds",
            str(watched_s),
            "--rate",
            RATE_HZ,
            "--json",
            *extra,
        ]
        environment = {**self.environment, **({"HEADRACE_RUN_FOLDER": run_folder} if run_folder else {})}
        done = fork_server.run(
            [sys.executable, "-m", "headrace", *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    def close(self) -> None:
        assert self._parent.stdin is not None
        self._parent.stdin.close()
        self._parent.wait(60)


def _serve() -> None:
    import torch.utils.data

    torch.optim.Adam([torch.zeros(1)])  # the first optimizer imports much more
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # jobs that are killed leave nothing
    for line in sys.stdin:
        number, *words = json.loads(line)
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            os.dup2(2, 1)
            if words[0]:
                Path(words[0]).write_text(str(os.getpid()))
            sys.argv = words[1:]
            runpy.run_path(words[1], run_name="__main__")
            return
        sys.stdout.write(f"{number} {pid}\n")
        sys.stdout.flush()
    os._exit(0)  # Python would take 2 s more to take apart what torch imported


if __name__ == "__main__":
    _serve()
