"""One seed: a node and its session live some lives over one cache folder, each ended by kill -9 at a step of a commit,
at any moment, or in order; then all that was acknowledged is at the origin, and nothing else.

`python -m tests.model.dataplane.writer_lives FIRST COUNT` runs seeds and ends at the first that fails. Each life is a
child of this process, which starts no threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import logging
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headrace.base import failpoint
from headrace.base.beneath import EXCHANGE
from headrace.overlay.syscalls import rename
from headrace.writeback import dirty_set
from tests.model.dataplane.writer_node import RETRY_S, NodeFixture, Session

STEPS = (
    *("persist.chosen", "persist.begun", "persist.put", "persist.shown", "persist.noted", "persist.made"),
    *("persist.removing", "persist.removed", "persist.emptied", "tree.moving", "tree.moved"),
    *("tree.renamed", "tree.away"),
    *("origin.filled", "origin.named", "index.commit", "index.committed"),
)
NAMES = ("a", "b", "c")
KINDS = (
    *("write", "write", "append", "replace", "truncate", "hold", "held", "chmod", "link"),
    *(
        "mkdir",
        "mkdir",
        "rmdir",
        "rmdir",
        "unlink",
        "unlink",
        "unlink",
        "rename",
        "rename",
        "exchange",
        "read",
    ),
)
LOWER = {"a/a": 3000, "a/b/c": 50, "b": 100, "c/a": 0, "c/b": 300_000}
LIFE_S = 60
Tree = dict[str, str]


class WriterLives:
    """The directories of one seed. `plain` has the expected content."""

    def __init__(self, base: Path, seed: int) -> None:
        self.seed = seed
        self.cache, self.truth, self.plain = base / "cache", base / "truth", base / "plain"
        self.log, self.output = base / "log", base / "told"
        self.begun: list[Any] | None = None
        """The call that was under way when the last life ended."""
        for folder in (self.cache, self.truth, self.plain):
            folder.mkdir(parents=True)
        for name, size in LOWER.items():
            data = random.Random(f"{seed} {name}").randbytes(size)
            for top in (self.truth, self.plain):
                (top / name).parent.mkdir(parents=True, exist_ok=True)
                (top / name).write_bytes(data)


# ------------------------------------------------------------ operations


def choose(chance: random.Random, names: Sequence[str]) -> list[Any]:
    """[kind, path, …]."""
    kind = chance.choice(KINDS)
    operation: list[Any] = [kind, path_of(chance, names)]
    if kind in ("write", "append", "replace", "hold", "held"):
        size = chance.choice([0, 7, 3000, 300_000])
        operation.append((chance.randbytes(8) * (size // 8 + 1))[:size].hex())
    elif kind == "truncate":
        operation.append(chance.choice([0, 10, 5000]))
    elif kind == "chmod":
        operation.append(chance.choice([0o600, 0o644, 0o755]))
    elif kind in ("rename", "exchange"):
        operation.append(path_of(chance, names))
    return operation


def path_of(chance: random.Random, names: Sequence[str]) -> str:
    return "/" + "/".join(chance.choice(names) for _ in range(chance.choice([1, 1, 2, 2, 3])))


def by_session(session: Session, kind: str, path: str, *more: Any) -> None:
    target = os.fsencode(path)
    match kind:
        case "write":
            session.put_bytes(target, bytes.fromhex(more[0]), os.O_TRUNC)
        case "hold":
            session.put_bytes(target, bytes.fromhex(more[0]), os.O_TRUNC, hold=True)
        case "held":
            session.write_held(bytes.fromhex(more[0]))
        case "append":
            session.put_bytes(target, bytes.fromhex(more[0]), os.O_APPEND)
        case "replace":
            session.replace(target, bytes.fromhex(more[0]))
        case "truncate":
            session.truncate(target, more[0])
        case "chmod":
            session.chmod(target, more[0])
        case "link":
            session.symlink(target)
        case "mkdir":
            session.mkdir(target)
        case "rmdir":
            session.rmdir(target)
        case "unlink":
            session.unlink(target)
        case "rename":
            session.rename(target, os.fsencode(more[0]), 0)
        case "exchange":
            session.rename(target, os.fsencode(more[0]), 2)
        case "read":
            session.read(target)


class Plain:
    """The same in a plain folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = os.fspath(folder)
        self._held: list[int] = []

    def do(self, kind: str, path: str, *more: Any) -> None:
        target = self._folder + path
        match kind:
            case "write" | "hold":
                self._write(target, bytes.fromhex(more[0]), os.O_TRUNC, hold=kind == "hold")
            case "held":
                if self._held:
                    fd = self._held.pop(0)
                    os.pwrite(fd, bytes.fromhex(more[0]), 0)
                    os.close(fd)
            case "append":
                self._write(target, bytes.fromhex(more[0]), os.O_APPEND)
            case "replace":
                self._replace(target, bytes.fromhex(more[0]))
            case "truncate":
                fd = os.open(target, os.O_RDWR | os.O_NOFOLLOW)
                os.ftruncate(fd, more[0])
                os.close(fd)
            case "chmod":
                if os.path.islink(target):
                    raise OSError(95, "links have none")
                os.chmod(target, more[0])
            case "link":
                os.symlink("nowhere", target)
            case "mkdir":
                os.mkdir(target)
            case "rmdir":
                os.rmdir(target)
            case "unlink":
                os.unlink(target)
            case "rename":
                os.rename(target, self._folder + more[0])
            case "exchange":
                rename(target, self._folder + more[0], EXCHANGE)
            case "read":
                if os.path.isdir(target) and not os.path.islink(target):
                    raise OSError(21, "a folder")
                os.close(os.open(target, os.O_RDONLY | os.O_NOFOLLOW))

    def _write(self, path: str, data: bytes, flags: int, *, hold: bool = False) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | flags, 0o644)
        os.write(fd, data)
        if hold:
            self._held.append(os.open(f"/proc/self/fd/{fd}", os.O_RDWR))
        os.close(fd)

    def _replace(self, path: str, data: bytes) -> None:
        source = f"{self._folder}.made"
        Path(source).write_bytes(data)
        os.rename(source, path)

    def drop_held(self) -> None:
        while self._held:
            os.close(self._held.pop())


