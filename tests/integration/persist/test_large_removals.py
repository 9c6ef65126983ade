"""Large files that are removed or replaced: what has their names, and who has them open, keeps each of its bytes."""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path

import pytest

from tests.integration.cli.host import Host
from tests.integration.persist.conftest import MakeHost, Writer, settled, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(180)]

CHANGES = """
from hashlib import blake2b
SIZE = 12_000_000 + 7
def write(name, size=SIZE):
    data = os.urandom(size)
    with open(name, 'wb') as file: file.write(data)
    return data
def read(file):
    file.seek(0)
    return file.read()

removed = write('removed')
with open('removed', 'rb') as file:
    os.unlink('removed')
    again = write('removed', 100)
    assert read(file) == removed
    assert open('removed', 'rb').read() == again

replaced, new = write('replaced'), write('new')
with open('replaced', 'r+b') as file:
    os.rename('new', 'replaced')
    assert read(file) == replaced and open('replaced', 'rb').read() == new
    file.seek(5); file.write(b'to nobody')
    assert read(file)[5:14] == b'to nobody' and open('replaced', 'rb').read() == new

linked = write('linked')
os.link('linked', 'other name')
os.unlink('linked')
assert open('other name', 'rb').read() == linked
os.link('other name', 'linked')
write('small', 10); os.rename('small', 'other name')
assert open('linked', 'rb').read() == linked

low = open('low', 'rb').read()
with open('low', 'r+b') as file:
    file.write(b'changed')
    os.unlink('low')
    assert read(file) == b'changed' + low[7:]
for _ in range(5):
    last = write('often')
    os.unlink('often')
last = write('often')
"""


def assert_same(host: Host) -> None:
    """The mount shows what the origin has."""
    shown = Writer(host.mount).run(
        "from hashlib import blake2b\n"
        "print(json.dumps({n: blake2b(open(n, 'rb').read()).hexdigest() for n in os.listdir('.')}))"
    )
    wanted = {path.name: blake2b(path.read_bytes()).hexdigest() for path in host.truth.iterdir()}
    assert json.loads(shown) == wanted


@pytest.mark.parametrize("io", ["auto", "splice"])
def test_other_files_keep_their_bytes(make_host: MakeHost, io: str) -> None:
    host = make_host(write="back", persist_delay_s=0.05)
    host.put("low", 10_000_000)
    host.up(host.truth, host.mount, "--io", io)
    Writer(host.mount).run(CHANGES)
    assert settled(host)["conflicts"] == []
    assert {path.name for path in host.truth.iterdir()} == {
        *("removed", "replaced", "linked", "other name", "often")
    }
    assert_same(host)


def test_a_session_that_dies_before_it_freed_a_file_has_removed_it(
    make_host: MakeHost, tmp_path: Path
) -> None:
    died = tmp_path / "died"
    died.touch()
    host = make_host(write="back", persist_delay_s=0.05, failpoint=f"fuse.changed:1:{died}")
    host.up()
    writer = Writer(host.mount)
    for change in ("os.unlink('large')", "os.rename('other', 'large')"):
        writer.run("open('large', 'wb').write(os.urandom(12_000_000)); open('other', 'wb').write(b'other')")
        died.unlink()
        writer.run(change)
        assert died.exists()
        wait_until(lambda: host.pid_of("session"))
    assert writer.run("print(open('large').read())") == "other\n"
    assert settled(host)["conflicts"] == []
    assert_same(host)
