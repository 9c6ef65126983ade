"""Parts of `bench/compare/dlio.py`."""
