"""What leads an agent's model through a conversation, such as a flow."""


class Guide:
    """Leads nowhere; what does overrides its methods."""

    def instructions(self, own: str) -> str:
        """Returns the system prompt of a request; `own` are the agent's instructions."""
        return own

    def answered(self, calls: bool) -> None:
        """The model has written an answer, the last of which is on its way to the caller. `calls`:
        whether it calls functions."""


NO_GUIDE = Guide()
