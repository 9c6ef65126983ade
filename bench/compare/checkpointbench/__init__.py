"""Parts of `bench/compare/checkpoint.py`: one machine, one run, interleaved."""
