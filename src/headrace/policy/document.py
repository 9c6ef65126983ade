"""Parse the policy of an operator: a TOML document of rules, tenants and origins.

All faults are found at once, each with its line. A document with a fault is refused as a whole.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.base.errors import HeadraceError, UsageError
from headrace.policy import values
from headrace.policy.effects import FIELD_OF
from headrace.policy.key_lines import KEY_DOTS_MAX, KeyPath, key_lines, line_of, line_of_long_key
from headrace.policy.limits import POLICY_TEXT_MAX
from headrace.policy.patterns import PathPatterns

RULES_MAX = 500
TENANTS_MAX = 200
ORIGINS_MAX = 200
FAULTS_SHOWN_MAX = 100
_LONG_NUMBER = re.compile(r"[0-9][0-9_]{4300,}")

Parse = Callable[[object], object]
Canonical = Callable[[str], str]
"""Returns the one form of all URLs of an origin. Raises a HeadraceError for a URL of none."""
_EFFECTS: dict[str, Parse] = {
    "fresh": values.fresh_s,
    "admit": values.admission,
    "replicas": values.replicas,
    "priority": values.priority,
    "tier": values.tiers,
    "ttl": values.time_to_live,
    "write": values.write_promise,
    "seal": values.sealing,
}
NOT_OBEYED = ("write",)
"""Effects that the language has and this release refuses: a rule must not seem to work."""
_RULE: dict[str, Parse] = {"match": values.patterns, **_EFFECTS}
_TENANT: dict[str, Parse] = {
    "paths": values.patterns,
    "guaranteed": values.size_or_share,
    "limit": values.size_or_share,
    "share": values.positive,
    "parent": values.word,
}
_ORIGIN: dict[str, Parse] = {
    "requests_s": values.positive,
    "bytes_s": values.rate_bytes_s,
    "egress_per_gib": values.not_negative,
    "budget_month": values.positive,
}


@dataclass(frozen=True, slots=True)
class PolicyFault:
    """Describes a fault of a document. line: from 1."""

    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"


class PolicyFaultsError(UsageError):
    """A policy is refused. `faults` has all that is wrong with it."""

    def __init__(self, faults: list[PolicyFault]) -> None:
        self.faults = sorted(faults, key=lambda fault: fault.line)[:FAULTS_SHOWN_MAX]
        super().__init__("the policy is refused", why="; ".join(map(str, self.faults)))


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """Holds a rule. number: from 1. effects: fields of `Effects` that the rule sets."""

    number: int
    line: int
    patterns: PathPatterns
    effects: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Tenant:
    """Holds a tenant. guaranteed, limit: bytes, or a share of the cache as a float. share: its weight. parent: the
    tenant whose space it shares; "": none."""

    name: str
    line: int
    patterns: PathPatterns
    guaranteed: int | float = 0
    limit: int | float | None = None
    share: float = 1.0
    parent: str = ""


@dataclass(frozen=True, slots=True)
class OriginBudget:
    """Holds the limits of an origin for the whole cluster, and its prices. None: no limit."""

    url: str
    line: int
    requests_s: float | None = None
    bytes_s: float | None = None
    egress_per_gib: float = 0.0
    budget_month: float | None = None


@dataclass(frozen=True, slots=True)
class PolicyDocument:
    """Holds a policy without faults."""

    rules: tuple[PolicyRule, ...] = ()
    tenants: Mapping[str, Tenant] = field(default_factory=dict)
    origins: Mapping[str, OriginBudget] = field(default_factory=dict)


def parse_policy(text: str, canonical: Canonical | None = None) -> PolicyDocument:
    """Parse a document. canonical: checks the URLs of origins, before a policy is set; None for a policy in force,
    which may name origins that only other nodes know. Raise PolicyFaultsError with all its faults."""
    if len(text) > POLICY_TEXT_MAX:
        _refuse(1, f"it has {len(text)} characters: {POLICY_TEXT_MAX} are allowed")
    long_key_line = line_of_long_key(text)
    if long_key_line is not None:
        _refuse(long_key_line, f"a key has more than {KEY_DOTS_MAX} dots")
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        _refuse(_line_in(text, error), f"no TOML: {error}")
    except ValueError:  # Python reads no int of more than 4300 digits
        _refuse(_line_of_long_number(text), "a number has thousands of digits")
    except RecursionError:
        _refuse(1, "no TOML: its arrays lie too deep in each other")
    return _Parser(tables, key_lines(text), canonical).document()


class _Parser:
    """Turns the tables of a document into a policy, and collects faults."""

    def __init__(
        self, tables: dict[str, Any], lines: dict[KeyPath, int], canonical: Canonical | None
    ) -> None:
        self._tables = tables
        self._lines = lines
        self._canonical = canonical
        self._faults: list[PolicyFault] = []

    def document(self) -> PolicyDocument:
        for name in self._tables:
            if name not in ("rule", "tenant", "origin"):
                self._fault((name,), _unknown(name, ("rule", "tenant", "origin")))
        rules = self._rules(self._tables.get("rule", []))
        tenants = self._tenants(self._tables.get("tenant", {}))
        origins = self._origins(self._tables.get("origin", {}))
        self._check_parents(tenants)
        self._check_guarantees(tenants)
        if self._faults:
            raise PolicyFaultsError(self._faults)
        return PolicyDocument(rules, tenants, origins)

    def _rules(self, tables: object) -> tuple[PolicyRule, ...]:
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            self._fault(("rule",), "rules are tables: write [[rule]] above each")
            return ()
        if len(tables) > RULES_MAX:
            self._fault(("rule",), f"there are {len(tables)} rules: {RULES_MAX} are allowed")
            return ()
        rules = []
        for index, table in enumerate(tables):
            path: KeyPath = ("rule", index)
            fields = self._fields(path, table, _RULE)
            patterns = self._patterns(path, "match", table, fields)
            effects = {FIELD_OF[name]: value for name, value in fields.items() if name in FIELD_OF}
            for name in fields.keys() & set(NOT_OBEYED):
                self._fault((*path, name), f"{name}: this release does not obey it yet")
            if not effects and fields.keys() == table.keys():
                self._fault(path, "the rule has no effect")
            if patterns is not None:
                rules.append(PolicyRule(index + 1, self._line(path), patterns, effects))
        return tuple(rules)

    def _tenants(self, tables: object) -> dict[str, Tenant]:
        tenants = {}
        for name, table in self._named("tenant", tables, TENANTS_MAX):
            path: KeyPath = ("tenant", name)
            fields = self._fields(path, table, _TENANT)
            patterns = self._patterns(path, "paths", table, fields)
            fields.pop("paths", None)
            if patterns is not None:
                tenants[name] = Tenant(name, self._line(path), patterns, **fields)
        return tenants

    def _origins(self, tables: object) -> dict[str, OriginBudget]:
        origins = {}
        first_lines: dict[str, int] = {}
        for url, table in self._named("origin", tables, ORIGINS_MAX):
            path: KeyPath = ("origin", url)
            if "://" not in url:
                self._fault(
                    path, f"{values.shown(url)} is no URL of an origin, for example s3://training-data"
                )
            elif self._canonical is not None:
                self._check_url(path, self._canonical, first_lines)
            fields = self._fields(path, table, _ORIGIN)
            if "budget_month" in fields and not fields.get("egress_per_gib"):
                self._fault((*path, "budget_month"), "budget_month: it needs a price, egress_per_gib")
            origins[url] = OriginBudget(url, self._line(path), **fields)
        return origins

    def _check_url(self, path: KeyPath, canonical: Canonical, first_lines: dict[str, int]) -> None:
        """Refuse a URL of no origin, and one of an origin that has a table already. first_lines: the lines of such
        tables, by their canonical URLs."""
        url = str(path[-1])
        try:
            origin = canonical(url)
        except HeadraceError as error:
            self._fault(path, f"origin: {error}")
            return
        if origin in first_lines:
            self._fault(path, f"origin: {url} is the origin of line {first_lines[origin]}")
        first_lines.setdefault(origin, self._line(path))

    def _named(self, kind: str, tables: object, count_max: int) -> list[tuple[str, dict[str, Any]]]:
        """Return the tables of a kind by their names; none if they are no tables, or too many."""
        if not isinstance(tables, dict):
            self._fault((kind,), f"each {kind} is a table: write [{kind}.NAME]")
            return []
        if len(tables) > count_max:
            self._fault((kind,), f"there are {len(tables)} tables of {kind}s: {count_max} are allowed")
            return []
        for name, table in tables.items():
            if not isinstance(table, dict) or not name:
                self._fault((kind, name), f"a {kind} is a table with a name: write [{kind}.NAME]")
        return [(name, table) for name, table in tables.items() if isinstance(table, dict) and name]

    def _fields(
        self, path: KeyPath, table: Mapping[str, object], parsers: Mapping[str, Parse]
    ) -> dict[str, Any]:
        """Return the values of a table that are right."""
        fields: dict[str, Any] = {}
        for key, value in table.items():
            parse = parsers.get(key)
            if parse is None:
                self._fault((*path, key), _unknown(key, tuple(parsers)))
                continue
            try:
                fields[key] = parse(value)
            except ValueError as error:
                self._fault((*path, key), f"{key}: {error}")
        return fields

    def _patterns(
        self, path: KeyPath, key: str, table: Mapping[str, object], fields: Mapping[str, object]
    ) -> PathPatterns | None:
        patterns = fields.get(key)
        if not isinstance(patterns, tuple):
            if key not in table:
                self._fault(path, f"{key} is missing: the paths that are meant")
            return None
        try:
            return PathPatterns(patterns)
        except ValueError:
            pass
        for pattern in patterns:
            try:
                PathPatterns([pattern])
            except ValueError as error:
                self._fault((*path, key), f"{key}: {error}")
        return None

    def _check_parents(self, tenants: Mapping[str, Tenant]) -> None:
        for tenant in tenants.values():
            path: KeyPath = ("tenant", tenant.name, "parent")
            if (
                tenant.parent and tenant.parent not in self._tables["tenant"]
            ):  # one with a fault is there, too
                self._fault(path, f"parent: there is no tenant {values.shown(tenant.parent)}")
            passed = {tenant.name}
            parent = tenant.parent
            while parent in tenants and parent not in passed:
                passed.add(parent)
                parent = tenants[parent].parent
            if parent == tenant.name:
                self._fault(path, "parent: the tenants are a cycle")

    def _check_guarantees(self, tenants: Mapping[str, Tenant]) -> None:
        sums: dict[str, float] = {}
        for tenant in tenants.values():
            limit, guaranteed = tenant.limit, tenant.guaranteed
            if limit is not None and type(limit) is type(guaranteed) and guaranteed > limit:
                self._fault(("tenant", tenant.name, "guaranteed"), "guaranteed: it is above the limit")
            if isinstance(guaranteed, float):
                total = sums[tenant.parent] = sums.get(tenant.parent, 0.0) + guaranteed
                if total > 1 + 1e-9:
                    text = f"guaranteed: {100 * total:.0f}% are guaranteed to the tenants so far"
                    self._fault(("tenant", tenant.name, "guaranteed"), text)

    def _fault(self, path: KeyPath, text: str) -> None:
        self._faults.append(PolicyFault(self._line(path), text))

    def _line(self, path: KeyPath) -> int:
        return line_of(self._lines, path)


def _unknown(name: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
    return f"{values.shown(name)} is unknown, {hint}"


def _line_in(text: str, error: tomllib.TOMLDecodeError) -> int:
    """Return the line that the parser's message names."""
    _, mark, rest = str(error).rpartition("(at line ")
    number = rest.partition(",")[0]
    return int(number) if mark and number.isdecimal() else text.count("\n") + 1


def _line_of_long_number(text: str) -> int:
    match = _LONG_NUMBER.search(text)
    return 1 if match is None else text.count("\n", 0, match.start()) + 1


def _refuse(line: int, text: str) -> None:
    raise PolicyFaultsError([PolicyFault(line, text)])
