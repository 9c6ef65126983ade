"""Parts of `bench/compare/scaling.py`."""
