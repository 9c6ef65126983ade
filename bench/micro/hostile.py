"""Measures what honest clients notice beside thousands of hostile connections, and what memory a server takes for them.

    .venv/bin/python bench/micro/hostile.py [--count 5000] [--rounds 5] [--seconds 12] [s3 s3-tls webhdfs rest peers]

For each interface: 10 clients that keep their connection and 10 that open a new one for each request read 4 KiB, in
rounds: alone; beside the same hostile process that attacks a sink, which takes everything and says nothing (the floor:
what the attacker's own processor time costs on this machine); and beside hostile connections to the interface (silent,
slow heads, slow bodies, half handshakes, refused uploads; the server ends some, which are opened again after a
second). Hostile connections come from 127.0.0.2, and honest ones from 127.0.0.1, unless --same. Prints a line of JSON
for each: medians of the rounds, ratios within each round, processor time of server and attacker in cores. The hostile
process has the lowest priority, as it stands for another machine. Every answer is compared with the origin. Needs root.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import boto3
from botocore.config import Config
from tests.integration.cli.host import Host
from tests.integration.peer_desk import CLUSTER, FileDesk, node_info

from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError
from headrace.peer.client import PeerClient
from headrace.s3.credentials import parse_credentials

CLIENTS, THINK_S, QUIET_S = 20, 0.05, 8.0
BODY = bytes(range(256)) * 16
PEER_SERVER = """
import asyncio, sys
from pathlib import Path
from headrace.entry.peer.server import PeerServer
from headrace.wire.peer_messages import PeerWelcome
from headrace.http.process import raise_descriptor_limit
from tests.integration.peer_desk import CLUSTER, FileDesk
async def main():
    raise_descriptor_limit()
    desk = FileDesk(Path(sys.argv[1])); desk.add("f", 4096)
    server = PeerServer(lambda: PeerWelcome(0, "b", "run1", 7), CLUSTER, desk, loop=asyncio.get_running_loop())
    print(server.start("127.0.0.1", 0), flush=True)
    await asyncio.sleep(3600)
asyncio.run(main())
"""
SINK = """
import resource, socket
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
listening, kept = socket.create_server(("127.0.0.1", 0), backlog=1024), []
print("%s:%d" % listening.getsockname(), flush=True)
while True:
    kept.append(listening.accept()[0])
"""
Ask = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Target:
    """request: as it is sent on a connection that stays; None: the peers' port."""

    address: str
    pid: int
    upload: str
    request: bytes | None
    tls: ssl.SSLContext | None = None
    folder: Path | None = None


def anonymous_mib(pid: int) -> float:
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("RssAnon")) / 1024


@contextlib.contextmanager
def serving(interface: str, base: Path) -> Iterator[Target]:
    if interface == "peers":
        process = subprocess.Popen(
            [sys.executable, "-c", PEER_SERVER, str(base)],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).resolve().parents[2],
            text=True,
        )
        assert process.stdout is not None
        try:
            yield Target(process.stdout.readline().strip(), process.pid, "", None, folder=base)
        finally:
            process.kill()
            process.wait()
        return
    host = Host(base)
    try:
        (host.truth / "bucket").mkdir()
        (host.truth / "bucket/key").write_bytes(BODY)
        (base / "config.toml").write_text(f'[mounts."/"]\nurl = "{host.truth}"\n')
        node = ("node", "run", "--config", base / "config.toml", "--cache", f"{host.cache}:1GiB")
        host.start(*node).wait_ready()
        yield gateway(interface, host)
    finally:
        host.close()


def gateway(interface: str, host: Host) -> Target:
    word, tls = interface.partition("-")[0], None
    if interface.endswith("-tls"):
        tls = certificate(host)
    if word == "rest":
        token = host.base / "token"
        token.write_text("the-token\n")
        token.chmod(0o600)
        host.environment["HEADRACE_REST_TOKEN"] = str(token)
    ready = host.start(word, "--address", "127.0.0.1:0").wait_ready()
    url, pid = ready["url"], int(ready["pid"])
    address = url.partition("://")[2]
    if word == "s3":
        credentials = Path(ready["credentials"]).read_text()
        ((access, secret),) = parse_credentials(credentials, "").items()
        client = boto3.client(
            "s3",
            endpoint_url=url,
            region_name="us-east-1",
            aws_access_key_id=access,
            aws_secret_access_key=secret,
            config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
        )
        signed = client.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "key"})
        return Target(address, pid, "/bucket/upload", get(signed.partition(address)[2], address, ""), tls)
    if word == "webhdfs":
        token_text = Path(ready["credentials"]).read_text().strip()
        path, upload = "/webhdfs/v1/bucket/key?op=OPEN", "/webhdfs/v1/upload?op=CREATE&data=true"
        return Target(address, pid, upload, get(path, address, token_text))
    path = "/v1/content?path=/bucket/key"
    return Target(address, pid, "/v1/content?path=/bucket/upload", get(path, address, "the-token"))


