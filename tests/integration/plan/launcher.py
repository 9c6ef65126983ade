"""Run a launcher of torch, as `python -m` does: its module, and its arguments."""

from __future__ import annotations

import runpy
import sys

if __name__ == "__main__":
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
