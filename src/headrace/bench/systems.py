"""Start and stop the ways to feed a GPU that `headrace bench compare` measures. No process, mount or file is left after
a stop.

A way is started once on each host; on a host of the lab by a command prefix. All read the same objects.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace.base.errors import DeadlineExceededError, HeadraceError, NotSupportedError
from headrace.base.interpreter import module_command
from headrace.base.mount_table import mounted_at
from headrace.base.sizes import disk_bytes
from headrace.bench.storage import Where
from headrace.config.secret_options import option_words

READY_WITHIN_S = 60.0
"""Time limit for a start, in seconds."""
END_WITHIN_S = 15.0
"""Time limit for an end after SIGTERM, in seconds."""
OBJECT_STORE, OWN_CACHE, SHARED_FOLDER, OURS = (
    "straight from object storage",
    "a cache on every node for itself",
    "a mounted folder",
    "Headrace",
)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Name the origin as the systems under test see it.

    prefix: prefix of the data set, without a slash at its ends; may be empty. options: those of `headrace up`, with the
    endpoint of the counting proxy. real_endpoint: endpoint of the store itself.
    """

    name: str
    prefix: str
    options: Mapping[str, str]
    real_endpoint: str

    @property
    def url(self) -> str:
        return f"s3://{self.name}/{self.prefix}".rstrip("/")


@dataclass(frozen=True, slots=True)
class HostSlot:
    """Hold the directories of a way on a host. folder: an empty directory of its own. inside: command prefix that runs
    a command there."""

    folder: str
    cache_bytes: int
    inside: tuple[str, ...] = ()

    def part(self, name: str) -> str:
        """Create a directory below the slot's, and return its path."""
        path = os.path.join(self.folder, name)
        os.makedirs(path, exist_ok=True)
        return path


class SystemUnderTest:
    """Define a way to feed a GPU. It may be started once; `stop` may be called at any time.

    name: its name in the table. kind: one of the four above.
    """

    name = ""
    kind = ""

    def start(self, bucket: Bucket, slot: HostSlot) -> Where:
        """Start the system with nothing cached, and return the place of the data set.

        Raises NotSupportedError if the program is not installed, HeadraceError.
        """
        raise NotImplementedError

    def stop(self) -> None:
        """Stop the system. On return no process and no mount of it is left."""

    def processes(self) -> list[int]:
        """Return the ids of the processes that serve reads, without the readers themselves."""
        return []

    def disk_bytes(self) -> int:
        """Return the size of the system's cache on the disk."""
        return 0


class Library(SystemUnderTest):
    """Use s3fs or obstore, in the loader's workers."""

    kind = OBJECT_STORE

    def __init__(self, by: str) -> None:
        self._by = by
        self.name = {"fsspec": "s3fs (library)", "obstore": "obstore (library)"}[by]

    def start(self, bucket: Bucket, slot: HostSlot) -> Where:
        return Where(self._by, bucket.url, dict(bucket.options))


class LocalDirectory(SystemUnderTest):
    """Use a directory with the data set in it: one that the user names, or the local disk."""

    kind = SHARED_FOLDER

    def __init__(self, path: str) -> None:
        self.name, self.path = path, path

    def start(self, bucket: Bucket, slot: HostSlot) -> Where:
        return Where("folder", self.path)


class MountedSystem(SystemUnderTest):
    """Run a program in the foreground that mounts the bucket and has a cache directory."""

    kind = OWN_CACHE
    program = ""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._mountpoint = self._cache = ""

    def command(self, program: str, bucket: Bucket, slot: HostSlot) -> list[str]:
        raise NotImplementedError

    def start(self, bucket: Bucket, slot: HostSlot) -> Where:
        program = find_program(self.program)
        self._cache, self._mountpoint = slot.part("cache"), slot.part("mount")
        words = [*slot.inside, *self.command(program, bucket, slot)]
        log = os.path.join(slot.folder, "log")
        with open(log, "ab") as out:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        process = self._process
        until(lambda: is_mounted(self._mountpoint) or process.poll() is not None, name=self.name)
        if process.poll() is not None:
            raise HeadraceError(f"{self.name} ended", why=last_line(log))
        return Where("folder", os.path.join(self._mountpoint, self.inner(bucket)))

    def inner(self, bucket: Bucket) -> str:
        """Return the directory of the data set, relative to the mountpoint."""
        return ""

    def stop(self) -> None:
        if self._mountpoint:
            unmount(self._mountpoint)
        if self._process is not None:
            end(self._process)
            self._process = None

    def processes(self) -> list[int]:
        return [] if self._process is None else of_session(self._process.pid)

    def disk_bytes(self) -> int:
        return used_bytes(self._cache)


