"""Campaigns of outgoing calls: what is asked for, when who is called, and what became of it."""
