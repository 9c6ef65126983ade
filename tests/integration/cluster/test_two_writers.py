"""Two nodes write at random and die at random: what was acknowledged is found, whole, by both and at the origin.

The reference is a plain folder. In each round a name of the top belongs to one node; after it both persist, and all
three must agree. Where nothing is persisted between (`late`), some names are written by both: then each one's bytes are
kept, under the name or beside it, and what is beside is reported; but for those that the other one saw, and replaced.
HEADRACE_EXAMPLES is the number of sequences.
"""

from __future__ import annotations

import base64
import errno
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as some

from headrace.overlay.marks import base_version
from headrace.overlay.pending_version import is_pending
from headrace.overlay.upper import Upper
from headrace.testing.etcd import EtcdServer
from tests.integration.cli.host import Host
from tests.integration.persist.conftest import wait_until
from tests.integration.persist.kill_script import STEPS
from tests.plain_paths import plain

from .cluster_fixture import ClusterFixture
from .file_agent import FileAgent, Tree

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(600)]

EXAMPLES = int(os.environ.get("HEADRACE_EXAMPLES", "2"))
DELAYS = {"soon": 0.02, "late": 600}
TOPS = ("p", "q", "r", "s")
BELOW = ("x", "y")
BOTH = ("both0", "both1")
LOWER = {"p/x": 3000, "q": 100, "r/x/y": 70_000, "r/y": 10, "both0": 50}
KINDS = ("write", "write", "replace", "append", "truncate", "mkdir", "rmdir", "unlink", "rename", "read")
REFUSED = (
    ("unlink", errno.ENOENT),
    ("replace", errno.EEXIST),
    ("append", errno.ESTALE),
    ("append", errno.EIO),
)
"""Errors for a name that the other node changed just now: its temporary one may still be seen, and its former content
can't be read any more."""
CRASHES = ("all", "node", "session", "step")
FAILPOINTS = (*STEPS, "fuse.changed", "tree.moving", "tree.moved", "tree.renamed", "tree.away")

sequence = some.tuples(some.integers(0, 2**32), some.integers(2, 4))
"""Seed, rounds."""


@dataclass
class Contested:
    """left: what the nodes that changed a name had there then; None: nothing. kept: what of that must be found."""

    left: list[str | None] = field(default_factory=list)
    kept: list[str | None] = field(default_factory=list)


