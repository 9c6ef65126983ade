"""Puts, appends to, renames and removes files by S3, WebHDFS, REST and the library until each of them fails.

argv: a JSON object of the URLs ("s3", "webhdfs", "rest"; the keys of S3, the token of REST), a log on another disk, a
seed. A line of the log says what a name is about to be, the next one of the same thread that it was answered. Nobody
calls fsync. `replay` says what such a log promises.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any, Protocol

TOP = "/out"
NAMES = 4
"""The names of each thread."""
SIZES = (0, 1, 4096, 20_000, (1 << 20) + 7)
GONE = "gone"

State = list[int] | None
"""What a name has: numbers of the contents that follow each other; None: it is not there."""
States = dict[str, bytes | None]


def content(seed: str, number: int) -> bytes:
    chance = random.Random(f"{seed} {number}")
    return chance.randbytes(chance.choice(SIZES))


class Door(Protocol):
    def put(self, path: str, data: bytes) -> None: ...
    def remove(self, path: str) -> None: ...


class S3:
    """One in three puts is an upload in parts."""

    def __init__(self, urls: dict[str, str]) -> None:
        import boto3
        from botocore.config import Config

        self._client: Any = boto3.client(
            "s3",
            endpoint_url=urls["s3"],
            region_name="us-east-1",
            aws_access_key_id=urls["access"],
            aws_secret_access_key=urls["secret"],
            config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
        )
        self._puts = 0

    def put(self, path: str, data: bytes) -> None:
        self._puts += 1
        bucket, _, key = path[1:].partition("/")
        to = {"Bucket": bucket, "Key": key}
        if self._puts % 3:
            self._client.put_object(**to, Body=data)
            return
        upload = {**to, "UploadId": self._client.create_multipart_upload(**to)["UploadId"]}
        part = self._client.upload_part(**upload, PartNumber=1, Body=data)
        parts = [{"PartNumber": 1, "ETag": part["ETag"]}]
        self._client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})

    def remove(self, path: str) -> None:
        bucket, _, key = path[1:].partition("/")
        self._client.delete_object(Bucket=bucket, Key=key)


class WebHdfs:
    def __init__(self, urls: dict[str, str]) -> None:
        self._url = f"{urls['webhdfs']}/webhdfs/v1"

    def put(self, path: str, data: bytes) -> None:
        self._ask("PUT", path, "op=CREATE&overwrite=true&data=true", data)

    def append(self, path: str, data: bytes) -> None:
        self._ask("POST", path, "op=APPEND&data=true", data)

    def rename(self, path: str, target: str) -> None:
        self._ask("PUT", path, f"op=RENAME&destination={target}")

    def remove(self, path: str) -> None:
        self._ask("DELETE", path, "op=DELETE")

    def _ask(self, method: str, path: str, query: str, data: bytes = b"") -> None:
        headers = {"Content-Type": "application/octet-stream"}
        request = urllib.request.Request(
            f"{self._url}{path}?{query}&user.name=root", data=data, method=method, headers=headers
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()


class Rest:
    def __init__(self, urls: dict[str, str]) -> None:
        self._url, self._token = urls["rest"], urls["token"]

    def put(self, path: str, data: bytes) -> None:
        self._ask("PUT", f"/v1/content?path={path}", data, "application/octet-stream")

    def rename(self, path: str, target: str) -> None:
        self._ask(
            "POST", "/v1/rename", json.dumps({"source": path, "target": target}).encode(), "application/json"
        )

    def remove(self, path: str) -> None:
        self._ask("DELETE", f"/v1/entry?path={path}", None, "application/json")

    def _ask(self, method: str, query: str, data: bytes | None, kind: str) -> None:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
        request = urllib.request.Request(self._url + query, data=data, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()


class Library:
    def __init__(self, _: dict[str, str]) -> None:
        import headrace

        self._cache = headrace.connect()

    def put(self, path: str, data: bytes) -> None:
        self._cache.put(path, data)

    def append(self, path: str, data: bytes) -> None:
        with self._cache.open(path, "ab") as file:
            file.write(data)

    def rename(self, path: str, target: str) -> None:
        self._cache.rename(path, target)

    def remove(self, path: str) -> None:
        self._cache.remove(path)


DOORS: dict[str, Any] = {"s3": S3, "webhdfs": WebHdfs, "rest": Rest, "library": Library}


class Putter:
    """One thread: its own names, in a directory that is made with the first."""

    def __init__(self, log: int, name: str, urls: dict[str, str], seed: str) -> None:
        self._log, self._name, self._round, self._seed = log, name, seed, f"{seed} {name}"
        self._door: Any = DOORS[name.partition("-")[0]](urls)
        self._chance = random.Random(self._seed)
        self._number = 0
        self._states: dict[str, State] = {}

    def run(self) -> None:
        with contextlib.suppress(Exception):
            while True:
                self._number += 1
                self._change()

    def _change(self) -> None:
        path = f"{TOP}/{self._name}/{self._chance.randrange(3)}/{self._chance.randrange(NAMES)}"
        now, number = self._states.get(path), self._number
        data = content(self._seed, number)
        if now is not None and self._chance.random() < 0.2:
            self._do({path: None}, lambda: self._door.remove(path))
        elif now is not None and hasattr(self._door, "append") and self._chance.random() < 0.3:
            self._do({path: [*now, number]}, lambda: self._door.append(path, data))
        elif now is not None and hasattr(self._door, "rename") and self._chance.random() < 0.3:
            target = f"{path}-{self._round}-{number}"
            self._do({path: None, target: now}, lambda: self._door.rename(path, target))
        else:
            self._do({path: [number]}, lambda: self._door.put(path, data))

    def _do(self, states: dict[str, State], work: Any) -> None:
        self._note(states=states, seed=self._seed, thread=self._name)
        work()
        self._note(done=self._name)
        self._states |= states

    def _note(self, **row: object) -> None:
        os.write(self._log, json.dumps(row).encode() + b"\n")


def replay(log: Path, moment_bytes: int) -> tuple[States, dict[str, list[bytes | None]]]:
    """Return what each name must be; and of names with a change that was not answered yet, what else they may be. The
    log had `moment_bytes` just before power was lost: later answers don't count."""
    promised: States = {}
    begun: dict[str, States] = {}
    under_way: dict[str, list[bytes | None]] = {}
    written_bytes = 0
    for line in log.read_bytes().splitlines(keepends=True):
        written_bytes += len(line)
        row = json.loads(line)
        if "done" not in row:
            begun[row["thread"]] = {name: _data(row["seed"], state) for name, state in row["states"].items()}
            if written_bytes > moment_bytes:
                _may_be(under_way, begun[row["thread"]])
        elif written_bytes <= moment_bytes:
            promised |= begun.pop(row["done"])
        else:
            _may_be(under_way, begun[row["done"]])
    for states in begun.values():
        _may_be(under_way, states)
    return promised, under_way


def _may_be(under_way: dict[str, list[bytes | None]], states: States) -> None:
    for name, data in states.items():
        under_way.setdefault(name, []).append(data)


def _data(seed: str, state: State) -> bytes | None:
    return None if state is None else b"".join(content(seed, number) for number in state)


def main() -> None:
    urls = json.loads(sys.argv[1])
    log = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    putters = [
        Putter(log, f"{door}-{number}", urls, sys.argv[3])
        for door, count in (("s3", 2), ("webhdfs", 2), ("rest", 2), ("library", 2))
        for number in range(count)
    ]
    threads = [threading.Thread(target=putter.run) for putter in putters]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
