"""Conversations by text: the agents of a configuration, without ears, voice and line."""
