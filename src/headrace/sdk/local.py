"""The hit path: what a client of the host reads by itself, without asking the node."""
