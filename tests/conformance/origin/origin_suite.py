"""Test what every origin must do: subclass OriginSuite and give it a fixture `subject`.

    class TestMyOrigin(OriginSuite):
        @pytest.fixture
        def subject(self) -> Subject: ...

Each test works in a directory of its own, so one server serves all of them. An origin declares in its Traits what it
can't do. The suite then checks that it refuses, or skips with the reason, and never passes silently.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import pytest

from headrace.base.deadline import Deadline
from headrace.base.errors import (
    BucketNotFoundError,
    DeadlineExceededError,
    HeadraceError,
    NotSupportedError,
    PathNotFoundError,
    VersionChangedError,
)
from headrace.base.model import ObjectInfo, Version
from headrace.base.tasks import OwnedTasks
from headrace.origin import object_store
from headrace.origin.origin import Origin
from headrace.origin.retry import PATIENCE_S

Result = TypeVar("Result")

TIMEOUT_S = 30.0
BIG = random.Random(9).randbytes((9 << 20) + 7)
NAMES = (
    *(
        "a b",
        " lead",
        "dot.",
        ".hidden",
        "..two",
        "50%",
        "%41",
        "%2F",
        "a+b",
        "#1",
        "a?b",
        "a&b=c",
        "semi;colon",
    ),
    *(
        "it's",
        "~tilde",
        "[br]",
        "{cu}",
        "a:b",
        "a*b",
        "a=b",
        "@at",
        "a,b",
        "$cash",
        "!",
        "(p)",
        "a|b",
        "^",
        "`",
    ),
    *("ünïcodé", "日本語", "🚰", "e\u0301", "\u00e9", "x" * 255, "é" * 127),
    *('"dq"', "<lt>", "back\\slash", "trail "),
)


@dataclass(frozen=True, slots=True)
class Traits:
    """Declares the properties of an origin; the defaults are those of a plain object store.

    - `missing_bucket`: the error for a place that doesn't exist; None if there are no buckets.
    - `both`: a name may be a file and a directory at the same time.
    - `strange_names`: the NAMES that it can't hold.
    - `strict_folders`: listing a file raises NotSupportedError instead of yielding nothing.
    - `writable`: supports puts.
    - `folders`: an empty directory exists.
    - `keeps_attributes`: head returns the attributes of the put.
    - `makes_buckets`: a put to a missing bucket creates it.
    - `decides_races`: a condition holds against a concurrent put, too.
    - `page`: the entries of a page, of a server as of Headrace. A server that makes pages as small as it is told to
      (moto), or larger than any test (Azurite), need not hold a thousand objects.
    """

    missing_bucket: type[HeadraceError] | None = BucketNotFoundError
    both: bool = True
    strange_names: frozenset[str] = frozenset()
    strict_folders: bool = False
    writable: bool = True
    folders: bool = False
    keeps_attributes: bool = True
    makes_buckets: bool = False
    decides_races: bool = True
    page: int = 1000  # of S3 and of ours; of a web index 256


@dataclass(frozen=True, slots=True)
class Subject:
    """An origin under test, and a way to change its content that bypasses it.

    - `attach`: returns the origin with its root at that prefix ("" for the top). `put` and `delete` take keys from
      the top.
    - `attach_nowhere`: returns an origin at a bucket or directory that doesn't exist.
    - `attach_in_parts`: returns an origin that puts files above some MiB in small parts.
    """

    attach: Callable[[str], Origin]
    put: Callable[[str, bytes], object]
    delete: Callable[[str], object]
    attach_nowhere: Callable[[], Origin] | None = None
    attach_in_parts: Callable[[str], Origin] | None = None
    traits: Traits = Traits()

    def put_all(self, keys: Iterable[str], data: bytes) -> None:
        """Put the same data under all keys, four at a time: this takes half of the test's time."""
        with ThreadPoolExecutor(4) as pool:
            for _ in pool.map(lambda key: self.put(key, data), keys):
                pass


@dataclass(frozen=True, slots=True)
class CollectedListing:
    objects: dict[str, Version]
    directories: frozenset[str]
    pages: int


