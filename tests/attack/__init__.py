"""Attacks on a server: each a coroutine of the attacker, bounded in time and memory."""
