"""Scripts of real programs: what people run in a mounted folder. Their own files (indexes, journals) hold times and are
not compared byte by byte; what the programs say of them is."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import zipfile

from tests.integration.writes.place import (
    LOWER,
    Place,
    bytes_of,
    elsewhere,
    equal,
    read_whole,
)
from tests.integration.writes.registry import script

WHEN = "2015-05-05T05:05:05+0000"
PROGRAM_LIMIT_S = 60


def said(at: Place, *words: str, folder: str = "") -> str:
    """Standard output; the program must succeed."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": at.outside,
        "LC_ALL": "C",
        "TZ": "UTC",
        "GIT_CONFIG_NOSYSTEM": "1",
        **{f"GIT_{who}_NAME": "Somebody" for who in ("AUTHOR", "COMMITTER")},
        **{f"GIT_{who}_EMAIL": "somebody@example.com" for who in ("AUTHOR", "COMMITTER")},
        **{f"GIT_{who}_DATE": WHEN for who in ("AUTHOR", "COMMITTER")},
    }
    done = subprocess.run(
        words,
        cwd=folder or at.root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PROGRAM_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, (words, done.returncode, done.stdout[-500:], done.stderr[-1_500:])
    return done.stdout


@script(left_out=(".git", "bare.git"))
def git(at: Place) -> None:
    folder = at.path("work")
    said(at, "git", "init", "-q", "-b", "main", folder)
    for number in range(30):
        at.write(f"work/source/{number % 4}/{number}.txt", b"text %d\n" % number * 20)
    said(at, "git", "add", ".", folder=folder)
    said(at, "git", "commit", "-q", "-m", "first", folder=folder)
    for number in range(3):
        with open(at.path(f"work/source/1/{number * 4 + 1}.txt"), "ab") as file:
            file.write(b"changed %d\n" % number)
        said(at, "git", "commit", "-q", "-a", "-m", f"change {number}", folder=folder)
    said(at, "git", "mv", "source/2", "moved", folder=folder)
    said(at, "git", "commit", "-q", "-m", "moved", folder=folder)
    said(at, "git", "clone", "-q", "work", "clone")
    said(at, "git", "clone", "-q", "--bare", "--no-hardlinks", "work", "bare.git")
    said(at, "git", "gc", "-q", "--prune=now", folder=folder)
    said(at, "git", "checkout", "-q", "-b", "side", "HEAD~2", folder=folder)
    at.note("log", said(at, "git", "log", "--oneline", "--all", "--stat", folder=folder))
    for one in ("work", "clone", "bare.git"):
        at.note(f"fsck of {one}", said(at, "git", "fsck", "--full", "--strict", folder=at.path(one)))
    equal(said(at, "git", "status", "--porcelain", folder=folder), "")
    equal(said(at, "git", "status", "--porcelain", folder=at.path("clone")), "")


@script(left_out=("journal.db", "ahead.db", "ahead.db-wal", "ahead.db-shm"))
def sqlite(at: Place) -> None:
    for name, mode in (("journal.db", "delete"), ("ahead.db", "wal")):
        first = sqlite3.connect(at.path(name), isolation_level=None)
        equal(first.execute(f"pragma journal_mode={mode}").fetchone(), (mode,))
        first.execute("create table numbers (number integer primary key, text)")
        first.execute("begin")
        first.executemany("insert into numbers values (?, ?)", ((n, f"text {n}") for n in range(500)))
        second = sqlite3.connect(at.path(name), isolation_level=None, timeout=0)
        equal(second.execute("select count(*) from numbers").fetchone(), (0,))
        try:
            second.execute("begin immediate")
            raise AssertionError("two writers")
        except sqlite3.OperationalError as error:
            assert "locked" in str(error), error
        first.execute("commit")
        equal(second.execute("select count(*) from numbers").fetchone(), (500,))
        second.execute("begin immediate")
        second.execute("delete from numbers where number % 3 = 0")
        second.execute("rollback")
        second.execute("update numbers set text = 'even' where number % 2 = 0")
        second.close()

        def other(name: str = name) -> list[str]:
            third = sqlite3.connect(at.path(name), isolation_level=None, timeout=30)
            third.execute("insert into numbers values (1000, 'of another process')")
            return list(third.iterdump())

        at.note(f"dump of {name}", hash_of("\n".join(elsewhere(other))))
        equal(first.execute("pragma integrity_check").fetchone(), ("ok",))
        equal(first.execute("select count(*) from numbers").fetchone(), (501,))
        first.execute("vacuum")
        first.close()
    equal([name for name in os.listdir(at.root) if "-" in name], [])  # journals are gone


def hash_of(text: str) -> str:
    return hashlib.sha1(text.encode()).hexdigest()


@script()
def tar_and_cp(at: Place) -> None:
    """tar x with modes, times, links, a hole; `cp -a` of it and of the origin's files; a copy of the copy is equal."""
    archive = os.path.join(at.outside, "archive.tar")
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, mode, size in (("a/one", 0o600, 5_000), ("a/b/two", 0o755, 100_000), ("three", 0o444, 0)):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = size, mode, 1_111_111_111.25
            entry.uid, entry.gid = 1_234, 4_321
            tar.addfile(entry, io.BytesIO(bytes_of(name, size)))
        for name, kind, target in (
            ("link", tarfile.SYMTYPE, "a/one"),
            ("hard", tarfile.LNKTYPE, "a/b/two"),
        ):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, target
            tar.addfile(entry)
    said(at, "tar", "xpf", archive, "--numeric-owner")
    equal(os.stat(at.path("a/one")).st_mtime, 1_111_111_111.25)
    os.mkdir(at.path("copies"))
    said(at, "cp", "-a", "a", "three", "link", "hard", "copies")
    said(at, "cp", "-a", at.low("folder"), at.low("file"), "copies")
    said(at, "diff", "-r", at.low("folder"), "copies/folder")
    said(at, "cp", "-al", "copies", "linked")
    equal(os.stat(at.path("linked/file")).st_nlink, 2)
    said(at, "tar", "cf", os.path.join(at.outside, "back.tar"), "a", "copies")
    said(at, "tar", "df", os.path.join(at.outside, "back.tar"))
    said(at, "tar", "xpf", archive, "--numeric-owner", folder=at.low("folder"))
    said(at, "rm", "-rf", "linked")


@script()
def small_tools(at: Place) -> None:
    """dd, sed -i, mv, ln, touch, truncate, install, find -delete: on new files and on the origin's."""
    source = os.path.join(at.outside, "source")
    with open(source, "wb") as file:
        file.write(bytes_of("dd", 300_001))
    said(at, "dd", f"if={source}", "of=written", "bs=64k", "conv=fsync", "status=none")
    said(at, "dd", f"if={source}", "of=direct", "bs=4096", "count=50", "oflag=direct", "status=none")
    said(
        at,
        "dd",
        f"if={source}",
        f"of={at.low('file')}",
        "bs=1000",
        "seek=2",
        "count=1",
        "conv=notrunc,fdatasync",
    )
    equal(read_whole(at.low("file"))[2_000:3_000], bytes_of("dd", 300_001)[:1_000])
    equal(len(read_whole(at.low("file"))), len(LOWER["file"]))
    said(at, "sed", "-i", "s/two/TWO/", at.low("text"))
    said(at, "sed", "-i.bak", "s/three/3/", at.low("text"))
    equal(read_whole(at.low("text")), b"one\nTWO\n3\n")
    equal(read_whole(at.low("text.bak")), b"one\nTWO\nthree\n")
    said(at, "mv", at.low("folder"), "moved")
    equal(read_whole(at.path("moved/below/deep/four")), LOWER["folder/below/deep/four"])
    said(at, "mv", "-T", "moved", at.low("bare"))
    said(at, "mv", at.low("second"), at.low("alone/only"))
    said(at, "cp", "--sparse=always", at.low("bare/two"), "copied")
    said(at, "ln", "-s", "-f", "copied", "link")
    said(at, "ln", "-s", "-f", "written", "link")
    said(at, "install", "-m", "0711", "copied", "installed")
    said(at, "touch", "-d", "2010-01-02 03:04:05.678901234", "installed")
    said(at, "truncate", "-s", "12345", "direct")
    said(at, "mkdir", "-p", "trash/a/b/c")
    for number in range(50):
        at.write(f"trash/{number}", b"x")
    said(at, "find", "trash", at.low("other"), "-delete")
    at.note("found", sorted(said(at, "find", ".", "-printf", "%P %y %s %m\n").splitlines()[1:]))
    at.note("du", said(at, "du", "-b", "written"))


@script()
def editors_save(at: Place) -> None:
    """As vim does (backup by a link, a new file, renamed over), and as others do."""
    for path in (at.write("file", b"first\n"), at.low("text"), at.low("folder/one")):
        before = read_whole(path)
        os.link(path, f"{path}~")
        with open(f"{path}.new", "xb") as file:
            file.write(before + b"edited\n")
            file.flush()
            os.fsync(file.fileno())
        shutil.copymode(path, f"{path}.new")
        os.rename(f"{path}.new", path)
        equal(read_whole(f"{path}~"), before)
        os.unlink(f"{path}~")
        equal(read_whole(path), before + b"edited\n")
        os.rename(path, f"{path}~")  # backupcopy=no
        with open(path, "xb") as file:
            file.write(b"again\n")
        os.unlink(f"{path}~")
        with open(f"{path}.swp", "xb") as file:
            file.write(bytes(4_096))
        with open(path, "r+b") as file:  # backupcopy=yes
            file.truncate(0)
            file.write(b"third\n")
        os.unlink(f"{path}.swp")
        equal(read_whole(path), b"third\n")


@script(needs="vim")
def vim(at: Place) -> None:
    """The real one, with its ways to keep a backup, and an undo file."""
    for number, path in enumerate((at.write("file", b"first\n"), at.low("text"), at.low("folder/one"))):
        for ways in ("backup backupcopy=no", "backup backupcopy=yes", "nobackup writebackup undofile"):
            words = ["-c", f"set {ways} directory=. backupdir=. undodir=.", "-c", f"normal Goedited {number}"]
            said(at, "vim", "-u", "NONE", "-N", "-n", "-es", *words, "-c", "wq", path)
        equal(read_whole(path).count(b"edited %d" % number), 3)
        at.note("left", sorted(os.listdir(os.path.dirname(path))))
    for undo in (at.path(".file.un~"), at.low(".text.un~"), at.low("folder/.one.un~")):
        with contextlib.suppress(FileNotFoundError):  # a small vim makes none
            os.unlink(undo)


@script(needs="rsync")
def rsync(at: Place) -> None:
    """Into the mount and out of it, anew and again; by a temporary name and in place; what is gone is deleted."""
    source = os.path.join(at.outside, "source")
    for number in range(40):
        folder = os.path.join(source, f"{number % 4}/{number % 3}")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, f"file {number}"), "wb") as file:
            file.write(bytes_of(f"rsync {number}", number * 7_000))
    os.symlink("0/0/file 0", os.path.join(source, "link"))
    said(at, "rsync", "-a", f"{source}/", "copied/")
    equal(said(at, "rsync", "-ain", "--checksum", "--delete", f"{source}/", "copied/"), "")
    with open(os.path.join(source, "1/1/file 1"), "r+b") as file:
        file.write(b"changed")
    os.unlink(os.path.join(source, "2/2/file 2"))
    shutil.rmtree(os.path.join(source, "3"))
    said(at, "rsync", "-a", "--checksum", "--delete", f"{source}/", "copied/")
    said(at, "rsync", "-a", "--delete", f"{source}/", at.low("folder/"))
    with open(os.path.join(source, "0/1/file 4"), "ab") as file:
        file.write(b"appended")
    said(at, "rsync", "-a", "--inplace", "--no-whole-file", f"{source}/", at.low("folder/"))
    said(at, "rsync", "-a", "--append-verify", f"{source}/", "copied/")
    for place in (at.path("copied/"), at.low("folder/")):
        equal(said(at, "rsync", "-ain", "--checksum", "--delete", f"{source}/", place), "")
        said(at, "rsync", "-a", "--delete", place, os.path.join(at.outside, "back/"))
        said(at, "diff", "-r", source, os.path.join(at.outside, "back"))


