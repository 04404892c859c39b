"""Rows on their way into the store."""
