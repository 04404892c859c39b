"""Queues of callers who wait for a person."""
