"""Ears, a voice, an agent and a tool for Morse code."""
