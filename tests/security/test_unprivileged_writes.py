"""Writing with `--user`: everything belongs to that user, no process has a right more, the marks of the layer are out
of reach, and what was written arrives at the origin."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.integration.cli.host import Host, Up, wait_until
from tests.security.nobody import LIBRARY, NOBODY, as_user
from tests.security.unprivileged import (
    NODE_USER,
    NOTHING,
    SYS_ADMIN,
    USER,
    descriptor_of,
    ready,
    status_of,
    unprivileged_host,
)

OUTCOMES = """
result = []
os.umask(0o022)
os.chdir(mount)
def note(call):
    try:
        result.append(call())
    except OSError as error:
        result.append(errno.errorcode[error.errno])
def write(name, text, mode=0o644):
    fd = os.open(name, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, mode)
    os.write(fd, text.encode())
    os.close(fd)
def shown(name):
    status = os.lstat(name)
    return [oct(status.st_mode), status.st_uid, status.st_gid]
"""


def up_writing(host: Host, *words: object, write: str = "back") -> Up:
    return host.up(host.truth, host.mount, "--user", USER, "--allow-other", "--write", write, *words)


def of_user(host: Host, program: str, uid: int = NODE_USER) -> Any:
    """The outcomes that a program notes on the mount."""
    return as_user(uid, OUTCOMES + program, mount=str(host.mount), me=NODE_USER)


def own_truth(host: Host) -> None:
    """The user's origin, which persisting writes to."""
    for path in (host.truth, *host.truth.rglob("*")):
        os.lchown(path, NODE_USER, NODE_USER)


@pytest.fixture(scope="module")
def writing(shared_base: Path) -> Iterator[Host]:
    base = shared_base / "writing"
    base.mkdir()
    with unprivileged_host(base, s3_address="127.0.0.1:0") as host:
        for name in ("old", "whiteout", "replaced", "removed", "folder/moved", "folder/kept", "appended"):
            host.put(name, 5000)
        host.put("large", (5 << 20) + 3)
        own_truth(host)
        up_writing(host)
        yield host


@pytest.fixture
def host(tmp_path: Path, shared_base: Path, request: pytest.FixtureRequest) -> Iterator[Host]:
    base = shared_base / request.node.name.replace("[", "-").strip("]")[-40:]
    base.mkdir()
    with unprivileged_host(base) as host:
        yield host


def test_no_process_has_a_right_more_than_where_nothing_is_written(writing: Host) -> None:
    said = ready(writing)
    gateway = next(pid for pid, words in writing.processes().items() if "headrace.s3.main" in words)
    for name, pid in {
        "up": said["pid"],
        "holder": said["fd_store_pid"],
        "node": said["node_pid"],
        "session": said["session_pid"],
        "s3": gateway,
    }.items():
        held = SYS_ADMIN if name in ("up", "holder") else NOTHING
        status = status_of(pid)
        assert [status[key] for key in ("CapPrm", "CapEff", "CapInh", "CapAmb", "NoNewPrivs")] == [
            held,
            held,
            NOTHING,
            NOTHING,
            "1",
        ], name
        assert status["Uid"] == " ".join([str(NODE_USER)] * 4), name


