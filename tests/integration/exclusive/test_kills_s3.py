"""kill -9 as in test_kills, over an object store: nothing that calls acknowledged is lost or comes back, and no object
is ever a part of a file, or a mixture of two."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.config.secret_options import option_words
from headrace.origin.origin import HIDDEN
from headrace.testing.servers import S3Server
from tests.integration.cli.host import Host, Up
from tests.integration.exclusive.changing_program import is_whole
from tests.integration.persist.conftest import MakeHost, Writer, settled, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(180), pytest.mark.server("seaweedfs")]

EXAMPLES = int(os.environ.get("HEADRACE_EXAMPLES", "1"))
FIRST = int(os.environ.get("HEADRACE_FIRST_SEED", "1"))
PROGRAM = Path(__file__).with_name("changing_program.py")
WORK_S = 5.0


class Bucket:
    """The objects below a prefix, as any other client reads them."""

    def __init__(self, server: S3Server, prefix: str) -> None:
        import boto3

        self._client: Any = boto3.client(
            "s3",
            endpoint_url=server.endpoint,
            aws_access_key_id=server.access_key,
            aws_secret_access_key=server.secret_key,
            region_name="us-east-1",
        )
        self._bucket, self._prefix = server.bucket, prefix

    def files(self) -> dict[str, bytes]:
        files = {}
        for page in self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=f"{self._prefix}/"
        ):
            for row in page.get("Contents", []):
                name = row["Key"].removeprefix(f"{self._prefix}/")
                if name.endswith("/") or HIDDEN in name:
                    continue
                try:
                    files[name] = self._client.get_object(Bucket=self._bucket, Key=row["Key"])["Body"].read()
                except self._client.exceptions.NoSuchKey:
                    continue  # it was removed since the listing
        return files

    def check_whole(self) -> None:
        for name, data in self.files().items():
            assert is_whole(data), name


def start(host: Host, server: S3Server, prefix: str) -> Up:
    return host.up(server.url(prefix), host.mount, *option_words(server.options(), str(host.base)))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + EXAMPLES))
def test_processes_die_over_an_object_store(make_host: MakeHost, seaweed: S3Server, seed: int) -> None:
    prefix = f"exclusive-kills-{seed}"
    host, chance = make_host(write="off,/out=back,exclusive", persist_delay_s=0.02), random.Random(seed)
    bucket, up = Bucket(seaweed, prefix), start(host, seaweed, prefix)
    with (host.base / "program.json").open("w") as sink:
        program = subprocess.Popen(
            [sys.executable, PROGRAM, str(seed), str(WORK_S)], cwd=host.mount / "out", stdout=sink
        )
    begun_s = time.monotonic()
    for kill_s in sorted(chance.uniform(0.3, WORK_S) for _ in range(chance.randint(2, 4))):
        while time.monotonic() - begun_s < kill_s:
            bucket.check_whole()
            time.sleep(0.05)
        role = chance.choice(("node", "node", "session", "all"))
        if role == "all":
            host.kill_all()
            up.wait()
            up = start(host, seaweed, prefix)
        else:
            host.kill(role)
    while program.poll() is None:
        bucket.check_whole()
        time.sleep(0.05)
    assert program.wait() == 0
    wanted = json.loads((host.base / "program.json").read_text())
    wait_until(lambda: Writer(host.mount / "out").tree() == wanted)
    settled(host)
    files = {name.removeprefix("out/"): data.hex() for name, data in bucket.files().items()}
    assert files == {name: data for name, data in wanted.items() if data != "dir"}
    assert host.status()["write"]["conflicts"] == []
