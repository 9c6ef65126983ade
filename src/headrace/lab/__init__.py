"""Run a cluster on one machine for trials, tests and measurements: nodes in network namespaces behind shaped
links."""
