"""The contenders' mounts. Every one gives a `root` under which the data's names are found."""

from __future__ import annotations

import os
import subprocess
from urllib.parse import urlsplit

from .data import Data
from .machine import NotRunError, Workplace, discard, is_mounted, run, stop, tool, unmount, wait_until
from .server import Server

READY_S = 30


class Plain:
    """The same files on the same disk, without anything between."""

    name = "plain"

    def __init__(self, data: Data) -> None:
        self.root = data.root

    def stop(self) -> None:
        pass


class Peer:
    """A peer that runs in the foreground as a child of ours."""

    name = ""

    def __init__(self, place: Workplace, server: Server) -> None:
        self.place, self.server = place, server
        self.cache = place.folder(f"{self.name}-cache")
        self.mountpoint = self.root = place.folder(f"{self.name}-mount")
        self.process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    def start(self) -> None:
        command = self.command()
        self.place.undo.callback(self.stop)
        log = self.place.log(self.name)
        self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        os.close(log)
        process = self.process
        wait_until(
            lambda: is_mounted(self.mountpoint) or process.poll() is not None,
            timeout_s=READY_S,
            name=self.name,
        )
        if process.poll() is not None:
            raise NotRunError(f"{self.name} ended: {self.place.log_tail(self.name)}")

    def stop(self) -> None:
        if self.process is None:
            return
        unmount(self.mountpoint)
        stop(self.process)
        self.process = None
        discard(self.cache)

    def put(self, data: Data) -> None:
        """Puts the data where the peer finds it; most read the bucket as it is."""


class JuiceFS(Peer):
    """Its files are chunks of its own: the data are written through its own mount, then warmed up."""

    name = "juicefs"
    volume = "juice"
    """Its name in the bucket: who formats a second one there gives it another."""
    options: tuple[str, ...] = ()

    def command(self) -> list[str]:
        meta = f"sqlite3://{self.place.folder('juicefs-meta')}/meta.db"
        options = self.server.options()
        juicefs = tool("juicefs")
        run(
            [
                *[juicefs, "format", "--storage", "s3", "--trash-days", "0"],
                *["--bucket", f"{self.server.endpoint}/{self.server.bucket}"],
                *["--access-key", options["access_key_id"], "--secret-key", options["secret_access_key"]],
                *[meta, self.volume],
            ],
            timeout_s=60,
        )
        caches = [f"--{kind}-cache=3600" for kind in ("attr", "entry", "dir-entry", "open")]
        return [
            *[juicefs, "mount", "--no-usage-report", "--no-syslog", "--backup-meta=0", *caches],
            *[f"--cache-dir={self.cache}", "--cache-size=20480", "--free-space-ratio=0.02", "--no-bgjob"],
            *["--open-cache-limit=100000", *self.options, meta, self.mountpoint],
        ]

    def put(self, data: Data) -> None:
        for folder in ("big", "small"):
            run(["cp", "-r", f"{data.root}/{folder}", self.mountpoint], timeout_s=180)
        for folder in ("big", "small"):
            run([tool("juicefs"), "warmup", "-p", "8", f"{self.mountpoint}/{folder}"], timeout_s=120)


class Rclone(Peer):
    name = "rclone"
    mode: tuple[str, ...] = ("--read-only", "--vfs-cache-mode", "full")
    folder = ""
    """Of the bucket; all of it when empty."""

    def command(self) -> list[str]:
        rclone = tool("rclone")
        tool("fusermount3")
        options = self.server.options()
        return [
            *[rclone, "mount", f":s3:{self.server.bucket}/{self.folder}".rstrip("/"), self.mountpoint],
            *["--config", "", *self.mode],
            *["--s3-provider", "SeaweedFS", "--s3-endpoint", self.server.endpoint],
            *["--s3-access-key-id", options["access_key_id"]],
            *["--s3-secret-access-key", options["secret_access_key"]],
            *["--cache-dir", self.cache, "--vfs-cache-max-age", "24h"],
            *["--dir-cache-time", "24h", "--attr-timeout", "1h", "--poll-interval", "0"],
            *["--use-server-modtime", "--vfs-fast-fingerprint"],
        ]


class S3fs(Peer):
    name = "s3fs"

    def command(self) -> list[str]:
        program = tool("s3fs")
        options = self.server.options()
        password = f"{self.place.folder('s3fs-password')}/password"
        with open(os.open(password, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(f"{options['access_key_id']}:{options['secret_access_key']}")
        settings = [f"url={urlsplit(self.server.endpoint).geturl()}", "use_path_request_style", "ro"]
        settings += [f"passwd_file={password}", f"use_cache={self.cache}", "kernel_cache"]
        settings += ["stat_cache_expire=3600", "max_stat_cache_size=200000", "dbglevel=err"]
        settings += ["parallel_count=16", "multipart_size=16", "tmpdir=" + self.cache]
        return [program, self.server.bucket, self.mountpoint, "-f", "-o", ",".join(settings)]
