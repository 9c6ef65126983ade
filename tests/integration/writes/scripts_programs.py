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


def said(place: Place, *words: str, folder: str = "") -> str:
    """Standard output; the program must succeed."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": place.outside,
        "LC_ALL": "C",
        "TZ": "UTC",
        "GIT_CONFIG_NOSYSTEM": "1",
        **{f"GIT_{who}_NAME": "Somebody" for who in ("AUTHOR", "COMMITTER")},
        **{f"GIT_{who}_EMAIL": "somebody@example.com" for who in ("AUTHOR", "COMMITTER")},
        **{f"GIT_{who}_DATE": WHEN for who in ("AUTHOR", "COMMITTER")},
    }
    done = subprocess.run(
        words,
        cwd=folder or place.root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PROGRAM_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, (words, done.returncode, done.stdout[-500:], done.stderr[-1_500:])
    return done.stdout


@script(left_out=(".git", "bare.git"))
def git(place: Place) -> None:
    folder = place.path("work")
    said(place, "git", "init", "-q", "-b", "main", folder)
    for number in range(30):
        place.write(f"work/source/{number % 4}/{number}.txt", b"text %d\n" % number * 20)
    said(place, "git", "add", ".", folder=folder)
    said(place, "git", "commit", "-q", "-m", "first", folder=folder)
    for number in range(3):
        with open(place.path(f"work/source/1/{number * 4 + 1}.txt"), "ab") as file:
            file.write(b"changed %d\n" % number)
        said(place, "git", "commit", "-q", "-a", "-m", f"change {number}", folder=folder)
    said(place, "git", "mv", "source/2", "moved", folder=folder)
    said(place, "git", "commit", "-q", "-m", "moved", folder=folder)
    said(place, "git", "clone", "-q", "work", "clone")
    said(place, "git", "clone", "-q", "--bare", "--no-hardlinks", "work", "bare.git")
    said(place, "git", "gc", "-q", "--prune=now", folder=folder)
    said(place, "git", "checkout", "-q", "-b", "side", "HEAD~2", folder=folder)
    place.note("log", said(place, "git", "log", "--oneline", "--all", "--stat", folder=folder))
    for repository in ("work", "clone", "bare.git"):
        place.note(
            f"fsck of {repository}",
            said(place, "git", "fsck", "--full", "--strict", folder=place.path(repository)),
        )
    equal(said(place, "git", "status", "--porcelain", folder=folder), "")
    equal(said(place, "git", "status", "--porcelain", folder=place.path("clone")), "")


@script(left_out=("journal.db", "ahead.db", "ahead.db-wal", "ahead.db-shm"))
def sqlite(place: Place) -> None:
    for name, mode in (("journal.db", "delete"), ("ahead.db", "wal")):
        first = sqlite3.connect(place.path(name), isolation_level=None)
        equal(first.execute(f"pragma journal_mode={mode}").fetchone(), (mode,))
        first.execute("create table numbers (number integer primary key, text)")
        first.execute("begin")
        first.executemany("insert into numbers values (?, ?)", ((n, f"text {n}") for n in range(500)))
        second = sqlite3.connect(place.path(name), isolation_level=None, timeout=0)
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
            third = sqlite3.connect(place.path(name), isolation_level=None, timeout=30)
            third.execute("insert into numbers values (1000, 'of another process')")
            return list(third.iterdump())

        place.note(f"dump of {name}", hash_of("\n".join(elsewhere(other))))
        equal(first.execute("pragma integrity_check").fetchone(), ("ok",))
        equal(first.execute("select count(*) from numbers").fetchone(), (501,))
        first.execute("vacuum")
        first.close()
    equal([name for name in os.listdir(place.root) if "-" in name], [])  # journals are gone


def hash_of(text: str) -> str:
    return hashlib.sha1(text.encode()).hexdigest()


@script()
def tar_and_cp(place: Place) -> None:
    """tar x with modes, times, links, a hole; `cp -a` of it and of the origin's files; a copy of the copy is equal."""
    archive = os.path.join(place.outside, "archive.tar")
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
    said(place, "tar", "xpf", archive, "--numeric-owner")
    equal(os.stat(place.path("a/one")).st_mtime, 1_111_111_111.25)
    os.mkdir(place.path("copies"))
    said(place, "cp", "-a", "a", "three", "link", "hard", "copies")
    said(place, "cp", "-a", place.low("folder"), place.low("file"), "copies")
    said(place, "diff", "-r", place.low("folder"), "copies/folder")
    said(place, "cp", "-al", "copies", "linked")
    equal(os.stat(place.path("linked/file")).st_nlink, 2)
    said(place, "tar", "cf", os.path.join(place.outside, "back.tar"), "a", "copies")
    said(place, "tar", "df", os.path.join(place.outside, "back.tar"))
    said(place, "tar", "xpf", archive, "--numeric-owner", folder=place.low("folder"))
    said(place, "rm", "-rf", "linked")


