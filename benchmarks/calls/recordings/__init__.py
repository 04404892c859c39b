"""Recorded speech in simulated calls."""
