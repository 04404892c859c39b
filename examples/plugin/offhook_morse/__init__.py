"""Ears and a voice for Morse code."""
