"""Parts of `bench/compare/write.py`: what writing costs, beside peers and the plain disk."""