def run(attach: Callable[[], Origin], body: Callable[[Origin], Awaitable[Result]]) -> Result:
    """Run `body` with an origin in an event loop of its own. No task may remain in it."""

    async def run_body() -> Result:
        async with opened(attach()) as origin:
            return await body(origin)

    return asyncio.run(run_body())


@contextlib.asynccontextmanager
async def opened(origin: Origin) -> AsyncIterator[Origin]:
    """Close `origin` at the end. No task of it may remain."""
    before = asyncio.all_tasks()
    try:
        yield origin
    finally:
        await origin.close()
        left = asyncio.all_tasks() - before
        assert not left, f"left running: {left}"


async def listing_of(origin: Origin, key: str) -> CollectedListing:
    """Return all pages, checked: nothing twice, keys directly below, pages of bounded length."""
    objects: dict[str, Version] = {}
    directories: set[str] = set()
    pages = 0
    async for page in origin.list_directory(key, deadline=soon()):
        pages += 1
        assert len(page.objects) <= 5000 and len(page.directories) <= 5000
        for info in page.objects:
            assert info.key not in objects, f"listed twice: {info.key}"
            parent, _, name = info.key.rpartition("/")
            assert parent == key and name
            objects[info.key] = info.version
        for name in page.directories:
            assert name not in directories, f"listed twice: {name}/"
            assert name and "/" not in name
            directories.add(name)
    return CollectedListing(objects, frozenset(directories), pages)


def soon() -> Deadline:
    return Deadline.after(TIMEOUT_S, patience_s=PATIENCE_S)


async def read(origin: Origin, info: ObjectInfo, start: int, end: int) -> bytes:
    arrived = await origin.read_range(info.key, start, end, version=info.version, deadline=soon())
    return bytes(arrived.body)


