"""The effects of a path: processor time of a look-up."""

from __future__ import annotations

import time

from headrace.policy.document import parse_policy
from headrace.policy.resolve import PolicyResolver

from .cases import Bench

RESOLVED = "policy of a path, resolved"
RULES, TENANTS, DIRECTORIES, FILES_OF_A_DIRECTORY = 20, 10, 1000, 100


def resolve(bench: Bench) -> None:
    """20 rules and 10 tenants over 100,000 files of 1,000 directories. The first look-up of a directory is slow."""
    text = "".join(
        f'[[rule]]\nmatch = ["/set-{number}/**"]\nreplicas = 2\nttl = "{number + 1}d"\n'
        for number in range(RULES)
    )
    text += "".join(
        f'[tenant.t{number}]\npaths = ["/set-{number}/**"]\nshare = 2\n' for number in range(TENANTS)
    )
    directories = [
        f"/set-{number % RULES}/part-{number}".encode() for number in range(bench.count(DIRECTORIES, 10))
    ]
    paths = [b"%s/%d.jpg" % (path, number) for path in directories for number in range(FILES_OF_A_DIRECTORY)]
    for _ in range(bench.repeat):
        resolver = PolicyResolver(parse_policy(text))
        for kind in ("first look-ups of their directories", "known directories"):
            chosen = paths[::FILES_OF_A_DIRECTORY] if kind.startswith("first") else paths
            start = time.thread_time()
            for path in chosen:
                resolver.of(path)
            used_s = time.thread_time() - start
            bench.results.add(RESOLVED, kind, used_s / len(chosen) * 1e6, unit="µs")
