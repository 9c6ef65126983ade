"""A directory keeps the time that a program gave it while the node persists what the program removed in it."""

from __future__ import annotations

import os

import pytest

from tests.integration.cli.host import Host
from tests.integration.persist.conftest import MakeHost, Writer, settled, tree_of, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(180)]

NEVER_S = 600.0
TIME_NS = 1_234_567_890_123_456_789
CHANGES = (
    "os.unlink('low/gone')",
    "os.rename('low/gone', 'low/new')",
    "os.rename('low/gone', 'low/replaced')",
    "os.unlink('low/empty/c'); os.rmdir('low/empty')",
    "import shutil; shutil.rmtree('low/sub'); os.unlink('low/gone')",
    "import shutil; shutil.rmtree('low/sub'); open('low/sub', 'w').write('a file')",
    "open('low/own', 'w').write('own'); os.rename('low/own', 'low/gone'); os.unlink('low/gone')",
)


def up(make_host: MakeHost, persist_delay_s: float) -> Host:
    host = make_host(write="back", persist_delay_s=persist_delay_s)
    for name in ("low/kept", "low/gone", "low/replaced", "low/sub/a", "low/sub/deep/b", "low/empty/c"):
        host.put(name, 10_000)
    host.up()
    return host


def assert_kept(host: Host) -> None:
    """Check that removed names left the origin and have no marker in the layer, and that the directory has its time."""
    settled(host)
    wait_until(
        lambda: set(os.listdir(host.cache / "upper/tree/low")) <= set(os.listdir(host.truth / "low")), 60.0
    )
    shown_ns = int(
        Writer(host.mount).run("print(os.stat('low').st_mtime_ns)")
    )  # may be the kernel's cached time
    assert (shown_ns, (host.cache / "upper/tree/low").stat().st_mtime_ns) == (TIME_NS, TIME_NS)
    assert Writer(host.mount).tree() == tree_of(host.truth)


@pytest.mark.parametrize("change", CHANGES)
def test_the_time_stays_when_removals_are_persisted(make_host: MakeHost, change: str) -> None:
    """The program sets the time before anything is persisted."""
    host = up(make_host, NEVER_S)
    Writer(host.mount).run(f"{change}; os.utime('low', ns=({TIME_NS}, {TIME_NS}))")
    assert_kept(host)


def test_the_time_stays_when_files_are_removed_during_their_puts(make_host: MakeHost) -> None:
    host = up(make_host, 0.01)
    Writer(host.mount).run(
        f"""
for number in range(200):
    open(f'low/{{number}}', 'w').write('x' * number)
    if number >= 20: os.unlink(f'low/{{number - 20}}')
for number in range(180, 200): os.unlink(f'low/{{number}}')
os.utime('low', ns=({TIME_NS}, {TIME_NS}))
"""
    )
    assert_kept(host)
