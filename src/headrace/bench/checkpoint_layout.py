"""Compute the sizes of the files that each rank writes in the checkpoints of MLPerf Storage. All functions are pure.

The layout follows DLIO (dlio_benchmark/checkpointing/base_checkpointing.py) and the models of Table 2 of v2.0's
Submission Guidelines. v3.0 has the same models and files, and its closed submissions the same sums. A rank has a model
file in fp16 (with pipeline stages, a file for each layer), and a file of optimizer states in fp32. With ZeRO 1 only the
first data-parallel group writes the model; with ZeRO 3 each rank writes its part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.base.errors import UsageError

MODEL_BYTES, OPTIMIZER_BYTES = 2, 4
"""Bytes of a parameter in a model file (fp16), and of one optimizer state (fp32)."""
SUBSET_RANKS = 8
"""Most ranks of the mode "subset"."""
BIASES = 5
"""Multiple of the hidden dimension that DLIO adds to each of the optimizer's three groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Describe a model and its ranks.

    tensor, pipeline, data: degrees of parallelism; their product is the number of ranks.
    """

    name: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    tensor: int
    pipeline: int
    data: int
    zero: int
    vocabulary: int = 128_256

    @property
    def ranks(self) -> int:
        return self.tensor * self.pipeline * self.data

    @property
    def _qkv(self) -> int:
        return self.hidden * (self.hidden + 2 * (self.hidden // self.heads) * self.kv_heads)

    @property
    def parameters(self) -> int:
        layer = 2 * self.hidden + self._qkv + self.hidden**2 + 3 * self.hidden * self.ffn
        return 2 * self.vocabulary * self.hidden + self.hidden + layer * self.layers

    def layer_parameters(self, layer: int) -> int:
        """Return the parameters of a layer that one rank has. Layer 0 is the embedding. The head and its norm follow
        the last layer."""
        parts, shared = self.tensor, self.data if self.zero == 3 else 1
        if layer in (0, self.layers + 1):
            return self.hidden * self.vocabulary // parts // shared
        if layer == self.layers + 2:
            return self.hidden // shared
        matrices = (self._qkv, self.hidden**2, 2 * self.hidden * self.ffn, self.hidden * self.ffn)
        return 2 * (self.hidden // shared) + sum(matrix // parts // shared for matrix in matrices)

    def stage_layers(self, stage: int) -> range:
        """Return the layers of a pipeline stage."""
        each, more = divmod(self.layers, self.pipeline)
        start = stage * each + min(stage, more) + 1
        end = start + each + (stage < more)
        return range(0 if stage == 0 else start, self.layers + 3 if stage == self.pipeline - 1 else end)

    def files(self, rank: int) -> dict[str, int]:
        """Return the size in bytes of each file of a rank, by name, without torch.save's framing."""
        stage, group = rank // self.tensor % self.pipeline, self.tensor * self.pipeline
        data, part = rank // group, rank % group
        return {
            **dict(self._model_files(stage, data, part)),
            self._optimizer_name(data, part): self._optimizer_bytes(),
        }

    def _model_files(self, stage: int, data: int, part: int) -> Iterator[tuple[str, int]]:
        layers = {layer: MODEL_BYTES * self.layer_parameters(layer) for layer in self.stage_layers(stage)}
        if self.zero == 3:
            yield f"zero_pp_rank_{data}_mp_rank_{part}_model_states.pt", sum(layers.values())
        elif data == 0:  # all models with ZeRO 1 have pipeline stages
            for layer, size in layers.items():
                yield f"layer_{layer}-model_{part}_model_states.pt", size

    def _optimizer_name(self, data: int, part: int) -> str:
        return f"zero_pp_rank_{data}_mp_rank_{part}_optim_states.pt"

    def _optimizer_bytes(self) -> int:
        return OPTIMIZER_BYTES * 3 * (self.parameters // self.ranks + BIASES * self.hidden)


MODELS: dict[str, Model] = {
    layout.name: layout
    for layout in (
        Model(
            name="llama3-8b", layers=32, hidden=4096, ffn=14336, heads=32, kv_heads=8,
            tensor=1, pipeline=1, data=8, zero=3,
        ),
        Model(
            name="llama3-70b", layers=80, hidden=8192, ffn=28672, heads=128, kv_heads=8,
            tensor=8, pipeline=1, data=8, zero=3,
        ),
        Model(
            name="llama3-405b", layers=126, hidden=16384, ffn=53248, heads=128, kv_heads=8,
            tensor=8, pipeline=32, data=2, zero=1,
        ),
        Model(
            name="llama3-1t", layers=128, hidden=25872, ffn=98304, heads=192, kv_heads=32,
            tensor=8, pipeline=64, data=2, zero=1,
        ),
    )
}  # fmt: skip
"""Models by name. Their sums are those that runs of v3.0 report. Table 2 has the same, except for 1t: its dimensions
give 15,427 GiB, as runs do, and the table says 18 TB."""


def model(name: str) -> Model:
    """Return the model of that name. Raises UsageError, which lists the models."""
    if name not in MODELS:
        raise UsageError(f"model {name}", why="there is none", hint=", ".join(MODELS))
    return MODELS[name]
