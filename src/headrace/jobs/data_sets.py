"""Choose the directories that a node seals by itself: by its configuration, and by the rules of a policy.

A data set is what lies below a mount of an origin, or below a directory that a rule names. Of nested ones the outermost
is sealed as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.base.printable import path_text
from headrace.policy.resolve import PolicyResolver


def outermost(paths: Iterable[bytes]) -> set[bytes]:
    """Return the paths that are not below another one of them."""
    paths = set(paths)
    return {path for path in paths if not any(above in paths for above in _above(path))}


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
        if any(above in tops for above in _above(directory))
    ]
    chosen = {path: _is_chosen(path, policy, by_default) for path in [*tops, *named]}
    refused_below: dict[bytes, bytes] = {}
    for refused in sorted(path for path, is_chosen in chosen.items() if not is_chosen):
        for above in _above(refused):
            refused_below.setdefault(above, refused)
    return {
        path: _reason_against(refused_below.get(path))
        for path in outermost(path for path, is_chosen in chosen.items() if is_chosen)
    }


def _is_chosen(path: bytes, policy: PolicyResolver, by_default: bool) -> bool:  # noqa: FBT001
    seal = policy.of_directory(path).seal
    return by_default if seal is None else seal


def _reason_against(refused: bytes | None) -> str:
    return "" if refused is None else f"a rule of the policy says off for {path_text(refused)}"


def _above(path: bytes) -> Iterator[bytes]:
    """Yield the paths above a path. A look at each of them costs less than one at thousands of mounts."""
    while path != b"/":
        path = path.rpartition(b"/")[0] or b"/"
        yield path
