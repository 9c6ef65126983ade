"""Receive what origins report about changes of their objects: from queues, and by posts to the REST API."""
