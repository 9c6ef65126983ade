"""Train on tokens with the data sets and samplers of Megatron-LM, and compare the extents that the plan hook names with
the reads of each sample."""

from __future__ import annotations

import itertools
import os
import sys
import typing
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from tests.integration.plan.provided import Record

if sys.version_info < (3, 12):  # its modules of the training need no more of 3.12 than this name
    vars(typing)["override"] = lambda method: method

from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
from megatron.training.datasets.data_samplers import (
    MegatronPretrainingRandomSampler,
    MegatronPretrainingSampler,
    RandomSeedDataset,
)

DOCUMENTS = 600
SEQUENCE = 512
EXTENT_BYTES = 4096
CHECKED = 400


class Tokenizer:
    """The numbers that a data set needs to know of a tokenizer."""

    vocab_size, eod, eos, pad = 30_000, 0, 0, 1
    unique_identifiers: typing.ClassVar = {"class": "Tokenizer"}


class Numbered(GPTDataset):  # type: ignore[misc]
    """Says which sample it gave."""

    def __getitem__(self, index: int | None) -> dict[str, Any]:
        tokens = super().__getitem__(index)["tokens"]
        return {"index": index, "sum": int(tokens.sum())}


def put_tokens(prefix: str, seed: int) -> None:
    random = np.random.RandomState(seed)
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
    for _ in range(DOCUMENTS):
        tokens = torch.from_numpy(random.randint(2, 30_000, random.randint(1, 1500)))
        builder.add_document(tokens, [len(tokens)])
    builder.finalize(f"{prefix}.idx")


def data_set_over(prefixes: list[str], weights: list[float] | None, samples: int, folder: str) -> Any:
    config = GPTDatasetConfig(
        random_seed=5,
        sequence_length=SEQUENCE,
        blend=(prefixes, weights),
        split="1",
        path_to_cache=os.path.join(folder, "indices"),
        tokenizer=Tokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    return BlendedMegatronDatasetBuilder(Numbered, [samples, 0, 0], lambda: True, config).build()[0]


def joined(items: list[dict[str, Any]]) -> torch.Tensor:
    return torch.tensor([int(item["index"]) for item in items])


def train(record: Record, folder: str, world: int) -> None:
    rank = int(os.environ.get("RANK", "0"))
    folder = os.path.join(folder, str(rank))
    os.makedirs(folder)
    prefixes = [os.path.join(folder, name) for name in ("web", "books")]
    for seed, prefix in enumerate(prefixes):
        put_tokens(prefix, seed)
    single = data_set_over(prefixes[:1], None, 1200, folder)
    blended = data_set_over(prefixes, [0.7, 0.3], 900, folder)
    hook = sys.modules.get("headrace_plan_hook.sample_extents")
    if hook is not None:
        check_extents(hook, single, [single])
        check_extents(hook, blended, blended.datasets)
        assert hook.extents_of(RandomSeedDataset(single, 1)).files == hook.extents_of(single).files
    share = {"micro_batch_size": 4, "data_parallel_rank": rank, "data_parallel_size": world}
    count = len(single)
    for name, consumed in (("epoch", 0), ("resumed", 160)):
        samplers = {
            "single": MegatronPretrainingSampler(count, consumed, **share),
            "cyclic": MegatronPretrainingRandomSampler(single, count, consumed, **share, data_sharding=False),
            "sharded": MegatronPretrainingRandomSampler(single, count, consumed, **share, data_sharding=True),
        }
        for kind, sampler in samplers.items():
            for workers in (0, 2) if kind == "single" else (0,):
                options: dict[str, Any] = {"batch_sampler": sampler, "num_workers": workers}
                record.read(f"{kind} {workers}: {name}", DataLoader(single, collate_fn=joined, **options))


def check_extents(hook: Any, data_set: Any, parts: list[Any]) -> None:
    """Compare the extents of samples with the reads of the files of tokens: each byte that was read is in one of them,
    and of each of them something was read."""
    hook.EXTENT_BYTES, length = EXTENT_BYTES, hook.EXTENT_BYTES
    extents = hook.extents_of(data_set)
    hook.EXTENT_BYTES = length
    reads: list[tuple[str, int, int]] = []
    for part in parts:
        reader, read = part.dataset.bin_reader, part.dataset.bin_reader.read

        def noting(
            dtype: Any, count: int, offset: int, path: str = part.dataset.path_prefix, read: Any = read
        ) -> Any:
            reads.append((f"{path}.bin", int(offset), int(offset + count * np.dtype(dtype).itemsize)))
            return read(dtype=dtype, count=count, offset=offset)

        reader.read = noting
    numbered = [("", 0, 0)]
    for path, bounds in extents.files:
        assert os.path.getsize(path) == bounds[-1]
        numbered += [(path, start, end) for start, end in itertools.pairwise(bounds)]
    samples = np.random.RandomState(1).permutation(len(data_set))[:CHECKED]
    rows = extents.pick(samples)
    assert rows.shape[1] > 2
    for sample, row in zip(samples.tolist(), rows.tolist(), strict=True):
        reads.clear()
        data_set[sample]
        read_blocks = {
            (path, block * EXTENT_BYTES)
            for path, start, end in reads
            for block in range(start // EXTENT_BYTES, -(-end // EXTENT_BYTES))
        }
        assert {numbered[number][:2] for number in row if number} == read_blocks, sample
    for part in parts:
        del part.dataset.bin_reader.read
