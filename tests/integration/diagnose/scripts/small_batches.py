"""Batches of one sample, through a model of many small layers. With the hook, if a word says so."""

import sys

import torch
from torch import nn

from headrace.diagnose import watch

model = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(16, 16), nn.ReLU())))
optimizer = torch.optim.Adam(model.parameters(), foreach=False)
if "watch" in sys.argv:
    watch(model, optimizer)
while True:
    optimizer.zero_grad()
    loss = model(torch.rand(1, 16)).sum()
    loss.backward()
    optimizer.step()
