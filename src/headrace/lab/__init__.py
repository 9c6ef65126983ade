"""A cluster on one machine, for trying, testing and measuring: nodes in network namespaces behind shaped links."""
