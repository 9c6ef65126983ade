"""Other people's clients, as they come: each copies a tree there and back, and every byte is compared."""

from __future__ import annotations

import importlib.util
import json
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.door.s3.conftest import ACCESS, READ, REGION, S3, SECRET, WRITE, program, run_client

LIMIT_S = 60.0


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small and large files, in folders, one name with signs. The large one goes in parts."""
    folder = tmp_path_factory.mktemp("tree")
    sizes = {
        "a.txt": 10,
        "empty": 0,
        "deep/er/b": 100_000,
        "deep/sp ace+&é.bin": 5,
        "large.bin": (17 << 20) + 3,
    }
    for name, size in sizes.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.Random(name).randbytes(size))
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def keys(s3: S3, prefix: str) -> list[str]:
    rows = s3.client().list_objects_v2(Bucket=WRITE, Prefix=prefix).get("Contents", [])
    return [row["Key"] for row in rows]


def test_s5cmd(s3: S3, tree: Path, tmp_path: Path) -> None:
    s5cmd = [program("s5cmd"), "--endpoint-url", s3.url]
    assert "large.tar" in run_client(s3, *s5cmd, "ls", f"s3://{READ}/")
    run_client(s3, *s5cmd, "cp", "--part-size", "5", f"{tree}/", f"s3://{WRITE}/s5cmd/")
    run_client(s3, *s5cmd, "cp", f"s3://{WRITE}/s5cmd/*", f"{tmp_path}/")
    assert content(tmp_path) == content(tree)
    run_client(s3, *s5cmd, "cp", "--part-size", "5", f"s3://{READ}/large.tar", tmp_path / "large.tar")
    assert (tmp_path / "large.tar").read_bytes() == (s3.truth / "large.tar").read_bytes()
    run_client(s3, *s5cmd, "rm", f"s3://{WRITE}/s5cmd/*")
    assert keys(s3, "s5cmd") == []


def test_rclone(s3: S3, tree: Path, tmp_path: Path) -> None:
    settings = {
        "RCLONE_CONFIG": str(tmp_path / "rclone.conf"),
        "RCLONE_CONFIG_H_TYPE": "s3",
        "RCLONE_CONFIG_H_PROVIDER": "Other",
        "RCLONE_CONFIG_H_ENDPOINT": s3.url,
        "RCLONE_CONFIG_H_ENV_AUTH": "true",
        "RCLONE_S3_UPLOAD_CUTOFF": "6M",
        "RCLONE_S3_CHUNK_SIZE": "5M",
    }
    rclone = program("rclone")
    run_client(s3, rclone, "sync", tree, f"h:{WRITE}/rclone", **settings)
    run_client(s3, rclone, "check", "--download", tree, f"h:{WRITE}/rclone", **settings)
    again = run_client(s3, rclone, "sync", "-v", "--stats-one-line", tree, f"h:{WRITE}/rclone", **settings)
    assert "Copied" not in again
    run_client(s3, rclone, "copy", f"h:{WRITE}/rclone", tmp_path / "back", **settings)
    assert content(tmp_path / "back") == content(tree)
    run_client(s3, rclone, "moveto", f"h:{WRITE}/rclone/large.bin", f"h:{WRITE}/rclone/moved", **settings)
    assert "rclone/moved" in keys(s3, "rclone/")
    run_client(s3, rclone, "purge", f"h:{WRITE}/rclone", **settings)
    assert keys(s3, "rclone") == []


def test_obstore(s3: S3, tree: Path) -> None:
    import obstore
    from obstore.exceptions import AlreadyExistsError, PreconditionError
    from obstore.store import S3Store

    options: Any = {
        "endpoint": s3.url,
        "region": REGION,
        "access_key_id": ACCESS,
        "secret_access_key": SECRET,
        "client_options": {"allow_http": True},
    }
    store = S3Store(WRITE, prefix="obstore", **options)
    wanted = content(tree)
    for name, data in wanted.items():
        obstore.put(store, name, data)
    assert sorted(entry["path"] for page in obstore.list(store) for entry in page) == sorted(wanted)
    for name, data in wanted.items():
        assert bytes(obstore.get(store, name).bytes()) == data
    ranges = obstore.get_ranges(
        store, "large.bin", starts=[0, 5 << 20, 9 << 20], ends=[7, 6 << 20, (9 << 20) + 1]
    )
    assert [bytes(body) for body in ranges] == [
        wanted["large.bin"][start:end]
        for start, end in ((0, 7), (5 << 20, 6 << 20), (9 << 20, (9 << 20) + 1))
    ]
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "a.txt", b"x", mode="create")
    head = obstore.head(store, "a.txt")
    obstore.put(store, "a.txt", b"new", mode={"e_tag": head["e_tag"]})
    with pytest.raises(PreconditionError):
        obstore.put(store, "a.txt", b"newer", mode={"e_tag": head["e_tag"]})
    obstore.rename(store, "a.txt", "renamed")
    assert bytes(obstore.get(store, "renamed").bytes()) == b"new"
    obstore.delete(store, ["renamed", *(name for name in wanted if name != "a.txt")])
    assert keys(s3, "obstore") == []


def test_s3fs(s3: S3, tree: Path, tmp_path: Path) -> None:
    s3fs = pytest.importorskip("s3fs", reason="server: s3fs is not installed")
    where = {"endpoint_url": s3.url, "region_name": REGION}
    fs = s3fs.S3FileSystem(key=ACCESS, secret=SECRET, client_kwargs=where, skip_instance_cache=True)
    fs.put(f"{tree}/", f"{WRITE}/s3fs/", recursive=True)
    wanted = {f"{WRITE}/s3fs/{name}": data for name, data in content(tree).items()}
    assert {path: fs.cat(path) for path in fs.find(f"{WRITE}/s3fs")} == wanted
    with fs.open(f"{WRITE}/s3fs/streamed", "wb", block_size=5 << 20) as out:
        out.write(wanted[f"{WRITE}/s3fs/large.bin"])
    with fs.open(f"{WRITE}/s3fs/streamed") as source:
        source.seek(6 << 20)
        assert source.read(100) == wanted[f"{WRITE}/s3fs/large.bin"][6 << 20 : (6 << 20) + 100]
    assert fs.cat(f"{READ}/more.bin") == (s3.truth / "more.bin").read_bytes()
    fs.rm(f"{WRITE}/s3fs", recursive=True)
    assert not fs.exists(f"{WRITE}/s3fs")


AWS = """
import json, sys
from awscli.clidriver import create_clidriver
for line in sys.stdin:
    status = create_clidriver().main(json.loads(line))
    print(end=f"\\0{status}\\n", flush=True)
