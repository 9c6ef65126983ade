"""Threads beside the training loop compute in Python, so that each operation of the loop waits for the lock."""

import threading

import torch


def score() -> None:
    total = 0
    while True:
        for number in range(1000):
            total += number * number


def step() -> None:
    for _ in range(100):
        torch.mm(SMALL, SMALL)


torch.set_num_threads(1)
SMALL = torch.rand(64, 64)
for _ in range(3):
    threading.Thread(target=score, daemon=True).start()
while True:
    step()