def test_what_is_written_is_at_the_origin_after_persisting(writing: Host) -> None:
    program = """
note(lambda: write("new", "new bytes"))
note(lambda: write("replaced", "other bytes"))
note(lambda: open("appended", "ab").write(b"tail"))
note(lambda: os.unlink("removed"))
note(lambda: os.rename("folder/moved", "folder/there"))
note(lambda: os.makedirs("made/below"))
note(lambda: write("made/below/file", "deep"))
note(lambda: os.rename("folder", "renamed"))
note(lambda: sorted(os.listdir(".")))
note(lambda: open("made/below/file").read())
"""
    before = {
        name: (writing.truth / name).read_bytes() for name in ("appended", "folder/moved", "folder/kept")
    }
    outcomes = of_user(writing, program)
    assert outcomes[:8] == [None, None, 4, None, None, None, None, None]
    assert set(outcomes[8]) >= {"new", "replaced", "appended", "made", "renamed"}
    assert not {"removed", "folder"} & set(outcomes[8])
    assert outcomes[9] == "deep"
    writing.ok("persist", "/")
    assert writing.names() == sorted(
        [
            *(
                "appended",
                "large",
                "made/below/file",
                "new",
                "old",
                "renamed/kept",
                "renamed/there",
                "replaced",
            ),
            "whiteout",
        ]
    )
    expected = {
        "new": b"new bytes",
        "replaced": b"other bytes",
        "appended": before["appended"] + b"tail",
        "renamed/there": before["folder/moved"],
        "renamed/kept": before["folder/kept"],
        "made/below/file": b"deep",
    }
    assert {name: (writing.truth / name).read_bytes() for name in expected} == expected
    writing.assert_right()


def test_modes_that_forbid_everything_are_shown_and_kept_from_nobody_who_persists(writing: Host) -> None:
    program = """
for mode in (0o000, 0o400, 0o200, 0o070, 0o444, 0o1644):
    note(lambda: write(f"mode-{mode:o}", f"bytes of {mode:o}", 0o600))
    note(lambda: os.chmod(f"mode-{mode:o}", mode))
note(lambda: os.close(os.open("made-0", os.O_CREAT | os.O_WRONLY, 0)))
note(lambda: os.mkdir("sealed", 0o000))
note(lambda: os.mkdir("shared", 0o700))
note(lambda: os.chmod("shared", 0o1777))
note(lambda: [write("set-id", ""), os.chmod("set-id", 0o6755)][0])
note(lambda: {name: shown(name)[0] for name in os.listdir(".") if name[:3] in ("mod", "mad", "sea", "sha", "set")
              and name != "made"})
note(lambda: open("mode-0").read())
note(lambda: open("mode-400", "w"))
note(lambda: open("mode-400").read())
"""
    modes = {
        "mode-0": 0o100000,
        "mode-400": 0o100400,
        "mode-200": 0o100200,
        "mode-70": 0o100070,
        "mode-444": 0o100444,
        "mode-1644": 0o101644,
        "made-0": 0o100000,
        "sealed": 0o40000,
        "shared": 0o41777,
        "set-id": 0o100755,
    }
    outcomes = of_user(writing, program)
    assert outcomes[:-4] == [None] * (len(outcomes) - 4)
    assert outcomes[-4:] == [
        {name: oct(mode) for name, mode in modes.items()},
        "EACCES",
        "EACCES",
        "bytes of 400",
    ]
    writing.ok("persist", "/")
    for mode in (0o000, 0o400, 0o200, 0o070, 0o444, 0o1644):
        path = writing.truth / f"mode-{mode:o}"
        assert path.read_bytes() == f"bytes of {mode:o}".encode()
        assert stat.S_IMODE(path.stat().st_mode) == mode | 0o400  # else the node could not read it again
    # root passes all modes; the layer's tree has no set-id bit and no device
    assert of_user(writing, "note(lambda: open('mode-0').read())", uid=0) == ["bytes of 0"]
    for path in (writing.cache / "upper").rglob("*"):
        status = path.lstat()
        assert not status.st_mode & 0o6000 and status.st_uid == NODE_USER, path
        assert stat.S_IFMT(status.st_mode) not in (stat.S_IFCHR, stat.S_IFBLK), path


