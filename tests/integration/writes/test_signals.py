"""Under an interval timer no call fails that would not on a disk, in any mode of reading or writing. So no call says
EINTR of which anybody could ask whether it had taken effect. HEADRACE_EXAMPLES multiplies the calls."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from headrace.overlay.upper import Upper
from tests.integration.cli.host import Host, wait_until

EXAMPLES = int(os.environ.get("HEADRACE_EXAMPLES", "1"))
pytestmark = [pytest.mark.fuse, pytest.mark.timeout(120 * EXAMPLES)]
ROOT = Path(__file__).parents[3]
CALLS = 40
EVERY_MS = (1, 3, 10, 100) if EXAMPLES > 1 else (1,)

MakeHost = Callable[..., Host]

_CHANGES = {
    "mkdir": ("say(); os.mkdir('made')", b"/made", 0o755),
    "unlink": ("say(); os.unlink('removed')", b"/removed", None),
    "rename": ("say(); os.rename('old', 'new')", b"/new", 0o644),
    "setattr": ("say(); os.chmod('changed', 0o600)", b"/changed", 0o600),
    "flush": ("fd = os.open('closed', 65); os.write(fd, b'closed'); say(); os.close(fd)", b"/closed", 0o755),
    "fsync": ("fd = os.open('synced', 65); os.write(fd, b'synced'); say(); os.fsync(fd)", b"/synced", 0o755),
    "exit": ("fd = os.open('left', 65); os.write(fd, b'left'); say(); time.sleep(1000)", b"/left", 0o755),
}
"""By what the kernel calls it: the change, and the mode of a name in the layer once it is made, None for no name."""
_CHANGE = """
import os, signal, sys, time
os.umask(0o022)
signal.signal(signal.SIGUSR1, lambda *_: None)
os.chdir(sys.argv[1])
def say():
    print("ready", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def make_host(needs_fuse: None) -> Iterator[MakeHost]:
    """Call with the options of `up`."""
    with tempfile.TemporaryDirectory(prefix="headrace-signals-") as base:
        host = Host(Path(base))
        host.environment.pop("HEADRACE_EXAMPLES", None)

        def make(*options: str) -> Host:
            host.up(host.truth, host.mount, *options)
            return host

        yield make
        host.close()


def failures(folder: Path, *options: object) -> dict[str, dict[str, int]]:
    command = [sys.executable, "-m", "tests.integration.writes.signalled", str(folder), *map(str, options)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["signals"] > 0
    counts: dict[str, dict[str, int]] = answer["failures"]
    return counts


@pytest.mark.parametrize("every_ms", EVERY_MS)
@pytest.mark.parametrize(
    "io, write, calls",
    [("passthrough", "local", CALLS), ("passthrough", "through", CALLS // 10), ("splice", "back", CALLS)],
)
def test_a_timer_makes_no_call_fail(
    make_host: MakeHost, io: str, write: str, calls: int, every_ms: int
) -> None:
    host = make_host("--io", io, "--write", write)
    wanted = ("--every", every_ms, "--calls", calls * EXAMPLES, "--commits", calls // 2 * EXAMPLES)
    for number, handler in enumerate([(), ("--restart",)]):
        (host.mount / str(number)).mkdir()
        counts = failures(host.mount / str(number), *wanted, *handler)
        if not handler:
            counts.pop("copy_range", None)  # as on a disk; what it had copied was looked at
        assert counts == {}


@pytest.mark.parametrize("every_ms", EVERY_MS)
def test_a_timer_makes_no_read_fail(make_host: MakeHost, every_ms: int) -> None:
    host = make_host("--io", "noopen")
    for number in range(CALLS):
        host.put(f"f{number}", 300_000, number)
    calls = ("--every", every_ms, "--calls", CALLS * EXAMPLES, "--truth", host.truth)
    assert failures(host.mount, *calls) == {}


def test_a_killed_writer_ends_and_what_it_had_changed_stays(make_host: MakeHost) -> None:
    """Each waits for the node, which is stopped: the change is made here, and comes to the origin later."""
    host = make_host("--write", "through", "--io", "splice")
    for name in ("removed", "old", "changed"):
        (host.mount / name).write_text(name)
    layer = Upper(str(host.cache / "upper"))
    writers = {name: Writer(host.mount, change) for name, (change, *_) in _CHANGES.items()}
    node = host.kill("node", signal.SIGSTOP)
    try:
        for name, writer in writers.items():
            _, path, mode = _CHANGES[name]
            writer.begin()
            if name != "exit":
                writer.wait_in(f"fuse_{name}")
            wait_until(partial(_has_mode, layer, path, mode))
            assert (name, writer.killed()) == (name, -signal.SIGKILL)
    finally:
        os.kill(node, signal.SIGCONT)
    host.ok("persist", "--wait", limit_s=60)
    left = {"made": "", "new": "old", "changed": "changed"}
    left |= {"closed": "closed", "synced": "synced", "left": "left"}
    for folder in (host.mount, host.truth):
        assert {path.name: "" if path.is_dir() else path.read_text() for path in folder.iterdir()} == left
        assert (folder / "changed").stat().st_mode & 0o777 == 0o600


def _has_mode(layer: Upper, path: bytes, mode: int | None) -> bool:
    return _mode_of(layer, path) == mode


def _mode_of(layer: Upper, path: bytes) -> int | None:
    status = layer.lookup(path)
    return stat.S_IMODE(status.st_mode) if isinstance(status, os.stat_result) else None


class Writer:
    """A process that makes a change when it is told to."""

    def __init__(self, folder: Path, change: str) -> None:
        command = [sys.executable, "-c", _CHANGE + change, str(folder)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def begin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def wait_in(self, function: str) -> None:
        """Until it is in that function of the kernel's; then a signal comes that it survives."""
        stack = Path(f"/proc/{self._process.pid}/stack")
        wait_until(lambda: function in stack.read_text())
        self._process.send_signal(signal.SIGUSR1)

    def killed(self) -> int:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        return self._process.wait(30)
