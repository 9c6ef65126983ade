"""Two jobs that read one data set through one session: each is predicted by itself, at a bounded cost."""

from __future__ import annotations

import random
from collections.abc import Iterable

from headrace.plan.job_streams import (
    CANDIDATES_MAX,
    STREAM_FILES_MAX,
    STREAM_IDLE_S,
    STREAM_OPENS,
    STREAMS_MAX,
    JobStreams,
)
from headrace.plan.prediction import AccessPredictor

FILES = 2000


def streams_of(files: int = FILES) -> JobStreams:
    return JobStreams(lambda: AccessPredictor(files, 200), files)


def shuffled(seed: int) -> list[int]:
    return random.Random(seed).sample(range(FILES), FILES)


def in_turn(*orders: list[int]) -> list[tuple[int, int]]:
    """Return the (stream, file) of jobs that open a file each in turn."""
    return [(stream, file) for files in zip(*orders, strict=True) for stream, file in enumerate(files, 7)]


def run(streams: JobStreams, opens: Iterable[tuple[int, int]], *, step_s: float = 0.001) -> None:
    for count, (stream, file) in enumerate(opens):
        for predictor in streams.predicting:
            predictor.predictions(4)
        streams.open(file, stream, count * step_s)


def test_two_walks_are_followed_beside_each_other() -> None:
    streams = streams_of()
    run(streams, in_turn([*range(500)], [*range(1000, 1500)]))
    assert [predictor.model_name for predictor in streams.predicting] == ["sequential"] * 2
    issued, right, wrong = streams.counts
    assert right > 900
    assert wrong <= 20
    assert issued <= right + wrong + 400


def test_two_shuffled_jobs_are_predicted() -> None:
    """Together they read files as often twice as independent draws do, so that alone nothing would be predicted."""
    streams, mixed = streams_of(), AccessPredictor(FILES, 200)
    for epoch in range(3):
        opens = in_turn(shuffled(epoch), shuffled(100 + epoch))
        run(streams, opens)
        for count, (_, file) in enumerate(opens):
            mixed.predictions(4)
            mixed.open(file, count * 0.001)
    assert {predictor.model_name for predictor in streams.predicting} == {"shuffled"}
    assert len(streams.predicting) == 2
    _, right, wrong = streams.counts
    assert right > 10 * wrong
    assert right > 2 * mixed.right


def test_the_ranks_of_one_job_are_predicted_together() -> None:
    """Each reads another quarter of the files in each epoch; together they read each file once."""
    streams = streams_of()
    for epoch in range(3):
        order = shuffled(epoch)
        run(streams, in_turn(*(order[rank::4] for rank in range(4))))
    assert len(streams) == 4
    assert streams.predicting == [streams.joint]
    assert streams.joint.model_name == "shuffled"


def test_one_stream_is_one_predictor() -> None:
    streams = streams_of()
    run(streams, [(7, file) for file in range(500)])
    run(streams, [(8, file) for file in range(STREAM_OPENS - 1)])
    assert len(streams) == 1
    assert not streams._streams


def test_opens_of_nobody_are_followed_together() -> None:
    streams = streams_of()
    run(streams, [(0, file) for file in range(500)])
    assert streams.predicting == [streams.joint]
    assert not streams._candidates


def test_a_thousand_streams_take_bounded_memory_and_push_no_one_out() -> None:
    streams = streams_of()
    walks = in_turn([*range(300)], [*range(1000, 1300)])
    run(streams, walks)
    hostile = [(100 + stream, file) for stream in range(1000) for file in range(STREAM_OPENS + 2)]
    run(streams, hostile, step_s=1e-6)
    assert len(streams) <= STREAMS_MAX
    assert len(streams._candidates) <= CANDIDATES_MAX
    assert {7, 8} <= streams._streams.keys()
    run(streams, in_turn([*range(300, 400)], [*range(1300, 1400)]))
    assert {streams._streams[7].model_name, streams._streams[8].model_name} == {"sequential"}


def test_an_idle_stream_gives_way_and_its_predictions_are_counted() -> None:
    streams = streams_of()
    run(streams, in_turn(*([*range(100 * stream, 100 * stream + 90)] for stream in range(STREAMS_MAX))))
    assert len(streams) == STREAMS_MAX
    before = streams.counts
    for count in range(STREAM_OPENS + 1):
        streams.open(count, 99, 2 * STREAM_IDLE_S + count)
    assert 99 in streams._streams
    assert len(streams) == STREAMS_MAX
    issued, right, wrong = streams.counts
    assert issued == before[0]
    assert right >= before[1]
    assert wrong >= before[2]


def test_a_large_data_set_has_few_streams() -> None:
    streams = streams_of(STREAM_FILES_MAX)
    run(streams, in_turn(*([*range(100 * stream, 100 * stream + 90)] for stream in range(STREAMS_MAX))))
    assert len(streams) == 2