def test_everything_belongs_to_the_user_and_is_given_to_nobody(writing: Host) -> None:
    program = """
note(lambda: write("owned", "x"))
note(lambda: os.chown("owned", 1, -1))
note(lambda: os.chown("owned", -1, 1))
note(lambda: os.chown("owned", me, me))
note(lambda: shown("owned"))
"""
    mine = ["0o100644", NODE_USER, NODE_USER]
    assert of_user(writing, program) == [None, "EPERM", "EPERM", None, mine]
    of_root = """
note(lambda: write("roots", "x", 0o600))
note(lambda: shown("roots"))
note(lambda: os.chown("roots", 0, 0))
note(lambda: os.mknod("device", stat.S_IFCHR | 0o600, os.makedev(1, 3)))
note(lambda: os.mkdir("roots-folder", 0o755))
note(lambda: shown("roots-folder"))
"""
    assert of_user(writing, of_root, uid=0) == [
        None,
        ["0o100600", NODE_USER, NODE_USER],
        "EPERM",
        "EPERM",
        None,
        ["0o40755", NODE_USER, NODE_USER],
    ]


def test_other_users_make_nothing_and_change_what_modes_let_them(writing: Host) -> None:
    of_user(
        writing,
        "os.mkdir('open'); os.chmod('open', 0o777); write('open/file', 'x'); os.chmod('open/file', 0o666)",
    )
    program = """
for call in (lambda: write("open/theirs", "x"), lambda: os.mkdir("open/theirs"), lambda: os.mkfifo("open/theirs"),
             lambda: os.symlink("/etc/passwd", "open/theirs")):
    note(call)
note(lambda: write("top", "x"))
note(lambda: open("open/file", "w").write("changed"))
note(lambda: os.chmod("open/file", 0o600))
note(lambda: os.rename("open/file", "open/other"))
note(lambda: os.unlink("open/other"))
note(lambda: os.listdir("open"))
"""
    assert of_user(writing, program, uid=NOBODY) == [
        *["EPERM"] * 4,
        "EACCES",
        7,
        "EPERM",
        None,
        None,
        [],
    ]


def test_marks_are_out_of_reach_through_the_mount(writing: Host) -> None:
    program = """
os.makedirs("marked", exist_ok=True)
write("marked/file", "x")
os.setxattr("marked/file", "user.own", b"1")
os.rename("marked/file", "marked/renamed")
open("old", "ab").write(b"y")
for name in ("removed", "base", "mode", "id", "moving", "left", "path"):
    for path in ("marked", "marked/renamed", "old"):
        note(lambda: os.setxattr(path, "user.headrace." + name, b""))
        note(lambda: os.getxattr(path, "user.headrace." + name))
        note(lambda: os.removexattr(path, "user.headrace." + name))
result = sorted(set(result))
note(lambda: [os.listxattr(path) for path in ("marked", "marked/renamed", "old")])
"""
    for uid in (NODE_USER, 0):
        assert of_user(writing, program, uid=uid) == [
            "ENODATA",
            "EPERM",
            [[], ["user.own"], []],
        ]
    upper_old = writing.cache / "upper/tree/old"
    assert "user.headrace.base" in os.listxattr(upper_old)
    assert of_user(writing, "note(lambda: open('old', 'rb').read()[-2:].decode())") == ["yy"]


def test_a_removed_name_is_no_file_for_anybody(writing: Host) -> None:
    """A whiteout of this layer is a file on disk."""
    stopped = writing.kill("node", signal.SIGSTOP)
    try:
        outcomes = of_user(
            writing,
            """
note(lambda: os.unlink("whiteout"))
note(lambda: shown("whiteout"))
note(lambda: open("whiteout").read())
note(lambda: "whiteout" in os.listdir("."))
note(lambda: write("whiteout", "again"))
note(lambda: shown("whiteout"))
note(lambda: os.unlink("whiteout"))
note(lambda: os.symlink("old", "whiteout"))
note(lambda: "whiteout" in os.listdir("."))
""",
        )
        assert stat.S_ISREG((writing.cache / "upper/tree/whiteout").lstat().st_mode)
    finally:
        os.kill(stopped, signal.SIGCONT)
    mine = ["0o100644", NODE_USER, NODE_USER]
    assert outcomes == [None, "ENOENT", "ENOENT", False, None, mine, None, "EPERM", False]
    writing.ok("persist", "/")
    assert not (writing.truth / "whiteout").exists()


