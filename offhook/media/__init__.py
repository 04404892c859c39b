"""Real-time audio: packets, codecs, clocks, PCM and recording. Imports no other room."""