def tree_of(folder: Path, *, links: bool) -> Tree:
    tree = {}
    for parent, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = os.path.join(parent, name)
            if name.startswith(".headrace-put-"):
                continue
            inside = "/" + os.path.relpath(path, folder)
            if os.path.islink(path):
                if links:
                    tree[inside] = "link"
            elif os.path.isdir(path):
                tree[inside] = "dir"
            else:
                tree[inside] = Path(path).read_bytes().hex()
    return tree


# ------------------------------------------------------------ a life


class Complaints(logging.Handler):
    """Keeps what the log says loudly."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(self.format(record))


def live(world: WriterLives, number: int, *, last: bool) -> None:
    """In a child. What it says goes to `told`; what it does to `log`, before and after it."""
    chance = random.Random(f"{world.seed} {number}")
    complaints = Complaints()
    logging.getLogger().handlers = [complaints]
    trace(world.log.with_name(f"node-{number}"))
    tree = asyncio.run(one_life(world, chance, last=last))
    if complaints.heard:
        tree["complaints"] = complaints.heard
    world.output.write_text(json.dumps(tree))


def trace(path: Path) -> None:
    """Log what the node did, for those who look into a seed that failed."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(created).4f %(message)s"))
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.INFO)


async def one_life(world: WriterLives, chance: random.Random, *, last: bool) -> dict[str, Any]:
    here = NodeFixture(os.fspath(world.cache), os.fspath(world.truth), chance)
    if last:
        here.origin.failing = 0.0
    await here.write.start()
    session = Session(here)
    out: dict[str, Any] = {}
    try:
        if not last:
            looking = asyncio.ensure_future(here.look_around())
            try:
                await asyncio.to_thread(work, world, session, chance)
            finally:
                looking.cancel()
        else:
            await here.settle()
            out["tree"] = await asyncio.to_thread(session.tree)
            out["conflicts"] = [os.fsdecode(row.path) for row in here.write.layer.journal.conflicts()]
            out["dirty"] = here.write.status()["dirty"]
            await here.write.rescan()
            out["dirty again"] = here.write.waiting(b"/")[0]
    finally:
        session.drop_held()
        await here.stop()
    return out


def work(world: WriterLives, session: Session, chance: random.Random) -> None:
    with open(world.log, "ab", buffering=0) as log:

        def note(*words: Any) -> None:
            log.write(json.dumps(words).encode() + b"\n")

        note("tree", session.tree())
        arm(chance)
        names, pause = NAMES[: chance.choice([1, 2, 3])], chance.choice([0.05, 0.4])
        for _ in range(chance.randrange(3, 60)):
            operation = choose(chance, names)
            note("begun", operation)
            logging.info("begun %s", str(operation)[:100])
            try:
                by_session(session, *operation)
            except OSError as error:
                note("done", error.errno)
            else:
                note("done", 0)
            if chance.random() < pause:
                time.sleep(chance.choice([0.001, 0.01, 0.04]))
        if chance.random() < 0.5:
            time.sleep(0.1)


def arm(chance: random.Random) -> None:
    """Choose how this life ends."""
    end = chance.choice(["step", "step", "step", "step", "moment", "order"])
    if end == "step":
        os.environ["HEADRACE_FAILPOINT"] = f"{chance.choice(STEPS)}:{chance.choice([1, 1, 2, 3, 5])}"
        importlib.reload(failpoint)
    elif end == "moment":
        signal.setitimer(signal.ITIMER_REAL, chance.random() * 0.3 + 0.001)


# ------------------------------------------------------------ a seed


