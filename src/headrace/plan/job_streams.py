"""Divide the opens of a data set by the jobs that make them, so that each is predicted by itself. No I/O, no clock.

Opens come through one process, a session, which serves all jobs of a mount. Each open has the number of its stream:
processes of one job have the same. The opens of all streams together are predicted, too: the ranks of one job may have
a stream each, and read each file once together.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from headrace.plan.prediction import AccessPredictor

STREAM_OPENS = 8
"""Opens after which a stream is followed by itself: what opens a few files, as a shell does, is not."""
STREAMS_MAX = 8
STREAM_FILES_MAX = 500_000
"""Most files of a data set times its streams; two streams it has in any case."""
CANDIDATES_MAX = 64
"""Streams whose first opens are counted."""
STREAM_IDLE_S = 60.0
"""Seconds after which a stream without an open gives way to another one."""


class JobStreams:
    """The opens of one data set, by stream. new_predictor: makes a predictor of the data set. file_count: its files.

    While there is one stream, `joint` is its predictor. With the second one, it becomes that of the first stream, and
    another one follows all streams together. Streams beyond the limit are followed by that only.
    """

    def __init__(self, new_predictor: Callable[[], AccessPredictor], file_count: int) -> None:
        self._new_predictor = new_predictor
        self._streams_max = max(2, min(STREAMS_MAX, STREAM_FILES_MAX // max(1, file_count)))
        self.joint = new_predictor()
        self._streams: OrderedDict[int, AccessPredictor] = OrderedDict()
        self._opened_s: dict[int, float] = {}
        self._candidates: OrderedDict[int, int] = OrderedDict()  # their opens
        self._ended = (0, 0, 0)

    def __len__(self) -> int:
        """Return how many streams are followed."""
        return max(1, len(self._streams))

    @property
    def predicting(self) -> list[AccessPredictor]:
        """Return the predictors that predict now: that of all streams together, or else those of single ones. An order
        of a single stream precedes a shuffled epoch of all: two walks together also read each file once."""
        own = [predictor for predictor in self._streams.values() if predictor.model is not None]
        has_order = any(predictor.has_order for predictor in own)
        is_joint = self.joint.has_order or (self.joint.model is not None and not has_order)
        return [self.joint] if is_joint else own

    @property
    def counts(self) -> tuple[int, int, int]:
        """Return the predictions that were handed out, those that came true, and those that did not."""
        issued, right, wrong = self._ended
        for predictor in (self.joint, *self._streams.values()):
            issued, right, wrong = (
                issued + predictor.issued,
                right + predictor.right,
                wrong + predictor.wrong,
            )
        return issued, right, wrong

    def open(self, file: int, stream: int, now_s: float) -> None:
        """Note that a stream opened a file. stream: 0 for opens that no one can assign."""
        own = self._streams.get(stream) or (self._admit(stream, now_s) if stream else None)
        self.joint.open(file, now_s)
        if own is not None:
            self._streams.move_to_end(stream)
            self._opened_s[stream] = now_s
            own.open(file, now_s)

    def _admit(self, stream: int, now_s: float) -> AccessPredictor | None:
        """Count an open of a stream that is not followed. Return its predictor if it is followed from now on."""
        self._candidates[stream] = self._candidates.pop(stream, 0) + 1
        if len(self._candidates) > CANDIDATES_MAX:
            self._candidates.popitem(last=False)
        ready = [other for other, count in self._candidates.items() if count >= STREAM_OPENS]
        if stream not in ready or (not self._streams and len(ready) < 2) or not self._has_place(now_s):
            return None
        if not self._streams:
            first = next(other for other in ready if other != stream)
            self._follow(first, self.joint, now_s)
            self.joint = self._new_predictor()
        return self._follow(stream, self._new_predictor(), now_s)

    def _follow(self, stream: int, predictor: AccessPredictor, now_s: float) -> AccessPredictor:
        del self._candidates[stream]
        self._streams[stream] = predictor
        self._opened_s[stream] = now_s
        return predictor

    def _has_place(self, now_s: float) -> bool:
        """Return whether another stream may be followed. One that is idle is dropped for it."""
        if len(self._streams) < self._streams_max:
            return True
        oldest = next(iter(self._streams))
        if now_s - self._opened_s[oldest] < STREAM_IDLE_S:
            return False
        del self._opened_s[oldest]
        predictor = self._streams.pop(oldest)
        predictor.close()
        issued, right, wrong = self._ended
        self._ended = (issued + predictor.issued, right + predictor.right, wrong + predictor.wrong)
        return True