def test_links_and_fifos_have_one_owner_too(writing: Host) -> None:
    program = """
note(lambda: os.symlink("old", "link"))
note(lambda: os.readlink("link"))
note(lambda: os.rename("link", "link2"))
note(lambda: os.mkfifo("fifo", 0o600))
note(lambda: [shown("link2")[1:], shown("fifo")])
note(lambda: [write("named", "x"), os.link("named", "named2"), os.lstat("named2").st_nlink][2])
note(lambda: os.symlink("elsewhere", "large"))
"""
    owner = [NODE_USER, NODE_USER]
    outcomes = of_user(writing, program)
    assert outcomes == [None, "old", None, None, [owner, ["0o10600", *owner]], 2, "EEXIST"]


def test_gateway_and_library_write_as_the_user(writing: Host) -> None:
    said = ready(writing)
    lines = Path(said["credentials"]["s3"]).read_text().replace("export ", "").splitlines()
    rows = dict(line.replace(" ", "").split("=", 1) for line in lines if "=" in line)
    client = boto3.client(
        "s3",
        endpoint_url=said["s3"],
        region_name="us-east-1",
        aws_access_key_id=rows["AWS_ACCESS_KEY_ID"].strip("'\""),
        aws_secret_access_key=rows["AWS_SECRET_ACCESS_KEY"].strip("'\""),
    )
    of_user(writing, "os.makedirs('bucket')")
    client.put_object(Bucket="bucket", Key="object", Body=b"of s3")
    head = client.head_object(Bucket="bucket", Key="object")
    assert head["ETag"] == (f'"{hashlib.md5(b"of s3").hexdigest()}"')
    client.delete_object(Bucket="bucket", Key="object")
    client.put_object(Bucket="bucket", Key="second", Body=b"of s3 again")
    put = """
cache = headrace.connect(socket=address)
with cache.open("/bucket/by-library", "wb") as out:
    out.write(b"of the library")
result = cache.read("/bucket/by-library").decode()
"""
    assert as_user(NODE_USER, put, imports=LIBRARY, address=said["socket"]) == "of the library"
    writing.ok("persist", "/")
    assert (writing.truth / "bucket/second").read_bytes() == b"of s3 again"
    assert (writing.truth / "bucket/by-library").read_bytes() == b"of the library"
    assert not (writing.truth / "bucket/object").exists()


def test_a_hostile_session_registers_nothing_where_it_is_written(writing: Host) -> None:
    """The kernel would open the file for writing without asking whether its user may."""
    session = ready(writing)["session_pid"]
    number = descriptor_of(session, "backings")
    program = """
holder = socket.socket(fileno=ctypes.CDLL(None).syscall(438, os.pidfd_open(session), number, 0))
def ask(fd):
    holder.sendmsg([bytes(4)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
    return struct.unpack("<i", holder.recv(4))[0]
result = [ask(os.open(path, flags)) for flags in (os.O_RDONLY, os.O_RDWR)]
"""
    descriptors = as_user(
        NODE_USER,
        program,
        imports="import array, struct, ctypes",
        session=session,
        number=number,
        path=str(writing.cache / "upper/single-owner"),
    )
    assert descriptors == [-1, -1]
    assert ready(writing)["io"] == "splice"


