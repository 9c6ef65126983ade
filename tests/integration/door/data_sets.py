"""Fill an origin with small data sets of texts and pictures."""

from __future__ import annotations

import io

import numpy

from tests.integration.door.conftest import Host
from tests.lazy_module import lazy_module

pandas = lazy_module("pandas", extra="worlds")
image = lazy_module("PIL.Image", extra="worlds")


def fill_with_texts(host: Host) -> list[dict[str, object]]:
    """Three files of 100 rows at the origin. → the rows."""
    rows: list[dict[str, object]] = []
    (host.truth / "texts").mkdir()
    for number in range(3):
        some = [{"number": number * 100 + index, "text": f"text {number} {index}"} for index in range(100)]
        pandas.DataFrame(some).to_parquet(host.truth / f"texts/{number}.parquet")
        rows += some
    return rows


def fill_with_pictures(host: Host) -> dict[str, bytes]:
    """At the origin. → path: pixels."""
    chance, pixels = numpy.random.default_rng(0), {}
    for label in ("cat", "dog"):
        (host.truth / "pictures" / label).mkdir(parents=True)
        for number in range(5):
            data = chance.integers(0, 255, (20, 30, 3), dtype=numpy.uint8)
            encoded = io.BytesIO()
            image.fromarray(data).save(encoded, "png")
            (host.truth / f"pictures/{label}/{number}.png").write_bytes(encoded.getvalue())
            pixels[f"/pictures/{label}/{number}.png"] = data.tobytes()
    return pixels