@script()
def small_tools(place: Place) -> None:
    """dd, sed -i, mv, ln, touch, truncate, install, find -delete: on new files and on the origin's."""
    source = os.path.join(place.outside, "source")
    with open(source, "wb") as file:
        file.write(bytes_of("dd", 300_001))
    said(place, "dd", f"if={source}", "of=written", "bs=64k", "conv=fsync", "status=none")
    said(place, "dd", f"if={source}", "of=direct", "bs=4096", "count=50", "oflag=direct", "status=none")
    said(
        place,
        "dd",
        f"if={source}",
        f"of={place.low('file')}",
        "bs=1000",
        "seek=2",
        "count=1",
        "conv=notrunc,fdatasync",
    )
    equal(read_whole(place.low("file"))[2_000:3_000], bytes_of("dd", 300_001)[:1_000])
    equal(len(read_whole(place.low("file"))), len(LOWER["file"]))
    said(place, "sed", "-i", "s/two/TWO/", place.low("text"))
    said(place, "sed", "-i.bak", "s/three/3/", place.low("text"))
    equal(read_whole(place.low("text")), b"one\nTWO\n3\n")
    equal(read_whole(place.low("text.bak")), b"one\nTWO\nthree\n")
    said(place, "mv", place.low("folder"), "moved")
    equal(read_whole(place.path("moved/below/deep/four")), LOWER["folder/below/deep/four"])
    said(place, "mv", "-T", "moved", place.low("bare"))
    said(place, "mv", place.low("second"), place.low("alone/only"))
    said(place, "cp", "--sparse=always", place.low("bare/two"), "copied")
    said(place, "ln", "-s", "-f", "copied", "link")
    said(place, "ln", "-s", "-f", "written", "link")
    said(place, "install", "-m", "0711", "copied", "installed")
    said(place, "touch", "-d", "2010-01-02 03:04:05.678901234", "installed")
    said(place, "truncate", "-s", "12345", "direct")
    said(place, "mkdir", "-p", "trash/a/b/c")
    for number in range(50):
        place.write(f"trash/{number}", b"x")
    said(place, "find", "trash", place.low("other"), "-delete")
    place.note("found", sorted(said(place, "find", ".", "-printf", "%P %y %s %m\n").splitlines()[1:]))
    place.note("du", said(place, "du", "-b", "written"))


@script()
def editors_save(place: Place) -> None:
    """Save as vim does (backup by a link, a new file, renamed over), and as others do."""
    for path in (place.write("file", b"first\n"), place.low("text"), place.low("folder/one")):
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
def vim(place: Place) -> None:
    """The real one, with its ways to keep a backup, and an undo file."""
    for number, path in enumerate(
        (place.write("file", b"first\n"), place.low("text"), place.low("folder/one"))
    ):
        for ways in ("backup backupcopy=no", "backup backupcopy=yes", "nobackup writebackup undofile"):
            words = ["-c", f"set {ways} directory=. backupdir=. undodir=.", "-c", f"normal Goedited {number}"]
            said(place, "vim", "-u", "NONE", "-N", "-n", "-es", *words, "-c", "wq", path)
        equal(read_whole(path).count(b"edited %d" % number), 3)
        place.note("left", sorted(os.listdir(os.path.dirname(path))))
    for undo in (place.path(".file.un~"), place.low(".text.un~"), place.low("folder/.one.un~")):
        with contextlib.suppress(FileNotFoundError):  # a small vim makes none
            os.unlink(undo)


