"""Find out why GPUs wait: sample a training job from outside, and report the causes of its lost time.

`watch` is the one line that a training script may add. This package does not import torch.
"""

from headrace.diagnose.marks import watch

__all__ = ["watch"]
