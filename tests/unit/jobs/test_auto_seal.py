"""Seals that a node makes by itself: when it makes them, and what makes it give them up."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from headrace.base.errors import UsageError
from headrace.base.write_modes import WriteModes
from headrace.jobs.auto_seal import AutoSealRules
from headrace.jobs.automatic_seals import AutomaticSeals
from headrace.jobs.jobs import Jobs
from headrace.jobs.progress import JobProgress
from headrace.jobs.seal import Sealing
from headrace.policy.current import CurrentPolicy
from headrace.seal.catalogue import Place, SealId, SealRecord
from tests.unit.jobs.sealing_fixture import NAMES, SealingFixture

QUIET_S = 0.2


class AutoSealFixture(SealingFixture):
    """The jobs of a node with `seal = "auto"`, whose origin has five files, and others below /d/a."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.policy = CurrentPolicy()

    def set_policy(self, **seals: str) -> None:
        """Put a policy in force: top-level directories, each with its value of `seal`; `all`: of the whole."""
        rules = [
            f'[[rule]]\nmatch = ["{"" if name == "all" else "/" + name}/**"]\nseal = "{value}"\n'
            for name, value in seals.items()
        ]
        self.policy.adopt(self.policy.record.followed_by("".join(rules), author="test", now_s=1.0))

    def restart_jobs(self, *, quiet_s: float = QUIET_S, modes: str = "", by_default: bool = True) -> None:
        self.jobs = Jobs(
            *(self.namespace, self.store, self.reads, self.disk),
            catalogue=self.catalogue,
            modes=WriteModes.parse(modes),
            on_damaged=self._damaged,
            auto_seal=AutoSealRules(self.policy, by_default, quiet_s),
        )
        self.jobs.auto_seal.start()

    @property
    def row(self) -> dict[str, str]:
        rows = self.jobs.auto_seal.status()
        if not rows:
            return {"path": "", "seal": "", "why": "it did not begin"}
        return {name: rows[0][name] for name in ("path", "seal", "why")}

    async def until(self, is_reached: Callable[[], bool]) -> None:
        for _ in range(1000):
            if is_reached():
                return
            await asyncio.sleep(0.01)
        raise AssertionError(self.jobs.auto_seal.status())

    async def sealed(self) -> SealId:
        await self.until(lambda: bool(self.row["seal"]))
        return SealId.parse(self.row["seal"])

    async def list_and_load(self) -> None:
        await self.run("load", "/")


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AutoSealFixture]:
    monkeypatch.setattr(Sealing, "trouble", "")
    monkeypatch.setattr("headrace.jobs.automatic_seals.FILES_MIN", 3)
    async with AutoSealFixture(tmp_path).running() as node:
        yield node
        await node.jobs.auto_seal.stop()


async def test_a_whole_and_quiet_data_set_is_sealed(node: AutoSealFixture) -> None:
    node.restart_jobs()
    await node.until(lambda: node.row["why"] in ("nothing of it was listed", "it was not listed as a whole"))
    await node.list_and_load()
    seal = await node.sealed()
    record = node.catalogue.record(seal)
    assert seal == SealId("auto-all", 1) and record.automatic and record.path == "/"
    assert {entry.path.decode() for entry in node.catalogue.entries(record) if entry.is_file} == set(
        node.truth
    )


async def test_what_is_not_cached_as_a_whole_is_not_sealed(node: AutoSealFixture) -> None:
    await node.list_and_load()
    node.store.free((await node.entry("d/b")).id)
    node.restart_jobs()
    await node.until(lambda: node.row["why"] == "it is not cached as a whole")
    assert node.catalogue.seals() == []
    await node.list_and_load()
    await node.sealed()


