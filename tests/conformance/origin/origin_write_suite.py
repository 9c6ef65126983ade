"""Test what every writable origin must do: the other half of OriginSuite, over the same Subject.

    class TestMyOriginWritten(OriginWriteSuite):
        @pytest.fixture
        def subject(self) -> Subject: ...

Every put is read back through the origin and compared byte for byte.
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
import threading
from pathlib import Path

import pytest

from headrace.base.deadline import Deadline
from headrace.base.errors import (
    BucketNotFoundError,
    ConflictError,
    DeadlineExceededError,
    DirectoryNotEmptyError,
    HeadraceError,
    NotADirectoryPathError,
    NotSupportedError,
    OriginReadOnlyError,
    PathNotFoundError,
    StoreError,
    VersionChangedError,
)
from headrace.base.model import Attributes, ObjectInfo, ObjectMetadata, Version
from headrace.base.tasks import OwnedTasks
from headrace.origin.origin import HIDDEN, Absent, Body, Condition, Origin
from headrace.origin.source import BytesPutSource, FilePutSource
from tests.conformance.origin.origin_suite import NAMES, Subject, listing_of, read, run, soon

MULTIPART = (random.Random(11).randbytes((1 << 20) + 7) * 21)[: (21 << 20) + 3]
"""Five parts, the last one short: three in flight, one that waits in obstore, one that is read. It repeats some random
bytes, as more take long in each process that collects tests. Parts differ, because their size is no multiple of the
period."""
WAIT_S = 60.0


async def put(
    origin: Origin,
    key: str,
    data: bytes,
    condition: Condition = None,
    attributes: Attributes = Attributes(),  # noqa: B008 - frozen
) -> ObjectInfo:
    return await origin.put(
        key, BytesPutSource(data), condition=condition, attributes=attributes, deadline=Deadline.after(WAIT_S)
    )


async def content(origin: Origin, key: str) -> bytes:
    info = await origin.head(key, deadline=soon())
    size = info.version.size_bytes
    return await read(origin, info, 0, size) if size else b""


class HeldSource:
    """A source that withholds its last bytes until `released` is set. `asked` is set when a read reaches them."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size_bytes = len(data)
        self.asked = threading.Event()
        self.released = threading.Event()

    def pread(self, start: int, end: int) -> Body:
        if end == self.size_bytes:
            self.asked.set()
            assert self.released.wait(WAIT_S)
        return self._data[start:end]