class Rclone(MountedSystem):
    name, program = "rclone mount", "rclone"

    def command(self, program: str, bucket: Bucket, slot: HostSlot) -> list[str]:
        find_program("fusermount3")
        options = bucket.options
        given = {
            "--s3-provider": "Other",
            "--s3-endpoint": options.get("endpoint", ""),
            "--s3-region": options.get("region", "us-east-1"),
            "--s3-access-key-id": options.get("access_key_id", ""),
            "--s3-secret-access-key": options.get("secret_access_key", ""),
        }
        return [
            *[program, "mount", f":s3:{bucket.name}/{bucket.prefix}".rstrip("/"), self._mountpoint],
            *["--config", "", "--read-only", "--vfs-cache-mode", "full", "--cache-dir", self._cache],
            *["--vfs-cache-max-age", "24h", "--vfs-cache-max-size", str(slot.cache_bytes)],
            *["--dir-cache-time", "24h", "--attr-timeout", "1h", "--poll-interval", "0"],
            *["--use-server-modtime", "--vfs-fast-fingerprint"],
            *[word for name, value in given.items() if value for word in (name, value)],
        ]


class S3fsFuse(MountedSystem):
    name, program = "s3fs-fuse", "s3fs"

    def command(self, program: str, bucket: Bucket, slot: HostSlot) -> list[str]:
        options = bucket.options
        password = os.path.join(slot.folder, "password")
        with open(os.open(password, os.O_WRONLY | os.O_CREAT, 0o600), "w") as out:
            out.write(f"{options.get('access_key_id', '')}:{options.get('secret_access_key', '')}")
        settings = [
            f"url={options.get('endpoint', '')}",
            "use_path_request_style",
            "ro",
            f"passwd_file={password}",
        ]
        settings += [
            f"use_cache={self._cache}",
            "kernel_cache",
            "stat_cache_expire=3600",
            "parallel_count=16",
        ]
        settings += ["max_stat_cache_size=1000000", f"tmpdir={self._cache}", "dbglevel=err"]
        target = f"{bucket.name}:/{bucket.prefix}" if bucket.prefix else bucket.name
        return [program, target, self._mountpoint, "-f", "-o", ",".join(settings)]


class JuiceFS(MountedSystem):
    """Mount JuiceFS. It stores files as chunks of its own.

    The first host therefore writes the data set through a mount of JuiceFS, and mounts it again with an empty cache.
    """

    name, program = "JuiceFS", "juicefs"

    def __init__(self, data_folder: str, shared: str) -> None:
        """Use the data set of `data_folder`. shared: directory of the metadata, the same on all hosts."""
        super().__init__()
        self._data, self._meta = data_folder, f"sqlite3://{shared}/juicefs.db"
        self._made = os.path.join(shared, "juicefs-made")

    def command(self, program: str, bucket: Bucket, slot: HostSlot) -> list[str]:
        if not os.path.exists(self._made):
            self._make(program, bucket, slot)
        caches = [f"--{kind}-cache=3600" for kind in ("attr", "entry", "dir-entry", "open")]
        size = max(100, slot.cache_bytes >> 20)
        return [
            *self._mount(program, self._cache, size),
            "--read-only",
            *caches,
            self._meta,
            self._mountpoint,
        ]

    def _mount(self, program: str, cache: str, size_mib: int) -> list[str]:
        quiet = ["--no-usage-report", "--no-syslog", "--backup-meta=0", "--no-bgjob"]
        return [
            program,
            "mount",
            *quiet,
            f"--cache-dir={cache}",
            f"--cache-size={size_mib}",
            "--free-space-ratio=0.02",
        ]

    def _make(self, program: str, bucket: Bucket, slot: HostSlot) -> None:
        options = bucket.options
        keys = [
            "--access-key",
            options.get("access_key_id", ""),
            "--secret-key",
            options.get("secret_access_key", ""),
        ]
        store = ["--storage", "s3", "--bucket", f"{bucket.real_endpoint}/{bucket.name}", "--trash-days", "0"]
        run([program, "format", "--no-update", *store, *keys, self._meta, "headrace-bench-juicefs"])
        mountpoint, cache = slot.part("import-mount"), slot.part("import-cache")
        log = os.path.join(slot.folder, "log")
        with open(log, "ab") as out:
            words = [*self._mount(program, cache, 100), self._meta, mountpoint]
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        try:
            until(lambda: is_mounted(mountpoint) or process.poll() is not None, name="juicefs")
            if process.poll() is not None:
                raise HeadraceError("juicefs ended", why=last_line(log))
            shutil.copytree(self._data, mountpoint, dirs_exist_ok=True)
            os.sync()
        finally:
            # this blocks until everything is uploaded
            subprocess.run(["umount", mountpoint], capture_output=True, timeout=600, check=False)
            unmount(mountpoint)
            end(process, patience_s=120)
        shutil.rmtree(cache, ignore_errors=True)
        run(
            [
                program,
                "config",
                self._meta,
                "--yes",
                "--bucket",
                f"{options.get('endpoint', '')}/{bucket.name}",
            ]
        )
        with open(self._made, "w"):
            pass


