"""Choose the directories that a node seals by itself: by its configuration, and by the rules of a policy.

A data set is what lies below a mount of an origin, or below a directory that a rule names. Of nested ones the outermost
is sealed as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from headrace.base.namespace_path import is_at_or_below
from headrace.policy.resolve import PolicyResolver


def outermost(paths: Iterable[bytes]) -> set[bytes]:
    """Return the paths that are not below another one of them."""
    paths = set(paths)
    return {path for path in paths if not any(_is_below(path, other) for other in paths)}


def data_sets(mounts: Iterable[bytes], policy: PolicyResolver, *, by_default: bool) -> dict[bytes, str]:
    """Return the data sets that are to be sealed, each with the reason why it can't be, or "".

    mounts: paths of mounts. by_default: whether data sets are sealed that no rule decides about.
    """
    tops = outermost(mounts)
    named = [
        directory
        for rule in policy.document.rules
        if "seal" in rule.effects
        for directory in rule.patterns.directories
        if any(_is_below(directory, top) for top in tops)
    ]
    chosen = {path: _is_chosen(path, policy, by_default) for path in [*tops, *named]}
    refused = [path for path, is_chosen in chosen.items() if not is_chosen]
    return {
        path: _reason_against(path, refused)
        for path in outermost(path for path, is_chosen in chosen.items() if is_chosen)
    }


def _is_chosen(path: bytes, policy: PolicyResolver, by_default: bool) -> bool:  # noqa: FBT001
    seal = policy.of_directory(path).seal
    return by_default if seal is None else seal


def _reason_against(path: bytes, refused: Iterable[bytes]) -> str:
    below = sorted(other for other in refused if _is_below(other, path))
    return f"a rule of the policy says off for {os.fsdecode(below[0])}" if below else ""


def _is_below(path: bytes, other: bytes) -> bool:
    return path != other and is_at_or_below(path, other)
