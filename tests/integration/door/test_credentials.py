"""A gateway that was told of no credentials makes some: what its user does with them, and nobody else."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import fsspec
import pytest
import requests
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.integration.cli.host import Host, wait_until

NAMES = 2300
BODY = b"only for who has the key"
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def host(needs_root: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    host = Host(tmp_path_factory.mktemp("credentials"), write="back", persist_delay_s=3600)
    (host.truth / "bucket/many").mkdir(parents=True)
    (host.truth / "bucket/key").write_bytes(BODY)
    for number in range(NAMES):
        (host.truth / f"bucket/many/{number:06d}").touch()
    config = host.base / "config.toml"
    config.write_text(f'[mounts."/"]\nurl = "{host.truth}"\n')
    try:
        host.start("node", "run", "--config", config, "--cache", f"{host.cache}:1GiB").wait_ready()
        yield host
    finally:
        host.close()


def sourced(line: str) -> dict[str, str]:
    """The environment of a shell that was told this line."""
    plain = {"PATH": os.environ["PATH"]}
    done = subprocess.run(
        ["sh", "-c", f"{line}; env -0"], env=plain, capture_output=True, check=True, timeout=60
    )
    return dict(pair.split("=", 1) for pair in done.stdout.decode().split("\0") if pair)


def client(url: str, access: str, secret: str) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=access,
        aws_secret_access_key=secret,
        config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
    )


@pytest.mark.expected_warnings("why=AccessDenied")
def test_the_line_that_s3_prints_is_all_a_user_needs(host: Host) -> None:
    keys = []
    for _ in range(2):  # found again at the next start
        up = host.start("s3", "--address", "127.0.0.1:0", json_=False)
        assert up.process.stdout is not None
        ready, line = (up.process.stdout.readline().decode().strip() for _ in range(2))
        url = ready.removeprefix("ready: ")
        assert requests.get(f"{url}/bucket/key", timeout=LIMIT_S).status_code == 403
        given = sourced(line)
        assert given["AWS_ENDPOINT_URL"] == url
        keys.append((given["AWS_ACCESS_KEY_ID"], given["AWS_SECRET_ACCESS_KEY"]))
        s3 = client(given["AWS_ENDPOINT_URL"], *keys[-1])
        assert s3.get_object(Bucket="bucket", Key="key")["Body"].read() == BODY
        up.signal(15)
        up.wait()
    assert keys[0] == keys[1]
    path = host.cache / "s3-credentials"
    assert (path.stat().st_mode & 0o777, path.stat().st_uid) == (0o600, os.geteuid())


def test_up_tells_of_what_its_gateways_made(tmp_path: Path, host: Host) -> None:
    other = Host(tmp_path, s3_address="127.0.0.1:0", webhdfs_address="127.0.0.1:0")
    try:
        (other.truth / "key").write_bytes(BODY)
        ready = other.start("up", other.truth, "--cache", f"{other.cache}:1GiB").wait_ready()
        token = Path(ready["credentials"]["webhdfs"]).read_text().strip()
        assert Path(ready["credentials"]["s3"]) == other.cache / "s3-credentials"
        answer = requests.get(
            f"{ready['webhdfs']}/webhdfs/v1/key",
            params={"op": "OPEN"},
            headers={"Authorization": f"Bearer {token}"},
            timeout=LIMIT_S,
        )
        assert answer.content == BODY
    finally:
        other.close()


@pytest.mark.expected_warnings("why=InvalidAccessKeyId")
def test_keys_are_exchanged_without_a_restart(host: Host) -> None:
    file = host.base / "keys"

    def write(*pairs: tuple[str, str]) -> None:
        """In one step, as one should."""
        draft = host.base / "keys.new"
        rows = (f"[{a}]\naws_access_key_id = {a}\naws_secret_access_key = {s}\n" for a, s in pairs)
        draft.write_text("".join(rows))
        draft.chmod(0o600)
        draft.rename(file)

    def may(access: str, secret: str) -> bool:
        try:
            client(url, access, secret).head_object(Bucket="bucket", Key="key")
        except ClientError as error:
            assert error.response["ResponseMetadata"]["HTTPStatusCode"] == 403
            return False
        return True

    write(("OLD", "one"))
    up = host.start("s3", "--address", "127.0.0.1:0", "--credentials", file)
    url = up.wait_ready()["url"]
    assert may("OLD", "one")
    write(("OLD", "one"), ("NEW", "two"))
    wait_until(lambda: may("NEW", "two"))
    assert may("OLD", "one")
    write(("NEW", "two"))
    wait_until(lambda: not may("OLD", "one"))
    assert may("NEW", "two")
    up.signal(15)
    up.wait()
    file.chmod(0o644)
    done = host.headrace("s3", "--address", "127.0.0.1:0", "--credentials", file)
    assert done.returncode == 2
    assert "other users can read or write it (mode 0644)" in done.stderr


@pytest.mark.expected_warnings("refused interface=webhdfs")
def test_webhdfs_asks_for_the_token_that_it_made(host: Host) -> None:
    up = host.start("webhdfs", "--address", "127.0.0.1:0")
    ready = up.wait_ready()
    url, token = f"{ready['url']}/webhdfs/v1", Path(ready["credentials"]).read_text().strip()
    name = requests.get(f"{url}/bucket/key?op=OPEN&user.name=root", timeout=LIMIT_S)
    assert (name.status_code, name.json()["RemoteException"]["exception"]) == (401, "SecurityException")
    wrong = requests.get(f"{url}/bucket/key?op=OPEN&delegation=x", timeout=LIMIT_S)
    assert (wrong.status_code, wrong.json()["RemoteException"]["exception"]) == (403, "InvalidToken")
    port = int(ready["url"].rpartition(":")[2])
    fs = fsspec.filesystem("webhdfs", host="127.0.0.1", port=port, token=token, skip_instance_cache=True)
    assert fs.cat_file("/bucket/key") == BODY
    fs.pipe_file("/bucket/written", BODY * 10_000)  # redirected, with the token
    assert fs.cat_file("/bucket/written") == BODY * 10_000
    hdfs = pytest.importorskip("hdfs")
    with hdfs.TokenClient(ready["url"], token).read("/bucket/key") as reader:
        assert reader.read() == BODY
    listed_in_one_piece(url, token, host)
    up.signal(15)
    up.wait()


def listed_in_one_piece(url: str, token: str, host: Host) -> None:
    """A long listing comes in chunks; to a client that takes none, as a whole."""
    shown = {"Authorization": f"Bearer {token}"}
    wanted = sorted(os.listdir(host.truth / "bucket/many"))
    answer = requests.get(f"{url}/bucket/many?op=LISTSTATUS", headers=shown, timeout=LIMIT_S)
    assert answer.headers["Transfer-Encoding"] == "chunked"
    assert [row["pathSuffix"] for row in answer.json()["FileStatuses"]["FileStatus"]] == wanted
    few = requests.get(f"{url}/bucket?op=LISTSTATUS", headers=shown, timeout=LIMIT_S)
    assert "Content-Length" in few.headers
    old = subprocess.run(
        ["curl", "-s", "-0", "-H", f"Authorization: Bearer {token}", f"{url}/bucket/many?op=LISTSTATUS"],
        capture_output=True,
        check=True,
        timeout=LIMIT_S,
    )
    assert old.stdout == answer.content


def test_a_put_that_is_too_long_is_refused_before_its_bytes(host: Host) -> None:
    up = host.start("s3", "--address", "127.0.0.1:0", "--insecure")
    url = up.wait_ready()["url"]
    for length, status in ((5 << 30) + 1, 400), (10**17, 400):
        request = requests.Request("PUT", f"{url}/bucket/huge").prepare()
        request.headers["Content-Length"] = str(length)
        with requests.Session() as session:
            answer = session.send(request, timeout=LIMIT_S)
        assert (answer.status_code, "EntityTooLarge" in answer.text) == (status, True)
    up.signal(15)
    up.wait()
