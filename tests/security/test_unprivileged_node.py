"""`--user`: node, session and gateways have no right but their user's, what has one does nothing for that user, and
what that user leaves in its folders leads root nowhere."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from tests.integration.cli.host import Host, Up, wait_until, with_settings
from tests.security.nobody import LIBRARY, NOBODY, WALK, as_nobody, as_user, below
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

READ = """
cache = headrace.connect(socket=address)
result = [type(cache._vfs).__name__, *(hashlib.sha256(cache.read(path)).hexdigest() for path in ("/small", "/large"))]
"""


def up_as_user(host: Host, *words: object) -> Up:
    return host.up(host.truth, host.mount, "--user", USER, "--allow-other", *words)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _say_nonsense(session: int) -> None:
    """To the holder, by the descriptor of a session that its user took over."""
    program = """
holder = ctypes.CDLL(None).syscall(438, os.pidfd_open(session), number, 0)
result = os.write(holder, b'{}\\n[' + b'[' * 20000 + b'\\n7\\n')
"""
    number = descriptor_of(session, "control")
    assert as_user(NODE_USER, program, imports="import ctypes", session=session, number=number) > 20000


@pytest.fixture(scope="module")
def lowered(shared_base: Path) -> Iterator[Host]:
    base = shared_base / "lowered"
    base.mkdir()
    with unprivileged_host(base, kind=Host, s3_address="127.0.0.1:0") as host:
        host.put("small", 100_000)
        host.put("large", (9 << 20) + 7)
        host.put("d/file", 3000)
        up_as_user(host)
        yield host


def test_each_process_has_what_the_table_says_and_no_more(lowered: Host) -> None:
    said = ready(lowered)
    gateway = next(pid for pid, words in lowered.processes().items() if "headrace.s3.main" in words)
    pids = {
        "up": said["pid"],
        "holder": said["fd_store_pid"],
        "node": said["node_pid"],
        "session": said["session_pid"],
        "s3": gateway,
    }
    for name, pid in pids.items():
        status = status_of(pid)
        assert status["Uid"] == status["Gid"] == " ".join([str(NODE_USER)] * 4), name
        assert (status["Groups"], status["NoNewPrivs"]) == (str(NODE_USER), "1"), name
        held = SYS_ADMIN if name in ("up", "holder") else NOTHING
        assert (status["CapPrm"], status["CapEff"], status["CapInh"], status["CapAmb"]) == (
            held,
            held,
            NOTHING,
            NOTHING,
        ), name
        assert status["CapBnd"] == SYS_ADMIN, name
    assert set(lowered.processes()) == set(pids.values())


def test_mount_library_and_s3_give_the_bytes_of_the_origin(lowered: Host) -> None:
    said = ready(lowered)
    assert said["io"] == "passthrough"
    lowered.assert_right()
    truth = [digest(lowered.truth / name) for name in ("small", "large")]
    for uid in (0, NOBODY):
        assert as_user(uid, READ, imports=LIBRARY, address=said["socket"]) == ["BrokeredVfs", *truth]
    assert as_user(NODE_USER, READ, imports=LIBRARY, address=said["socket"]) == ["LocalVfs", *truth]
    assert as_nobody("result = open(path, 'rb').read().hex()", path=str(lowered.mount / "d/file")) == (
        (lowered.truth / "d/file").read_bytes().hex()
    )
    rows = dict(
        line.replace(" ", "").split("=", 1)
        for line in Path(said["credentials"]["s3"]).read_text().replace("export ", "").splitlines()
        if "=" in line
    )
    client = boto3.client(
        "s3",
        endpoint_url=said["s3"],
        region_name="us-east-1",
        aws_access_key_id=rows["AWS_ACCESS_KEY_ID"].strip("'\""),
        aws_secret_access_key=rows["AWS_SECRET_ACCESS_KEY"].strip("'\""),
    )
    body = client.get_object(Bucket="d", Key="file")["Body"].read()
    assert body == (lowered.truth / "d/file").read_bytes()


def test_root_reads_by_descriptors_without_naming_the_node(lowered: Host) -> None:
    """Whom root put in charge of a folder of root's is believed as root is; its index is not read by root."""
    program = """
import os
os.environ["HEADRACE_RUN_FOLDER"] = run
from headrace.vfs.brokered.broker_connection import BrokerConnection
result = type(BrokerConnection(public, patience_s=1, any_owner=False)).__name__
"""
    socket = ready(lowered)["socket"]
    public = f"{lowered.run_folder}.public/{os.path.basename(socket)}"
    for uid in (0, NOBODY):
        assert (
            as_user(uid, program, imports=LIBRARY, run=str(lowered.run_folder), public=public)
            == "BrokerConnection"
        )
    refused = as_user(
        0,
        "result = refused(lambda: headrace.client.node_client.connect(address))",
        imports=LIBRARY,
        address=socket,
    )
    assert refused == "NotAllowedError"