@script()
def models_are_saved(at: Place) -> None:
    """Into a temporary folder, which is renamed to its name; an older one is moved aside and removed."""
    for step in (1, 2):
        temporary = at.path(f"tmp-checkpoint-{step}")
        os.mkdir(temporary)
        for number in range(3):
            part = os.path.join(temporary, f"model-{number}.safetensors")
            with open(f"{part}.incomplete", "wb") as file:
                file.write(bytes_of(f"{step} {number}", 200_000))
                file.flush()
                os.fsync(file.fileno())
            os.replace(f"{part}.incomplete", part)
        with open(os.path.join(temporary, "config.json"), "w") as text:
            json.dump({"step": step}, text)
        if step == 2:
            os.rename(at.path("checkpoint"), at.path("checkpoint.old"))
        os.rename(temporary, at.path("checkpoint"))
        folder = os.open(at.root, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
    shutil.rmtree(at.path("checkpoint.old"))
    os.symlink("checkpoint", at.path("latest.new"))
    os.replace(at.path("latest.new"), at.path("latest"))
    equal(read_whole(at.path("latest/model-2.safetensors")), bytes_of("2 2", 200_000))
    shutil.move(at.path("checkpoint"), at.low("folder/checkpoint"))
    shutil.move(at.low("folder"), at.path("moved"))
    equal(read_whole(at.path("moved/checkpoint/config.json")), b'{"step": 2}')


@script()
def trees_are_copied_and_removed(at: Place) -> None:
    for number in range(60):
        at.write(f"tree/{number % 7}/{number % 3}/{number}", bytes_of(f"{number}", number * 50))
    shutil.copytree(at.path("tree"), at.path("copied"))
    shutil.copytree(at.lower, at.path("of the origin"))
    shutil.copytree(at.path("tree"), at.low("folder"), dirs_exist_ok=True)
    shutil.rmtree(at.path("tree"))
    shutil.rmtree(at.low("other"))
    shutil.copytree(at.path("copied"), at.low("other"))
    equal(len(os.listdir(at.path("copied"))), 7)
    shutil.make_archive(os.path.join(at.outside, "archive"), "zip", at.path("copied"))
    shutil.unpack_archive(os.path.join(at.outside, "archive.zip"), at.path("unpacked"))


@script(left_out=("__pycache__", "direct_url.json", "RECORD"))
def a_wheel_is_installed(at: Place) -> None:
    wheel = os.path.join(at.outside, "parcel-1.0-py3-none-any.whl")
    files = {f"parcel/module_{number}.py": f"value = {number}\n" for number in range(20)}
    files["parcel/__init__.py"] = "from parcel.module_7 import value\n"
    files["parcel-1.0.dist-info/METADATA"] = "Metadata-Version: 2.1\nName: parcel\nVersion: 1.0\n"
    files["parcel-1.0.dist-info/WHEEL"] = (
        "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        record = "".join(f"{name},,\n" for name in files)
        archive.writestr("parcel-1.0.dist-info/RECORD", f"{record}parcel-1.0.dist-info/RECORD,,\n")
    pip = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", "install", "-q"]
    pip += ["--no-index", "--no-deps", "--no-cache-dir", "--no-compile", "--root-user-action=ignore"]
    said(at, *pip, "--target", at.path("installed"), wheel)
    asks = "import sys, parcel; sys.stdout.write(str(parcel.value))"
    equal(said(at, sys.executable, "-c", asks, folder=at.path("installed")), "7")
