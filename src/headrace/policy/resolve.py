"""Say what a policy means for a path. Later rules win, effect by effect."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from headrace.base.namespace_path import join, split
from headrace.policy.document import PolicyDocument, PolicyRule, Tenant
from headrace.policy.effects import DEFAULT_EFFECTS, EFFECT_NAMES, FIELD_OF, Effects

CACHED_MAX = 65536
_ANY_NAME = b"\0"
"""Stands for any file of a directory: no pattern names it, and those of all names match it."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Says which rule decided an effect. rule: its number from 1, 0: none. line: of the rule."""

    effect: str
    value: object
    rule: int = 0
    line: int = 0


class PolicyResolver:
    """Resolves the paths of one policy, and remembers results by directory: a file costs a lookup.

    Any thread may use it: two that resolve the same path at the same time remember the same effects.
    """

    def __init__(self, document: PolicyDocument) -> None:
        self.document = document
        patterns = [rule.patterns for rule in document.rules]
        patterns += [tenant.patterns for tenant in document.tenants.values()]
        self._depends_on_names = any(pattern.depends_on_names for pattern in patterns)
        literals = frozenset[bytes]().union(*(pattern.literals for pattern in patterns))
        self._parents_of_literals = {split(literal)[0] for literal in literals}
        self._by_directory: dict[bytes, Effects] = {}
        self._by_path: dict[bytes, Effects] = {}

    def of(self, path: bytes) -> Effects:
        """Return the effects on a file. path: absolute and normal."""
        if self._depends_on_names:
            return self._by_name(path)
        directory = split(path)[0]
        if directory in self._parents_of_literals:
            return self._by_name(path)
        return self.of_directory(directory)

    def of_directory(self, directory: bytes) -> Effects:
        """Return the effects on the files of a directory, as far as their names don't matter; of its listing, too."""
        effects = self._by_directory.get(directory)
        if effects is None:
            effects = self._resolve(join(directory, _ANY_NAME))
            _remember(self._by_directory, directory, effects)
        return effects

    def explain(self, path: bytes) -> list[Decision]:
        """Return each effect on a file with the rule that decided it, and last the tenant."""
        decided: dict[str, PolicyRule] = {}
        for rule in self._matching(path):
            decided |= dict.fromkeys(rule.effects, rule)
        effects = self._resolve(path)
        decisions = []
        for name in EFFECT_NAMES:
            field = FIELD_OF[name]
            value, decider = getattr(effects, field), decided.get(field)
            decisions.append(
                Decision(name, value)
                if decider is None
                else Decision(name, value, decider.number, decider.line)
            )
        tenant = self._tenant(path)
        decisions.append(Decision("tenant", effects.tenant, 0, 0 if tenant is None else tenant.line))
        return decisions

    def _by_name(self, path: bytes) -> Effects:
        effects = self._by_path.get(path)
        if effects is None:
            effects = self._resolve(path)
            _remember(self._by_path, path, effects)
        return effects

    def _resolve(self, path: bytes) -> Effects:
        fields: dict[str, Any] = {}
        for rule in self._matching(path):
            fields |= rule.effects
        tenant = self._tenant(path)
        if tenant is not None:
            fields["tenant"] = tenant.name
        return replace(DEFAULT_EFFECTS, **fields) if fields else DEFAULT_EFFECTS

    def _matching(self, path: bytes) -> list[PolicyRule]:
        return [rule for rule in self.document.rules if rule.patterns.match(path)]

    def _tenant(self, path: bytes) -> Tenant | None:
        """Return the tenant of a path: of several the last."""
        tenant = None
        for candidate in self.document.tenants.values():
            if candidate.patterns.match(path):
                tenant = candidate
        return tenant


def _remember(cache: dict[bytes, Effects], key: bytes, effects: Effects) -> None:
    if len(cache) >= CACHED_MAX:
        cache.clear()
    cache[key] = effects
