"""Turn-taking in virtual time: who is cut off, who waits, and whose answer is lost."""
