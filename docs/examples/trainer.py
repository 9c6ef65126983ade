"""A trainer that can be killed at any moment: it goes on from its last checkpoint, bit by bit as if nothing had been.

    python docs/examples/trainer.py /nvme0/checkpoints/demo --steps 200 --every 10

`Checkpoints` is what a Trainer or Lightning callback would hold: `on_step_end` after each step, `restore` at the start.
"""

from __future__ import annotations

import argparse
import hashlib
from typing import Any

import torch

from headrace.checkpoint import PosixStorage, Retention, SaveOptions, Saver, load, steps


class Checkpoints:
    """Saves every so many steps in the background; training is stopped only while its state is copied."""

    def __init__(self, folder: str, every: int) -> None:
        self.folder = folder
        self.every = every
        options = SaveOptions(retention=Retention(last=2, every=100 * every))
        self.saver = Saver(folder, options=options)

    def restore(self) -> dict[str, Any] | None:
        """The newest state; None at the very beginning."""
        return load(self.folder) if steps(PosixStorage(self.folder)) else None

    def on_step_end(self, trainer: Trainer) -> None:
        if trainer.step % self.every == 0:
            self.saver.save(trainer.state(), trainer.step, metadata={"loss": trainer.loss})

    def on_end(self) -> None:
        """Errors of saves that nobody waited for are raised here, or by the next save."""
        self.saver.close()


class Trainer:
    def __init__(self, seed: int = 1) -> None:
        torch.manual_seed(seed)
        layers = (torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 8))
        self.model = torch.nn.Sequential(*layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=1000)
        self.step = 0
        self.loss = 0.0

    def state(self) -> dict[str, Any]:
        """All that the next step hangs on, the random numbers too."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "random": torch.get_rng_state(),
            "step": self.step,
        }

    def take(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        torch.set_rng_state(state["random"])
        self.step = state["step"]

    def fit(self, until: int, checkpoints: Checkpoints) -> None:
        state = checkpoints.restore()
        if state is not None:
            self.take(state)
        print(f"from step {self.step}", flush=True)
        while self.step < until:
            loss = self.model(torch.randn(16, 32)).pow(2).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            self.step, self.loss = self.step + 1, loss.item()
            checkpoints.on_step_end(self)
            print(f"step {self.step}", flush=True)
        checkpoints.on_end()

    def digest(self) -> str:
        """Of the weights, bit by bit."""
        found = hashlib.sha256()
        for tensor in self.model.state_dict().values():
            found.update(tensor.numpy().tobytes())
        return found.hexdigest()


def main(words: list[str] | None = None) -> str:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=10)
    given = parser.parse_args(words)
    trainer = Trainer()
    trainer.fit(given.steps, Checkpoints(given.folder, given.every))
    print(f"weights {trainer.digest()}", flush=True)
    return trainer.digest()


if __name__ == "__main__":
    main()
