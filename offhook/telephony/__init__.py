"""SIP and carrier streams."""
