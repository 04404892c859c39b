"""The console: the calls of a server, in a browser."""
