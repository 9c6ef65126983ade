"""kill -9 of the session at a step of a change of names: who asked for it hears once that it is done, and it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.persist.conftest import MakeHost, Writer, settled, tree_of, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(120)]

EXAMPLES = int(os.environ.get("HEADRACE_EXAMPLES", "1"))
LOWER = {f"{top}/{name}": 2000 for top in ("one", "two", "old") for name in ("a", "b", "deep/c")}
FEW = {
    "made": (
        "os.mkdir('made')",
        "os.close(os.open('made/new', os.O_CREAT | os.O_EXCL | os.O_WRONLY))",
        "os.symlink('new', 'made/symbolic')",
        "os.link('made/new', 'made/hard')",
    ),
    "gone": (
        "os.unlink('one/a')",
        "os.rename('one/b', 'two/b')",
        "os.rename('one', 'renamed')",
        "os.mkdir('empty'); os.rmdir('empty')",
    ),
}
MORE = {
    "again": (
        "os.unlink('one/a'); open('one/a', 'x').close()",
        "os.mkfifo('fifo'); os.unlink('fifo')",
        "os.rename('one/deep', 'new'); os.rename('new', 'one/deep')",
        "import shutil; shutil.rmtree('old'); os.mkdir('old')",
    ),
    "attributes": (
        "os.setxattr('one/a', 'user.a', b'b')",
        "os.chmod('one/b', 0o600)",
        "os.truncate('two/a', 100)",
        "os.utime('two/b', (5, 5))",
    ),
}
GROUPS = FEW | MORE
CASES = [("made", "back"), ("gone", "through")]
if EXAMPLES > 1:
    CASES = [(group, mode) for group in GROUPS for mode in ("back", "through")]


def outcome(folder: Path, operations: tuple[str, ...]) -> dict[str, str]:
    """In a plain folder."""
    code = "\n".join((f"import os; os.chdir({str(folder)!r})", *operations))
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    wanted = tree_of(folder)
    for name in [path for path in wanted if path.endswith("symbolic")]:
        del wanted[name]  # it stays here
    return wanted


@pytest.mark.parametrize("hit", range(1, 1 + min(3, EXAMPLES)))
@pytest.mark.parametrize(("group", "mode"), CASES)
def test_the_session_dies_before_it_answers(
    make_host: MakeHost, tmp_path: Path, group: str, mode: str, hit: int
) -> None:
    check(make_host, tmp_path, GROUPS[group], mode=mode, step=f"fuse.changed:{hit}")


@pytest.mark.parametrize("step", ["tree.moved", *(["tree.moving"] if EXAMPLES > 1 else [])])
def test_a_folder_is_half_renamed(make_host: MakeHost, tmp_path: Path, step: str) -> None:
    operations = ("os.unlink('one/deep/c'); os.rename('one', 'new')", "os.rename('two', 'new/two')")
    check(make_host, tmp_path, operations, mode="back", step=f"{step}:1")


def test_a_file_is_half_renamed(make_host: MakeHost, tmp_path: Path) -> None:
    operations = ("os.rename('one/a', 'one/new')", "os.rename('one/b', 'two/a')")
    check(make_host, tmp_path, operations, mode="back", step="tree.renamed:1")


def test_names_are_exchanged_once(make_host: MakeHost, tmp_path: Path) -> None:
    exchange = "import ctypes; assert ctypes.CDLL(None).renameat2(-100, b'{}', -100, b'{}', 2) == 0"
    operations = (exchange.format("one/a", "two/b"), exchange.format("one/a", "one/b"))
    check(make_host, tmp_path, operations, mode="back", step="fuse.changed:1")


def test_close_waits_for_the_origin_after_the_session_died(make_host: MakeHost) -> None:
    """The file was opened and written through the session that died."""
    host = make_host(write="through", persist_delay_s=600)
    host.up()
    process = Writer(host.mount).start(
        """
