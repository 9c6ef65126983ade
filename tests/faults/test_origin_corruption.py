"""An origin whose bodies come with bits turned over, as from a bad link or a proxy's memory: nothing of it is kept."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from headrace.cli.exit_codes import SOME_FAILED
from headrace.config.secret_options import option_words
from headrace.testing.servers import S3Server
from tests.fault_proxy import FaultProxy, fault_proxy
from tests.faults.conftest import MakeHost
from tests.integration.cli.host import MIB, Host

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(90)]

SMALL = 25 * int(os.environ.get("HEADRACE_EXAMPLES", "1"))


@pytest.fixture
def proxy(seaweed: S3Server) -> Iterator[FaultProxy]:
    with fault_proxy(seaweed) as proxy:
        yield proxy


@pytest.fixture
def spoiled(make_host: MakeHost, seaweed: S3Server, proxy: FaultProxy) -> Host:
    """Up; of its files one is put in parts."""
    host = make_host(sync_interval_s=3600)
    sizes = {f"small-{number}": 1000 + 800 * number for number in range(SMALL)}
    for name, size in {**sizes, "large": 4 * MIB + 7, "parts": 12 * MIB + 1}.items():
        seaweed.put(f"spoiled/{name}", host.put(name, size))
    host.up(proxy.url("spoiled"), host.mount, *option_words(proxy.options(), str(host.base)))
    return host


@pytest.mark.expected_warnings("the origin sent wrong bytes")
def test_a_cold_epoch_through_a_bad_link_leaves_right_bytes(spoiled: Host, proxy: FaultProxy) -> None:
    """Small files are right when they are read first; large ones, read as they come, when they are whole."""
    proxy.flip_share = 0.3
    small = [f"small-{number}" for number in range(SMALL)]
    spoiled.assert_right(*small)
    assert spoiled.json("load")["failed_files"] == 0
    assert proxy.flipped > 0
    spoiled.assert_right()
    assert spoiled.json("fsck")["failed_files"] == 0
    checksums = spoiled.status()["origin"]["checksums"]
    assert checksums["files_compared"] == SMALL + 2
    assert checksums["files_wrong"] > 0
    assert checksums["files_corrupt"] == 0
    assert "came with wrong bytes" in spoiled.ok("status")
    assert any("origin sent wrong bytes" in log.read_text() for log in spoiled.run_folder.glob("*.log"))
    spoiled.ok("down")
    spoiled.assert_nothing_left()


@pytest.mark.expected_warnings("a complete file that may be wrong is dropped")
def test_what_never_comes_right_is_an_error_that_says_so(spoiled: Host, proxy: FaultProxy) -> None:
    proxy.flip_share = 1.0
    row = spoiled.read("small-1")["small-1"]
    assert row["error"] == "EIO"
    assert row["wrong"] == -1
    done = spoiled.headrace("load", "/large")
    assert done.returncode == SOME_FAILED
    assert "don't match the checksum" in done.stderr
    proxy.flip_share = 0.0
    spoiled.assert_right("small-1")
    spoiled.ok("down")
    spoiled.assert_nothing_left()
