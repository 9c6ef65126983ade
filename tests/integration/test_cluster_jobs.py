"""Jobs of a cluster as its users give them: the commands, in processes of their own, over the nodes' sockets."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from headrace.base.errors import OriginDeniedError, UsageError
from headrace.base.model import Arrived
from headrace.cli.examples import FIELDS
from headrace.cli.exit_codes import EXIT_CODES, SOME_FAILED
from headrace.entry.rpc.server import RpcServer, Subscribers
from headrace.jobs.cluster_jobs import WATCH
from headrace.wire.messages import (
    PROTOCOL,
    Answer,
    Done,
    JobCancel,
    JobList,
    JobRetry,
    JobRows,
    JobStart,
    MountList,
    Mounts,
    OpenMany,
    Request,
    Welcome,
)
from tests.fork_server import forking
from tests.unit.jobs.many_runners import CountingOrigin, JobClusterFixture, Runner

pytestmark = pytest.mark.timeout(120)
Output = tuple[int, str, str]


class SocketJobCluster(JobClusterFixture):
    """Nodes with sockets, by node. `watched` is set when a command requests the states of an existing job."""

    def __init__(self, folder: Path, sockets: str, *, nodes: str = "abc") -> None:
        super().__init__(folder, nodes=nodes)
        self.sockets = {id: os.path.join(sockets, f"{id}.sock") for id in nodes}
        self.watched = asyncio.Event()
        self.environment = {**os.environ, "HEADRACE_RUN_FOLDER": sockets}

    async def headrace(self, node: str, *words: str) -> Output:
        process = await self.begin(node, *words)
        out, err = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    async def begin(self, node: str, *words: str) -> asyncio.subprocess.Process:
        with forking():
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "headrace", *words, "--socket", self.sockets[node]),
                env=self.environment,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )

    async def json(self, node: str, *words: str) -> Any:
        status, out, err = await self.headrace(node, *words, "--json")
        assert status == 0, err
        return json.loads(out)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        async with super().running(), _served(self):
            yield self


@asynccontextmanager
async def _served(cluster: SocketJobCluster) -> AsyncIterator[None]:
    servers = [_server(cluster, runner) for runner in cluster.runners.values()]
    for server, id in zip(servers, cluster.runners, strict=True):
        await server.start(cluster.sockets[id])
    try:
        yield
    finally:
        for server in servers:
            await server.stop()


def _server(cluster: SocketJobCluster, runner: Runner) -> RpcServer:
    """Return a server that answers as the node does."""

    async def answer(request: Request) -> Answer:
        match request:
            case JobList(id=id):
                return JobRows(rows=runner.jobs.rows(id))
            case JobCancel(id=id):
                await runner.jobs.cancel(id)
                return Done()
            case JobRetry(id=id):
                await runner.jobs.retry(id)
                return Done()
            case MountList():
                return Mounts(rows=[])
        raise UsageError(type(request).__name__)

    def stream(request: JobStart | OpenMany) -> AsyncIterator[Answer]:
        assert isinstance(request, JobStart)
        if request.kind == WATCH:
            cluster.watched.set()
        return runner.jobs.run(request.kind, request.path, request.options)

    welcome = Welcome(protocol=PROTOCOL, index="", volumes=[], generation=1)
    return RpcServer(welcome, Subscribers(), answer=answer, stream=stream)


class DenyingOrigin(CountingOrigin):
    """denied: keys that can't be read."""

    denied: frozenset[str] = frozenset()

    async def read_range(self, key: str, start: int, end: int, **rest: Any) -> Arrived:
        if key in self.denied:
            raise OriginDeniedError(key, why="denied by plan")
        return await super().read_range(key, start, end, **rest)


@pytest.fixture
def idle_cluster(tmp_path: Path) -> Iterator[SocketJobCluster]:
    with tempfile.TemporaryDirectory(prefix="hr-") as sockets:  # a socket's path is 107 bytes at most
        yield SocketJobCluster(tmp_path, sockets)


@pytest.fixture
async def cluster(idle_cluster: SocketJobCluster) -> AsyncIterator[SocketJobCluster]:
    async with idle_cluster.running() as cluster:
        yield cluster