class Headrace(SystemUnderTest):
    """Run Headrace as users start it: `headrace up`."""

    name, kind = "Headrace", OURS

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._environment: dict[str, str] = {}
        self._cache = self._mountpoint = ""

    def start(self, bucket: Bucket, slot: HostSlot) -> Where:
        self._cache, self._mountpoint = slot.part("cache"), slot.part("mount")
        self._environment = {**os.environ, "HEADRACE_RUN_FOLDER": slot.part("run")}
        words = [*slot.inside, *module_command("headrace", "up", bucket.url, self._mountpoint)]
        words += ["--cache", f"{self._cache}:{slot.cache_bytes}", "--json"]
        words += option_words(bucket.options, slot.folder)
        log, output = os.path.join(slot.folder, "log"), os.path.join(slot.folder, "said")
        with open(log, "ab") as errors, open(output, "wb") as out:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                start_new_session=True,
                env=self._environment,
            )
        process = self._process
        until(lambda: os.path.getsize(output) > 0 or process.poll() is not None, name=self.name)
        if process.poll() is not None:
            raise HeadraceError("headrace up ended", why=last_line(log))
        return Where("folder", self._mountpoint)

    def stop(self) -> None:
        if self._process is not None:
            end(self._process, patience_s=60)
            self._process = None
            unmount(self._mountpoint)

    def processes(self) -> list[int]:
        """Find the processes by their run directory: node, FD store and FUSE session are in sessions of their own."""
        from headrace.lab import processes

        folder = self._environment.get("HEADRACE_RUN_FOLDER")
        return list(processes.marked(folder)) if folder and self._process is not None else []

    def disk_bytes(self) -> int:
        return used_bytes(self._cache)


def find_program(program: str) -> str:
    """Return the path of a program: beside this Python, or in PATH. Raises NotSupportedError."""
    beside = os.path.join(os.path.dirname(sys.executable), program)
    path = beside if os.access(beside, os.X_OK) else shutil.which(program)
    if path is None:
        raise NotSupportedError(program, why="not installed")
    return path


def run(words: Sequence[str]) -> str:
    """Run a program and return its output. Raises HeadraceError with its last line if it fails."""
    done = subprocess.run(list(words), capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["it printed nothing"]
        raise HeadraceError(f"{os.path.basename(words[0])} {words[1]} failed", why=lines[-1][:300])
    return done.stdout


def until(ready: Callable[[], bool], *, name: str) -> None:
    """Wait until a condition holds. Raises DeadlineExceededError."""
    end_s = time.monotonic() + READY_WITHIN_S
    while not ready():
        if time.monotonic() > end_s:
            raise DeadlineExceededError(f"{name} is not ready in {READY_WITHIN_S:.0f} s")
        time.sleep(0.02)  # pause between two checks


def is_mounted(path: str) -> bool:
    return mounted_at(path) is not None


def unmount(path: str) -> None:
    """Unmount a path, even if it is in use."""
    for _ in range(3):
        if not is_mounted(path):
            return
        subprocess.run(["umount", "-l", path], capture_output=True, timeout=20, check=False)


def end(process: subprocess.Popen[bytes], *, patience_s: float = END_WITHIN_S) -> None:
    """Send SIGTERM to the process, then SIGKILL to all of its session."""
    process.terminate()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(process.pid, 9)
    except ProcessLookupError:
        pass
    process.wait(END_WITHIN_S)


def of_session(session: int) -> list[int]:
    """Return the ids of the processes of a session."""
    listed = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.getsid(int(name)) == session:
                listed.append(int(name))
        except OSError:
            continue
    return listed


def used_bytes(folder: str) -> int:
    """Return the bytes that a directory takes of the disk."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += disk_bytes(os.lstat(os.path.join(where, name)))
            except OSError:
                continue
    return total


def last_line(path: str) -> str:
    with open(path, "rb") as log:
        lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it printed nothing"
