"""Tools of agents that the configuration describes."""
