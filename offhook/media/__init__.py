"""Packets, codecs, clocks, PCM, recording. Imports nothing of the other rooms."""