file = open('f', 'wb', buffering=0)
file.write(b'bytes')
print('open')
input()
file.close()
"""
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        host.wait_pid("session", other_than=host.kill("session"))
        process.communicate("\n", timeout=60)
    assert process.returncode == 0
    assert tree_of(host.truth) == {"f": b"bytes".hex()}


def test_a_file_with_the_inode_number_of_a_removed_one_stays_open(make_host: MakeHost) -> None:
    """The kernel knows the removed file, too, and compares the generation that the next session sends."""
    host = make_host(write="back", persist_delay_s=600)
    host.up()
    process = Writer(host.mount).start(
        """
kept = []
for _ in range(100):
    open('old', 'w').close()
    number = os.stat('old').st_ino
    kept.append(os.open('old', os.O_PATH))  # the kernel does not forget it
    os.unlink('old')
    file = open('new', 'wb', buffering=0)
    if os.fstat(file.fileno()).st_ino == number:
        break
    file.close()
    os.unlink('new')
else:
    sys.exit('the disk gives no number again')
print('open')
input()
os.link('new', 'linked')  # its answer has the generation
file.write(b'bytes')
"""
    )
    with process:
        assert process.stdout is not None
        if process.stdout.readline() != "open\n":
            pytest.skip("this file system gives no inode number to another file")
        host.wait_pid("session", other_than=host.kill("session"))
        process.communicate("\n", timeout=60)
    assert process.returncode == 0
    assert Writer(host.mount).tree() == {"new": b"bytes".hex(), "linked": b"bytes".hex()}


def test_a_removed_file_that_is_open_is_no_other_file_after_the_session_died(make_host: MakeHost) -> None:
    """Without passthrough its inode number is free then."""
    host = make_host(write="back", persist_delay_s=600)
    host.up(host.truth, host.mount, "--io", "splice")
    process = Writer(host.mount).start(
        """
removed = {}
for number in range(200):
    fd = os.open(f'old{number}', os.O_RDWR | os.O_CREAT)
    os.write(fd, b'old')
    os.unlink(f'old{number}')
    removed[os.fstat(fd).st_ino] = fd
print('open')
input()
answers, numbers = set(), set()
for number in range(1000):
    with open(f'new{number}', 'wb') as file:
        file.write(b'new bytes')
        numbers.add(os.fstat(file.fileno()).st_ino)
    if numbers & removed.keys():
        break
for fd in removed.values():
    for call in (lambda: os.pread(fd, 9, 0).decode(), lambda: str(os.pwrite(fd, b'old', 0))):
        try:
            answers.add(call())
        except OSError as error:
            answers.add(errno.errorcode[error.errno])
print(json.dumps([len(numbers & removed.keys()), sorted(answers)]))
"""
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        host.wait_pid("session", other_than=host.kill("session"))
        output, _ = process.communicate("\n", timeout=60)
    assert process.returncode == 0
    shared, answers = json.loads(output)
    assert set(Writer(host.mount).tree().values()) == {b"new bytes".hex()}
    assert set(answers) <= {"EIO", "ESTALE"}
    if not shared:
        pytest.skip("this file system gave no inode number to another file")


def check(make_host: MakeHost, tmp_path: Path, operations: tuple[str, ...], *, mode: str, step: str) -> None:
    """Each operation, in which the session dies if it comes so far; a few, as the holder starts the next one later
    each time."""
    died = tmp_path / "died"
    died.touch()
    host = make_host(write=mode, persist_delay_s=0.02, failpoint=f"{step}:{died}")
    plain = tmp_path / "plain"
    for name, size in LOWER.items():
        (plain / name).parent.mkdir(parents=True, exist_ok=True)
        (plain / name).write_bytes(host.put(name, size))
    host.up()
    writer = Writer(host.mount)
    deaths = 0
    for operation in operations:
        died.unlink()
        writer.run(operation)
        deaths += died.exists()
        died.touch()
    assert deaths == len(operations) or not step.endswith(":1")
    wanted = outcome(plain, operations)
    wait_until(lambda: host.pid_of("session"))
    shown = writer.tree()
    shown.pop("made/symbolic", None)
    assert shown == wanted
    assert settled(host)["conflicts"] == []
    assert tree_of(host.truth) == wanted