def test_files_of_other_owners_are_read_and_replaced_and_not_changed(host: Host) -> None:
    """The copy that a change needs would change hands. Root's node put such files before."""
    host.up(host.truth, host.mount, "--allow-other", "--write", "back")
    of_user(
        host,
        "for name in ('one', 'two'): write(name, 'of another', 0o666); os.chown(name, 1000, 1000)",
        uid=0,
    )
    host.ok("persist", "/")
    host.ok("down", "--all")
    shutil.rmtree(host.cache / "upper")
    own_truth(host)
    for path in (host.cache, *host.cache.rglob("*"), host.run_folder, *host.run_folder.rglob("*")):
        os.lchown(path, NODE_USER, NODE_USER)
    up_writing(host)
    program = """
os.umask(0)
note(lambda: shown("one"))
note(lambda: open("one").read())
note(lambda: open("one", "a"))
note(lambda: open("one", "w"))
"""
    theirs = ["0o100644", 1000, 1000]
    assert of_user(host, program, uid=0) == [theirs, "of another", "EPERM", "EPERM"]
    program = """
note(lambda: open("one", "a"))
note(lambda: write("new", "replaced"))
note(lambda: os.rename("new", "one"))
note(lambda: shown("one"))
note(lambda: os.unlink("two"))
"""
    mine = ["0o100644", NODE_USER, NODE_USER]
    assert of_user(host, program) == ["EACCES", None, None, mine, None]
    host.ok("persist", "/")
    assert (host.names(), (host.truth / "one").read_text()) == (["one"], "replaced")
    host.ok("down", "--all")
    host.assert_nothing_left()


@pytest.mark.parametrize("write", ["local", "through"])
def test_the_other_modes_of_writing(host: Host, write: str) -> None:
    host.put("old", 3000)
    own_truth(host)
    up_writing(host, write=write)
    program = """
note(lambda: write("new", "written", 0o400))
note(lambda: os.unlink("old"))
note(lambda: [os.listdir("."), shown("new")[0]])
"""
    listing = [["new"], "0o100400"]
    assert of_user(host, program) == [None, None, listing]
    assert host.names() == (["old"] if write == "local" else ["new"])
    host.ok("down", str(host.mount))
    up_writing(host, write=write)
    assert of_user(host, "note(lambda: [os.listdir('.'), shown('new')[0]])") == [listing]
    (host.base / "second").mkdir()
    other = host.start("fuse", host.base / "second", "--allow-other")
    other.wait_ready()
    program = f"os.chdir({str(host.base / 'second')!r}); note(lambda: write('by-second', 'x'))"
    assert of_user(host, program) == [None]
    assert of_user(host, "note(lambda: open('by-second').read())") == ["x"]
    host.ok("down", "--all")
    host.assert_nothing_left()


def test_clean_files_leave_the_layer_for_the_cache_and_stay_what_they_are(host: Host) -> None:
    host.put("copied", 1 << 20)
    own_truth(host)
    words = (host.truth, host.mount, "--user", USER, "--allow-other", "--write", "back")
    host.up(*words, cache=f"{host.cache}:64MiB")
    program = """
note(lambda: open("copied", "ab").write(b"more"))
for number in range(60):
    note(lambda: write(f"file{number}", f"{number:02} " * 300_000, 0o400))
"""
    assert of_user(host, program) == [4] + [None] * 60
    host.ok("persist", "/")
    host.ok("down", "--all")
    host.up(*words, cache=f"{host.cache}:64MiB")  # the node looks over the layer at its start
    tree = host.cache / "upper/tree"
    wait_until(lambda: not (tree / "file0").exists() and not (tree / "copied").exists())
    assert host.json("status")["origin"]["bytes_read"] == 0
    host.assert_right()
    modes = of_user(host, "note(lambda: [shown(name) for name in ('copied', 'file0')])")[0]
    assert modes == [["0o100644", NODE_USER, NODE_USER], ["0o100400", NODE_USER, NODE_USER]]
    host.ok("down", "--all")