class BrokenSource:
    """A source that fails at its last bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size_bytes = len(data)

    def pread(self, start: int, end: int) -> Body:
        if end == self.size_bytes:
            raise StoreError("source", why="broken by plan")
        return self._data[start:end]


class OriginWriteSuite:
    """The tests. Subclasses provide the fixture `subject`; `place` is the directory of one test."""

    @pytest.fixture
    def place(self, subject: Subject) -> str:
        if not subject.traits.writable:
            pytest.skip("declared: can only be read")
        return f"w{random.SystemRandom().getrandbits(40):010x}"

    def test_what_can_only_be_read_refuses(self, subject: Subject) -> None:
        if subject.traits.writable:
            pytest.skip("can be written to")
        subject.put("read-only/a", b"stays")

        async def body(origin: Origin) -> None:
            assert not origin.writable
            with pytest.raises(OriginReadOnlyError):
                await put(origin, "b", b"1")
            with pytest.raises(OriginReadOnlyError):
                await origin.remove("a", condition=None, deadline=soon())
            with pytest.raises(OriginReadOnlyError):
                await origin.make_directory("d", deadline=soon())
            with pytest.raises(OriginReadOnlyError):
                await origin.remove_directory("d", deadline=soon())
            assert await content(origin, "a") == b"stays"

        run(lambda: subject.attach("read-only"), body)

    # -- puts

    def test_what_was_put_is_read_back(self, subject: Subject, place: str) -> None:
        """Check also that put, head and listing return the same version."""
        bodies = {
            "empty": b"",
            "one": b"1",
            "d/e/below": b"deep" * 1000,
            "block": random.Random(1).randbytes((1 << 20) + 1),
        }

        async def body(origin: Origin) -> None:
            assert origin.writable
            for key, data in bodies.items():
                info = await put(origin, key, data, Absent())
                assert info.key == key and info.version.size_bytes == len(data)
                assert (await origin.head(key, deadline=soon())).version == info.version
                parent = key.rpartition("/")[0]
                assert (await listing_of(origin, parent)).objects[key] == info.version
                if data:
                    assert await read(origin, info, 0, len(data)) == data
            assert (await listing_of(origin, "")).directories == {"d"}
            assert set((await listing_of(origin, "")).objects) == {"empty", "one", "block"}
            assert (await listing_of(origin, "d")).directories == {"e"}

        run(lambda: subject.attach(place), body)

    def test_an_open_file_is_put(self, subject: Subject, place: str) -> None:
        data = random.Random(2).randbytes((3 << 20) + 5)

        async def body(origin: Origin) -> None:
            with tempfile.TemporaryFile() as file:
                file.write(data)
                file.flush()
                source = FilePutSource(file.fileno())
                info = await origin.put(
                    "f", source, condition=Absent(), attributes=Attributes(), deadline=soon()
                )
            assert await read(origin, info, 0, len(data)) == data

        run(lambda: subject.attach(place), body)

    def test_a_put_replaces_the_whole(self, subject: Subject, place: str) -> None:
        subject.put(f"{place}/r", b"a longer text that was there before")

        async def body(origin: Origin) -> None:
            old = await origin.head("r", deadline=soon())
            first = await put(origin, "r", b"short", old.version)
            assert await content(origin, "r") == b"short"
            with pytest.raises(VersionChangedError):
                await read(origin, old, 0, 5)
            second = await put(origin, "r", b"other", first.version)  # of the same size
            assert second.version != first.version
            assert await content(origin, "r") == b"other"
            await put(origin, "r", b"", None)
            assert await content(origin, "r") == b""
            assert set((await listing_of(origin, "")).objects) == {"r"}

        run(lambda: subject.attach(place), body)

    def test_names_that_are_put(self, subject: Subject, place: str) -> None:
        names = [name for name in NAMES if name not in subject.traits.strange_names]

        async def body(origin: Origin) -> None:
            for name in names:
                info = await put(origin, f"in {place}/{name}", name.encode(), Absent())
                assert await read(origin, info, 0, len(name.encode())) == name.encode(), name
            listing = await listing_of(origin, f"in {place}")
            assert set(listing.objects) == {f"in {place}/{name}" for name in names}

        run(lambda: subject.attach(place), body)

    def test_names_that_can_not_be_put(self, subject: Subject, place: str) -> None:
        async def body(origin: Origin) -> None:
            for key in ("", "a/", "/a", "a//b", "a/../b", "..", "nul\0", f"{HIDDEN}x"):
                with pytest.raises(NotSupportedError):
                    await put(origin, key, b"x")
                    pytest.fail(f"{key!r} was put")
            assert not (await listing_of(origin, "")).objects

        run(lambda: subject.attach(place), body)

    def test_many_parts(self, subject: Subject, place: str) -> None:
        """Use small parts where the origin has parts, over an existing object and over none."""
        attach = subject.attach_in_parts or subject.attach

        async def body(origin: Origin) -> None:
            first = await put(origin, "big", MULTIPART, Absent())
            assert (await origin.head("big", deadline=soon())).version == first.version
            assert await content(origin, "big") == MULTIPART
            with pytest.raises(ConflictError):
                await put(origin, "big", MULTIPART[::-1], Absent())
            assert (await origin.head("big", deadline=soon())).version == first.version
            second = await put(origin, "big", MULTIPART[1:], first.version)
            assert (await listing_of(origin, "")).objects["big"] == second.version != first.version
            assert await content(origin, "big") == MULTIPART[1:]
            with pytest.raises(ConflictError):
                await put(origin, "big", MULTIPART, first.version)
            assert await content(origin, "big") == MULTIPART[1:]

        run(lambda: attach(place), body)

    def test_attributes(self, subject: Subject, place: str) -> None:
        mtime_ns = 1_600_000_000_123_456_789
        attributes = Attributes(mtime_ns=mtime_ns, mode=0o640, uid=os.getuid(), gid=os.getgid())

        async def body(origin: Origin) -> None:
            info = await put(origin, "f", b"1234", None, attributes)
            kept = (await origin.head("f", deadline=soon())).attributes
            assert (await origin.head("f", deadline=soon())).version == info.version
            if subject.traits.keeps_attributes:
                assert kept == attributes
            else:
                assert kept is None
            await put(origin, "g", b"1234")
            assert (await origin.head("g", deadline=soon())).version.size_bytes == 4

        run(lambda: subject.attach(place), body)

    def test_what_a_user_gave_comes_back(self, subject: Subject, place: str) -> None:
        """Check also metadata beside a file's attributes of the same names; large files go in parts."""

        async def body(origin: Origin) -> None:
            tags = {"a b": "c/d=é"} if origin.url.startswith("s3:") else {}
            metadata = ObjectMetadata(
                {"colour": "red", "mode": "33188"},
                {"Content-Type": "text/x", "Cache-Control": "no-store"},
                tags,
            )
            if not origin.url.startswith(("s3:", "gs:")):
                return
            for key, data in (("f", b"1234"), ("large", MULTIPART)):
                attributes = Attributes(mtime_ns=10**18, mode=0o600, put_id="id", extras=metadata)
                await put(origin, key, data, None, attributes)
                info = await origin.head(key, deadline=soon())
                assert info.attributes is not None
                assert info.attributes.extras == metadata
                some = await origin.read_range(key, 1, 3, version=info.version, deadline=soon())
                assert (bytes(some.body), some.extras) == (data[1:3], metadata)

        run(lambda: subject.attach(place), body)

    # -- conditions

    def test_nothing_is_created_over_what_is_there(self, subject: Subject, place: str) -> None:
        subject.put(f"{place}/taken", b"theirs")

        async def body(origin: Origin) -> None:
            before = await origin.head("taken", deadline=soon())
            with pytest.raises(ConflictError):
                await put(origin, "taken", b"ours", Absent())
            assert (await origin.head("taken", deadline=soon())).version == before.version
            assert await content(origin, "taken") == b"theirs"
            assert set((await listing_of(origin, "")).objects) == {"taken"}

        run(lambda: subject.attach(place), body)

    def test_nothing_that_changed_is_replaced(self, subject: Subject, place: str) -> None:
        subject.put(f"{place}/r", b"old!")

        async def body(origin: Origin) -> None:
            old = (await origin.head("r", deadline=soon())).version
            await asyncio.to_thread(subject.put, f"{place}/r", b"new!")
            with pytest.raises(ConflictError):
                await put(origin, "r", b"ours", old)
            assert await content(origin, "r") == b"new!"
            with pytest.raises(ConflictError):
                await origin.remove("r", condition=old, deadline=soon())
            assert await content(origin, "r") == b"new!"

        run(lambda: subject.attach(place), body)

    def test_nothing_that_was_removed_comes_back(self, subject: Subject, place: str) -> None:
        subject.put(f"{place}/stays", b"x")
        subject.put(f"{place}/r", b"old!")

        async def body(origin: Origin) -> None:
            old = (await origin.head("r", deadline=soon())).version
            await asyncio.to_thread(subject.delete, f"{place}/r")
            with pytest.raises(ConflictError):
                await put(origin, "r", b"ours", old)
            with pytest.raises(PathNotFoundError):
                await origin.head("r", deadline=soon())
            with pytest.raises(PathNotFoundError):
                await origin.remove("r", condition=old, deadline=soon())
            assert set((await listing_of(origin, "")).objects) == {"stays"}
            again = await put(origin, "r", b"ours", Absent())
            assert await read(origin, again, 0, 4) == b"ours"

        run(lambda: subject.attach(place), body)

    @pytest.mark.parametrize("over", ["nothing", "a-version"])
    def test_of_racing_writers_one_wins(self, subject: Subject, place: str, over: str) -> None:
        if not subject.traits.decides_races:
            pytest.skip("declared: conditions are compared just before")
        rounds, writers = 3, 4
        if over == "a-version":
            subject.put_all((f"{place}/r{n}" for n in range(rounds)), b"old")

        async def write(key: str, number: int, condition: Condition) -> bytes | None:
            data = f"{key} by {number}".encode()
            other = subject.attach(place)
            try:
                await put(other, key, data, condition)
            except ConflictError:
                return None
            finally:
                await other.close()
            return data

        async def body(origin: Origin) -> None:
            for n in range(rounds):
                condition: Absent | Version = Absent()
                if over == "a-version":
                    condition = (await origin.head(f"r{n}", deadline=soon())).version
                done = await asyncio.gather(*(write(f"r{n}", number, condition) for number in range(writers)))
                won = [data for data in done if data is not None]
                assert len(won) == 1, won
                assert await content(origin, f"r{n}") == won[0]

        run(lambda: subject.attach(place), body)

    # -- failures leave nothing

    @pytest.mark.parametrize("size", ["small", "in-parts"])
    def test_a_cancelled_put_leaves_the_old_object(self, subject: Subject, place: str, size: str) -> None:
        attach = (subject.attach_in_parts if size == "in-parts" else None) or subject.attach
        data = MULTIPART if size == "in-parts" else b"never seen"
        subject.put(f"{place}/r", b"old!")

        async def body(origin: Origin) -> None:
            source = HeldSource(data)
            call = OwnedTasks(Exception).start(
                origin.put("r", source, condition=None, attributes=Attributes(), deadline=soon())
            )
            assert await asyncio.to_thread(source.asked.wait, WAIT_S)
            call.cancel()
            asyncio.get_running_loop().call_soon(source.released.set)
            with pytest.raises(asyncio.CancelledError):
                await call
            assert await content(origin, "r") == b"old!"
            assert set((await listing_of(origin, "")).objects) == {"r"}
            await put(origin, "r", b"then")
            assert await content(origin, "r") == b"then"

        run(lambda: attach(place), body)

    @pytest.mark.parametrize("size", ["small", "in-parts"])
    def test_a_source_that_breaks_leaves_the_old_object(
        self, subject: Subject, place: str, size: str
    ) -> None:
        attach = (subject.attach_in_parts if size == "in-parts" else None) or subject.attach
        source = BrokenSource(MULTIPART if size == "in-parts" else b"never seen")
        subject.put(f"{place}/r", b"old!")

        async def body(origin: Origin) -> None:
            with pytest.raises(StoreError, match="broken by plan"):
                await origin.put("r", source, condition=None, attributes=Attributes(), deadline=soon())
            with pytest.raises(StoreError, match="broken by plan"):
                await origin.put("new", source, condition=Absent(), attributes=Attributes(), deadline=soon())
            assert await content(origin, "r") == b"old!"
            assert set((await listing_of(origin, "")).objects) == {"r"}

        run(lambda: attach(place), body)

    def test_a_file_that_ends_early_is_not_put(self, subject: Subject, place: str, tmp_path: Path) -> None:
        (tmp_path / "short").write_bytes(b"1234")

        async def body(origin: Origin) -> None:
            with (tmp_path / "short").open("rb") as file:
                source = FilePutSource(file.fileno(), 10)
                with pytest.raises(StoreError):
                    await origin.put("f", source, condition=None, attributes=Attributes(), deadline=soon())
            assert not (await listing_of(origin, "")).objects

        run(lambda: subject.attach(place), body)

    def test_a_passed_deadline_puts_nothing(self, subject: Subject, place: str) -> None:
        subject.put(f"{place}/r", b"stays")

        async def body(origin: Origin) -> None:
            passed = Deadline.after(-1)
            source = BytesPutSource(b"x")
            with pytest.raises(DeadlineExceededError):
                await origin.put("n", source, condition=None, attributes=Attributes(), deadline=passed)
            with pytest.raises(DeadlineExceededError):
                await origin.remove("r", condition=None, deadline=passed)
            assert set((await listing_of(origin, "")).objects) == {"r"}

        run(lambda: subject.attach(place), body)

    def test_a_missing_bucket_takes_nothing(self, subject: Subject, place: str) -> None:
        expected, attach = subject.traits.missing_bucket, subject.attach_nowhere
        if expected is None or attach is None or subject.traits.makes_buckets:
            pytest.skip("declared: has no buckets, or makes them")

        async def body(origin: Origin) -> None:
            with pytest.raises((expected, BucketNotFoundError)):
                await put(origin, "f", b"x")

        run(attach, body)

    # -- removal, directories

    def test_remove(self, subject: Subject, place: str) -> None:
        subject.put_all((f"{place}/{key}" for key in ("a", "b", "d/c", "stays")), b"1")

        async def body(origin: Origin) -> None:
            version = (await origin.head("b", deadline=soon())).version
            await origin.remove("a", condition=None, deadline=soon())
            await origin.remove("b", condition=version, deadline=soon())
            await origin.remove("d/c", condition=None, deadline=soon())
            for key in ("a", "b", "d/c", "none", "d", "", "stays/below"):
                with pytest.raises(PathNotFoundError):
                    await origin.remove(key, condition=None, deadline=soon())
            assert set((await listing_of(origin, "")).objects) == {"stays"}
            assert not (await listing_of(origin, "d")).objects

        run(lambda: subject.attach(place), body)

    def test_folders(self, subject: Subject, place: str) -> None:
        async def body(origin: Origin) -> None:
            await put(origin, "stays", b"1")
            await origin.make_directory("d/e", deadline=soon())
            await origin.make_directory("d/e", deadline=soon())
            directories = {"d"} if subject.traits.folders else set()
            assert (await listing_of(origin, "")).directories == directories
            await put(origin, "d/e/f", b"1")
            assert (await listing_of(origin, "d")).directories == {"e"}
            with pytest.raises(DirectoryNotEmptyError):
                await origin.remove_directory("d/e", deadline=soon())
            with pytest.raises(DirectoryNotEmptyError):
                await origin.remove_directory("d", deadline=soon())
            assert await content(origin, "d/e/f") == b"1"
            await origin.remove("d/e/f", condition=None, deadline=soon())
            for key in ("d/e", "d", "d", "none/none"):
                await origin.remove_directory(key, deadline=soon())
            root = await listing_of(origin, "")
            assert set(root.objects) == {"stays"} and not root.directories

        run(lambda: subject.attach(place), body)

    def test_a_file_in_the_way(self, subject: Subject, place: str) -> None:
        """Check that neither a file nor a directory replaces the other, where a name is only one of them."""
        if subject.traits.both:
            pytest.skip("declared: a name may be both")
        subject.put_all((f"{place}/{key}" for key in ("f", "d/x")), b"1")

        async def body(origin: Origin) -> None:
            with pytest.raises(NotADirectoryPathError):
                await put(origin, "f/below", b"2")
            with pytest.raises(HeadraceError):
                await put(origin, "d", b"2")
            with pytest.raises(HeadraceError):
                await origin.make_directory("f", deadline=soon())
            assert await content(origin, "f") == b"1"
            assert await content(origin, "d/x") == b"1"

        run(lambda: subject.attach(place), body)
