"""Causes of moments written by hand, and that what is blamed adds up."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from headrace.diagnose.attribute import Diagnosis, attribute
from headrace.diagnose.causes import REMEDIES, Cause
from headrace.diagnose.places import further_behind, plan_usage_of
from headrace.diagnose.recording import (
    FileSystemUsage,
    Frame,
    KernelCall,
    PlanUsage,
    Recording,
    Storage,
    Thread,
    TimelineSample,
    Worker,
)
from headrace.diagnose.report import lines_of, value_of

from .moments import (
    AUGMENTS,
    DECODES,
    FETCHES,
    IDLE,
    READS,
    SCRIPT,
    STARTS,
    STEPS,
    WAITS,
    recording,
    stepping,
    waiting,
    worker,
)

MIB = 1 << 20
AT_MOUNT = worker(KernelCall.READ, READS, "/mnt/data/7.bin")


def shares(diagnosis: Diagnosis) -> dict[str, float]:
    return {str(cause.cause): round(cause.share, 3) for cause in diagnosis.causes}


def test_a_wait_is_dealt_to_what_the_workers_did() -> None:
    both = waiting(worker(KernelCall.RUN, DECODES), worker(KernelCall.SOCKET, READS))
    diagnosis = attribute(recording((6, both), (4, stepping()), cores=2))
    assert shares(diagnosis) == {"loader.processor": 0.3, "storage.network": 0.3}
    assert diagnosis.steps_share == pytest.approx(0.4)
    assert not diagnosis.healthy


def test_free_cores_decide_between_too_few_workers_and_too_few_cores() -> None:
    moments = ((9, waiting(worker(KernelCall.RUN, AUGMENTS))), (1, stepping()))
    assert shares(attribute(recording(*moments, cores=2))) == {"loader.too_few_workers": 0.9}
    assert shares(attribute(recording(*moments, cores=1))) == {"loader.processor": 0.9}


def test_idle_workers_are_blamed_only_when_they_are_many() -> None:
    busy = worker(KernelCall.RUN, AUGMENTS)
    idle = worker(KernelCall.WAIT, IDLE)
    diagnosis = attribute(recording((8, waiting(busy, idle, idle, idle)), (2, stepping()), cores=4))
    assert shares(diagnosis) == {"loader.starved": 0.6, "loader.processor": 0.2}
    few = attribute(recording((8, waiting(busy, busy, busy, idle)), (2, stepping()), cores=4))
    assert shares(few) == {"loader.processor": 0.8}


@pytest.mark.parametrize(
    ("place", "cause"),
    [
        (
            FileSystemUsage("/mnt/data", Storage.HEADRACE, "headrace", "s3://b", origin_bytes=9 * MIB),
            Cause.ORIGIN,
        ),
        (
            FileSystemUsage("/mnt/data", Storage.HEADRACE, "headrace", "s3://b", peer_bytes=9 * MIB),
            Cause.PEER,
        ),
        (FileSystemUsage("/mnt/data", Storage.HEADRACE, "headrace", "s3://b"), Cause.DISK),
        (FileSystemUsage("/mnt/data", Storage.SHARE, "nfs4", "nas:/x"), Cause.SHARE),
        (FileSystemUsage("/mnt/data", Storage.DISK, "ext4", "/dev/sda1", busy=0.99), Cause.DISK),
        (FileSystemUsage("/", Storage.DISK, "ext4", "/dev/sda1"), Cause.DISK),
    ],
)
def test_where_the_file_lies_decides_which_storage_it_is(place: FileSystemUsage, cause: Cause) -> None:
    diagnosis = attribute(recording((9, waiting(AT_MOUNT)), (1, stepping()), places=(place,)))
    assert shares(diagnosis) == {cause: 0.9}
    assert place.source in " ".join(diagnosis.causes[0].evidence)


def test_origin_and_peers_share_a_wait_by_their_bytes() -> None:
    place = FileSystemUsage(
        "/mnt/data", Storage.HEADRACE, "headrace", "s3://b", origin_bytes=3 * MIB, peer_bytes=MIB
    )
    diagnosis = attribute(recording((8, waiting(AT_MOUNT)), (2, stepping()), places=(place,)))
    assert shares(diagnosis) == {"storage.origin": 0.6, "storage.peer": 0.2}


def test_opens_are_names_on_other_storage_and_bytes_on_ours() -> None:
    opens = waiting(worker(KernelCall.OPEN, READS, "/mnt/data/7.json"))
    share = FileSystemUsage("/mnt/data", Storage.SHARE, "nfs4", "nas:/x")
    assert shares(attribute(recording((1, opens), places=(share,)))) == {"storage.metadata": 1.0}
    ours = FileSystemUsage("/mnt/data", Storage.HEADRACE, "headrace", "s3://b", origin_bytes=MIB)
    assert shares(attribute(recording((1, opens), places=(ours,)))) == {"storage.origin": 1.0}


def test_what_the_library_waits_for_is_asked_of_the_node() -> None:
    library = (
        *FETCHES,
        Frame("NodeClient.open", "/x/headrace/client/node_client.py", 3),
        Frame("recv", "/x/socket.py", 1),
    )
    moment = waiting(worker(KernelCall.SOCKET, library))
    node = FileSystemUsage("headrace://", Storage.HEADRACE, "headrace", "s3://b", peer_bytes=MIB)
    assert shares(attribute(recording((1, moment), places=(node,)))) == {"storage.peer": 1.0}
    assert shares(attribute(recording((1, moment)))) == {"storage.origin": 1.0}


def test_a_copy_is_no_cause_while_the_gpu_is_busy() -> None:
    line = Thread(KernelCall.RUN, (Frame("train", "/home/me/train.py", 8, "x = x.to(device)"),))
    assert attribute(recording((1, TimelineSample(0, 0.02, line, gpu_busy=0.97)))).healthy
    assert shares(attribute(recording((1, TimelineSample(0, 0.02, line, gpu_busy=0.1))))) == {"copies": 1.0}


def test_a_thread_that_reads_for_a_worker_tells_for_it() -> None:
    pool = Worker(9, Thread(KernelCall.LOCK, READS), (Thread(KernelCall.READ, (), "/mnt/data/1.bin"),))
    share = FileSystemUsage("/mnt/data", Storage.SHARE, "nfs4", "nas:/x")
    assert shares(attribute(recording((1, waiting(pool)), places=(share,)))) == {"storage.share": 1.0}


def test_what_the_trainer_does_itself() -> None:
    fetch = Frame("fetch", "/x/torch/utils/data/_utils/fetch.py", 54)
    in_main = stepping(KernelCall.RUN, stack=(*WAITS[:3], fetch, AUGMENTS[-1]))
    save = stepping(KernelCall.WRITE, stack=(SCRIPT, Frame("save", "/x/torch/serialization.py", 900)))
    copy = stepping(KernelCall.RUN, stack=(Frame("train", "/home/me/train.py", 8, "x = x.to(device)"),))
    diagnosis = attribute(recording((4, in_main), (3, save), (2, copy), (1, stepping(stack=STARTS))))
    assert shares(diagnosis) == {
        "loader.in_main_process": 0.4, "checkpoint": 0.3, "copies": 0.2, "loader.restarts": 0.1,
    }  # fmt: skip


def test_a_save_is_one_whatever_it_was_called_from() -> None:
    stack = (
        *WAITS[:3],
        Frame("save_checkpoint", "/home/me/hooks.py", 3),
        Frame("write", "/home/me/io.py", 4),
    )
    assert shares(attribute(recording((1, stepping(KernelCall.WRITE, stack=stack))))) == {"checkpoint": 1.0}


def test_one_core_is_blamed_only_where_there_are_more() -> None:
    loop = stepping(KernelCall.RUN, stack=(SCRIPT, Frame("beam", "/home/me/train.py", 3, "a = b")))
    assert shares(attribute(recording((1, loop), cores=8))) == {"compute.unparallel": 1.0}
    assert attribute(recording((1, loop), cores=1)).healthy
    both = stepping(KernelCall.RUN, running=2, stack=loop.main.stack)
    assert attribute(recording((1, both), cores=8)).healthy


def test_small_steps_are_told_by_their_overhead_and_their_pace() -> None:
    adam = Frame("Adam.step", "/x/torch/optim/adam.py", 100)
    linear = Frame("Linear.forward", "/x/torch/nn/modules/linear.py", 100)
    call = Frame("Module._call_impl", "/x/torch/nn/modules/module.py", 1700)
    optimizer = stepping(KernelCall.RUN, stack=(SCRIPT, adam))
    forward = stepping(KernelCall.RUN, stack=(SCRIPT, call, linear))
    turns = recording(*[(1, optimizer), (1, forward)] * 20)
    assert shares(attribute(turns)) == {"compute.small_batches": 1.0}
    runs = recording((20, optimizer), (20, forward))
    assert shares(attribute(runs)) == {"compute.unparallel": 1.0}
    mostly_one = recording(*[(8, optimizer), (1, forward)] * 5)
    assert shares(attribute(mostly_one)) == {"compute.small_batches": 1.0}
    counted = recording((20, optimizer), (20, forward), steps=400, samples=400)
    assert shares(attribute(counted)) == {"compute.small_batches": 1.0}
    assert "400 steps of 2.0 ms, 1 samples each" in attribute(counted).causes[0].evidence


def test_a_busy_gpu_excuses_what_the_trainer_does_beside_it() -> None:
    loop = Thread(KernelCall.RUN, (SCRIPT,))
    assert attribute(recording((1, TimelineSample(0, 0.02, loop, gpu_busy=0.95)))).healthy
    assert not attribute(recording((1, TimelineSample(0, 0.02, loop, gpu_busy=0.2)))).healthy


def test_a_wait_for_the_interpreters_lock_needs_another_python_thread() -> None:
    main = Thread(KernelCall.LOCK, (SCRIPT, Frame("step", "/home/me/train.py", 9, "torch.mm(a, b)")))
    other = Thread(KernelCall.RUN, (Frame("score", "/home/me/train.py", 4),))
    native = Thread(KernelCall.RUN)
    assert shares(attribute(recording((1, TimelineSample(0, 0.02, main, others=(other,)))))) == {
        "compute.interpreter_lock": 1.0
    }
    assert attribute(recording((1, TimelineSample(0, 0.02, main, others=(native,))))).healthy
    asked = Thread(KernelCall.LOCK, (SCRIPT, Frame("step", "/home/me/train.py", 9, "thread.join()")))
    assert attribute(recording((1, TimelineSample(0, 0.02, asked, others=(other,))))).healthy


def test_rivals_for_the_lock_count_where_the_trainer_was_seen_to_wait_for_it() -> None:
    line = (SCRIPT, Frame("step", "/home/me/train.py", 9, "torch.mm(a, b)"))
    other = Thread(KernelCall.RUN, (Frame("score", "/home/me/train.py", 4),))
    ready = TimelineSample(0, 0.02, Thread(KernelCall.RUN, line), others=(other,), running=2)
    waits = TimelineSample(0, 0.02, Thread(KernelCall.LOCK, line), others=(other,))
    assert attribute(recording((10, ready))).healthy
    assert shares(attribute(recording((8, ready), (2, waits)))) == {"compute.interpreter_lock": 0.6}


def test_the_hook_says_that_a_line_that_looks_like_a_copy_is_the_step() -> None:
    line = Thread(KernelCall.RUN, (Frame("train", "/home/me/train.py", 8, "y = model(x.to(device))"),))
    assert shares(attribute(recording((1, TimelineSample(0, 0.02, line))))) == {"copies": 1.0}
    assert "copies" not in shares(attribute(recording((1, TimelineSample(0, 0.02, line, marked=True)))))


def test_what_comes_before_the_first_batch_and_after_the_last_is_left_out() -> None:
    imports = stepping(KernelCall.RUN, stack=(SCRIPT, Frame("_find", "<frozen importlib._bootstrap>", 1)))
    end = stepping(KernelCall.RUN, stack=(SCRIPT,))
    moments = ((50, imports), (10, waiting(AT_MOUNT)), (30, end))
    ended = attribute(recording(*moments, ended=True))
    assert ended.wall_s == pytest.approx(0.2)
    assert ended.before_s == pytest.approx(1.0)
    assert shares(ended) == {"storage.disk": 1.0}
    assert attribute(recording(*moments)).wall_s == pytest.approx(0.8)


IMPORTS = stepping(KernelCall.RUN, stack=(SCRIPT, Frame("_find", "<frozen importlib._bootstrap>", 1)))
LOADER_STARTS = stepping(KernelCall.RUN, stack=STARTS)
BUILDS = stepping(
    KernelCall.RUN, stack=(SCRIPT, Frame("Model.__init__", "/home/me/model.py", 12, "self.x = mix(y)"))
)
MOVES = stepping(KernelCall.RUN, stack=(Frame("<module>", "/home/me/train.py", 15, "model.to(device)"),))
COMPUTES = stepping(KernelCall.RUN, stack=(SCRIPT, Frame("step", "/home/me/train.py", 30, "y = mix(x)")))


@pytest.mark.parametrize("setup", [(IMPORTS,), (BUILDS,), (MOVES,), (IMPORTS, BUILDS, MOVES)])
@pytest.mark.parametrize("waits", [0, 5])
def test_what_comes_between_the_loaders_start_and_the_first_step_is_no_cause(
    setup: tuple[TimelineSample, ...], waits: int
) -> None:
    before = [(20, IMPORTS), (3, LOADER_STARTS), *((40, moment) for moment in setup)]
    steps = [(waits, waiting(AT_MOUNT)), (10, stepping()), (1, waiting(AT_MOUNT)), (29, stepping())]
    diagnosis = attribute(recording(*before, *steps))
    assert diagnosis.before_s == pytest.approx(0.02 * (23 + 40 * len(setup) + waits))
    assert shares(diagnosis) == {"storage.disk": 0.025}


def test_steps_before_the_first_wait_for_data_that_is_seen_are_steps() -> None:
    before = [(20, IMPORTS), (3, LOADER_STARTS), (10, BUILDS)]
    steps = [(30, COMPUTES), (1, waiting(AT_MOUNT)), (30, COMPUTES)]
    diagnosis = attribute(recording(*before, *steps))
    assert diagnosis.before_s == pytest.approx(0.02 * 33)
    assert diagnosis.wall_s == pytest.approx(0.02 * 61)
    assert diagnosis.causes[0].cause == "compute.unparallel"


def test_of_a_job_without_a_sign_of_steps_imports_after_the_loaders_start_are_left_out() -> None:
    before = [(20, IMPORTS), (3, LOADER_STARTS), (4, BUILDS), (40, IMPORTS)]
    diagnosis = attribute(recording(*before, (60, COMPUTES), (1, IMPORTS), (100, COMPUTES)))
    assert diagnosis.before_s == pytest.approx(0.02 * 67)
    assert diagnosis.wall_s == pytest.approx(0.02 * 161)  # an import amid the steps ends no setup


SLEEPS = stepping(stack=(Frame("<module>", "/home/me/wait.py", 2, "time.sleep(60)"),))


@pytest.mark.parametrize(
    "moments",
    [
        ((1, BUILDS), (60, IMPORTS)),
        ((60, IMPORTS),),
        ((60, IMPORTS), (3, LOADER_STARTS), (20, IMPORTS)),
        ((60, IMPORTS), (10, BUILDS), (1, MOVES), (10, BUILDS)),
        ((60, IMPORTS), (80, MOVES)),
        ((60, SLEEPS),),
        ((2, COMPUTES), (60, SLEEPS)),
        ((20, IMPORTS), (60, SLEEPS)),
    ],
)
@pytest.mark.parametrize("ended", [True, False])
def test_without_a_step_there_is_no_cause_and_nothing_is_healthy(
    moments: tuple[tuple[int, TimelineSample], ...], ended: bool
) -> None:
    diagnosis = attribute(recording(*moments, ended=ended))
    assert (diagnosis.causes, diagnosis.healthy, diagnosis.wall_s) == ((), False, 0)
    (line,) = lines_of(diagnosis)
    watched_s = 0.02 * sum(count for count, _ in moments)
    assert line.startswith(f"no step of the job was seen in {watched_s:.1f} s: ")
    assert ("--seconds" in line) is not ended
    value = value_of(diagnosis)
    assert (value["summary"], value["causes"], value["healthy"]) == (line, [], False)


def test_a_loop_of_a_job_without_a_known_loader_is_steps_when_it_outlasts_the_imports() -> None:
    reads = stepping(KernelCall.READ, stack=(SCRIPT, Frame("load", "/home/me/train.py", 4, "file.read()")))
    loop = [(10, COMPUTES), (10, reads)] * 4
    diagnosis = attribute(recording((60, IMPORTS), *loop))
    assert diagnosis.before_s == pytest.approx(1.2)
    assert shares(diagnosis) == {"storage.disk": 0.5, "compute.unparallel": 0.5}


def test_of_a_job_that_ran_before_nothing_is_taken_for_its_setup() -> None:
    diagnosis = attribute(recording((20, BUILDS), (5, waiting(AT_MOUNT)), (20, stepping())))
    assert diagnosis.before_s == pytest.approx(0.02 * 20)  # no loader was seen until then
    ran = attribute(recording((1, waiting(AT_MOUNT)), (20, BUILDS), (5, waiting(AT_MOUNT)), (20, stepping())))
    assert ran.before_s == 0


def test_each_trainer_has_a_beginning_of_its_own() -> None:
    imports = stepping(KernelCall.RUN, stack=(SCRIPT, Frame("_find", "<frozen importlib._bootstrap>", 1)))
    moments = [imports] * 10 + [stepping(), waiting(AT_MOUNT)] * 5
    both = [*moments, *(replace(moment, trainer=1) for moment in moments)]
    diagnosis = attribute(Recording(tuple(both), 8))
    assert diagnosis.wall_s == pytest.approx(0.32)
    assert diagnosis.before_s == pytest.approx(0.24)
    assert diagnosis.recording.watched_s == pytest.approx(0.16)
    assert shares(diagnosis) == {"storage.disk": 0.5}
    assert "of 2 trainers" in lines_of(diagnosis)[0]


def test_without_stacks_the_kernel_alone_is_asked() -> None:
    blind = TimelineSample(
        0, 0.02, Thread(KernelCall.WAIT), (Worker(5, Thread(KernelCall.READ, (), "/mnt/x/1")),), running=0
    )
    assert shares(attribute(recording((1, blind)))) == {"storage.disk": 1.0}
    idle = TimelineSample(0, 0.02, Thread(KernelCall.OTHER), (Worker(5, Thread(KernelCall.WAIT)),), running=0)
    assert attribute(recording((1, idle))).healthy


def test_nothing_seen_is_neither_healthy_nor_sick() -> None:
    diagnosis = attribute(Recording((), 4))
    assert (diagnosis.healthy, diagnosis.causes, diagnosis.wall_s) == (False, (), 0)


STACKS = (IDLE, READS, DECODES, AUGMENTS, STEPS, STARTS, WAITS, ())
threads = some.builds(
    Thread,
    call=some.sampled_from(KernelCall),
    stack=some.sampled_from(STACKS),
    path=some.sampled_from(("", "/mnt/data/1", "/home/x")),
)
moments = some.builds(
    TimelineSample,
    at_s=some.just(0.0),
    span_s=some.floats(0.001, 1),
    main=threads,
    workers=some.lists(some.builds(Worker, pid=some.integers(1, 9), main=threads), max_size=4).map(tuple),
    others=some.lists(threads, max_size=2).map(tuple),
    running=some.integers(0, 4),
    marked=some.sampled_from((None, True, False)),
    gpu_busy=some.sampled_from((None, 0.1, 0.9)),
)


@given(some.lists(moments, min_size=1, max_size=20), some.integers(1, 8))
def test_no_moment_is_blamed_for_more_than_it_is(drawn: list[TimelineSample], cores: int) -> None:
    place = FileSystemUsage(
        "/mnt/data", Storage.HEADRACE, "headrace", "s3://b", origin_bytes=MIB, peer_bytes=5 * MIB
    )
    diagnosis = attribute(Recording(tuple(drawn), cores, places=(place,)))
    total = sum(cause.share for cause in diagnosis.causes)
    assert total <= 1 + 1e-9
    assert diagnosis.steps_share <= 1 - total + 1e-9
    for cause in diagnosis.causes:
        assert math.isfinite(cause.gain) and cause.gain >= 1 - 1e-9
        assert cause.gain <= 1 / max(0.01, 1 - cause.share) + 1e-9


def test_every_cause_has_words_and_a_gain_no_larger_than_its_share_allows() -> None:
    assert set(REMEDIES) == set(Cause)


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        (PlanUsage(), "no job of this node has a plan"),
        (PlanUsage(predicted=10, predicted_right=7), "10 files were predicted without a plan, and 7 of them"),
        (PlanUsage(streams=4, unreliable=1, needed_bytes_s=9), "the plan of 1 of 4 loaders is unreliable"),
        (PlanUsage(streams=2, learning=2), "the plan of 2 of 2 loaders is learned"),
        (
            PlanUsage(streams=1, needed_bytes_s=200 * MIB, fetched_bytes_s=50 * MIB),
            "the plans need 200 MiB/s, and the node fetched 50.0 MiB/s ahead",
        ),
    ],
)
def test_a_wait_for_the_origin_says_what_the_plan_was(plan: PlanUsage, sentence: str) -> None:
    place = FileSystemUsage(
        "/mnt/data", Storage.HEADRACE, "headrace", "s3://b", origin_bytes=9 * MIB, plan=plan
    )
    diagnosis = attribute(recording((9, waiting(AT_MOUNT)), (1, stepping()), places=(place,)))
    assert any(sentence in line for line in diagnosis.causes[0].evidence), diagnosis.causes[0].evidence


def test_a_plan_that_meets_its_deadlines_is_no_evidence() -> None:
    plan = PlanUsage(streams=1, needed_bytes_s=MIB, fetched_bytes_s=2 * MIB)
    place = FileSystemUsage(
        "/mnt/data", Storage.HEADRACE, "headrace", "s3://b", origin_bytes=9 * MIB, plan=plan
    )
    diagnosis = attribute(recording((9, waiting(AT_MOUNT)), (1, stepping()), places=(place,)))
    assert not any("plan" in line for line in diagnosis.causes[0].evidence)


def test_the_observation_that_explains_most_is_kept() -> None:
    started = PlanUsage(streams=1, needed_bytes_s=100, fetched_bytes_s=100)
    behind = PlanUsage(streams=1, needed_bytes_s=100, fetched_bytes_s=20)
    ended = PlanUsage(predicted=5, predicted_right=5)
    assert further_behind(None, ended) is not None
    worst = further_behind(further_behind(started, behind), ended)
    assert (worst.needed_bytes_s, worst.fetched_bytes_s, worst.predicted) == (100, 20, 5)


def test_a_status_without_plans_is_no_observation() -> None:
    assert plan_usage_of(None) is None
    assert plan_usage_of({"cache": {}}) is None
