"""Orders against lists: any series of advances and further epochs gives the next uses that a search finds."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from headrace.plan.eviction import PlannedVictims
from headrace.plan.orders import MergedOrders, PlannedStream

FILES = 12
FILE = st.integers(0, FILES - 1)
SPREAD = st.sampled_from([1, 1000])
"""By how much file numbers differ: orders of a range have another table than those of a few of many files."""
ORDERS = st.lists(
    st.one_of(st.permutations(range(FILES)), st.lists(FILE, max_size=2 * FILES)), min_size=1, max_size=3
)


def stream_of(orders: list[list[int]], batch_size: int = 1) -> PlannedStream:
    stream = PlannedStream(array("I", orders[0]), batch_size)
    for order in orders[1:]:
        stream.extend(array("I", order))
    while not stream.build(1):
        pass
    return stream


def next_position(reads: list[int], file: int, position: int) -> int | None:
    return next((index for index in range(position, len(reads)) if reads[index] == file), None)


@given(ORDERS, SPREAD, st.lists(st.integers(0, 4), max_size=20))
def test_the_next_position_is_the_first_one_that_a_search_finds(
    orders: list[list[int]], spread: int, advances: list[int]
) -> None:
    spread_orders = [[file * spread for file in order] for order in orders]
    reads = [file for order in spread_orders for file in order]
    stream = stream_of(spread_orders)
    position = 0
    for step in [0, *advances]:
        position += step
        stream.advance(position)
        for file in range(-1, FILES + 1):
            if file >= 0:
                assert stream.next_position(file * spread) == next_position(reads, file * spread, position)
        rest = [pair[1] for pair in stream.deadlines()]
        assert rest == reads[position:]


def soonest(streams: list[PlannedStream], reads: list[list[int]], file: int) -> float | None:
    deadlines = [
        (index - stream.position) // stream.batch_size * stream.step_s
        for stream, order in zip(streams, reads, strict=True)
        if (index := next_position(order, file, stream.position)) is not None
    ]
    return min(deadlines, default=None)


READERS = st.lists(
    st.tuples(
        ORDERS, st.integers(1, 3), st.sampled_from([0.5, 1.0, 3.0]), st.lists(st.integers(0, 5), max_size=8)
    ),
    min_size=1,
    max_size=3,
)


@given(READERS, st.sets(FILE))
def test_merged_orders_are_the_soonest_use_of_each_file(
    readers: list[tuple[list[list[int]], int, float, list[int]]], candidates: set[int]
) -> None:
    merged, streams = MergedOrders(), []
    for number, (orders, batch_size, step_s, advances) in enumerate(readers):
        streams.append(stream_of(orders, batch_size))
        streams[-1].set_step_s(step_s)
        merged.add(number, streams[-1])
        merged.advance(number, sum(advances))
    reads = [[file for order in orders for file in order] for orders, *_ in readers]
    uses = {file: soonest(streams, reads, file) for file in range(FILES)}
    assert {file: merged.next_use_s(file) for file in range(FILES)} == uses
    planned = {file: use for file, use in uses.items() if use is not None}
    deadlines = list(merged.deadlines(1e9, 1000))
    assert {file: deadline for deadline, file in deadlines} == planned
    assert len(deadlines) == len(planned)
    assert [deadline for deadline, _ in deadlines] == sorted(planned.values())
    furthest = list(merged.furthest(candidates.__contains__))
    assert sorted(furthest) == sorted(candidates & planned.keys())
    assert [planned[file] for file in furthest] == sorted((planned[file] for file in furthest), reverse=True)


@given(
    READERS,
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6), st.sets(FILE, max_size=4)), max_size=12),
    st.booleans(),
)
def test_victims_are_the_files_that_are_needed_last(
    readers: list[tuple[list[list[int]], int, float, list[int]]],
    events: list[tuple[int, int, set[int]]],
    ends_a_job: bool,
) -> None:
    merged, resident = MergedOrders(), dict.fromkeys(range(0, FILES, 2), 1)
    for number, (orders, batch_size, step_s, _) in enumerate(readers):
        stream = stream_of(orders, batch_size)
        stream.set_step_s(step_s)
        merged.add(number, stream)
    victims = PlannedVictims(merged, lambda file: resident.get(file, 0))
    for number, advance, arrivals in events:
        stream_key = number % len(readers)
        known = merged.get(stream_key)
        merged.advance(stream_key, 0 if known is None else known.position + advance)
        for file in arrivals - resident.keys():
            resident[file] = 1
            victims.insert(file)
        if ends_a_job and advance == 6:
            merged.remove(stream_key)
        while not victims.catch_up(3):
            pass
        chosen = victims.victims(FILES, lambda file: file == 4)
        uses = {file: merged.next_use_s(file) for file in resident if file != 4 and merged.knows(file)}
        assert sorted(chosen) == sorted(uses)
        ranks = [float("inf") if use is None else use for use in map(uses.__getitem__, chosen)]
        assert ranks == sorted(ranks, reverse=True)
        first = victims.victims(2, lambda file: file == 4)
        assert [uses[file] for file in first] == [uses[file] for file in chosen[:2]]
        for file in first[:1]:
            del resident[file]
