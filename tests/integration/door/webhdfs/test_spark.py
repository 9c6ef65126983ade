"""Hadoop's own client, as Spark ships it: a job reads a Parquet data set by the cache, and writes one back.

Only where pyspark and Java are: `pip install '.[spark]'`, and for example `apt-get install openjdk-17-jre-headless`.
"""

from __future__ import annotations

import getpass
import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli.host import Host
from tests.integration.door.webhdfs.conftest import WRITE, WebHdfs, start

LIMIT_S = 300.0


@pytest.fixture
def spark_host(tmp_path: Path) -> Iterator[WebHdfs]:
    if importlib.util.find_spec("pyspark") is None:
        pytest.skip("server: pyspark is not installed (pip install '.[spark]')")
    if shutil.which("java") is None:
        pytest.skip("server: java is not installed")
    host = Host(tmp_path, write=f"off,/{WRITE}=back", persist_delay_s=0.1, sync_interval_s=1)
    try:
        yield WebHdfs(start(host), host.truth, host.base / "origin", host)
    finally:
        host.close()


@pytest.mark.timeout(LIMIT_S)
def test_a_spark_job(spark_host: WebHdfs) -> None:
    from tests.integration.door.webhdfs import spark_job  # imports pyspark

    address = ":".join(map(str, spark_host.address))
    done = subprocess.run(
        [sys.executable, spark_job.__file__, address, spark_host.truth, spark_host.origin],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout.splitlines()[-1])
    job, client = report["job"], report["client"]
    assert job == {
        "rows": spark_job.ROWS,
        "read_is_right": True,
        "picked_is_right": True,
        "copy_is_right": True,
        "summed_rows": spark_job.ROWS,
        "again": 5,
        "left": [],
    }
    version = client.pop("version")
    assert version.startswith("3.")
    assert client == {
        "class": "org.apache.hadoop.hdfs.web.WebHdfsFileSystem",
        "whole": True,
        "seek": True,
        "checksum": "MD5-of-0MD5-of-512CRC32C",
        "hosts": 1,
        "summary": 7,
        "defaults": 128 << 20,
        "home": f"/user/{getpass.getuser()}",
        "listed": sorted(file.name for file in (spark_host.truth / "names").iterdir()),
        "odd": True,
        "length": 20,
        "renamed": True,
        "renamed again": False,
        "truncated": True,
        "mtime": 1_500_000_000_000,
        "deleted": True,
        "exists": False,
        "missing": "java.io.FileNotFoundException",
        "read-only": "org.apache.hadoop.security.AccessControlException",
        "xattr": "UnsupportedOperationException",
    }
