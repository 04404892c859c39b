"""Turn-taking: when the caller is done, and when the caller interrupts the agent."""
