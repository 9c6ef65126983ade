"""A node gives advice about odd names, and answers others meanwhile."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec

from headrace.base.kept_file import KeptFile
from headrace.base.model import ROOT_ID, FileId, Version
from headrace.namespace.mounts import Mount, MountTable
from headrace.node.origin_costs import OriginCosts
from headrace.node.policy_advice import PolicyAdvisor, ReadStatistics
from headrace.node.space_policy import NodeCapacity
from headrace.origin.memory import MemoryOrigin
from headrace.policy.advice import READS_MIN
from headrace.policy.current import CurrentPolicy
from headrace.policy.record import PolicyRecord, PolicyVersion
from headrace.policy.spending import RECORD_BYTES_MAX
from headrace.store.index import Index
from headrace.wire.policy_messages import PolicyAdvice

KIB = 1 << 10


class AdvisedNode:
    """A node that has read files, and a cache of 64 KiB."""

    def __init__(self, folder: Path, policy: str) -> None:
        self.index = Index.open(str(folder / "index"), writable=True, boot_id="1")
        self.policy = CurrentPolicy()
        self.policy.adopt(PolicyRecord([PolicyVersion(1, policy)]))
        mounts = MountTable()
        mounts.add(Mount("/", "memory://x", MemoryOrigin(), 60.0))
        capacity = NodeCapacity(64 * KIB)
        costs = OriginCosts(
            *(self.policy, capacity),
            KeptFile(str(folder), "costs.json", bytes_max=RECORD_BYTES_MAX),
            cluster=None,
        )
        self.statistics = ReadStatistics(self.index, mounts, self.policy, costs)
        self.advisor = PolicyAdvisor(self.statistics, self.index, mounts, capacity)

    def read(self, directory: bytes, count: int) -> None:
        parent = self.index.names.ensure_directory(ROOT_ID, directory)
        ids: list[FileId] = []
        with self.index.batch():
            for number in range(count):
                id, _ = self.index.names.put_file(parent, b"%d" % number, Version(KIB, 5, "t"))
                ids.append(id)
        self.statistics.note_opens(ids)


async def test_a_data_set_whose_name_is_not_utf8_is_named(tmp_path: Path) -> None:
    node = AdvisedNode(tmp_path, "")
    node.read(b"set-\xff", READS_MIN)
    _, advice = await node.advisor.advise(node.policy)
    assert "/set-\\xff" in [row.subject for row in advice]
    assert msgspec.msgpack.encode([PolicyAdvice(row.subject, row.text) for row in advice])
    node.index.close(clean=True)


async def test_advice_about_many_rules_holds_up_nobody(tmp_path: Path) -> None:
    rules = (f'[[rule]]\nmatch = ["/typo-{number}/**"]\nttl = "1d"\n' for number in range(200))
    node = AdvisedNode(tmp_path, "".join(rules))
    node.read(b"set", 2000)
    longest_s, is_done = 0.0, False

    async def answer_others() -> None:
        nonlocal longest_s
        while not is_done:
            began_s = time.thread_time()
            await asyncio.sleep(0)
            longest_s = max(longest_s, time.thread_time() - began_s)

    others = asyncio.ensure_future(answer_others())
    _, advice = await node.advisor.advise(node.policy)
    is_done = True
    await others
    assert sum(row.subject.startswith("rule ") for row in advice) == 200
    assert longest_s < 0.1
    node.index.close(clean=True)