def test_its_mount_is_believed_where_its_user_is_and_nowhere_else(lowered: Host) -> None:
    """It could say that it is the mount of root's own node beside it."""
    program = """
from headrace.vfs.brokered.mounts import believed_mounts, mount_of
result = [
    mount in [row.mountpoint for row in believed_mounts()],
    mount in [row.mountpoint for row in believed_mounts(user)],
    mount in [row.mountpoint for row in believed_mounts(user + 1)],
    mount_of(public) == mount]
"""
    socket = ready(lowered)["socket"]
    given = {
        "mount": str(lowered.mount),
        "public": f"{lowered.run_folder}.public/{os.path.basename(socket)}",
        "user": NODE_USER,
    }
    for uid in (0, NOBODY):
        assert as_user(uid, program, imports=LIBRARY, **given) == [False, True, False, True]


def test_no_third_user_reads_or_changes_what_the_node_keeps(lowered: Host) -> None:
    paths = below(lowered.cache, lowered.run_folder)
    for path in map(Path, paths):
        status = path.lstat()
        assert (status.st_uid, stat.S_IMODE(status.st_mode) & 0o077) == (NODE_USER, 0), path
    tops = (str(lowered.cache), str(lowered.run_folder))
    assert [row for row in as_nobody(WALK, paths=paths) if row[1] not in tops] == []


def test_the_node_s_user_does_not_come_to_the_rights_of_up_and_holder(lowered: Host) -> None:
    said = ready(lowered)
    program = """
libc = ctypes.CDLL(None)
result = [[refused(lambda: open(f"/proc/{pid}/{name}", mode)) for name, mode in (
    ("mem", "rb"), ("mem", "r+b"), ("maps", "rb"), ("environ", "rb"))]
    + [refused(lambda: os.listdir(f"/proc/{pid}/fd")), libc.ptrace(16, pid, 0, 0)] for pid in pids]
"""
    rows = as_user(NODE_USER, program, imports="import ctypes", pids=[said["pid"], said["fd_store_pid"]])
    assert [row[:3] + row[4:] for row in rows] == [["PermissionError"] * 4 + [-1]] * 2


def test_a_hostile_session_registers_no_file_of_others(lowered: Host) -> None:
    """By the descriptors of a session that its user took over: only a plain file of that user's is registered."""
    session = ready(lowered)["session_pid"]
    number = descriptor_of(session, "backings")
    program = """
pid = os.pidfd_open(session)
holder = socket.socket(fileno=ctypes.CDLL(None).syscall(438, pid, number, 0))
def ask(*fds, body=bytes(4)):
    holder.sendmsg([body], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])
    return struct.unpack("<i", holder.recv(4))[0]
own = os.open(folder, os.O_RDWR | os.O_TMPFILE)
result = [
    ask(os.open("/etc/passwd", os.O_RDONLY)), ask(os.open("/proc/self/status", os.O_PATH)), ask(os.pipe()[0]),
    ask(os.open("/etc", os.O_RDONLY)), ask(own, own), ask(), ask(own, body=bytes(5)),
    ask(own, body=struct.pack("<i", -1))]
mine = ask(own)
holder.send(struct.pack("<i", mine))
result.append(mine > 0)
result.append(ask(own) > 0)
"""
    folder = lowered.base / "theirs"
    folder.mkdir()
    os.chown(folder, NODE_USER, NODE_USER)
    outcomes = as_user(
        NODE_USER,
        program,
        imports="import array, struct, ctypes",
        session=session,
        number=number,
        folder=str(folder),
    )
    eperm, einval, ebadf = -1, -22, -9
    assert outcomes[0:1] + outcomes[2:6] == [eperm, eperm, eperm, einval, einval]
    assert outcomes[1] in (eperm, ebadf)
    assert outcomes[6:] == [einval] * 2 + [True, True]
    lowered.assert_right("small")


def test_root_s_commands_go_on_as_the_node_s_user(lowered: Host) -> None:
    """Entries that the user lays into its folders lead no command of root's anywhere, and keep none from working."""
    secret = lowered.base / "secret.json"
    secret.write_text(
        json.dumps({"kind": "up", "pid": os.getpid(), "socket": "/nowhere.sock", "mountpoint": "/"})
    )
    secret.chmod(0o600)
    program = """
os.mkfifo(run + "/1.json")
os.symlink(secret, run + "/2.json")
os.rename(cache + "/capacity", cache + "/capacity.old")
os.symlink(secret, cache + "/capacity")
result = 0
"""
    as_user(NODE_USER, program, run=str(lowered.run_folder), cache=str(lowered.cache), secret=str(secret))
    try:
        assert "/nowhere.sock" not in json.dumps(lowered.json("status"))
        assert sorted(lowered.ok("ls", "/").split()) == ["d/", "large", "small"]
    finally:
        for name in ("1.json", "2.json"):
            (lowered.run_folder / name).unlink()
        os.rename(lowered.cache / "capacity.old", lowered.cache / "capacity")


