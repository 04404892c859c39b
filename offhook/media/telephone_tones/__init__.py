"""Tones of the telephone network: made, queued and found in audio."""
