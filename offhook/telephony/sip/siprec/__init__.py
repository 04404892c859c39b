"""The recording server of SIPREC (RFC 7866, RFC 7865)."""
