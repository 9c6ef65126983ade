"""Policies: what the cache keeps, where, for how long, for whom. Pure decisions, without I/O and without a clock."""
