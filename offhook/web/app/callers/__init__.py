"""Callers of a server, as it is called: by WebRTC, by SIP, and by a carrier's stream."""