def get(target: str, host: str, token: str) -> bytes:
    shown = f"Authorization: Bearer {token}\r\n" if token else ""
    return f"GET {target} HTTP/1.1\r\nHost: {host}\r\n{shown}\r\n".encode()


def certificate(host: Host) -> ssl.SSLContext:
    names = {name: str(host.base / f"{name}.pem") for name in ("certificate", "key")}
    words = [
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=bench",
    ]
    words += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", names["key"], "-out", names["certificate"]]
    subprocess.run(["openssl", *words], check=True, capture_output=True)
    host.environment |= {
        "HEADRACE_S3_TLS_CERTIFICATE": names["certificate"],
        "HEADRACE_S3_TLS_KEY": names["key"],
    }
    return ssl.create_default_context(cafile=names["certificate"])


async def ask_http(target: Target, streams: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
    assert target.request is not None
    host, _, port = target.address.rpartition(":")
    if not streams:
        streams.append(await asyncio.open_connection(host, int(port), ssl=target.tls))
    reader, writer = streams[0]
    writer.write(target.request)
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 200 " in head.partition(b"\r\n")[0], head
    assert await reader.readexactly(len(BODY)) == BODY


async def client(
    ask: Callable[[], Awaitable[None]], until_s: float, times: list[float], failed: list[str]
) -> None:
    while time.monotonic() < until_s:
        begun_s = time.monotonic()
        try:
            await asyncio.wait_for(ask(), 20)
        except (OSError, EOFError, AssertionError, HeadraceError) as error:
            failed.append(repr(error)[:200])
        times.append(time.monotonic() - begun_s)
        await asyncio.sleep(THINK_S)


async def measure(target: Target, seconds: float) -> dict[str, object]:
    """Milliseconds: of clients that keep their connection, and of those that do not."""
    kept: list[float] = []
    new: list[float] = []
    failed: list[str] = []
    until_s = time.monotonic() + seconds
    async with contextlib.AsyncExitStack() as undo:
        if target.request is None:
            asks = await undo.enter_async_context(peer_clients(target))
            work = [client(ask, until_s, kept, failed) for ask in asks]
        else:
            work = []
            for number in range(CLIENTS):
                streams: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
                work.append(
                    client(lambda s=streams: ask_http(target, s), until_s, kept, failed)  # type: ignore[misc]
                    if number % 2
                    else client(lambda: once(target), until_s, new, failed)
                )
        await asyncio.gather(*work)
    result: dict[str, object] = {"requests": len(kept) + len(new), "failed": len(failed), "why": failed[:2]}
    for name, times in (("kept", kept), ("new", new)):
        if len(times) > 10:
            result[name] = {
                "p50_ms": round(statistics.median(times) * 1000, 2),
                "p99_ms": round(statistics.quantiles(times, n=100)[98] * 1000, 2),
            }
    return result


async def once(target: Target) -> None:
    streams: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    try:
        await ask_http(target, streams)
    finally:
        for _, writer in streams:
            writer.close()


@contextlib.asynccontextmanager
async def peer_clients(target: Target) -> AsyncIterator[list[Ask]]:
    assert target.folder is not None
    mine = target.folder / f"mine-{time.monotonic_ns()}"
    mine.mkdir()
    desk = FileDesk(mine)
    wanted, peers = desk.add("f", 4096), PeerClient("a", CLUSTER)

    async def ask() -> None:
        deadline = Deadline.after(20)
        node = node_info(target.address)
        arrived = await peers.fetch(node, wanted, cached_only=False, epoch=1, deadline=deadline)
        assert bytes(arrived.body) == desk.body(wanted)

    try:
        yield [ask] * CLIENTS
    finally:
        peers.close()
        desk.close()


@dataclass
class Round:
    """Holds what the clients noticed in one phase, and the processor time that was used, in seconds a second."""

    noticed: dict[str, Any]
    server_cpu: float
    hostile_cpu: float
    said: dict[str, int]


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def put_first(pid: int) -> None:
    """Schedule the session of a process before others: what other programs of this machine do is not measured."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text("-19")


@contextlib.contextmanager
def attacked(
    interface: str, address: str, target: Target, given: argparse.Namespace, seconds: float
) -> Iterator[subprocess.Popen[str]]:
    words = ["--address", address, "--count", str(given.count), "--seconds", str(seconds)]
    words += ["--target", target.upload, "--source", "127.0.0.1" if given.same else "127.0.0.2"]
    words += ["--rate", str(given.rate)]
    words += ["--peers"] * (interface == "peers") + given.kind
    hostile = started([sys.executable, "-m", "headrace.testing.hostile", *words])
    try:
        yield hostile
    finally:
        hostile.kill()
        hostile.wait()


def started(words: list[str]) -> subprocess.Popen[str]:
    """Start a program of the lowest priority in a session of its own, as it stands for another machine."""
    process = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: os.nice(19) and None,
    )
    assert process.stdout is not None
    return process


@contextlib.contextmanager
def sink() -> Iterator[str]:
    """Yield the address of a server that takes every connection and says nothing."""
    process = started([sys.executable, "-c", SINK])
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


def beside(interface: str, address: str, target: Target, given: argparse.Namespace) -> Round:
    """Return what is noticed while hostile connections are made to an address."""
    with attacked(interface, address, target, given, given.seconds + 30) as hostile:
        assert hostile.stdout is not None
        opened = json.loads(hostile.stdout.readline())
        before = time.monotonic(), cpu_s(target.pid), cpu_s(hostile.pid)
        noticed = asyncio.run(measure(target, given.seconds))
        after = time.monotonic(), cpu_s(target.pid), cpu_s(hostile.pid)
        hostile.send_signal(signal.SIGTERM)
        said = json.loads((hostile.stdout.read().splitlines() or [json.dumps(opened)])[-1])
    wall_s = after[0] - before[0]
    return Round(noticed, (after[1] - before[1]) / wall_s, (after[2] - before[2]) / wall_s, said)


def quiet(target: Target, seconds: float) -> Round:
    before = time.monotonic(), cpu_s(target.pid)
    noticed = asyncio.run(measure(target, seconds))
    return Round(noticed, (cpu_s(target.pid) - before[1]) / (time.monotonic() - before[0]), 0.0, {})


def run(interface: str, given: argparse.Namespace) -> dict[str, object]:
    """Quiet, beside a sink that is attacked, attacked: in turn, so that other programs meet all alike."""
    rounds: dict[str, list[Round]] = {"quiet": [], "floor": [], "attacked": []}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, serving(interface, Path(folder)) as target:
        if given.first:
            put_first(os.getpid())
            put_first(target.pid)
        asyncio.run(measure(target, 2.0))
        before_mib = peak_mib = anonymous_mib(target.pid)
        for _ in range(given.rounds):
            rounds["quiet"].append(quiet(target, given.quiet))
            with sink() as address:
                rounds["floor"].append(beside(interface, address, target, given))
            rounds["attacked"].append(beside(interface, target.address, target, given))
            peak_mib = max(peak_mib, anonymous_mib(target.pid))
    mib = {"before": round(before_mib, 1), "peak": round(peak_mib, 1)}
    return {"interface": interface, "load": round(os.getloadavg()[0], 1), "mib": mib, **summary(rounds)}


def summary(rounds: dict[str, list[Round]]) -> dict[str, object]:
    """Medians of the rounds, and ratios within each round."""
    summed: dict[str, object] = {}
    for phase, measured in rounds.items():
        summed[phase] = {
            "failed": sum(row.noticed["failed"] for row in measured),
            "requests": sum(row.noticed["requests"] for row in measured),
            "why": [why for row in measured for why in row.noticed["why"]][:2],
            "server_cpu": round(statistics.median(row.server_cpu for row in measured), 2),
            "hostile_cpu": round(statistics.median(row.hostile_cpu for row in measured), 2),
            "said": measured[-1].said,
        }
    for clients in ("kept", "new"):
        for figure in ("p50_ms", "p99_ms"):
            rows = {
                p: [each.noticed[clients][figure] for each in r]
                for p, r in rounds.items()
                if clients in r[0].noticed
            }
            if not rows:
                continue
            row: dict[str, object] = {phase: round(statistics.median(row), 2) for phase, row in rows.items()}
            for base in ("quiet", "floor"):
                ratios = [a / b for a, b in zip(rows["attacked"], rows[base], strict=True)]
                row[f"of {base}"] = round(statistics.median(ratios), 2)
                row[f"all of {base}"] = [round(ratio, 2) for ratio in ratios]
            summed[f"{clients} {figure}"] = row
    return summed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("interface", nargs="*", help="all, where none is named")
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--rate", type=int, default=2000, help="hostile connections opened a second at most")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=12.0, help="of an attack in each round")
    parser.add_argument(
        "--quiet", type=float, default=QUIET_S, help="how long the clients are alone in each round"
    )
    parser.add_argument(
        "--first", action="store_true", help="server and clients are scheduled before other programs"
    )
    parser.add_argument(
        "--same", action="store_true", help="hostile connections come from the clients' address"
    )
    parser.add_argument(
        "--kind", action="append", default=[], help="of hostile connections; all, where none is named"
    )
    given = parser.parse_args()
    for interface in given.interface or ["s3", "s3-tls", "webhdfs", "rest", "peers"]:
        print(json.dumps(run(interface, given)), flush=True)


if __name__ == "__main__":
    main()
