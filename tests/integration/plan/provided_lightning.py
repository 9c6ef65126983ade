"""Train with Lightning's Trainer: it puts samplers of its own in place of the program's, and a job goes on from a
checkpoint in mid-epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import torch
from torch.utils.data import DataLoader, SubsetRandomSampler

from tests.integration.plan.provided import SAMPLES, HalfShuffled, Numbers, Record


class Model(lightning.LightningModule):  # type: ignore[misc]
    """Records what it is trained with."""

    def __init__(self, record: Record, name: str) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self._record = record
        self._name = name
        self._epoch = -1

    def training_step(self, batch: Any, _: int) -> Any:
        if self._epoch != self.current_epoch:
            self._epoch = self.current_epoch
            self._record.begin(f"{self._name}: epoch {self._epoch}")
        self._record.add(batch)
        return self.layer(batch.float().unsqueeze(1)).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.0)


def train(record: Record, folder: str, world: int) -> None:
    options: dict[str, dict[str, Any]] = {
        "shuffle": {"shuffle": True},
        "in order": {},
        "wrapped": {"sampler": SubsetRandomSampler(range(SAMPLES // 2))},
        "own": {"sampler": HalfShuffled()},
    }
    for name, chosen in options.items():
        fit(record, name, world, DataLoader(Numbers(), batch_size=4, **chosen), max_epochs=2)
    loader = DataLoader(Numbers(), batch_size=4, shuffle=True)
    checkpoint = str(Path(folder, "at-step-5"))
    fit(record, "left", world, loader, max_steps=5).save_checkpoint(checkpoint)
    fit(record, "resumed", world, loader, max_epochs=2, checkpoint=checkpoint)


def fit(
    record: Record, name: str, world: int, loader: Any, *, checkpoint: str | None = None, **limits: int
) -> Any:
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=world,
        strategy="ddp" if world > 1 else "auto",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        **limits,
    )
    trainer.fit(Model(record, name), loader, ckpt_path=checkpoint)
    return trainer
