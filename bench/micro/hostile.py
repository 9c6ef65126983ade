"""What honest clients notice while thousands of hostile connections are open, and what memory a server takes for them.

    .venv/bin/python bench/micro/hostile.py [--count 5000] [--seconds 60] [s3 s3-tls webhdfs rest peers]

For each interface: 10 clients that keep their connection and 10 that open a new one for each request read 4 KiB, first
alone, then beside hostile connections (silent, slow heads, slow bodies, half handshakes, refused uploads; the server
ends some, which are opened again after a second), then alone again. Hostile connections come from 127.0.0.2, and honest
ones from 127.0.0.1, unless --same. Prints a line of JSON for each. The hostile process has the lowest priority, as it
stands for another machine. Every answer is compared with the origin. Needs root.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import boto3
from botocore.config import Config
from tests.integration.cli.host import Host
from tests.integration.peer_desk import CLUSTER, FileDesk, node_info

from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError
from headrace.peer.peers import Peers
from headrace.s3.credentials import parse_credentials

CLIENTS, THINK_S, QUIET_S = 20, 0.05, 20.0
BODY = bytes(range(256)) * 16
PEER_SERVER = """
import asyncio, sys
from pathlib import Path
from headrace.entry.peer.server import PeerServer
from headrace.wire.peer_messages import PeerWelcome
from headrace.http.process import take_all_descriptors
from tests.integration.peer_desk import CLUSTER, FileDesk
async def main():
    take_all_descriptors()
    desk = FileDesk(Path(sys.argv[1])); desk.add("f", 4096)
    server = PeerServer(lambda: PeerWelcome(0, "b", "run1", 7), CLUSTER, desk, loop=asyncio.get_running_loop())
    print(server.start("127.0.0.1", 0), flush=True)
    await asyncio.sleep(3600)
asyncio.run(main())
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
        made = Path(ready["credentials"]).read_text()
        ((access, secret),) = parse_credentials(made, "").items()
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
    found: dict[str, object] = {"requests": len(kept) + len(new), "failed": len(failed), "why": failed[:2]}
    for name, times in (("kept", kept), ("new", new)):
        if len(times) > 10:
            found[name] = {
                "p50_ms": round(statistics.median(times) * 1000, 2),
                "p99_ms": round(statistics.quantiles(times, n=100)[98] * 1000, 2),
            }
    return found


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
    wanted, peers = desk.add("f", 4096), Peers("a", CLUSTER)

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


def run(interface: str, given: argparse.Namespace) -> dict[str, object]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, serving(interface, Path(folder)) as target:
        asyncio.run(measure(target, 3.0))
        before = asyncio.run(measure(target, given.quiet))
        before_mib = anonymous_mib(target.pid)
        words = ["--address", target.address, "--count", str(given.count), "--seconds", str(given.seconds)]
        words += ["--source", "127.0.0.1" if given.same else "127.0.0.2", "--target", target.upload]
        words += ["--peers"] * (interface == "peers") + given.kind
        hostile = subprocess.Popen(
            [sys.executable, "-m", "headrace.testing.hostile", *words],
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: os.nice(19) and None,
        )
        assert hostile.stdout is not None
        hostile.stdout.readline()
        peak_mib = [before_mib]

        async def beside() -> dict[str, object]:
            async def sample() -> None:
                while True:
                    peak_mib.append(anonymous_mib(target.pid))
                    await asyncio.sleep(0.5)

            sampling = asyncio.create_task(sample())
            found = await measure(target, given.seconds - 10)
            sampling.cancel()
            return found

        during = asyncio.run(beside())
        said = json.loads(hostile.stdout.read().splitlines()[-1])
        hostile.wait()
        after = asyncio.run(measure(target, given.quiet))
        return {
            "interface": interface,
            "quiet": before,
            "beside": during,
            "quiet again": after,
            "mib": {"before": round(before_mib, 1), "peak": round(max(peak_mib), 1)},
            "hostile": said,
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("interface", nargs="*", help="all, where none is named")
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--quiet", type=float, default=QUIET_S, help="how long the clients are alone")
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
