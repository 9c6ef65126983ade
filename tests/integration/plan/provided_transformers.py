"""Train with the Trainer of Hugging Face's transformers, and go on from a checkpoint in mid-epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from tests.integration.plan.provided import SAMPLES, Numbers, Record

STEPS_SAVED = 30


class Model(torch.nn.Module):
    """Records what it is trained with."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self._record = record

    def forward(self, indices: Any) -> Any:
        self._record.add(indices)
        return {"loss": self.layer(indices.float().unsqueeze(1)).sum()}


class Epochs(transformers.TrainerCallback):  # type: ignore[misc]
    """Begins an epoch of the record before its first step."""

    def __init__(self, record: Record, name: str) -> None:
        self._record = record
        self._name = name
        self._epoch = -1

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._epoch != int(state.epoch):
            self._epoch = int(state.epoch)
            self._record.begin(f"{self._name}: epoch {self._epoch}")


def collate(indices: list[int]) -> dict[str, torch.Tensor]:
    return {"indices": torch.tensor(indices)}


def train(record: Record, folder: str, world: int) -> None:
    steps = STEPS_SAVED // world
    for name, checkpoint in (("whole", None), ("resumed", str(Path(folder, f"checkpoint-{steps}")))):
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            num_train_epochs=2,
            per_device_train_batch_size=4,
            learning_rate=0.0,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            save_strategy="steps",
            save_steps=steps,
            seed=3,
        )
        assert steps % -(-SAMPLES // 4 // world), "the checkpoint is in mid-epoch"
        trainer = transformers.Trainer(
            model=Model(record),
            args=arguments,
            data_collator=collate,
            train_dataset=Numbers(),
            callbacks=[Epochs(record, name)],
        )
        trainer.train(resume_from_checkpoint=checkpoint)
