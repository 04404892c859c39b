"""The agent's reply in progress: which of its words are said and which are still to say."""


class Reply:
    """The words of the reply in progress, filled in by the transport and read by
    UserTurnController. One text a word."""

    def __init__(self) -> None:
        self.busy = False
        """A reply is being made: the agent was given the turn and has not finished."""
        self.cut = False
        """The caller has taken the floor, and what Pipecat still brings of this reply is to be
        dropped, until its InterruptionFrame says that all of it has come."""
        self.written = False
        """The reply has text."""
        self._said: list[str] = []
        self._waiting: list[str] = []

    def begin(self) -> None:
        """The agent begins to answer: words, or something to do, or both."""
        self.busy, self.written = True, False

    def queue(self, text: str) -> None:
        """A word went into the playout."""
        self._waiting.append(text)

    def say(self) -> None:
        """The word that waited longest has been sent."""
        self._said.append(self._waiting.pop(0))

    def finish(self) -> None:
        """All of it has been sent; words that wait are those of the next reply."""
        self._said, self.busy = [], bool(self._waiting)

    def end(self) -> tuple[str, str]:
        """The reply was cut: what was said of it, and what was not."""
        said, unsaid = " ".join(self._said), " ".join(self._waiting)
        self._said, self._waiting, self.busy = [], [], False
        return said, unsaid

    def recent(self, words: int = 16) -> str:
        """The last words said, with the one that is being said."""
        return " ".join([*self._said, *self._waiting[:1]][-words:])
