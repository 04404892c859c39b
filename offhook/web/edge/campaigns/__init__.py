"""Campaigns over HTTP."""