async def test_status_says_when_a_data_set_is_looked_at_again(node: AutoSealFixture) -> None:
    node.restart_jobs(quiet_s=300.0)
    await node.until(lambda: bool(node.jobs.auto_seal.status()))
    (row,) = node.jobs.auto_seal.status()
    assert (row["path"], row["why"]) == ("/", "it is new") and 0 < row["next_s"] <= 300
    await node.jobs.auto_seal.stop()
    await node.list_and_load()
    node.restart_jobs()
    await node.sealed()
    (row,) = node.jobs.auto_seal.status()
    assert (row["why"], row["next_s"]) == ("", None)


async def test_few_or_large_files_and_written_ones_are_not_sealed(
    node: AutoSealFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.list_and_load()
    monkeypatch.setattr("headrace.jobs.automatic_seals.FILES_MIN", 100)
    node.restart_jobs()
    await node.until(lambda: node.row["why"] == "it has fewer than 100 files")
    monkeypatch.setattr("headrace.jobs.automatic_seals.FILES_MIN", 3)
    monkeypatch.setattr("headrace.jobs.automatic_seals.AVERAGE_BYTES_MAX", 1000)
    await node.until(lambda: node.row["why"] == "its files are large")
    await node.jobs.auto_seal.stop()
    node.restart_jobs(modes="off,/d=back")
    await node.until(lambda: node.row["why"] == "its files can be written")
    assert node.catalogue.seals() == []


async def test_a_change_at_the_origin_ends_the_seal_and_a_new_one_has_the_new_bytes(
    node: AutoSealFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    unmounted: list[SealId] = []
    await node.list_and_load()
    node.restart_jobs()
    first = await node.sealed()
    automatic = node.jobs.auto_seal._seals
    monkeypatch.setattr(automatic, "unmount", unmounted.append)
    node.hold("d/b", 9)
    names = node.namespace.resolver
    directory = await names.resolve(b"/d")
    node.jobs.auto_seal.names_changed([(directory.id, b"b")])
    assert unmounted == [first] and node.row["why"] == "its names changed at the origin"
    await node.until(lambda: node.catalogue.seals() == [])
    await node.run("sync", "/")
    await node.list_and_load()
    second = await node.sealed()
    sizes = {entry.path: entry.size_bytes for entry in node.catalogue.entries(node.catalogue.record(second))}
    assert sizes[b"d/b"] == 9


async def test_a_sealed_data_set_is_compared_with_its_origin(node: AutoSealFixture) -> None:
    """No request of a reader lists it any more."""
    await node.list_and_load()
    node.restart_jobs()
    await node.sealed()
    node.hold("d/new", 10)
    relisted = asyncio.Event()
    directory = await node.namespace.resolver.resolve(b"/d")
    for _ in range(1000):
        if any(child.name == b"new" for child in node.store.index.children(directory.id)):
            relisted.set()
            break
        await asyncio.sleep(0.01)
    assert relisted.is_set()


async def test_freeing_a_file_ends_the_seal_first(node: AutoSealFixture) -> None:
    await node.list_and_load()
    node.restart_jobs()
    await node.sealed()
    state = await node.run("free", "/d/a")
    assert state.failed_files == 0 and state.files_done == 2
    assert node.catalogue.seals() == [] and node.row["why"] == "some of its files were freed"


async def test_a_seal_makes_room_and_is_not_made_again_soon(node: AutoSealFixture) -> None:
    await node.list_and_load()
    node.restart_jobs()
    await node.sealed()
    assert await node.jobs.auto_seal.revoke_oldest()
    assert not await node.jobs.auto_seal.revoke_oldest()
    assert node.catalogue.seals() == [] and node.row["why"] == "the cache needed the room"
    await asyncio.sleep(4 * QUIET_S)
    assert node.row["seal"] == ""


async def test_a_seal_that_a_user_removed_is_not_made_again_soon(node: AutoSealFixture) -> None:
    await node.list_and_load()
    node.restart_jobs()
    seal = await node.sealed()
    await node.run("unseal", seal=str(seal))
    await node.until(lambda: node.row["why"] == "a user removed its seal")
    await asyncio.sleep(4 * QUIET_S)
    assert node.row["seal"] == "" and node.catalogue.seals() == []


async def test_the_next_run_takes_a_seal_over_and_one_without_auto_removes_it(node: AutoSealFixture) -> None:
    await node.list_and_load()
    node.restart_jobs()
    seal = await node.sealed()
    await node.jobs.auto_seal.stop()
    node.restart_jobs(quiet_s=60.0)
    await node.until(lambda: bool(node.jobs.auto_seal.status()))
    assert node.row == {"path": "/", "seal": str(seal), "why": ""}
    await node.jobs.auto_seal.stop()
    node.restart_jobs(by_default=False)
    await node.until(lambda: node.catalogue.seals() == [])


async def test_a_seal_of_a_user_in_place_is_left_alone(node: AutoSealFixture) -> None:
    await node.run("seal", "/d")
    node.catalogue.change_places(SealId("a", 1), lambda _: [Place("/mnt/d", in_place=True)])
    await node.list_and_load()
    node.restart_jobs()
    await node.until(lambda: node.row["why"] == "seal a@1 is mounted over it")
    assert node.catalogue.seals() == [SealId("a", 1)]


async def test_a_rule_seals_what_the_configuration_leaves_alone(node: AutoSealFixture) -> None:
    await node.list_and_load()
    node.set_policy(d="auto")
    node.restart_jobs(by_default=False)
    seal = await node.sealed()
    assert node.row == {"path": "/d", "seal": str(seal), "why": ""}
    record = node.catalogue.record(seal)
    assert {entry.path: entry.size_bytes for entry in node.catalogue.entries(record) if entry.is_file} == {
        name.removeprefix("d/").encode(): size for name, size in NAMES.items() if name.startswith("d/")
    }
    node.set_policy(other="auto")
    await node.until(lambda: node.catalogue.seals() == [])
    assert node.row["path"] == "/other"


async def test_a_rule_keeps_a_data_set_from_being_sealed(node: AutoSealFixture) -> None:
    await node.list_and_load()
    node.restart_jobs()
    await node.sealed()
    node.set_policy(all="off")
    await node.until(lambda: node.catalogue.seals() == [] and node.jobs.auto_seal.status() == [])


async def test_a_data_set_with_a_part_that_is_off_is_not_sealed(node: AutoSealFixture) -> None:
    await node.list_and_load()
    node.restart_jobs()
    await node.sealed()
    node.set_policy(d="off")
    await node.until(lambda: node.row["why"] == "a rule of the policy says off for /d")
    await node.until(lambda: node.catalogue.seals() == [])
    await asyncio.sleep(4 * QUIET_S)
    assert node.catalogue.seals() == []


async def test_what_is_off_since_the_check_began_is_not_sealed_at_its_turn(
    node: AutoSealFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seal that nobody watches would hide changes of the origin for good."""
    node.hold("e/a", 5)
    await node.list_and_load()
    node.set_policy(d="auto", e="auto")
    node.restart_jobs(by_default=False)
    automatic = node.jobs.auto_seal._seals
    begun, may_go_on, make = asyncio.Event(), asyncio.Event(), automatic.make
    monkeypatch.setattr("headrace.jobs.automatic_seals.FILES_MIN", 1)

    async def make_later(path: bytes, progress: JobProgress) -> SealId | None:
        begun.set()
        await may_go_on.wait()
        return await make(path, progress)

    monkeypatch.setattr(automatic, "make", make_later)
    await begun.wait()
    node.set_policy(other="auto")
    await asyncio.sleep(2 * QUIET_S)
    may_go_on.set()
    await asyncio.sleep(4 * QUIET_S)
    await node.until(lambda: node.catalogue.seals() == [])
    assert [row["path"] for row in node.jobs.auto_seal.status()] == ["/other"]


async def test_a_part_that_is_off_since_the_seal_began_ends_it_at_once(
    node: AutoSealFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.list_and_load()
    node.restart_jobs(quiet_s=100.0)
    auto_seal = node.jobs.auto_seal
    make, data_set = auto_seal._seals.make, auto_seal._data_sets
    await node.until(lambda: bool(data_set))

    async def make_and_change(path: bytes, progress: JobProgress) -> SealId | None:
        seal = await make(path, progress)
        node.set_policy(d="off")
        return seal

    monkeypatch.setattr(auto_seal._seals, "make", make_and_change)
    await auto_seal._try_to_seal(data_set[b"/"])
    assert node.row == {"path": "/", "seal": "", "why": "a rule of the policy says off for /d"}
    await node.until(lambda: node.catalogue.seals() == [])


@pytest.mark.expected_warnings("an automatic seal can't be removed")
async def test_a_seal_that_can_not_be_removed_at_the_start_keeps_no_other_from_being_made(
    node: AutoSealFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.list_and_load()
    node.restart_jobs()
    first = await node.sealed()
    await node.jobs.auto_seal.stop()
    node.set_policy(d="auto")
    node.restart_jobs(by_default=False)

    async def refuse(seal: SealId) -> None:
        raise UsageError(f"seal {seal}", why="it is mounted")

    monkeypatch.setattr(node.jobs.auto_seal._seals, "remove", refuse)
    await node.until(lambda: node.row["path"] == "/d" and node.row["seal"] == "auto-d@1")
    assert node.catalogue.seals() == [first, SealId("auto-d", 1)]


@pytest.mark.expected_warnings("an automatic seal can't be removed seal=auto-all@1")
async def test_a_seal_that_another_program_holds_is_removed_later(
    node: AutoSealFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.list_and_load()
    node.restart_jobs()
    seal = await node.sealed()
    auto_seal = node.jobs.auto_seal
    remove, refusals = auto_seal._seals.remove, [UsageError(f"seal {seal}", why="it is mounted at /x")]

    async def refuse_once(seal: SealId) -> None:
        if refusals:
            raise refusals.pop()
        await remove(seal)

    monkeypatch.setattr(auto_seal._seals, "remove", refuse_once)
    node.set_policy(all="off")
    await node.until(lambda: node.catalogue.seals() == [])
    assert not refusals


@pytest.mark.expected_warnings("the automatic seals of the last run can't be read")
async def test_seals_of_the_last_run_that_can_not_be_read_at_first_are_removed_later(
    node: AutoSealFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names may have changed meanwhile, and such a seal would hide it for ever."""
    await node.list_and_load()
    node.restart_jobs()
    made_s = node.catalogue.record(await node.sealed()).created_s
    await node.jobs.auto_seal.stop()
    read, failures = AutomaticSeals.records, 0

    def fail_twice(seals: AutomaticSeals) -> list[SealRecord]:
        nonlocal failures
        failures += 1
        if failures <= 2:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return read(seals)

    monkeypatch.setattr(AutomaticSeals, "records", fail_twice)
    node.restart_jobs()
    seal = await node.sealed()
    assert failures == 3 and node.catalogue.record(seal).created_s > made_s


@pytest.mark.expected_warnings("an automatic seal can't be unmounted")
async def test_a_seal_that_can_not_be_unmounted_at_first_is_removed_nevertheless(
    node: AutoSealFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listing that found the change succeeds, and the seal is not forgotten while it is mounted."""
    await node.list_and_load()
    node.restart_jobs()
    seal = await node.sealed()
    unmount, failures = AutomaticSeals.unmount, 0

    def fail_once(seals: AutomaticSeals, seal: SealId) -> None:
        nonlocal failures
        failures += 1
        if failures == 1:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        unmount(seals, seal)

    monkeypatch.setattr(AutomaticSeals, "unmount", fail_once)
    top = await node.entry("d")
    node.jobs.auto_seal.names_changed([(top.id, b"b")])
    await node.until(lambda: seal not in node.catalogue.seals())
    assert failures > 1