"""


class Aws:
    """Runs commands of `aws` one after the other, in one process: to start takes most of the time of each.
    test_checksums and test_metadata run the program `aws`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __call__(self, *words: object) -> str:
        """Run a command that ends well, and return what it printed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(list(map(str, words)))}\n")
        self._process.stdin.flush()
        output = ""
        while "\0" not in (line := self._process.stdout.readline()):
            assert line, (words, output)
            output += line
        last, _, status = line.partition("\0")
        assert status == "0\n", (words, output + line)
        return output + last


@pytest.fixture
def aws(s3: S3, tmp_path: Path) -> Iterator[Aws]:
    if importlib.util.find_spec("awscli") is None:
        pytest.skip("server: awscli is not installed")
    settings = {
        "AWS_ENDPOINT_URL": s3.url,
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "HOME": str(tmp_path),
    }
    with subprocess.Popen(
        [sys.executable, "-c", AWS],
        env=s3.environment() | settings,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Aws(process)
        finally:
            process.kill()


@pytest.mark.timeout(LIMIT_S)
def test_aws(s3: S3, tree: Path, tmp_path: Path, aws: Aws) -> None:
    """The command line of AWS, as scripts use it; the large file goes in parts."""
    there, back = f"s3://{WRITE}/aws/", tmp_path / "back"
    assert "large.tar" in aws("s3", "ls", f"s3://{READ}/")
    aws("s3", "sync", "--only-show-errors", tree, there)
    assert aws("s3", "sync", "--dryrun", tree, there) == ""
    assert keys(s3, "aws/") == sorted(f"aws/{name}" for name in content(tree))
    aws("s3", "sync", "--only-show-errors", there, back)
    assert content(back) == content(tree)
    head = json.loads(aws("s3api", "head-object", "--bucket", READ, "--key", "more.bin"))
    assert head["ContentLength"] == (s3.truth / "more.bin").stat().st_size
    aws("s3", "mv", f"{there}large.bin", f"{there}moved")
    assert {"aws/moved"} == set(keys(s3, "aws/")) - {f"aws/{name}" for name in content(tree)}
    aws("s3", "rm", "--recursive", there)
    assert keys(s3, "aws") == []


def test_virtual_hosts(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bucket in the host's name; names below localhost are not known to every resolver."""
    import boto3
    from botocore.config import Config

    resolve = socket.getaddrinfo
    asked = []

    def local(host: Any, *rest: Any, **more: Any) -> Any:
        asked.append(str(host))
        return resolve("127.0.0.1" if str(host).endswith(".localhost") else host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", local)
    client = boto3.client(
        "s3",
        endpoint_url=f"http://localhost:{s3.address[1]}",
        region_name=REGION,
        aws_access_key_id=ACCESS,
        aws_secret_access_key=SECRET,
        config=Config(s3={"addressing_style": "virtual"}),
    )
    assert (
        client.get_object(Bucket=READ, Key="more.bin")["Body"].read() == (s3.truth / "more.bin").read_bytes()
    )
    assert f"{READ}.localhost" in asked
