"""Replicas of dirty files on other nodes, and how those nodes persist them when the writer leaves the cluster."""
