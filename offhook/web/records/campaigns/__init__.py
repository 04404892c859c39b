"""Campaigns in the store: the recipients who wait, and what became of each."""
