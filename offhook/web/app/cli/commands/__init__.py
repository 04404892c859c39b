"""The commands: each returns the exit status of the process. Each imports what it needs when it
runs, so that a short one starts at once."""
