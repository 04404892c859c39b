"""Calls of carriers at an edge: their webhooks, their streams, and calls placed through them."""
