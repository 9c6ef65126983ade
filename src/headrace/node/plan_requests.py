"""Answer the messages of plans, which training processes send, and `headrace plan show`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.plan.estimates import PlanEstimate, estimates
from headrace.prefetch.fetcher import PlannedFetcher, ahead_s
from headrace.prefetch.plan_table import PlannedReader, PlanTable
from headrace.prefetch.prediction_table import PredictedDataSet, PredictionTable
from headrace.wire.messages import (
    Done,
    PlanEnd,
    PlanExtents,
    PlanLearn,
    PlanList,
    PlanNames,
    PlanOrder,
    PlanProgress,
    PlanSamples,
    PlanStart,
)
from headrace.wire.plan_answers import PlanNoted, PlanRow, PlanRows, PlanStarted


class PlanRequests:
    """Hands messages to the plans of a node."""

    def __init__(self, plans: PlanTable, fetcher: PlannedFetcher, predictions: PredictionTable) -> None:
        self._plans = plans
        self._fetcher = fetcher
        self._predictions = predictions
        self.handlers: Mapping[type, Any] = {
            PlanStart: self._start,
            PlanNames: self._name,
            PlanExtents: self._divide,
            PlanSamples: self._place,
            PlanOrder: self._order,
            PlanProgress: self._progress,
            PlanLearn: self._learn,
            PlanEnd: self._end,
            PlanList: self._list,
        }

    async def _start(self, request: PlanStart) -> PlanStarted:
        is_known = self._plans.start(request)
        await self._plans.learn_early(request)
        return PlanStarted(known=is_known)

    async def _name(self, request: PlanNames) -> Done:
        await self._plans.name(request)
        return Done()

    async def _divide(self, request: PlanExtents) -> Done:
        await self._plans.divide(request)
        return Done()

    async def _place(self, request: PlanSamples) -> Done:
        await self._plans.place(request)
        return Done()

    async def _order(self, request: PlanOrder) -> Done:
        await self._plans.order(request)
        return Done()

    async def _progress(self, request: PlanProgress) -> PlanNoted:
        return PlanNoted(used=self._plans.progress(request))

    async def _learn(self, request: PlanLearn) -> Done:
        await self._plans.learn(request)
        return Done()

    async def _end(self, request: PlanEnd) -> Done:
        self._plans.end(request.stream)
        return Done()

    async def _list(self, _: PlanList) -> PlanRows:
        predicted = map(_predicted_row, self._predictions.data_sets)
        estimated = self._estimates()
        planned = (self._row(reader, estimated) for reader in self._plans.readers)
        return PlanRows(rows=[*planned, *predicted])

    def _estimates(self) -> list[PlanEstimate]:
        """Return what more cache and bandwidth would give; nothing before step times are measured."""
        fetcher = self._fetcher
        needed_bytes_s = sum(map(fetcher.needed_bytes_s, self._plans.readers))
        data_bytes = fetcher.data_bytes()
        if not needed_bytes_s or not data_bytes:
            return []
        return [*estimates(needed_bytes_s, data_bytes, fetcher.usable_bytes, fetcher.peak_bytes_s)]

    def _row(self, reader: PlannedReader, estimated: list[PlanEstimate]) -> PlanRow:
        request = reader.request
        return PlanRow(
            stream=request.stream,
            job=request.job,
            rank=request.rank,
            world=request.world,
            state=reader.state,
            epoch=reader.epoch,
            position=reader.position,
            samples=reader.epoch_samples,
            step_s=reader.step_s or 0.0,
            needed_bytes_s=self._fetcher.needed_bytes_s(reader),
            fetched_bytes_s=self._fetcher.fetched_bytes_s(),
            ahead_samples=reader.ahead_samples,
            ahead_s=ahead_s(reader),
            hits=reader.hits,
            misses=reader.misses,
            estimates=estimated,
        )


def _predicted_row(data_set: PredictedDataSet) -> PlanRow:
    predictor, path = data_set.predictor, data_set.directory.decode("utf-8", "replace")
    issued, right, wrong = data_set.streams.counts
    return PlanRow(
        stream="",
        job=path,
        rank=0,
        world=1,
        state="predicted" if predictor.model_name else "observed",
        epoch=predictor.epochs,
        position=predictor.shuffled.position,
        samples=len(data_set.numbers),
        step_s=0.0,
        needed_bytes_s=0.0,
        fetched_bytes_s=0.0,
        ahead_samples=0,
        ahead_s=0.0,
        hits=0,
        misses=0,
        model=predictor.model_name,
        issued=issued,
        right=right,
        wrong=wrong,
    )
