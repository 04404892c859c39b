"""Hearing, turn-taking, agents, speaking."""
