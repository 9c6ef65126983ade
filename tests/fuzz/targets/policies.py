"""Operators write a policy, and a node applies it to any path (policy/)."""

from __future__ import annotations

from headrace.policy.document import FAULTS_SHOWN_MAX, PolicyFaultsError, parse_policy
from headrace.policy.effects import DEFAULT_EFFECTS
from headrace.policy.resolve import PolicyResolver
from tests.fuzz.fuzzer import Fuzzer
from tests.fuzz.mutations import mutate_text

_PATHS = (b"/", b"/datasets/a/b.jpg", b"/scratch/" + b"ab/" * 100 + b"a" * 255, b"/\xff\xfe")
_WHOLE = b"""
[[rule]]
match = ["/datasets/**", "!*.tmp"]
fresh = "5m"
admit = "second-read"
priority = "high"
[[rule]]
match = ["/scratch/*/x[ab]?"]
ttl = "made+2d"
[tenant.vision]
paths = ["/datasets/imagenet/"]
guaranteed = "30%"
limit = "4TiB"
share = 2
parent = "all"
[tenant.all]
paths = ["/**"]
"""

_ORIGIN = b"""
[origin."s3://training-data"]
requests_s = 2000
bytes_s = "10Gbit"
egress_per_gib = 0.09
budget_month = 500
"""


def _policy(data: bytes) -> None:
    try:
        document = parse_policy(data.decode(errors="replace"))
    except PolicyFaultsError as error:
        assert 0 < len(error.faults) <= FAULTS_SHOWN_MAX
        assert all(fault.line >= 1 and fault.text for fault in error.faults)
        raise
    resolver = PolicyResolver(document)
    for path in _PATHS:
        effects = resolver.of(path)
        assert effects == resolver.of(path)
        assert effects.fresh_s is None or effects.fresh_s >= 0
        assert effects.ttl is None or effects.ttl.seconds > 0
        assert effects.tenant == "" or effects.tenant in document.tenants
        decided = {decision.effect: decision for decision in resolver.explain(path)}
        assert decided["admit"].value is effects.admit
    assert document.rules or resolver.of(b"/x").admit is DEFAULT_EFFECTS.admit


FUZZERS = [
    Fuzzer(
        "policies",
        "policies of operators: rules, tenants, budgets (policy/)",
        _policy,
        (PolicyFaultsError,),
        [
            *(_WHOLE, b"", _ORIGIN, b'[[rule]]\nmatch = ["**/a/*"]\nttl = "1h"\n'),
            *(b"a." * 1000 + b"b = 1\n", b"a = " + b"[" * 1000 + b"]" * 1000 + b"\n"),
        ],
        words=[
            b"[[rule]]", b"match", b"fresh", b"ttl", b"tier", b"write", b"seal", b"paths", b"parent", b"share", b"**/",
            b"/**",
            b"!", b"*", b"[", b"]", b'"""', b"'''", b"fetched+", b"always", b"auto", b"1e308", b"nan", b"inf", b"\n",
            b"=", b"#", b"\\u0000", b"{", b"}", b"9999999w",
        ],
        mutate=mutate_text,
    ),
]  # fmt: skip
