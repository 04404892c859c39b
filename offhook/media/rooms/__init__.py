"""Rooms: calls with several members, each of whom hears all others that speak."""