class OriginSuite:
    """The tests. Subclasses provide the fixture `subject`; `place` is the directory of one test."""

    @pytest.fixture
    def place(self) -> str:
        return f"t{random.SystemRandom().getrandbits(40):010x}"

    # -- one object

    def test_head_tells_size_and_version(self, subject: Subject, place: str) -> None:
        subject.put(f"{place}/a/b.bin", b"hello world")

        async def body(origin: Origin) -> None:
            info = await origin.head("a/b.bin", deadline=soon())
            assert info.key == "a/b.bin"
            assert info.version.size_bytes == 11
            assert info.version.token or info.version.mtime_ns
            assert info == await origin.head("a/b.bin", deadline=soon())

        run(lambda: subject.attach(place), body)

    def test_what_is_no_object_is_not_found(self, subject: Subject, place: str) -> None:
        """Check also keys with components that no file system can have: whatever an origin makes of them, no file
        comes out."""
        subject.put(f"{place}/a/b.bin", b"hello world")
        absent = ["none", "a/none", "none/none", "a", "a/", "", "a/b.bin/", "a/b.bin/c", "a/b"]
        odd = ["a//b.bin", "/a/b.bin", "a/./b.bin", "a/../a/b.bin", ".", "..", "nul\0"]

        async def body(origin: Origin) -> None:
            for key in (*absent, *odd):
                with pytest.raises(PathNotFoundError):
                    info = await origin.head(key, deadline=soon())
                    pytest.fail(f"{key!r} was found: {info}")

        run(lambda: subject.attach(place), body)

    def test_missing_bucket(self, subject: Subject) -> None:
        expected, attach = subject.traits.missing_bucket, subject.attach_nowhere
        if expected is None or attach is None:
            pytest.skip("declared: has no buckets")

        async def body(origin: Origin) -> None:
            with pytest.raises(expected):
                await listing_of(origin, "")
            with pytest.raises((expected, PathNotFoundError)):
                await origin.head("a", deadline=soon())

        run(attach, body)

    def test_empty_object(self, subject: Subject, place: str) -> None:
        subject.put(f"{place}/d/empty", b"")
        subject.put(f"{place}/d/full", b"x")

        async def body(origin: Origin) -> None:
            info = await origin.head("d/empty", deadline=soon())
            assert info.version.size_bytes == 0
            listing = await listing_of(origin, "d")
            assert listing.objects["d/empty"] == info.version
            assert set(listing.objects) == {"d/empty", "d/full"}

        run(lambda: subject.attach(place), body)

    def test_ranges(self, subject: Subject, place: str) -> None:
        data = bytes(range(256)) * 4
        subject.put(f"{place}/r", data)

        async def body(origin: Origin) -> None:
            info = await origin.head("r", deadline=soon())
            for start, end in ((0, 1), (0, 16), (100, 900), (1023, 1024), (512, 1024), (0, 1024), (255, 257)):
                assert await read(origin, info, start, end) == data[start:end], (start, end)

        run(lambda: subject.attach(place), body)

    def test_a_range_beyond_the_end_is_an_error_and_never_short(self, subject: Subject, place: str) -> None:
        subject.put(f"{place}/r", b"0123456789")

        async def body(origin: Origin) -> None:
            info = await origin.head("r", deadline=soon())
            for start, end in ((5, 11), (10, 11), (500, 600)):
                with pytest.raises(HeadraceError):
                    await read(origin, info, start, end)
            longer = Version(1000, info.version.mtime_ns, info.version.token)
            with pytest.raises(VersionChangedError):
                await origin.read_range("r", 5, 10, version=longer, deadline=soon())

        run(lambda: subject.attach(place), body)

    def test_nine_mebibytes_come_exactly(self, subject: Subject, place: str) -> None:
        subject.put(f"{place}/big", BIG)

        async def body(origin: Origin) -> None:
            info = await origin.head("big", deadline=soon())
            assert info.version.size_bytes == len(BIG)
            assert await read(origin, info, 0, len(BIG)) == BIG
            step = 1 << 20
            cuts = [(start, min(start + step, len(BIG))) for start in range(0, len(BIG), step)]
            bodies = await asyncio.gather(*(read(origin, info, start, end) for start, end in cuts))
            assert b"".join(bodies) == BIG

        run(lambda: subject.attach(place), body)

    # -- listings

    @pytest.fixture
    def many(self, subject: Subject, monkeypatch: pytest.MonkeyPatch) -> int:
        """More entries than a page holds."""
        monkeypatch.setattr(object_store, "PAGE", subject.traits.page)
        return subject.traits.page + 50

    def test_listing_of_more_than_a_page(self, subject: Subject, place: str, many: int) -> None:
        keys = [f"many/f{n:04d}" for n in range(many)]
        subject.put_all((f"{place}/{key}" for key in keys), b"x")
        late = ["many/g/1", "many/g/2/3", "many/h", "many/i/e/f/g"]

        async def body(origin: Origin) -> None:
            listing = await listing_of(origin, "many")
            assert set(listing.objects) == set(keys)
            assert not listing.directories
            assert listing.objects[keys[7]] == (await origin.head(keys[7], deadline=soon())).version

            # Directories after the first page must neither repeat nor lose names of earlier pages.
            await asyncio.to_thread(subject.put_all, [f"{place}/{key}" for key in late], b"x")
            await asyncio.to_thread(subject.put, f"{place}/many/empty", b"")
            listing = await listing_of(origin, "many")
            assert set(listing.objects) == {*keys, "many/h", "many/empty"}
            assert listing.directories == {"g", "i"}

            pages = origin.list_directory("many", deadline=soon())
            async for page in pages:  # ends after the first page, as check_origin does
                assert page.objects or page.directories
                break
            close = getattr(pages, "aclose", None)
            if close is not None:
                await close()

        run(lambda: subject.attach(place), body)

    def test_listing_of_more_folders_than_a_page(self, subject: Subject, place: str, many: int) -> None:
        subject.put_all((f"{place}/l/d{n:04d}/x" for n in range(many)), b"x")
        subject.put_all((f"{place}/l/{key}" for key in ("a", "z")), b"x")

        async def body(origin: Origin) -> None:
            listing = await listing_of(origin, "l")
            assert set(listing.objects) == {"l/a", "l/z"}
            assert listing.directories == {f"d{n:04d}" for n in range(many)}

        run(lambda: subject.attach(place), body)

    def test_tree(self, subject: Subject, place: str) -> None:
        keys = ("top", "a/one", "a/b/two", "a/b/c/three", "ab/four", "a.b/five")
        subject.put_all((f"{place}/{key}" for key in keys), b"x")

        async def body(origin: Origin) -> None:
            root = await listing_of(origin, "")
            assert set(root.objects) == {"top"} and root.directories == {"a", "ab", "a.b"}
            below = await listing_of(origin, "a")
            assert set(below.objects) == {"a/one"} and below.directories == {"b"}
            deep = await listing_of(origin, "a/b/c")
            assert set(deep.objects) == {"a/b/c/three"} and not deep.directories

        run(lambda: subject.attach(place), body)

    def test_a_folder_that_is_not_there_lists_nothing(self, subject: Subject, place: str) -> None:
        subject.put(f"{place}/a/b.bin", b"x")

        async def body(origin: Origin) -> None:
            for key in ("none", "a/none", "a/b", "none/none"):
                listing = await listing_of(origin, key)
                assert not listing.objects and not listing.directories
            if subject.traits.strict_folders:
                with pytest.raises(NotSupportedError):
                    await listing_of(origin, "a/b.bin")
            else:
                listing = await listing_of(origin, "a/b.bin")
                assert not listing.objects and not listing.directories

        run(lambda: subject.attach(place), body)

    def test_names(self, subject: Subject, place: str) -> None:
        """Use each as a file's name and as a directory's, all beside each other."""
        names = [name for name in NAMES if name not in subject.traits.strange_names]
        for name in names:
            subject.put(f"{place}/in/{name}", name.encode())
            subject.put(f"{place}/as/{name}/file", b"below")

        async def body(origin: Origin) -> None:
            listing = await listing_of(origin, "in")
            assert set(listing.objects) == {f"in/{name}" for name in names} and not listing.directories
            assert (await listing_of(origin, "as")).directories == set(names)
            for name in names:
                info = await origin.head(f"in/{name}", deadline=soon())
                assert listing.objects[f"in/{name}"] == info.version, name
                assert await read(origin, info, 0, info.version.size_bytes) == name.encode(), name
                assert set((await listing_of(origin, f"as/{name}")).objects) == {f"as/{name}/file"}, name
                assert (await origin.head(f"as/{name}/file", deadline=soon())).version.size_bytes == 5, name

        run(lambda: subject.attach(place), body)

    def test_names_that_it_can_not_hold(self, subject: Subject) -> None:
        strange = subject.traits.strange_names
        if strange:
            pytest.skip(f"declared: can't hold {', '.join(ascii(name) for name in sorted(strange))}")

    def test_a_name_that_is_file_and_folder(self, subject: Subject, place: str) -> None:
        if not subject.traits.both:
            pytest.skip("declared: a name is a file or a folder")
        subject.put(f"{place}/x/both", b"file")
        subject.put(f"{place}/x/both/below", b"b")

        async def body(origin: Origin) -> None:
            listing = await listing_of(origin, "x")
            assert set(listing.objects) == {"x/both"} and listing.directories == {"both"}
            assert set((await listing_of(origin, "x/both")).objects) == {"x/both/below"}
            assert (await origin.head("x/both", deadline=soon())).version.size_bytes == 4

        run(lambda: subject.attach(place), body)

    def test_nested_prefix_as_root(self, subject: Subject, place: str) -> None:
        subject.put_all((f"{place}/p/q/{key}" for key in ("one", "r/two")), b"12")
        subject.put_all((f"{place}/{key}" for key in ("p/outside", "p/qq/no", "p/q2")), b"12")

        async def body(origin: Origin) -> None:
            root = await listing_of(origin, "")
            assert set(root.objects) == {"one"} and root.directories == {"r"}
            assert set((await listing_of(origin, "r")).objects) == {"r/two"}
            info = await origin.head("r/two", deadline=soon())
            assert info.key == "r/two" and await read(origin, info, 1, 2) == b"2"
            with pytest.raises(PathNotFoundError):
                await origin.head("../outside", deadline=soon())

        run(lambda: subject.attach(f"{place}/p/q"), body)

    def test_no_prefix_at_all(self, subject: Subject, place: str) -> None:
        subject.put(f"{place}/one", b"1")
        subject.put(f"{place}-top", b"1")

        async def body(origin: Origin) -> None:
            root = await listing_of(origin, "")
            assert place in root.directories and f"{place}-top" in root.objects
            assert (await origin.head(f"{place}/one", deadline=soon())).key == f"{place}/one"

        run(lambda: subject.attach(""), body)
        subject.delete(f"{place}-top")

    # -- versions

    def test_a_listing_names_the_version_that_head_names(self, subject: Subject, place: str) -> None:
        """Compare versions: if they differed, every listing would look like a change, and caches would fill
        repeatedly."""
        subject.put_all((f"{place}/v/{n}" for n in range(5)), b"same")
        subject.put(f"{place}/v/sub/below", b"x")

        async def body(origin: Origin) -> None:
            first, second = await listing_of(origin, "v"), await listing_of(origin, "v")
            assert first.objects == second.objects
            for key, version in first.objects.items():
                assert (await origin.head(key, deadline=soon())).version == version

        run(lambda: subject.attach(place), body)

    @pytest.mark.parametrize(
        "after", [b"new!", b"longer than before", b""], ids=["same-size", "longer", "empty"]
    )
    def test_a_replaced_object_is_noticed(self, subject: Subject, place: str, after: bytes) -> None:
        subject.put(f"{place}/r", b"old!")

        async def body(origin: Origin) -> None:
            old = await origin.head("r", deadline=soon())
            assert await read(origin, old, 0, 4) == b"old!"
            await asyncio.to_thread(subject.put, f"{place}/r", after)
            with pytest.raises(VersionChangedError):
                await read(origin, old, 0, 4)
            new = await origin.head("r", deadline=soon())
            assert new.version != old.version
            assert (await listing_of(origin, "")).objects["r"] == new.version
            if after:
                assert await read(origin, new, 0, len(after)) == after

        run(lambda: subject.attach(place), body)

    def test_a_deleted_object_is_noticed(self, subject: Subject, place: str) -> None:
        subject.put_all((f"{place}/{key}" for key in ("r", "stays")), b"old!")

        async def body(origin: Origin) -> None:
            old = await origin.head("r", deadline=soon())
            await asyncio.to_thread(subject.delete, f"{place}/r")
            with pytest.raises(VersionChangedError):
                await read(origin, old, 0, 4)
            with pytest.raises(PathNotFoundError):
                await origin.head("r", deadline=soon())
            assert set((await listing_of(origin, "")).objects) == {"stays"}

        run(lambda: subject.attach(place), body)

    # -- deadlines, cancelling, closing

    def test_a_passed_deadline_is_said(self, subject: Subject, place: str) -> None:
        subject.put(f"{place}/r", b"1234")

        async def body(origin: Origin) -> None:
            info = await origin.head("r", deadline=soon())
            passed = Deadline.after(-1)
            with pytest.raises(DeadlineExceededError):
                await origin.head("r", deadline=passed)
            with pytest.raises(DeadlineExceededError):
                await origin.read_range("r", 0, 4, version=info.version, deadline=passed)
            with pytest.raises(DeadlineExceededError):
                async for _ in origin.list_directory("", deadline=passed):
                    pass

        run(lambda: subject.attach(place), body)

    def test_a_cancelled_call_leaves_nothing_and_harms_nothing(self, subject: Subject, place: str) -> None:
        subject.put(f"{place}/big", BIG)

        async def body(origin: Origin) -> None:
            info = await origin.head("big", deadline=soon())
            for yields in (0, 1, 3, 10):
                tasks = OwnedTasks(Exception)
                calls = [tasks.start(read(origin, info, 0, len(BIG))) for _ in range(3)]
                calls.append(tasks.start(read(origin, info, 5, 6)))
                for _ in range(yields):
                    await asyncio.sleep(0)
                await tasks.close()
                results = await asyncio.gather(*calls, return_exceptions=True)
                assert all(isinstance(result, asyncio.CancelledError | bytes) for result in results), results
            assert await read(origin, info, 7, 9) == BIG[7:9]

        run(lambda: subject.attach(place), body)

    def test_close_twice(self, subject: Subject, place: str) -> None:
        async def body(origin: Origin) -> None:
            await origin.close()
            await origin.close()

        run(lambda: subject.attach(place), body)

    def test_url_is_for_people(self, subject: Subject, place: str) -> None:
        origin = subject.attach(place)
        assert "://" in origin.url
        assert place in origin.url or origin.url.startswith("memory://")
