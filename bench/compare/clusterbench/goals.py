"""Compares what issue 3 wants of a cluster with what was measured."""

from __future__ import annotations

from nodebench.report import Goal, divide
from nodebench.results import Results

from .cases import MANY, OURS, contender


def goals(r: Results) -> list[Goal]:
    alone = r.median("3 remote read, 1 nodes", OURS)
    listed = [
        Goal("1 origin bytes of data set", 1.01, False, r.median("1 origin bytes of data set", OURS)),
        Goal(
            "2 origin requests for one object", 1, False, r.median("2 origin requests for one object", OURS)
        ),
    ]
    for nodes in (2, 4, 8):
        bandwidth = divide(r.median(f"3 remote read, {nodes} nodes", OURS), alone)
        linear = bandwidth / nodes if bandwidth is not None else None
        listed.append(Goal(f"3 remote read, {nodes} nodes: of {nodes} × one", 0.97, True, linear))
        allowed = r.median(f"3 of what the fullest link allows, {nodes} nodes", OURS)
        listed.append(
            Goal(f"3 remote read, {nodes} nodes: of what the fullest link allows", 0.97, True, allowed)
        )
        raw = r.median(f"3 of sendfile of the same bytes, {nodes} nodes", OURS)
        listed.append(Goal(f"3 remote read, {nodes} nodes: of sendfile of the same bytes", 0.97, True, raw))
    origin = r.median("6 join: origin bytes of moved", OURS)
    listed += [
        Goal(
            "4 one node's remote read: of sendfile",
            0.95,
            True,
            divide(alone, r.median("4 one link", "sendfile")),
        ),
        *(
            Goal(
                f"5 small files, {threads} at a time: of one at a time",
                5,
                True,
                r.ratio("5 small files, remote", contender(threads), contender(1)),
            )
            for threads in MANY
        ),
        Goal("6 join: origin bytes of moved", 1, False, origin, "%"),
        Goal("6 join: p99 of before", 2, False, r.ratio("6 p99 of a read", "join", "before")),
        Goal("7 kill -9: failed reads", 0, False, r.median("7 kill: reads failed", OURS)),
        Goal("7 kill -9: wrong bytes", 0, False, r.median("7 kill: reads wrong", OURS)),
        Goal("8 load: of links' limit", 0.9, True, r.median("8 load, of links' limit", OURS)),
    ]
    return listed
