"""zarr over the door, by its own asynchronous store, held against the files of the origin."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from tests.integration.door.conftest import MakeDoor, settled
from tests.integration.door.examples import run_example
from tests.lazy_module import lazy_module

zarr = lazy_module("zarr", extra="worlds")
pytestmark = pytest.mark.timeout(90)


def values(*shape: int, seed: int = 0) -> Any:
    return numpy.random.default_rng(seed).random(shape)


def test_the_example_of_zarr(make_door: MakeDoor) -> None:
    host, _ = make_door(write="back")
    wind = values(300, 200)
    zarr.create_array(str(host.truth / "fields/wind.zarr"), data=wind, chunks=(64, 64))
    host.ok("sync", "/")
    names = run_example("zarr")
    assert type(names["wind"].store.fs).__name__ == "AsyncHeadraceFileSystem"
    numpy.testing.assert_array_equal(names["wind"][:], wind)
    numpy.testing.assert_array_equal(names["storm"], wind[100:200, :50])
    numpy.testing.assert_array_equal(
        zarr.open_array("headrace:///fields/storm.zarr", mode="r")[:], names["storm"]
    )
    settled(host)
    numpy.testing.assert_array_equal(
        zarr.open_array(str(host.truth / "fields/storm.zarr"))[:], names["storm"]
    )


def test_a_group_is_written_in_place_and_read_in_pieces(make_door: MakeDoor) -> None:
    """Chunks within shards are read as ranges of a file; a chunk is written over; an array is removed."""
    host, fs = make_door(write="back")
    where, grid = "headrace:///fields/all.zarr", values(256, 256, seed=1)
    group = zarr.open_group(where, mode="w", attributes={"unit": "m/s"})
    sharded = group.create_array("sharded", shape=grid.shape, shards=(128, 128), chunks=(32, 32), dtype="f8")
    sharded[:] = grid
    plain = group.create_array("deep/plain", shape=(100,), chunks=(10,), dtype="i8", fill_value=-1)
    plain[35:52] = numpy.arange(17)
    group.create_array("gone", shape=(10,), chunks=(5,), dtype="i8")[:] = 1
    sharded[10:20, 10:20] = grid[10:20, 10:20] = 0.5
    del group["gone"]
    expected = numpy.full(100, -1)
    expected[35:52] = numpy.arange(17)
    settled(host)
    for place in (where, str(host.truth / "fields/all.zarr")):
        root = zarr.open_group(place, mode="r")
        assert root.attrs["unit"] == "m/s"
        assert sorted(name for name, _ in root.members()) == ["deep", "sharded"]
        numpy.testing.assert_array_equal(root["sharded"][30:70, 100:140], grid[30:70, 100:140])
        numpy.testing.assert_array_equal(root["sharded"][:], grid)
        numpy.testing.assert_array_equal(root["deep/plain"][:], expected)
    assert not fs.exists("/fields/all.zarr/gone")
    assert not (host.truth / "fields/all.zarr/gone").exists()
