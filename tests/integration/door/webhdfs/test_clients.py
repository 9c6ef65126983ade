"""Clients from elsewhere: fsspec's webhdfs file system, and the package `hdfs`."""

from __future__ import annotations

import io
import random
from typing import Any

import fsspec
import pytest

from tests.integration.door.webhdfs.conftest import READ, WRITE, WebHdfs

DATA = random.Random(6).randbytes((9 << 20) + 3)


@pytest.fixture
def fs(webhdfs: WebHdfs) -> Any:
    host, port = webhdfs.address
    return fsspec.filesystem("webhdfs", host=host, port=port, user="tester", skip_instance_cache=True)


def test_fsspec_reads(webhdfs: WebHdfs, fs: Any) -> None:
    for name in ("empty.bin", "more.bin", "large.tar"):
        assert fs.cat_file(f"/{READ}/{name}") == (webhdfs.truth / name).read_bytes()
    data = (webhdfs.truth / "large.tar").read_bytes()
    with fs.open(f"/{READ}/large.tar", block_size=1 << 20) as file:
        file.seek(20 << 20)
        assert file.read(100) == data[20 << 20 :][:100]
        file.seek(5)
        assert file.read(3 << 20) == data[5:][: 3 << 20]
    names = {f"/{READ}/names/{entry}" for entry in ("a", "b", "sp ace+plus&<.txt", "übergrößen")}
    assert names <= set(fs.ls(f"/{READ}/names", detail=False))
    paths = fs.find(f"/{READ}/names")
    assert f"/{READ}/names/b/d/e" in paths
    assert fs.info(f"/{READ}/more.bin")["size"] == (1 << 20) + 1
    assert fs.ukey(f"/{READ}/more.bin")["algorithm"] == "MD5-of-0MD5-of-512CRC32C"
    assert fs.content_summary(f"/{READ}/names")["fileCount"] == 7
    assert fs.home_directory() == "/user/tester"
    with pytest.raises(FileNotFoundError):
        fs.info(f"/{READ}/nothing")
    with pytest.raises(ValueError, match="No token"):
        fs.get_delegation_token()


def test_fsspec_writes(webhdfs: WebHdfs, fs: Any) -> None:
    top = f"/{WRITE}/fsspec"
    fs.mkdir(top)
    with fs.open(f"{top}/big.bin", "wb") as file:  # by CREATE, and an APPEND a block
        file.write(DATA)
    assert fs.cat_file(f"{top}/big.bin") == DATA
    assert (
        webhdfs.append(f"{top}/big.bin", b"appended").status_code == 200
    )  # fsspec's own forgets where to send it
    fs.mv(f"{top}/big.bin", f"{top}/moved.bin")
    fs.chmod(f"{top}/moved.bin", 600)
    assert fs.info(f"{top}/moved.bin")["permission"] == "600"
    fs.cp_file(f"{top}/moved.bin", f"{top}/copy.bin")
    webhdfs.wait_persisted("fsspec/moved.bin", DATA + b"appended")
    webhdfs.wait_persisted("fsspec/copy.bin", DATA + b"appended")
    with pytest.raises(PermissionError):
        fs.open(f"/{READ}/new", "wb").close()
    fs.rm(top, recursive=True)
    assert not fs.exists(top)


@pytest.fixture
def hdfs(webhdfs: WebHdfs) -> Any:
    package = pytest.importorskip("hdfs", reason="package hdfs is not installed")
    return package.InsecureClient(webhdfs.url, user="tester")


def test_package_hdfs_reads(webhdfs: WebHdfs, hdfs: Any) -> None:
    data = (webhdfs.truth / "large.tar").read_bytes()
    with hdfs.read(f"/{READ}/large.tar") as reader:
        assert reader.read() == data
    with hdfs.read(f"/{READ}/large.tar", offset=77, length=1000, buffer_size=4096) as reader:
        assert reader.read() == data[77:1077]
    with hdfs.read(f"/{READ}/large.tar", buffer_size=4096) as reader:
        assert reader.read() == data
    assert sorted(hdfs.list(f"/{READ}/names/b")) == ["c", "d"]
    assert hdfs.status(f"/{READ}/more.bin")["length"] == (1 << 20) + 1
    assert hdfs.status(f"/{READ}/nothing", strict=False) is None
    assert hdfs.checksum(f"/{READ}/more.bin")["length"] == 28
    assert hdfs.content(f"/{READ}/names")["directoryCount"] == 3
    walked = [name for _, _, names in hdfs.walk(f"/{READ}/names") for name in names]
    assert "e" in walked
    out = io.BytesIO()
    with hdfs.read(f"/{READ}/names/sp ace+plus&<.txt") as reader:
        out.write(reader.read())
    assert out.getvalue() == (webhdfs.truth / "names/sp ace+plus&<.txt").read_bytes()


def test_package_hdfs_writes(webhdfs: WebHdfs, hdfs: Any) -> None:
    import hdfs as package

    top = f"/{WRITE}/package"
    hdfs.write(f"{top}/a.bin", data=DATA)
    hdfs.write(f"{top}/a.bin", data=b"more", append=True)
    with hdfs.write(f"{top}/text", encoding="utf-8", overwrite=True) as writer:
        writer.write("grüße")
    with pytest.raises(package.HdfsError, match="already exists"):
        hdfs.write(f"{top}/a.bin", data=b"", overwrite=False)
    hdfs.rename(f"{top}/a.bin", f"{top}/b.bin")
    hdfs.set_permission(f"{top}/b.bin", 640)
    hdfs.set_times(f"{top}/b.bin", modification_time=1_400_000_000_000)
    assert hdfs.status(f"{top}/b.bin")["modificationTime"] == 1_400_000_000_000
    webhdfs.wait_persisted("package/b.bin", DATA + b"more")
    webhdfs.wait_persisted("package/text", "grüße".encode())
    assert hdfs.delete(top, recursive=True)
    assert not hdfs.delete(top)


def test_pandas_and_pyarrow_by_fsspec(webhdfs: WebHdfs, fs: Any) -> None:
    """A partitioned data set: read by the gateway, written by it, and the rows held against the origins'."""
    pa, dataset = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.dataset")
    pandas = pytest.importorskip("pandas")
    table = pa.table({"id": list(range(50_000)), "half": [n / 2 for n in range(50_000)]})
    table = table.append_column("part", pa.array([n % 3 for n in range(50_000)]))
    options = {"format": "parquet", "partitioning": ["part"], "partitioning_flavor": "hive"}
    dataset.write_dataset(table, webhdfs.truth / "parquet", **options)
    webhdfs.host.ok("sync", f"/{READ}")
    through = dataset.dataset(f"/{READ}/parquet", filesystem=fs, format="parquet", partitioning="hive")
    rows = through.to_table().sort_by("id").select(table.column_names)
    assert rows.cast(table.schema).equals(table)
    assert through.count_rows(filter=dataset.field("part") == 1) == 16_667
    dataset.write_dataset(table, f"/{WRITE}/parquet", filesystem=fs, **options)
    webhdfs.host.ok("persist", "--wait", f"/{WRITE}")
    direct = dataset.dataset(webhdfs.origin / "parquet", format="parquet", partitioning="hive")
    assert direct.to_table().sort_by("id").select(table.column_names).cast(table.schema).equals(table)
    host, port = webhdfs.address
    frame = pandas.read_parquet(f"webhdfs://{host}:{port}/{READ}/parquet/part=0")
    assert frame["id"].sum() == sum(range(0, 50_000, 3))