class Pair:
    """Two nodes and the plain folder; each example has a folder of its own in all of them."""

    def __init__(self, base: Path, etcd: str, delay_s: float) -> None:
        self.cluster = ClusterFixture(base, etcd, write="back", persist_delay_s=delay_s)
        for number in range(EXAMPLES):
            for name, size in LOWER.items():
                self.cluster.put(f"m{number}/{name}", size)
        self.plain = base / "plain"
        self.plain.mkdir()
        self.late = delay_s > 1
        self.example = -1
        self._chance = random.Random(0)
        self._arms: list[Path] = []
        for number in range(2):
            host = self.cluster.add()
            self._arms.append(base / f"died-{number}")
            self.cluster.up(host)
        self.cluster.wait_members(2)
        self.agents = [FileAgent(host.mount) for host in self.cluster.hosts]
        self.reference = FileAgent(self.plain)
        self.truth = FileAgent(self.cluster.truth)

    def close(self) -> None:
        for agent in (*self.agents, self.reference, self.truth):
            agent.close()
        self.cluster.close()

    # ------------------------------------------------------------ one sequence

    def run(self, seed: int, rounds: int) -> None:
        self._chance = random.Random(seed)
        self.example += 1
        assert self.reference.do("mkdir", self.folder) == [0, None]
        for name, wanted in self.truth.tree(self.folder).items():
            kind, more = ("mkdir", ()) if wanted == "dir" else ("write", (wanted,))
            assert self.reference.do(kind, f"{self.folder}/{name}", *more) == [0, None]
        for _ in range(rounds):
            self._round()

    @property
    def folder(self) -> str:
        return f"m{self.example}"

    def _round(self) -> None:
        owner = {top: self._chance.randrange(2) for top in TOPS}
        for _ in range(self._chance.randrange(4, 14)):
            top = self._chance.choice(TOPS)
            self._one(owner[top], [name for name in TOPS if owner[name] == owner[top]])
            if self._chance.random() < 0.08:
                self._crash(self._chance.randrange(2))
        contested = self._contest() if self.late else {}
        if self._chance.random() < 0.3:
            self._crash(self._chance.randrange(2))
        self._settle()
        self._compare(contested)

    def _one(self, node: int, tops: list[str]) -> None:
        """One operation of a node, and of the reference."""
        kind, path = self._chance.choice(KINDS), self._path(tops)
        more: list[Any] = []
        if kind in ("write", "replace", "append"):
            more = [self._bytes()]
        elif kind == "truncate":
            more = [self._chance.choice([0, 10, 5000])]
        elif kind == "rename":
            more = [self._path(tops)]
        wanted, got = (agent.do(kind, path, *more) for agent in (self.reference, self.agents[node]))
        assert got == wanted, (kind, path, more, f"node {node}", got, wanted)

    def _path(self, tops: list[str]) -> str:
        depth = self._chance.choice([0, 0, 1, 1, 2])
        return "/".join([self.folder, self._chance.choice(tops), *self._chance.choices(BELOW, k=depth)])

    def _bytes(self) -> str:
        size = self._chance.choice([0, 7, 3000, 300_000, 1_500_000])
        return base64.b64encode(self._chance.randbytes(8) * (size // 8 + 1)).decode()

    def _contest(self) -> dict[str, Contested]:
        """Both nodes change the same names, one just after the other."""
        contested: dict[str, Contested] = {}
        for name in BOTH:
            if self._chance.random() < 0.5:
                path = f"{self.folder}/{name}"
                contest = contested[name] = Contested()
                for node, agent in enumerate(self.agents):
                    kind = self._chance.choice(["write", "replace", "append", "unlink"])
                    answer = agent.do(kind, path, *([] if kind == "unlink" else [self._bytes()]))
                    assert answer == [0, None] or (kind, answer[0]) in REFUSED, (kind, answer)
                    if answer == [0, None]:
                        if self._saw_the_other(node, path, removed=contest.kept == [None]):
                            contest.kept.clear()  # it was replaced by who saw it
                        contest.left.append(agent.do("read", path)[1])
                        contest.kept.append(contest.left[-1])
        return {name: contest for name, contest in contested.items() if contest.left}

    def _saw_the_other(self, node: int, path: str, *, removed: bool) -> bool:
        """Return whether a node's entry at a path replaces what the other one has not persisted yet; or nothing, where
        that one had removed it."""
        upper = Upper(str(self.cluster.hosts[node].cache / "upper"))
        whole = os.fsencode(f"/{path}")
        base = base_version(upper.at(whole), whole)
        return is_pending(base) or (removed and base is None)

    # ------------------------------------------------------------ crashes

    def _crash(self, node: int) -> None:
        host, kind = self.cluster.hosts[node], self._chance.choice(CRASHES)
        if kind == "all":
            self._restart(host, node, step="")
        elif kind == "step":
            self._restart(host, node, step=self._chance.choice(FAILPOINTS))
        else:
            pid = host.pid_of(kind)
            if pid:
                os.kill(pid, 9)
            wait_until(lambda: host.pid_of(kind) not in (0, pid), 30.0)

    def _restart(self, host: Host, node: int, *, step: str) -> None:
        """step: where it is to die next, once."""
        host.kill_all()
        host.close()
        arm = self._arms[node]
        arm.unlink(missing_ok=True)
        host.environment["HEADRACE_FAILPOINT"] = (
            f"{step}:{self._chance.randrange(1, 4)}:{arm}" if step else ""
        )
        self.cluster.up(host)
        self.cluster.wait_members(2)

    # ------------------------------------------------------------ what must be

    def _settle(self) -> None:
        for host in self._chance.sample(self.cluster.hosts, 2):
            wait_until(lambda host=host: host.headrace("persist", "/").returncode == 0, 60.0)  # type: ignore[misc]
        wait_until(
            lambda: self.cluster.hosts[0].headrace("sync").returncode == 0, 30.0
        )  # which tells the other

    def _compare(self, contested: dict[str, Contested]) -> None:
        truth = self.truth.tree(self.folder)
        wanted = self.reference.tree(self.folder)
        for name, contest in contested.items():
            self._compare_contested(name, contest, truth)
            self._adopt(name, truth, wanted)
        wanted = self.reference.tree(self.folder)
        assert short(truth, wanted) == {}, "the origin"
        for node, agent in enumerate(self.agents):
            self._clear_left_folders(node, wanted)
            wait_until(
                lambda agent=agent: agent.do("tree", self.folder) == [0, wanted],  # type: ignore[misc]
                20.0,
                hint=lambda node=node, agent=agent: (  # type: ignore[misc]
                    f"node {node}: {short(agent.tree(self.folder), wanted)}"
                ),
            )

    def _compare_contested(self, name: str, contest: Contested, truth: Tree) -> None:
        """The name is as one of the two left it; the other's bytes are beside it, and reported, unless they were
        replaced by who saw them."""
        assert truth.get(name) in contest.left, (name, "is as nobody left it")
        reported = [row for host in self.cluster.hosts for row in host.status()["write"]["conflicts"]]
        kept = {path: data for path, data in truth.items() if path.startswith(f"{name}.conflict-")}
        for path in kept:
            assert f"/{self.folder}/{path}" in [row["kept"] for row in reported], (path, "is not reported")
        for data in contest.kept:
            assert data is None or data in (truth.get(name), *kept.values()), (name, "bytes are lost")
        if None in contest.kept and truth.get(name) is not None:
            assert f"/{self.folder}/{name}" in [row["path"] for row in reported], (name, "is not removed")

    def _clear_left_folders(self, node: int, wanted: Tree) -> None:
        """An empty folder of a node stays there when the other one removed it (docs/semantics/nodes.md)."""
        own = Path(
            os.fsdecode(
                plain(Upper(str(self.cluster.hosts[node].cache / "upper")).at(f"/{self.folder}".encode()))
            )
        )
        for folder, folders, files in os.walk(own, topdown=False):
            name = os.path.relpath(folder, own)
            if name != "." and name not in wanted and not folders and not files:
                self.agents[node].do("rmdir", f"{self.folder}/{name}")

    def _adopt(self, name: str, truth: Tree, wanted: Tree) -> None:
        """The reference goes on with what became of a name that both wrote."""
        for path in {*truth, *wanted}:
            if path == name or path.startswith(f"{name}.conflict-"):
                if path in truth:
                    assert self.reference.do("write", f"{self.folder}/{path}", truth[path]) == [0, None]
                else:
                    assert self.reference.do("unlink", f"{self.folder}/{path}") == [0, None]


def short(got: Tree, wanted: Tree) -> dict[str, tuple[str, str]]:
    """Name → the ends of what differs."""
    names = {name for name in {*got, *wanted} if got.get(name) != wanted.get(name)}
    return {name: (got.get(name, "-")[-20:], wanted.get(name, "-")[-20:]) for name in names}


@pytest.fixture(scope="module", params=DELAYS)
def pair(
    needs_fuse: None,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    etcd: EtcdServer,
) -> Iterator[Pair]:
    pair = Pair(tmp_path_factory.mktemp(request.param), etcd.address, DELAYS[request.param])
    yield pair
    pair.close()


def test_nothing_is_lost_or_half(pair: Pair) -> None:
    failed: list[str] = []

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(sequence)
    def agree(example: tuple[int, int]) -> None:
        assert not failed, failed[0]
        try:
            pair.run(*example)
        except BaseException as error:
            failed.append(f"seed and rounds: {example}: {error}")
            raise

    agree()
