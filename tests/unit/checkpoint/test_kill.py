"""kill -9 at every step of the commit and between any two instructions, again and again over one folder: nothing
acknowledged is lost, nothing half is there. HEADRACE_EXAMPLES is the number of folders."""

from __future__ import annotations

import os
import random
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.errors import CheckpointNotFoundError
from headrace.checkpoint import folder, load, save, steps, verify
from headrace.checkpoint.posix_storage import PosixStorage
from tests.unit.checkpoint.crasher import RETENTION, Crasher, options_of
from tests.unit.checkpoint.states import same, state_of

EXAMPLES = int(os.environ.get("HEADRACE_EXAMPLES", "12"))
ROUNDS = 4
SOURCE = Path(folder.__file__).parent
POINTS = sorted(
    name
    for path in SOURCE.glob("*.py")
    for name in re.findall(r'failpoint\.hit\("([a-z.]+)"\)', path.read_text())
    if name != "save.delivered"  # of several ranks
)


@pytest.fixture(scope="module")
def crasher() -> Iterator[Crasher]:
    process = Crasher()
    yield process
    process.close()


class History:
    """Compares what was tried and what was acknowledged in one folder with what is there."""

    def __init__(self, where: Path, seed: int) -> None:
        self.where, self.seed = str(where), seed
        self.place = PosixStorage(self.where)
        self.tried: dict[int, list[int]] = {}
        self.acknowledged: dict[int, int] = {}

    def check(self) -> None:
        there = steps(self.place)
        for step in there:
            self.check_step(step)
        known = sorted({*there, *self.acknowledged})
        kept = set(known) - set(RETENTION.dropped(known))
        assert kept & set(self.acknowledged) <= set(there), "an acknowledged checkpoint is gone"
        if not self.acknowledged and not there:
            with pytest.raises(CheckpointNotFoundError):
                load(self.where)

    def check_step(self, step: int) -> None:
        state = load(self.where, step)
        verify(self.where, step)
        attempt = state["attempt"]
        assert attempt in self.tried[step]
        assert attempt >= self.acknowledged.get(step, -1), "an older state is back"
        assert same(state, state_of(self.seed, step, attempt))

    def check_tidy(self) -> None:
        """After a save that nothing disturbed, all that lies there is needed."""
        needed = {name for step in steps(self.place) for name in folder.head(self.place, step).packs}
        assert set(self.place.names("packs")) == needed
        assert self.place.names("saves") == []
        assert len(self.place.names("manifests")) == len(steps(self.place))


@pytest.mark.parametrize("point", POINTS)
def test_each_step_of_the_commit(crasher: Crasher, tmp_path: Path, point: str) -> None:
    """The process ends there, whatever the others do."""
    history = History(tmp_path, 7)
    for attempt, (numbers, armed) in enumerate([(range(1, 8), ""), (range(8, 15), point)]):
        history.tried.update({step: [attempt] for step in numbers})
        answer = crasher.run(
            seed=7,
            attempt=attempt,
            folder=history.where,
            steps=list(numbers),
            failpoint=armed,
            hits=1,
            after_s=0,
        )
        assert answer["status"] == (-signal.SIGKILL if armed else 0)
        history.acknowledged.update(dict.fromkeys(answer["acknowledged"], attempt))
        history.check()
    assert len(history.acknowledged) >= 7


@pytest.mark.timeout(240 + 4 * EXAMPLES)
def test_killed_again_and_again(crasher: Crasher, tmp_path: Path) -> None:
    for seed in range(EXAMPLES):
        choose = random.Random(seed)
        history = History(tmp_path / str(seed), seed)
        for attempt in range(ROUNDS):
            first = choose.randrange(1, 8)
            numbers = list(range(first, first + choose.randrange(1, 5)))
            for step in numbers:
                history.tried.setdefault(step, []).append(attempt)
            point = choose.choice(POINTS) if choose.random() < 0.8 else ""
            answer = crasher.run(
                seed=seed,
                attempt=attempt,
                folder=history.where,
                steps=numbers,
                failpoint=point,
                hits=choose.choice([1, 1, 2, 3, 5]),
                after_s=0 if point else choose.uniform(0.001, 0.06),
            )
            assert answer["status"] in (0, -signal.SIGKILL, -signal.SIGALRM)
            history.acknowledged.update(dict.fromkeys(answer["acknowledged"], attempt))
            history.check()
        history.tried.setdefault(99, []).append(ROUNDS)
        save(state_of(seed, 99, ROUNDS), history.where, 99, options=options_of(choose))
        history.acknowledged[99] = ROUNDS
        history.check()
        history.check_tidy()