@script(needs="rsync")
def rsync(place: Place) -> None:
    """Into the mount and out of it, anew and again; by a temporary name and in place; what is gone is deleted."""
    source = os.path.join(place.outside, "source")
    for number in range(40):
        folder = os.path.join(source, f"{number % 4}/{number % 3}")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, f"file {number}"), "wb") as file:
            file.write(bytes_of(f"rsync {number}", number * 7_000))
    os.symlink("0/0/file 0", os.path.join(source, "link"))
    said(place, "rsync", "-a", f"{source}/", "copied/")
    equal(said(place, "rsync", "-ain", "--checksum", "--delete", f"{source}/", "copied/"), "")
    with open(os.path.join(source, "1/1/file 1"), "r+b") as file:
        file.write(b"changed")
    os.unlink(os.path.join(source, "2/2/file 2"))
    shutil.rmtree(os.path.join(source, "3"))
    said(place, "rsync", "-a", "--checksum", "--delete", f"{source}/", "copied/")
    said(place, "rsync", "-a", "--delete", f"{source}/", place.low("folder/"))
    with open(os.path.join(source, "0/1/file 4"), "ab") as file:
        file.write(b"appended")
    said(place, "rsync", "-a", "--inplace", "--no-whole-file", f"{source}/", place.low("folder/"))
    said(place, "rsync", "-a", "--append-verify", f"{source}/", "copied/")
    for target in (place.path("copied/"), place.low("folder/")):
        equal(said(place, "rsync", "-ain", "--checksum", "--delete", f"{source}/", target), "")
        said(place, "rsync", "-a", "--delete", target, os.path.join(place.outside, "back/"))
        said(place, "diff", "-r", source, os.path.join(place.outside, "back"))


@script()
def models_are_saved(place: Place) -> None:
    """Into a temporary folder, which is renamed to its name; an older one is moved aside and removed."""
    for step in (1, 2):
        temporary = place.path(f"tmp-checkpoint-{step}")
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
            os.rename(place.path("checkpoint"), place.path("checkpoint.old"))
        os.rename(temporary, place.path("checkpoint"))
        folder = os.open(place.root, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
    shutil.rmtree(place.path("checkpoint.old"))
    os.symlink("checkpoint", place.path("latest.new"))
    os.replace(place.path("latest.new"), place.path("latest"))
    equal(read_whole(place.path("latest/model-2.safetensors")), bytes_of("2 2", 200_000))
    shutil.move(place.path("checkpoint"), place.low("folder/checkpoint"))
    shutil.move(place.low("folder"), place.path("moved"))
    equal(read_whole(place.path("moved/checkpoint/config.json")), b'{"step": 2}')


@script()
def trees_are_copied_and_removed(place: Place) -> None:
    for number in range(60):
        place.write(f"tree/{number % 7}/{number % 3}/{number}", bytes_of(f"{number}", number * 50))
    shutil.copytree(place.path("tree"), place.path("copied"))
    shutil.copytree(place.lower, place.path("of the origin"))
    shutil.copytree(place.path("tree"), place.low("folder"), dirs_exist_ok=True)
    shutil.rmtree(place.path("tree"))
    shutil.rmtree(place.low("other"))
    shutil.copytree(place.path("copied"), place.low("other"))
    equal(len(os.listdir(place.path("copied"))), 7)
    shutil.make_archive(os.path.join(place.outside, "archive"), "zip", place.path("copied"))
    shutil.unpack_archive(os.path.join(place.outside, "archive.zip"), place.path("unpacked"))


@script(left_out=("__pycache__", "direct_url.json", "RECORD"))
def a_wheel_is_installed(place: Place) -> None:
    wheel = os.path.join(place.outside, "parcel-1.0-py3-none-any.whl")
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
    said(place, *pip, "--target", place.path("installed"), wheel)
    asks = "import sys, parcel; sys.stdout.write(str(parcel.value))"
    equal(said(place, sys.executable, "-c", asks, folder=place.path("installed")), "7")