class Failure(Exception):
    """Something was lost, or is there that should not be."""


def run(base: Path, seed: int) -> str:
    """Failure. How often it was killed."""
    world = WriterLives(base, seed)
    chance = random.Random(f"lives {seed}")
    deaths = 0
    for number in range(chance.randrange(1, 4)):
        world.log.write_bytes(b"")
        status = in_child(lambda number=number: live(world, number, last=False))  # type: ignore[misc]
        check_life(world, status)
        deaths += os.WIFSIGNALED(status)
    world.log.write_bytes(b"")
    status = in_child(lambda: live(world, 99, last=True))
    if status:
        raise Failure(f"the last life ended with {status:x}: {told(world)}")
    check_end(world, json.loads(world.output.read_text()))
    return str(deaths)


def in_child(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(LIFE_S)
            work()
            code = 0
        except Exception:  # noqa: BLE001 - the child ends with it
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def told(world: WriterLives) -> str:
    with contextlib.suppress(OSError):
        return world.output.read_text()[:2000]
    return ""


def check_life(world: WriterLives, status: int) -> None:
    """Repeat in the plain folder what was done; the answers must be the same."""
    if not os.WIFSIGNALED(status) and status:
        raise Failure(f"a life ended with {status:x}")
    plain = Plain(world.plain)
    rows = [json.loads(line) for line in world.log.read_bytes().splitlines() if line.endswith(b"]")]
    begun: list[Any] | None = None
    for row in rows:
        if row[0] == "tree":
            check_tree(world, row[1])
        elif row[0] == "begun":
            begun = row[1]
        else:
            assert begun is not None
            if begun[0] == "exchange" and row[1] == 22:
                continue  # of a folder that the origin has: refused
            number = errno_of(plain, begun)
            if number != row[1] and not (number and row[1] and begun[0] in ("rename", "exchange", "chmod")):
                raise Failure(f"{short_of(begun)}: errno {row[1]}, and {number} in a plain folder")
            begun = None
    plain.drop_held()
    world.begun = begun


def short_of(operation: list[Any]) -> list[str]:
    return [str(word)[:20] for word in operation]


def errno_of(plain: Plain, operation: list[Any]) -> int:
    try:
        plain.do(*operation)
    except OSError as error:
        return error.errno or 0
    return 0


def check_tree(world: WriterLives, shown: Tree) -> None:
    """Check that a life begins with the plain folder. The call under way at the end of the one before has happened, or
    not, or a part of the bytes was written."""
    begun, world.begun = world.begun, None
    before = tree_of(world.plain, links=True)
    if shown == before or begun is None:
        compare("at the start of a life", shown, before)
        return
    errno_of(Plain(world.plain), begun)
    after = tree_of(world.plain, links=True)
    path = begun[1]
    if begun[0] in ("write", "hold", "append") and shown.get(path) not in (None, "dir", "link"):
        part = shown[path]
        if after.get(path, "").startswith(part):
            (world.plain / path.lstrip("/")).write_bytes(bytes.fromhex(part))
            after[path] = part
    if begun[0] == "held" and shown.keys() == before.keys():  # where the file is by now is not known here
        differ = [name for name in shown if shown[name] != before[name]]
        if len(differ) == 1:
            (world.plain / differ[0].lstrip("/")).write_bytes(bytes.fromhex(shown[differ[0]]))
            return
    compare(f"after {begun[:2]} was begun", shown, after)


def check_end(world: WriterLives, report: dict[str, Any]) -> None:
    check_tree(world, report["tree"])
    compare("at the origin", tree_of(world.truth, links=True), tree_of(world.plain, links=False))
    for key in ("conflicts", "dirty again", "complaints"):
        if report.get(key):
            raise Failure(f"{key}: {report[key]}")
    if report["dirty"]:
        raise Failure(f"{report['dirty']} are dirty")


def compare(when: str, got: Tree, wanted: Tree) -> None:
    names = {name for name in {*got, *wanted} if got.get(name) != wanted.get(name)}
    if names:
        short = {name: (brief(got.get(name)), brief(wanted.get(name))) for name in sorted(names)}
        raise Failure(f"{when}: (got, wanted): {short}")


def brief(data: str | None) -> str:
    return "-" if data is None else data if len(data) < 20 else f"{len(data) // 2}:{data[:8]}"


def main() -> None:
    base, first, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    logging.basicConfig(level=logging.CRITICAL)
    failed = deaths = 0
    for seed in range(first, first + count):
        folder = base / str(seed)
        shutil.rmtree(folder, ignore_errors=True)
        try:
            deaths += int(run(folder, seed))
        except (Failure, AssertionError) as error:
            failed += 1
            print(f"seed {seed}: {type(error).__name__} {error}", flush=True)
        else:
            shutil.rmtree(folder)
    print(f"seeds {count} deaths {deaths} failed {failed}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    dirty_set.BACKOFF_S_MAX = RETRY_S
    main()
