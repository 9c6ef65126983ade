"""Serve requests in the thread of a test: the operations of a mount over an in-memory client, without a session."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from headrace.base.cancel import Cancel
from headrace.base.errors import HeadraceError
from headrace.base.model import Entry, FileId, Kind, Version
from headrace.base.write_modes import WriteModes
from headrace.fuse.backings import Backings
from headrace.fuse.client_protocol import WritingClient
from headrace.fuse.file_ops import WritableOperations
from headrace.fuse.file_replies import FileReplies
from headrace.fuse.handles import HandleCache
from headrace.fuse.handover_state import HandoverState
from headrace.fuse.io_modes import InodeIoModes
from headrace.fuse.mountpoints import MountpointNames
from headrace.fuse.operations import Answer, Deferred, DiskTask, Method, Mode, Operations, PendingRead
from headrace.overlay.merged_tree import MergedTree
from headrace.overlay.upper import Upper
from tests.integration.fuse.memory_client import MemoryClient
from tests.unit.fuse.fake_kernel import FakeDevice, FakeKernel, Part, Reply, decoded_reply, encoded, uniques


class WritingMemoryClient(MemoryClient):
    """Adds to the memory client what a writable mount needs, and records what the session reports to the node. It
    passes no events by itself: the test calls `on_event`."""

    source = 77

    def __init__(self, folder: str, *, write: str) -> None:
        super().__init__(folder)
        self.write = write
        self.upper = f"{folder}/upper"
        self.touched: list[int] = []
        self.receipts: list[int] = []
        self.reported: list[bytes] = []
        self.begun: list[bytes] = []
        self.secured: list[bytes] = []
        self.claimed: list[bytes] = []
        self.on_claim: Callable[[bytes], None] = lambda directory: None
        self.failure: HeadraceError | None = None
        """The error of each later `secure` and `claim`."""
        self.on_event: Callable[[Any], None] = lambda event: None

    def lookup_stale(self, parent: FileId, name: bytes) -> Entry | None:
        return self._children.get(parent, {}).get(name)

    def path_of(self, id: FileId) -> bytes | None:
        path = self._paths.get(id)
        return None if path is None else path.removeprefix(os.fsencode(f"{self.folder}/source")) or b"/"

    def mount_of(self, path: bytes) -> str:
        return "/other" if path.startswith(b"/other/") else "/"

    def key_fits(self, path: bytes) -> bool:
        return len(path) <= 1024

    def touch(self, id: FileId, pid: int = 0) -> None:
        self.touched.append(id)

    def acknowledge(self, receipt: int) -> None:
        self.receipts.append(receipt)

    def subscribe(
        self, on_event: Callable[[Any], None], *, on_subscribed: Callable[[], None] = lambda: None
    ) -> None:
        self.on_event = on_event
        on_subscribed()

    def changed(self, paths: list[bytes]) -> None:
        self.reported += paths

    def writing(self, path: bytes) -> None:
        self.begun.append(path)

    def secure(self, path: bytes, cancel: Cancel | None = None) -> None:
        self._wait(cancel, "stuck")
        self._fail()
        self.secured.append(path)

    def acquire_lease(self, directory: bytes, cancel: Cancel | None = None) -> None:
        self._fail()
        self.claimed.append(directory)
        self.on_claim(directory)

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure

    def remove_at_origin(self, path: str) -> None:
        """Remove a name, as another user of the origin does."""
        id = self.id_of(path)
        entry = self._entries.pop(id)
        del self._children[entry.parent][entry.name], self._paths[id]

    def add_at_origin(self, path: str, id: int, kind: Kind) -> None:
        """Add a name, as another user of the origin does."""
        directory, _, name = path.rpartition("/")
        parent = self.id_of(directory or "/")
        entry = Entry(FileId(id), parent, os.fsencode(name), kind, Version(0, 0))
        self._entries[id], self._paths[id] = entry, os.fsencode(f"{self.folder}/source{path}")
        children = self._children[parent] | {entry.name: entry}
        self._children[parent] = dict(sorted(children.items()))
        self._children.setdefault(id, {})

    def id_of(self, path: str) -> FileId:
        return next(id for id in map(FileId, self._paths) if self.path_of(id) == os.fsencode(path))


class MemoryBackings(Backings):
    """Registers files for passthrough in this process: `files` has the inode number of each backing id."""

    def __init__(self) -> None:
        self.files: dict[int, int] = {}
        self.closed: list[int] = []
        self.failure: OSError | None = None
        self._newest = 0

    def open(self, fd: int) -> int:
        if self.failure is not None:
            raise self.failure
        self._newest += 1
        self.files[self._newest] = os.fstat(fd).st_ino
        return self._newest

    def close(self, backing_id: int) -> None:
        del self.files[backing_id]
        self.closed.append(backing_id)


class MemoryMount:
    """Answers each request by the table of operations, and runs what it defers at once. `deferrals` says how the
    newest request was deferred."""

    def __init__(self, client: WritingMemoryClient, handover: HandoverState, *, mode: Mode) -> None:
        self.client = client
        self.handover = handover
        self.device = FakeDevice()
        self.backings = MemoryBackings()
        self.inodes = InodeIoModes(handover, self.backings.close)
        self.invalidated: list[tuple[int, bytes]] = []
        self.deferrals: list[type | str] = []
        self.kept_paths: list[bytes] = []
        """The paths of mountpoints."""
        self.mountpoints = MountpointNames(client, handover, lambda: self.kept_paths)
        self.operations = self._operations(mode)
        self.table: dict[int, Method] = self.operations.table()
        self.kernel = FakeKernel(self.exchange)
        self.user = os.geteuid()
        """The user of the requests."""
        self._uniques = uniques()

    def _operations(self, mode: Mode) -> Operations:
        client: WritingClient = self.client  # mypy checks here that it is one
        files = HandleCache(client)
        send = FileReplies(self.device.fd).send
        modes = WriteModes.parse(self.client.write)
        if not modes.any:
            return Operations(
                *(client, self.inodes, files),
                mode=mode,
                register=self._register,
                send=send,
                mountpoints=self.mountpoints,
            )
        upper = Upper(self.client.upper)
        upper.make()
        return WritableOperations(
            *(client, self.inodes, files),
            mode=mode,
            register=self._register,
            send=send,
            mountpoints=self.mountpoints,
            kernel=self,
            build_tree=lambda on_changed: MergedTree(client, upper, modes, on_changed=on_changed),
        )

    def _register(self, path: str) -> int:
        fd = os.open(path, os.O_RDONLY)
        try:
            return self.backings.open(fd)
        finally:
            os.close(fd)

    def register(self, fd: int) -> int:
        return self.backings.open(fd)

    def name_changed(self, parent: int, name: bytes) -> None:
        self.invalidated.append((parent, name))

    def begin(
        self, opcode: int, node: int, *parts: Part, unique: int
    ) -> Answer | Deferred | DiskTask | PendingRead:
        """Return the answer of a method as it is."""
        request = bytearray(encoded(opcode, node, parts, unique, user=self.user).ljust(8192, b"\0"))
        answer = self.table[opcode](unique, node, request)
        request[:] = bytes(len(request))  # the loop reuses its buffer: what is deferred must not need it
        return answer

    def exchange(
        self, opcode: int, node: int, parts: tuple[Part, ...], unique: int | None = None
    ) -> Reply | None:
        unique = next(self._uniques) if unique is None else unique
        answer = self.finish(self.begin(opcode, node, *parts, unique=unique))
        if isinstance(answer, int):
            return Reply(answer, b"")
        if isinstance(answer, bytes):
            return decoded_reply(answer, unique)
        return None if self.device.is_silent() else decoded_reply(self.device.receive(), unique)

    def finish(
        self, answer: Answer | Deferred | DiskTask | PendingRead, cancel: Cancel | None = None
    ) -> Answer:
        """Do all the work that an answer defers."""
        self.deferrals = []
        while not isinstance(answer, bytes | int | None):
            self.deferrals.append(type(answer) if isinstance(answer, DiskTask | PendingRead) else "node")
            if isinstance(answer, DiskTask):
                answer = answer.work()
            elif isinstance(answer, PendingRead):
                answer = answer.finish()
            else:
                answer = answer(cancel or Cancel())
        return answer

    def close(self) -> None:
        self.device.close()
        if isinstance(self.operations, WritableOperations):
            self.operations.tree.upper.close()
