"""Parts of `bench/compare/kvcache.py`."""
