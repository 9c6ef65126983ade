"""Trains a small network on a folder of images, one folder a class, and prints the loss of each epoch.

    python train_images.py headrace:///digits            # from this host's node, no mount needed
    python train_images.py /mnt/data/digits              # from a mount, or any folder: the same losses

Images are binary PGM files of one size, as `--make FOLDER` writes them: the digits that scikit-learn ships.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import torch
from torch import nn

from headrace.integrations.torch_data import Loader, Samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("where", help="headrace:///PATH, or a folder")
    parser.add_argument("--make", action="store_true", help="write the images to WHERE, and end")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--state", type=Path, help="a file to go on from, and to write after each epoch")
    given = parser.parse_args()
    if given.make:
        make(Path(given.where))
    else:
        train(given.where, given.epochs, given.workers, given.state)


def train(where: str, epochs: int, workers: int, state: Path | None) -> None:
    torch.manual_seed(1)
    data = Samples(where, decode=image_of, suffixes=(".pgm",))
    loader = Loader(data, batch_size=64, workers=workers, seed=1)
    network = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.LazyLinear(len(data.classes)),
    )
    network(data[0][0][None])  # its shape decides those of the last layer
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    if state is not None and state.exists():
        saved = torch.load(state)
        network.load_state_dict(saved["network"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
    while loader.epoch < epochs:
        losses, right, seen, epoch = [], 0, 0, loader.epoch
        for images, labels in loader:
            answers = network(images)
            loss = nn.functional.cross_entropy(answers, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            right, seen = right + int((answers.argmax(1) == labels).sum()), seen + len(labels)
        print(f"epoch {epoch}: loss {sum(losses) / len(losses):.6f}, right {right / seen:.3f}", flush=True)
        if state is not None:
            saved = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**saved, "loader": loader.state_dict()}, state)


def image_of(body: bytes, name: str) -> torch.Tensor:
    """Of a binary PGM file without comments (netpbm.sourceforge.net/doc/pgm.html): 1, height, width, from 0 to 1."""
    header = re.match(rb"P5\s+(\d+)\s+(\d+)\s+(\d+)\s", body)
    if header is None:
        raise ValueError(f"{name} is no binary PGM file")
    width, height, most = map(int, header.groups())
    flat = torch.frombuffer(bytearray(body), dtype=torch.uint8, offset=header.end(), count=width * height)
    return flat.reshape(1, height, width).float() / most


def make(folder: Path) -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    for number, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        target = folder / str(label) / f"{number:04d}.pgm"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(b"P5\n8 8\n16\n" + image.astype("uint8").tobytes())


if __name__ == "__main__":
    main()
