"""pandas and pyarrow over the door, held against the files of the origin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import numpy
import pytest

from tests.integration.door.conftest import Host, MakeDoor, settled
from tests.integration.door.examples import run_example
from tests.lazy_module import lazy_module

pandas = lazy_module("pandas", extra="worlds")
lazy_module("pyarrow", extra="worlds")
pytestmark = pytest.mark.timeout(90)

ROWS = 20_000


def clicks(seed: int = 0) -> Any:
    chance = numpy.random.default_rng(seed)
    return pandas.DataFrame(
        {
            "shop": chance.choice(["north", "south", "east"], ROWS),
            "price": chance.integers(1, 100, ROWS),
            "weight": chance.random(ROWS),
        }
    )


def parquet_files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*.parquet")}


def same(table: Any, wanted: Any) -> None:
    """Row by row, in any order."""
    columns = sorted(wanted.columns)
    left, right = (
        frame[columns].astype({"shop": str}).sort_values(columns).reset_index(drop=True)
        for frame in (table, wanted)
    )
    pandas.testing.assert_frame_equal(left, right, check_dtype=False)


def test_the_example_of_pandas(make_door: MakeDoor) -> None:
    host, _ = make_door(write="back")
    (host.truth / "tables").mkdir()
    clicks().to_csv(host.truth / "tables/clicks.csv.gz", index=False)
    host.ok("sync", "/")
    names = run_example("pandas")
    pandas.testing.assert_frame_equal(
        names["clicks"], pandas.read_csv(host.truth / "tables/clicks.csv.gz"), check_exact=True
    )
    expected = clicks().groupby("shop", as_index=False)["price"].sum()
    pandas.testing.assert_frame_equal(names["shops"], expected)
    assert names["prices"]["price"].tolist() == expected["price"].tolist()
    settled(host)
    pandas.testing.assert_frame_equal(pandas.read_parquet(host.truth / "tables/shops.parquet"), expected)


@pytest.mark.parametrize("mode", ["back", "through"])
def test_pandas_writes_what_the_local_file_system_has(make_door: MakeDoor, tmp_path: Path, mode: str) -> None:
    """csv plain, compressed and appended to; Parquet in one file and in parts."""
    host, fs = make_door(write=mode)
    table = clicks(1)
    local = tmp_path / "local"
    local.mkdir()
    for name in ("a.csv", "a.csv.zst"):
        for where in (f"{local}/{name}", f"headrace:///out/{name}"):
            table.to_csv(where, index=False)
    for where in (f"{local}/a.csv", "headrace:///out/a.csv"):
        table.head(10).to_csv(where, mode="a", header=False, index=False)
    for where in (f"{local}/a.parquet", "headrace:///out/a.parquet"):
        table.to_parquet(where)
    for name in ("a.csv", "a.parquet"):
        assert fs.cat(f"/out/{name}") == (local / name).read_bytes()
    assert pandas.read_csv("headrace:///out/a.csv.zst").equals(pandas.read_csv(local / "a.csv.zst"))
    table.to_parquet("headrace:///out/parts", partition_cols=["shop"])
    south = pandas.read_parquet("headrace:///out/parts", filters=[("shop", "==", "south")])
    same(south, table[table["shop"] == "south"])
    if mode == "back":
        settled(host)
    assert (host.truth / "out/a.parquet").read_bytes() == (local / "a.parquet").read_bytes()
    same(pandas.read_parquet(host.truth / "out/parts"), table)


def write_parts(host: Host) -> Any:
    import pyarrow
    import pyarrow.dataset

    table = clicks(2)
    pyarrow.dataset.write_dataset(
        pyarrow.Table.from_pandas(table, preserve_index=False),
        host.truth / "tables/clicks",
        format="parquet",
        partitioning=["shop"],
        partitioning_flavor="hive",
        max_rows_per_file=2000,
        max_rows_per_group=500,
    )
    host.ok("sync", "/")
    return table


def test_the_example_of_pyarrow(make_door: MakeDoor) -> None:
    """A data set in parts, made at the origin, is read and one is written."""
    import pyarrow.dataset

    host, fs = make_door(write="back")
    table = write_parts(host)
    names = run_example("pyarrow")
    same(names["clicks"].to_table().to_pandas(), table)
    cheap = table.loc[table["price"] < 10, ["shop", "price"]]
    same(names["cheap"].to_pandas(), cheap)
    same(
        pyarrow.dataset.dataset("/tables/cheap", filesystem=fs, partitioning="hive").to_table().to_pandas(),
        cheap,
    )
    settled(host)
    same(
        pyarrow.dataset.dataset(host.truth / "tables/cheap", partitioning="hive").to_table().to_pandas(),
        cheap,
    )
    written = parquet_files(host.truth / "tables/cheap")
    assert len(written) == 3
    assert {name: fs.cat(f"/tables/cheap/{name}") for name in written} == written


def test_pyarrow_writes_a_data_set_again_over_the_old_one(make_door: MakeDoor) -> None:
    """A job that runs again does this: parts that are no more are removed."""
    import pyarrow
    import pyarrow.dataset as data

    host, _ = make_door(write="back")
    write_parts(host)
    fs = fsspec.filesystem("headrace")
    fewer = clicks(3).head(1000)
    data.write_dataset(
        pyarrow.Table.from_pandas(fewer, preserve_index=False),
        "/tables/clicks",
        filesystem=fs,
        format="parquet",
        partitioning=["shop"],
        partitioning_flavor="hive",
        existing_data_behavior="delete_matching",
    )
    same(data.dataset("/tables/clicks", filesystem=fs, partitioning="hive").to_table().to_pandas(), fewer)
    settled(host)
    same(data.dataset(host.truth / "tables/clicks", partitioning="hive").to_table().to_pandas(), fewer)
    assert len(parquet_files(host.truth / "tables/clicks")) == 3
