"""Answer the messages of `headrace policy` and of the REST API."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.base.errors import UsageError
from headrace.base.namespace_path import check_path
from headrace.base.write_modes import WriteModes
from headrace.config.schema import Config
from headrace.namespace.mounts import MountTable
from headrace.node.cluster_trial import ClusterTrial
from headrace.node.policies import Policies
from headrace.node.policy_advice import PolicyAdvisor, ReadStatistics
from headrace.origin.factory import parse_origin
from headrace.policy.advice import SIZES, Outlook
from headrace.policy.document import parse_policy
from headrace.policy.record import PolicyRecord
from headrace.policy.resolve import Decision
from headrace.policy.text import text_of
from headrace.store.store import Store
from headrace.wire.policy_messages import (
    PolicyAdvice,
    PolicyAdvise,
    PolicyAdvised,
    PolicyAsk,
    PolicyDecision,
    PolicyExplain,
    PolicyExplained,
    PolicyOutlook,
    PolicyRollBack,
    PolicySet,
    PolicyShown,
    PolicyTried,
    PolicyTry,
    PolicyVersionRow,
)


class PolicyRequests:
    """Hands messages to the policies of a node."""

    def __init__(
        self,
        policies: Policies,
        mounts: MountTable,
        store: Store,
        config: Config,
        trial: ClusterTrial,
        statistics: ReadStatistics,
    ) -> None:
        self._policies = policies
        self._advisor = PolicyAdvisor(statistics, store.index, mounts, policies.capacity)
        self._mounts = mounts
        self._config = config
        self._modes = WriteModes.parse(config.write)
        self._trial = trial
        self._tiers = store.space.tiered.order
        self.handlers: Mapping[type, Any] = {
            PolicySet: self._set,
            PolicyAsk: self._show,
            PolicyRollBack: self._roll_back,
            PolicyExplain: self._explain,
            PolicyTry: self._try,
            PolicyAdvise: self._advise,
        }

    async def _set(self, request: PolicySet) -> PolicyShown:
        unanswered = await self._trial.check(request.text, parse_policy(request.text, parse_origin))
        record = await self._policies.set(request.text, author=request.author, base=request.base)
        return msgspec.structs.replace(self._in_force(record), unanswered=unanswered)

    async def _show(self, request: PolicyAsk) -> PolicyShown:
        return _shown(self._policies.current.record, request.number)

    async def _roll_back(self, request: PolicyRollBack) -> PolicyShown:
        return self._in_force(await self._policies.roll_back(request.number, author=request.author))

    def _in_force(self, record: PolicyRecord) -> PolicyShown:
        return msgspec.structs.replace(
            _shown(record), warnings=self._policies.warnings(parse_policy(record.text))
        )

    async def _explain(self, request: PolicyExplain) -> PolicyExplained:
        try:
            check_path(request.path)
        except ValueError as error:
            raise UsageError(f"path {os.fsdecode(request.path)[:300]}", why=str(error)) from error
        decisions = self._policies.current.resolver.explain(request.path)
        return PolicyExplained([self._decision(request.path, decision) for decision in decisions])

    async def _try(self, request: PolicyTry) -> PolicyTried:
        document = parse_policy(request.text, parse_origin)
        outcomes, unanswered = await self._trial.outcomes(request.text, document, limit_s=request.limit_s)
        return PolicyTried(outcomes, unanswered, self._policies.warnings(document))

    async def _advise(self, request: PolicyAdvise) -> PolicyAdvised:
        outlooks, advice = await self._advisor.advise(self._policies.current)
        return PolicyAdvised(
            [_outlook(row) for row in outlooks], [PolicyAdvice(row.subject, row.text) for row in advice]
        )

    def _decision(self, path: bytes, decision: Decision) -> PolicyDecision:
        if decision.rule:
            value = text_of(decision.value)
            if decision.effect == "tier" and not set(self._tiers) & set(decision.value):  # type: ignore[call-overload]
                value += " (this node has none of them: files lie anywhere)"
            return PolicyDecision(decision.effect, value, "rule", decision.rule, decision.line)
        if decision.effect == "tenant":
            source = "tenant" if decision.line else "default"
            return PolicyDecision(decision.effect, text_of(decision.value or None), source, 0, decision.line)
        configured = self._configured(path, decision.effect)
        if configured is not None:
            return PolicyDecision(decision.effect, configured, "configuration")
        return PolicyDecision(decision.effect, text_of(decision.value), "default")

    def _configured(self, path: bytes, effect: str) -> str | None:
        """Return what the configuration decides where no rule does; None: nothing."""
        location = self._mounts.find(path)
        if effect == "fresh" and location is not None:
            return f"{location[0].sync_interval_s:g}s"
        if effect == "tier":
            return ", ".join(self._tiers)
        if effect == "replicas":
            return str(self._config.replicas)
        if effect == "seal":
            return self._config.seal
        if effect == "write":
            copies = self._modes.copies(path)
            return str(self._modes.of(path)) + (f":{copies}" if copies > 1 else "")
        return None


def _outlook(row: Outlook) -> PolicyOutlook:
    hits = {f"{size:g}": round(ratio, 4) for size, ratio in zip(SIZES, row.hit_ratios, strict=False)}
    return PolicyOutlook(row.name, row.reads, row.capacity_bytes, row.unique_bytes, hits)


def _shown(record: PolicyRecord, number: int = 0) -> PolicyShown:
    rows = [PolicyVersionRow(version.number, version.author, version.set_at_s) for version in record.versions]
    if not number:
        return PolicyShown(record.number, record.text, rows)
    return PolicyShown(number, record.version(number).text, rows)
