"""Run by test_spark.py in a process of its own: a Spark job, and Hadoop's own client, over webhdfs://.

Arguments: the gateway's HOST:PORT, the folder of the readable origin, the folder of the other one. Says one JSON line.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

ROWS = 200_000
READ, WRITE = "data", "out"
LIMIT_S = 60.0


def session() -> SparkSession:
    builder = SparkSession.builder.master("local[2]").appName("webhdfs")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "768m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def same_rows(frame: DataFrame, other: DataFrame) -> bool:
    """Row by row, as often in one as in the other."""
    other = other.select(frame.columns)
    return bool(frame.exceptAll(other).isEmpty() and other.exceptAll(frame).isEmpty())


def write_origin(spark: SparkSession, truth: Path) -> None:
    """A data set of many row groups at the origin, without the gateway."""
    rows = spark.range(ROWS).select(
        "id",
        f.sha2(f.col("id").cast("string"), 256).alias("text"),
        (f.col("id") * 0.5).alias("half"),
        (f.col("id") % 3).alias("part"),
    )
    rows.repartition(4).write.option("parquet.block.size", 1 << 20).partitionBy("part").parquet(
        f"file://{truth}/table"
    )


def wait_for(path: Path) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not path.exists():
        if time.monotonic() > until_s:
            raise TimeoutError(path)
        time.sleep(0.1)


def job(spark: SparkSession, url: str, truth: Path, origin: Path) -> dict[str, Any]:
    """Reads the table by the cache, and writes another back, which is then read at its origin."""
    direct = spark.read.parquet(f"file://{truth}/table")
    through = spark.read.parquet(f"{url}/{READ}/table")
    picked = through.where("part = 1 and id > 1000").select("id", "half")
    summed = through.groupBy("part").agg(f.count("*").alias("rows"), f.sum("half").alias("sum"))
    summed.write.parquet(f"{url}/{WRITE}/summed")
    through.write.partitionBy("part").parquet(f"{url}/{WRITE}/copy")
    through.limit(10).write.mode("overwrite").json(f"{url}/{WRITE}/again")
    through.limit(5).write.mode("overwrite").json(f"{url}/{WRITE}/again")
    wait_for(origin / "copy/_SUCCESS")
    wait_for(origin / "summed/_SUCCESS")
    wait_for(origin / "again/_SUCCESS")
    time.sleep(1)  # what was renamed before the mark is there before it; this is for the last of `again`
    return {
        "rows": through.count(),
        "read_is_right": same_rows(direct, through),
        "picked_is_right": same_rows(direct.where("part = 1 and id > 1000").select("id", "half"), picked),
        "copy_is_right": same_rows(direct, spark.read.parquet(f"file://{origin}/copy")),
        "summed_rows": spark.read.parquet(f"file://{origin}/summed").agg(f.sum("rows")).collect()[0][0],
        "again": spark.read.json(f"file://{origin}/again").count(),
        "left": [file.name for file in (origin / "copy").iterdir() if file.name.startswith("_temp")],
    }


def client(spark: SparkSession, url: str, truth: Path) -> dict[str, Any]:
    """org.apache.hadoop.hdfs.web.WebHdfsFileSystem by its own methods."""
    jvm: Any = spark._jvm
    hadoop = jvm.org.apache.hadoop
    conf = spark._jsc.hadoopConfiguration()
    fs = hadoop.fs.FileSystem.get(jvm.java.net.URI(url), conf)

    def path(text: str) -> Any:
        return hadoop.fs.Path(text)

    report: dict[str, Any] = {
        "class": fs.getClass().getName(),
        "version": hadoop.util.VersionInfo.getVersion(),
    }
    data = (truth / "large.tar").read_bytes()
    stream = fs.open(path(f"/{READ}/large.tar"))
    digest = jvm.org.apache.commons.codec.digest.DigestUtils
    report["whole"] = digest.sha256Hex(stream) == hashlib.sha256(data).hexdigest()
    stream.seek(20 << 20)
    report["seek"] = digest.sha256Hex(stream) == hashlib.sha256(data[20 << 20 :]).hexdigest()
    stream.close()
    report["checksum"] = fs.getFileChecksum(path(f"/{READ}/small.bin")).getAlgorithmName()
    report["hosts"] = len(fs.getFileBlockLocations(path(f"/{READ}/large.tar"), 0, 1000)[0].getHosts())
    report["summary"] = fs.getContentSummary(path(f"/{READ}/names")).getFileCount()
    report["defaults"] = fs.getServerDefaults(path("/")).getBlockSize()
    report["home"] = fs.getHomeDirectory().toUri().getPath()
    names = fs.listStatusIterator(path(f"/{READ}/names"))
    listed = []
    while names.hasNext():
        listed.append(names.next().getPath().getName())
    report["listed"] = sorted(listed)
    odd = fs.open(path(f"/{READ}/names/sp ace+plus&<.txt"))
    sha = hashlib.sha256((truth / "names/sp ace+plus&<.txt").read_bytes()).hexdigest()
    report["odd"] = digest.sha256Hex(odd) == sha
    source, target = path(f"/{WRITE}/client/one"), path(f"/{WRITE}/client/two")
    out = fs.create(source, True)
    out.writeBytes("written ")
    out.close()
    out = fs.append(source)
    out.writeBytes("and appended")
    out.close()
    report["length"] = fs.getFileStatus(source).getLen()
    report["renamed"] = fs.rename(source, target)
    report["renamed again"] = fs.rename(source, target)
    report["truncated"] = fs.truncate(target, 7)
    fs.setTimes(target, 1_500_000_000_000, -1)
    report["mtime"] = fs.getFileStatus(target).getModificationTime()
    report["deleted"] = fs.delete(path(f"/{WRITE}/client"), True)
    report["exists"] = fs.exists(target)
    refused: dict[str, Callable[[], Any]] = {
        "missing": lambda: fs.getFileStatus(path(f"/{READ}/nothing")),
        "read-only": lambda: fs.mkdirs(path(f"/{READ}/new")),
        "xattr": lambda: fs.setXAttr(path(f"/{READ}/one.bin"), "user.x", bytearray(b"x")),
    }
    for name, work in refused.items():
        try:
            work()
            report[name] = "no error"
        except Exception as error:  # noqa: BLE001  (py4j's, or pyspark's own, of whatever the client raised)
            java: Any = getattr(error, "java_exception", None)
            report[name] = type(error).__name__ if java is None else java.getClass().getName()
    return report


def main() -> None:
    address, truth, origin = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    spark = session()
    spark.sparkContext.setLogLevel("ERROR")
    write_origin(spark, truth)
    url = f"webhdfs://{address}"
    report = {"client": client(spark, url, truth), "job": job(spark, url, truth, origin)}
    spark.stop()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
