"""Scripts run in a plain folder, and in mounts of real nodes over a folder as origin. One of each is for all tests."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.fuse import device
from tests.integration.cli.host import Host
from tests.integration.writes import runner
from tests.integration.writes.place import LOWER, make_lower
from tests.integration.writes.registry import SCRIPTS

ROOT = Path(__file__).parents[3]
ANSWER_LIMIT_S = 180.0
EXAMPLES = int(os.environ.get("HEADRACE_EXAMPLES", "25"))
TRIES = 40
"""Examples beyond, for leaving out what a failure does not need."""
MODES = ("local", "back")
assert runner.LOADED  # its import registers the scripts


def differences(got: dict[str, str], wanted: dict[str, str]) -> list[str]:
    names = sorted(got.keys() | wanted.keys())
    return [f"{n}: {got.get(n)}, wanted {wanted.get(n)}" for n in names if got.get(n) != wanted.get(n)]


class Runner:
    """The process that touches the files. One that does not answer is killed, and the test fails."""

    def __init__(
        self, cwd: Path, command: Sequence[str] = (), environment: dict[str, str] | None = None
    ) -> None:
        """command: before `-m`; environment: without one, this process's with the project's modules."""
        paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        self._cwd = cwd
        self._command = command or (sys.executable,)
        self._environment = environment or os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, request: dict[str, Any], stuck: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """stuck: called when it does not answer, so that it can be ended."""
        if self._process is None:
            self._process = self._start()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        readable, _, _ = select.select([process.stdout], [], [], ANSWER_LIMIT_S)
        line = process.stdout.readline() if readable else b""
        if not line:
            process.kill()
            stuck()
            process.wait(10)
            self._process = None
        assert line, f"no answer {'but an end ' if readable else ''}in {ANSWER_LIMIT_S:.0f} s to {request}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self._command, "-m", "tests.integration.writes.runner"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=self._cwd,
            env=self._environment,
        )

    def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(10)


class Folder:
    """Scripts in a plain folder: what is right."""

    mounted = False

    def __init__(self, base: Path, runner: Runner | None = None) -> None:
        self.base = base
        self.tree = base / "tree"
        self._runner = runner or Runner(base)
        self._made = 0

    def run_script(self, name: str) -> dict[str, Any]:
        return self.run(name, SCRIPTS[name].lower, {"script": name})

    def run(self, name: str, lower: dict[str, bytes], request: dict[str, Any]) -> dict[str, Any]:
        """name: of the folders, new ones of which are made. → notes, tree, error."""
        self._made += 1
        root, low = self.tree / f"new-{self._made}/{name}", self.tree / f"lower-{self._made}/{name}"
        low.mkdir(parents=True)
        root.parent.mkdir(parents=True)
        make_lower(str(low), lower)
        return self._ask(root, low, request)

    def _ask(self, root: Path, low: Path, request: dict[str, Any]) -> dict[str, Any]:
        self._made += 1
        outside = self.base / f"outside-{self._made}"
        places = {"root": str(root), "lower": str(low), "outside": str(outside), "mounted": self.mounted}
        return self._runner.ask(request | places, self._stuck)

    def tree_of(self, folder: Path) -> dict[str, str]:
        """All that a user sees below it (`place.tree_of`)."""
        return self._seen({"tree": str(folder)})

    def contents_of(self, folder: Path) -> dict[str, str]:
        """The bytes of regular files only."""
        return self._seen({"contents": str(folder)})

    def _seen(self, request: dict[str, Any]) -> dict[str, str]:
        answer = self._runner.ask(request, self._stuck)
        assert not answer["error"], answer["error"]
        tree: dict[str, str] = answer["tree"]
        return tree

    def _stuck(self) -> None:
        pass

    def close(self) -> None:
        self._runner.close()


class MountedFolder(Folder):
    """Scripts in a mount; their lower files are at the origin before the node starts."""

    mounted = True

    def __init__(self, base: Path, mode: str) -> None:
        super().__init__(base)
        self.mode = mode
        self.ran: set[str] = set()
        """Scripts, and "model"."""
        self.used: list[str] = []
        """Folders below the mount that something ran in."""
        self.host = Host(base)
        self.host.environment.pop("HEADRACE_EXAMPLES", None)  # a setting of these tests, not of headrace's
        self.tree = self.host.mount
        for script in SCRIPTS.values():
            make_lower(str(self.host.truth / "lower" / script.name), script.lower)
        for number in range(EXAMPLES + TRIES):
            make_lower(str(self.host.truth / f"model/{number}"), LOWER)
        (self.host.truth / "new").mkdir()
        self.origin_before = self.contents_of(self.host.truth)
        self.up()

    def restart(self) -> None:
        self.host.ok("down", self.host.mount, limit_s=120)
        self.host.assert_nothing_left()
        self.up()

    def up(self) -> None:
        self.host.up(self.host.truth, self.host.mount, "--write", self.mode, "--allow-other")

    def run(self, name: str, lower: dict[str, bytes], request: dict[str, Any]) -> dict[str, Any]:
        self.ran.add(name)
        if name in SCRIPTS:
            self.used += [f"new/{name}", f"lower/{name}"]
            return self._ask(self.tree / "new" / name, self.tree / "lower" / name, request)
        number = self._made
        assert number < EXAMPLES + TRIES, "no folder left at the origin: HEADRACE_EXAMPLES"
        self.used += [f"new/model-{number}", f"model/{number}"]
        return self._ask(self.tree / f"new/model-{number}", self.tree / f"model/{number}", request)

    def _stuck(self) -> None:
        for path in self.host.mounts():
            device.unmount(path, detach=True)
        self.host.kill_all()

    def close(self) -> None:
        super().close()
        self.host.close()


GetFolder = Callable[[str], Folder]


@pytest.fixture(scope="package")
def get_folder(needs_fuse: None) -> Iterator[GetFolder]:
    """Call with "plain" or the write mode of a mount; each is made once."""
    base = Path(tempfile.mkdtemp(prefix="headrace-writes-"))
    base.chmod(0o755)  # another user looks at it, too
    folders: dict[str, Folder] = {}

    def get(kind: str) -> Folder:
        if kind not in folders:
            (base / kind).mkdir()
            folders[kind] = Folder(base / kind) if kind == "plain" else MountedFolder(base / kind, kind)
        return folders[kind]

    yield get
    for folder in folders.values():
        folder.close()
    shutil.rmtree(base)
