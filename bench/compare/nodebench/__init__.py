"""Parts of `bench/compare/node.py`: one machine, one run, all contenders."""
