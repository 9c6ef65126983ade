"""Why GPUs wait: samples a training job from outside, and says which causes its time was lost to.

`watch` is the one line that a training script may add; nothing here imports torch.
"""

from headrace.diagnose.marks import watch

__all__ = ["watch"]
