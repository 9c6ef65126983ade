"""Modes of single paths, and `through`: what is at the origin when, and what is refused where writing is off."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli.host import Host

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(400)]

MODES = "off,/scratch=local,/kept=through,/kept/later=back"
REFUSED = (
    "echo x > frozen/new",
    "echo x >> frozen/file",
    "rm frozen/file",
    "mv frozen/file frozen/other",
    "mv scratch/file frozen/",
    "mkdir frozen/folder",
    "rmdir frozen/empty",
    "ln -s x frozen/link",
    "ln frozen/file frozen/hard",
    "truncate -s 3 frozen/file",
    "chmod 600 frozen/file",
    "touch frozen/file",
    'python3 -c \'import os; os.setxattr("frozen/file", "user.a", b"b")\'',
    "touch new",
    "mkdir new",
)


@pytest.fixture
def host(needs_fuse: None) -> Iterator[Host]:
    base = Path(tempfile.mkdtemp(prefix="headrace-modes-"))
    host = Host(base)
    host.environment.pop("HEADRACE_EXAMPLES", None)
    for folder in ("scratch", "kept/later/whole", "frozen/empty"):
        (host.truth / folder).mkdir(parents=True)
    for folder in ("scratch", "kept", "kept/later", "kept/later/whole", "frozen"):
        (host.truth / folder / "file").write_bytes(f"of {folder}\n".encode())
    host.up(host.truth, host.mount, "--write", MODES)
    yield host
    host.close()
    shutil.rmtree(base)


def shell(host: Host, command: str) -> subprocess.CompletedProcess[str]:
    """In the mount, by another process: this one touches only the origin."""
    environment = host.environment | {"LC_ALL": "C"}
    return subprocess.run(
        ["bash", "-c", command],
        cwd=host.mount,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def done(host: Host, command: str) -> str:
    result = shell(host, command)
    assert result.returncode == 0, (command, result.stderr)
    return result.stdout


def test_what_is_off_stays_as_it_is(host: Host) -> None:
    for command in REFUSED:
        result = shell(host, command)
        assert result.returncode != 0, command
        assert "Read-only file system" in result.stderr, (command, result.stderr)
    assert (
        done(host, "find frozen | sort; cat frozen/file") == "frozen\nfrozen/empty\nfrozen/file\nof frozen\n"
    )
    assert done(host, "cat scratch/file") == "of scratch\n"
    assert sorted(os.listdir(host.truth / "frozen")) == ["empty", "file"]
    done(host, "cp frozen/file scratch/copied")
    assert done(host, "cat scratch/copied") == "of frozen\n"


def test_through_is_at_the_origin_when_the_close_returns(host: Host) -> None:
    kept = host.truth / "kept"
    done(host, "printf first > kept/new")
    assert (kept / "new").read_bytes() == b"first"
    done(host, "printf second > kept/new")
    assert (kept / "new").read_bytes() == b"second"
    done(host, "echo appended >> kept/file")
    assert (kept / "file").read_bytes() == b"of kept\nappended\n"
    done(host, "dd if=/dev/zero of=kept/large bs=1M count=9 conv=fsync status=none; echo end >> kept/large")
    assert (kept / "large").read_bytes() == bytes(9 << 20) + b"end\n"
    done(host, "mkdir -p kept/deep/er && echo deep > kept/deep/er/file")
    assert (kept / "deep/er/file").read_bytes() == b"deep\n"
    done(host, "sed -i s/deep/DEEP/ kept/deep/er/file")  # written aside and renamed
    host.ok("persist", "--wait", limit_s=120)
    assert (kept / "deep/er/file").read_bytes() == b"DEEP\n"
    assert sorted(os.listdir(kept / "deep/er")) == ["file"]
    done(host, "rm -r kept/deep kept/large")
    host.ok("persist", "--wait", limit_s=120)
    assert sorted(os.listdir(kept)) == ["file", "later", "new"]


@pytest.mark.parametrize(
    "change", ["os.ftruncate(fd, 3)", "os.fchmod(fd, 0o600)", "os.fsync(fd)", "os.utime(fd)"]
)
def test_through_is_at_the_origin_also_after_a_change_before_the_close(host: Host, change: str) -> None:
    """The node is told of such a change at once; the close waits all the same."""
    script = (
        f"import os; fd = os.open('kept/new', 66); os.write(fd, b'written'); {change}; os.write(fd, b'!'); "
    )
    script += f"{change}; os.close(fd)"
    done(host, f'python3 -c "{script}"')
    assert (host.truth / "kept/new").read_bytes() == (host.mount / "kept/new").read_bytes()


def test_local_never_comes_to_the_origin_and_back_does(host: Host) -> None:
    done(host, "echo local > scratch/new; echo changed > scratch/file; mkdir scratch/folder")
    done(host, "echo later > kept/later/new; rm kept/later/file")
    host.ok("persist", "--wait", limit_s=120)
    assert sorted(os.listdir(host.truth / "scratch")) == ["file"]
    assert (host.truth / "scratch/file").read_bytes() == b"of scratch\n"
    assert sorted(os.listdir(host.truth / "kept/later")) == ["new", "whole"]
    assert (host.truth / "kept/later/new").read_bytes() == b"later\n"
    assert done(host, "cat scratch/new scratch/file; ls kept/later") == "local\nchanged\nnew\nwhole\n"


def test_moves_between_modes(host: Host) -> None:
    """mv copies where rename is refused (EXDEV); the bytes end where they are to be."""
    done(host, "echo moved > scratch/one && mv scratch/one kept/one")
    done(host, "mkdir scratch/folder && echo below > scratch/folder/two && mv scratch/folder kept/later/")
    done(host, "mv kept/file scratch/from-kept")
    host.ok("persist", "--wait", limit_s=120)
    assert (host.truth / "kept/one").read_bytes() == b"moved\n"
    assert (host.truth / "kept/later/folder/two").read_bytes() == b"below\n"
    assert sorted(os.listdir(host.truth / "kept")) == ["later", "one"]
    assert sorted(os.listdir(host.truth / "scratch")) == ["file"]
    assert done(host, "ls scratch; cat scratch/from-kept") == "file\nfrom-kept\nof kept\n"


@pytest.mark.parametrize("folder", ["kept", "kept/later"])
def test_what_went_and_came_back_is_no_conflict(folder: str, host: Host) -> None:
    """Moved away, which came to the origin, and back: nobody else changed anything."""
    done(host, f"mv {folder}/file {folder}/away")
    host.ok("persist", "--wait", limit_s=120)
    assert "file" not in os.listdir(host.truth / folder)
    done(host, f"mv {folder}/away {folder}/file")
    host.ok("persist", "--wait", limit_s=120)
    assert (host.truth / folder / "file").read_bytes() == f"of {folder}\n".encode()
    assert done(host, f"find {folder} -name '*conflict*'; cat {folder}/file") == f"of {folder}\n"
    done(
        host, f"mv {folder}/file scratch/away; ln scratch/away {folder}/file || cp scratch/away {folder}/file"
    )
    host.ok("persist", "--wait", limit_s=120)
    assert (host.truth / folder / "file").read_bytes() == f"of {folder}\n".encode()
    assert [name for name in os.listdir(host.truth / folder) if "conflict" in name] == []


def test_a_folder_that_went_and_came_back_is_no_conflict(host: Host) -> None:
    done(host, "mv kept/later/whole kept/later/away")
    host.ok("persist", "--wait", limit_s=120)
    done(host, "mv kept/later/away kept/later/whole")
    host.ok("persist", "--wait", limit_s=120)
    assert os.listdir(host.truth / "kept/later/whole") == ["file"]
    assert done(host, "ls kept/later/whole; cat kept/later/whole/file") == "file\nof kept/later/whole\n"
