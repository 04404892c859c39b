"""Hearing, turn-taking, agents, speaking."""

import offhook.pipeline.conversation.wait_for_io  # noqa: F401
