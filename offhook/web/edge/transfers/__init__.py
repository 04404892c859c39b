"""Transfers by which a person is told who calls and why, before the caller is connected."""