def test_a_mount_outlives_its_session_its_holder_and_its_node(shared_base: Path) -> None:
    base = shared_base / "killed"
    base.mkdir()
    with unprivileged_host(base) as host:
        host.put("file", 300_000)
        up = up_as_user(host)
        holder, session = host.pid_of("holder"), host.pid_of("session")
        _say_nonsense(session)
        host.wait_pid("session", other_than=session)
        host.assert_right()
        assert host.pid_of("holder") == holder
        for role in ("session", "holder", "node"):
            was = host.kill(role)
            host.assert_right()
            host.wait_pid(role, other_than=was)
            kept = SYS_ADMIN if role == "holder" else NOTHING
            assert status_of(host.pid_of(role))["CapPrm"] == kept
        host.put("later", 300_000)
        host.ok("sync", "/")
        host.assert_right()
        assert up.process.poll() is None
        host.kill_all()
        up.wait()
        host.ok("down", str(host.mount))
        assert host.mounts() == []
        up_as_user(host)
        host.assert_right()
        host.ok("down", "--all")
        host.assert_nothing_left()


def test_a_node_without_a_mount_keeps_nothing_and_is_mounted_by_fuse(shared_base: Path) -> None:
    base = shared_base / "alone"
    base.mkdir()
    with unprivileged_host(base, user=USER) as host:
        host.put("file", 300_000)
        node = host.up(host.truth)
        for pid in (node.pid, node.ready["node_pid"]):
            status = status_of(pid)
            assert (status["CapPrm"], status["CapBnd"], status["Uid"].split()[0]) == (
                NOTHING,
                NOTHING,
                str(NODE_USER),
            )
        other = host.start("fuse", host.mount)
        other.wait_ready()
        assert status_of(other.ready["session_pid"])["CapPrm"] == NOTHING
        assert status_of(other.pid)["CapPrm"] == SYS_ADMIN
        host.assert_right()
        gateway = host.start("s3", "--address", "127.0.0.1:0", "--user", USER)
        gateway.wait_ready()
        status = status_of(gateway.pid)
        assert (status["CapPrm"], status["CapBnd"], status["Uid"].split()[0]) == (
            NOTHING,
            NOTHING,
            str(NODE_USER),
        )
        gateway.signal(signal.SIGTERM)
        gateway.wait()
        host.ok("down", "--all")
        host.assert_nothing_left()


def test_what_can_t_be_is_refused_in_one_line(lowered: Host) -> None:
    theirs, full = lowered.base / "theirs-above", lowered.base / "full"
    (theirs / "mnt").mkdir(parents=True)
    os.chown(theirs, NODE_USER, NODE_USER)
    full.mkdir(mode=0o700)
    (full / "index").mkdir()
    (lowered.base / "mnt2").mkdir()
    before = lowered.mounts(), set(lowered.processes())
    for words, why in (
        (("up", lowered.truth, theirs / "mnt", "--user", USER), "users other than root may replace"),
        (
            ("up", lowered.truth, lowered.base / "mnt2", "--user", USER, "--cache", f"{full}:1GiB"),
            "to user 0",
        ),
        (("s3", "--user", "nobody"), f"is of user {NODE_USER}"),
    ):
        done = lowered.headrace(*words)
        assert done.returncode != 0, words
        assert why in done.stderr, (words, done.stderr)
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    wait_until(lambda: set(lowered.processes()) == before[1], hint=lambda: f"{lowered.processes()}")
    assert lowered.mounts() == before[0]
    assert [entry.name for entry in full.iterdir()] == ["index"]


def test_only_root_mounts_seals_and_each_command_says_so_in_a_line(shared_base: Path) -> None:
    base = shared_base / "seals"
    base.mkdir()
    with unprivileged_host(base) as host:
        host.put("d/file", 3000)
        with with_settings(host, seal="auto"):
            done = host.headrace(
                "up", host.truth, host.mount, "--user", USER, "--cache", f"{host.cache}:64MiB"
            )
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "only root can mount seals, and this node runs as another user" in done.stderr
        up_as_user(host)
        host.ok("seal", "/d", "--as", "d@1")
        lines = [line for line in host.ok("status").splitlines() if line.startswith("seals")]
        assert lines == ["seals   none can be mounted: only root can mount seals"]
        assert host.json("status")["seal_trouble"] == "only root can mount seals"
        assert (
            base64.b64decode(host.json("cat", "/d@1/file")["base64"]) == (host.truth / "d/file").read_bytes()
        )
