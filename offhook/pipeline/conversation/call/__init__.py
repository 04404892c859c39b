"""The parts of a call: its conversation so far, its pipeline, and where the caller is."""