async def test_load_is_told_of_on_every_node(cluster: SocketJobCluster) -> None:
    names = cluster.put_many(30)
    size_bytes = sum(len(cluster.bodies[name]) for name in names)
    done = await cluster.json("b", "load", "/d", "--priority", "high", "--verify")
    assert set(done) == set(FIELDS["load"])
    assert (done["id"], done["state"], done["files_done"], done["bytes_done"]) == (
        "1",
        "done",
        30,
        size_bytes,
    )
    await cluster.check_loaded(names)
    (row,) = await cluster.json("c", "job", "list")
    assert set(row) == set(FIELDS["job list"])
    assert (row["kind"], row["path"], row["node"], row["files_done"]) == ("load", "/d", "b", 30)
    assert row["options"] == {"priority": "high", "verify": "true"}
    assert await cluster.json("a", "job", "show", "1") == row
    _, out, _ = await cluster.headrace("a", "job", "list")
    assert out.split("\t")[:5] == ["1", "load", "/d", "done", "30/30"]
    _, out, _ = await cluster.headrace("a", "load", "/d")
    assert out.startswith("load /d: 30 files, ")


async def test_what_failed_is_named_and_retried(idle_cluster: SocketJobCluster) -> None:
    idle_cluster.origin = idle_cluster.outer = origin = DenyingOrigin()
    async with idle_cluster.running() as cluster:
        names = cluster.put_many(12)
        origin.denied = frozenset({"d/003"})
        status, out, err = await cluster.headrace("a", "load", "/d")
        assert status == SOME_FAILED
        assert "11 files" in out and "1 failed" in out
        assert "/d/003: d/003: denied by plan" in err
        status, out, _ = await cluster.headrace("c", "job", "show", "1")
        assert "/d/003: d/003: denied by plan" in out
        origin.denied = frozenset()
        done = await cluster.json("b", "job", "retry", "1")
        assert set(done) == set(FIELDS["job retry"])
        assert (done["state"], done["files_done"], done["failed_files"]) == ("done", 1, 0)
        await cluster.check_loaded(names)


async def test_interrupt_cancels_on_all_nodes_and_a_lost_connection_cancels_nothing(
    cluster: SocketJobCluster,
) -> None:
    names = cluster.put_many(40)
    cluster.origin.hold_after = 10
    killed = await cluster.begin("a", "load", "/d")
    await cluster.origin.held.wait()
    killed.kill()
    await killed.communicate()
    interrupted = await cluster.begin("b", "job", "show", "1", "--follow")
    row = await cluster.until("b", "1", lambda row: row.files_done == 10 and not row.listing)
    assert row.state == "running"
    await cluster.watched.wait()
    interrupted.send_signal(signal.SIGINT)
    _, err = await interrupted.communicate()
    assert interrupted.returncode == EXIT_CODES["cancelled"], err
    assert b"cancelled on all nodes" in err
    cluster.origin.release()
    assert (await cluster.agree("1")).state == "cancelled"
    assert (await cluster.json("c", "job", "retry", "1"))["files_done"] == 40
    await cluster.check_loaded(names)


async def test_detached_jobs_go_on_and_are_cancelled_by_id(cluster: SocketJobCluster) -> None:
    cluster.put_many(40)
    cluster.origin.hold_after = 10
    status, out, _ = await cluster.headrace("a", "load", "/d", "--detach")
    assert (status, out) == (0, "job 1\n")
    assert (await cluster.json("a", "free", "/d", "--detach"))["id"] == "2"
    await cluster.end_of("c", "2")
    status, out, _ = await cluster.headrace("c", "job", "cancel", "1")
    assert (status, out) == (0, "job 1: cancelled, if it had not ended\n")
    assert (await cluster.agree("1")).state == "cancelled"
    status, _, err = await cluster.headrace("c", "job", "show", "9")
    assert status == EXIT_CODES["usage"]
    assert err == "headrace: job 9: no such job exists (see `headrace job list`)\n"
    for words in (("load", "/none"), ("load", "/d", "--priority", "urgent")):
        status, _, err = await cluster.headrace("b", *words)
        assert status in (EXIT_CODES["path.not_found"], EXIT_CODES["usage"])
        assert len(err.splitlines()) == 1
