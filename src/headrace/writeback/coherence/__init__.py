"""Show dirty names to other nodes, and lease to one node the right to create names in a directory."""
