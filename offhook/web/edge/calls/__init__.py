"""The calls of an edge: each with all that belongs to it, browsers' and programs' ways to begin
and steer them, and the records of those that have ended."""