def test_killed_processes_lose_nothing_that_was_written(host: Host) -> None:
    host.put("old", 3000)
    own_truth(host)
    up_writing(host)
    written = {"old": (host.truth / "old").read_bytes()}
    program = """
fd = os.open("open", os.O_CREAT | os.O_RDWR, 0o600)
os.write(fd, b"before ")
os.chmod("open", 0)
print("begun", file=sys.stderr, flush=True)
sys.stdin.readline()
os.write(fd, b"after")
os.close(fd)
"""
    writer = subprocess.Popen(
        [
            *("setpriv", f"--reuid={NODE_USER}", f"--regid={NODE_USER}", "--clear-groups"),
            *(host.python, "-c", "import os, sys\n" + program),
        ],
        env=host.environment,
        cwd=host.mount,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert writer.stderr is not None and writer.stdin is not None
    assert writer.stderr.readline() == "begun\n"
    for role in ("session", "node", "holder"):
        name = f"by-{role}"
        assert of_user(host, f"note(lambda: write({name!r}, {name!r}, 0o400))") == [None]
        was = host.kill(role)
        host.wait_pid(role, other_than=was)
        host.wait_pid("session")
        assert of_user(host, f"note(lambda: open({name!r}).read())\nnote(lambda: shown({name!r})[0])") == [
            name,
            "0o100400",
        ]
        written[name] = name.encode()
        assert status_of(host.wait_pid(role))["CapPrm"] == (SYS_ADMIN if role == "holder" else NOTHING)
    writer.stdin.write("\n")
    writer.stdin.close()
    assert writer.wait(30) == 0
    written["open"] = b"before after"
    of_user(host, "os.rename('old', 'moved'); os.mkdir('made', 0o500)")
    written["moved"] = written.pop("old")
    host.kill_all()
    for path in host.mounts():
        host.ok("down", path)
    up_writing(host)
    modes = of_user(
        host, "note(lambda: {name: shown(name)[0] for name in sorted(os.listdir('.'))})", uid=NODE_USER
    )[0]
    assert modes == {
        **{f"by-{role}": "0o100400" for role in ("session", "node", "holder")},
        "made": "0o40500",
        "moved": "0o100644",
        "open": "0o100000",
    }
    host.ok("persist", "/")
    assert {name: (host.truth / name).read_bytes() for name in host.names()} == written
    assert host.json("fsck")["failed_files"] == 0
    host.ok("down", "--all")
    host.assert_nothing_left()


def test_a_rename_goes_on_when_its_session_dies_between_the_steps(host: Host) -> None:
    """It leaves a whiteout, which takes two steps in this layer."""
    host.put("old", 3000)
    own_truth(host)
    marks = host.base / "marks"
    marks.mkdir()
    os.chown(marks, NODE_USER, NODE_USER)
    host.environment["HEADRACE_FAILPOINT"] = f"tree.moved:1:{marks / 'died'}"
    up_writing(host)
    session, data = host.wait_pid("session"), (host.truth / "old").read_bytes()
    program = """
note(lambda: write("target", "replaced"))
note(lambda: os.rename("old", "target"))
note(lambda: os.listdir("."))
note(lambda: open("target", "rb").read().hex())
"""
    assert of_user(host, program) == [None, None, ["target"], data.hex()]
    assert (marks / "died").exists()
    assert host.wait_pid("session", other_than=session)
    host.ok("persist", "/")
    assert {name: (host.truth / name).read_bytes() for name in host.names()} == {"target": data}
    assert list((host.cache / "upper/work").iterdir()) == []
    host.ok("down", "--all")
    host.assert_nothing_left()


def test_a_layer_of_root_is_not_opened_by_a_user_and_the_reverse(host: Host) -> None:
    own_truth(host)
    up_writing(host)
    of_user(host, "write('file', 'x')")
    host.ok("down", "--all")
    for path in (host.cache, *host.cache.rglob("*"), host.run_folder, *host.run_folder.rglob("*")):
        os.lchown(path, 0, 0)
    refused = host.start("up", host.truth, host.mount, "--write", "back", "--cache", f"{host.cache}:1GiB")
    assert refused.wait() != 0
    assert "a user's node wrote its files" in refused.said
    assert "persist the files, then remove this directory" in refused.said
    wait_until(lambda: not host.processes())


def test_replicas_are_refused_in_one_line(writing: Host) -> None:
    done = writing.headrace("up", writing.truth, "--user", USER, "--write", "back:2")
    assert done.returncode != 0
    assert "only root can keep the owners of other nodes' files" in done.stderr
    assert len(done.stderr.splitlines()) <= 3
