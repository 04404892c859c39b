"""The front door: composition root, HTTP APIs, the page, the command line."""
