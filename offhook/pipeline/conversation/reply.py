"""The agent's reply in progress: which of its words have been spoken."""


class Reply:
    """The words of the reply in progress, written by the transport and read by UserTurnController;
    one text per word."""

    def __init__(self) -> None:
        self.busy = False
        """Whether a reply is being generated: the agent was given the turn and has not finished."""
        self.cut = False
        """Whether the caller has interrupted, so that further output of this reply is dropped until
        Pipecat's InterruptionFrame marks its end."""
        self.written = False
        """Whether the reply has text."""
        self.interrupted: tuple[str, str] | None = None
        """What was said and what was not of a reply that was interrupted, until the transport has
        reported it."""
        self.last = ""
        """What was said of the last reply."""
        self._said: list[str] = []
        self._waiting: list[str] = []

    def begin(self) -> None:
        """Marks the start of the agent's answer: words, an action, or both."""
        self.busy, self.written = True, False

    def queue(self, text: str) -> None:
        """Adds a word that was queued for playout."""
        self._waiting.append(text)

    def say(self) -> None:
        """Marks the oldest queued word as sent."""
        self._said.append(self._waiting.pop(0))

    def finish(self) -> None:
        """Marks the reply as completely sent; queued words belong to the next reply."""
        self.last = self.spoken or self.last
        self._said, self.busy = [], bool(self._waiting)

    @property
    def spoken(self) -> str:
        """What was sent of the reply in progress."""
        return " ".join(self._said)

    @property
    def asks(self) -> bool:
        """Whether what is queued of the reply, or else what was said last, ends with a question."""
        words = self._waiting or self._said or self.last.split()
        return bool(words) and words[-1].rstrip("\"')»”").endswith(("?", "？"))

    def end(self) -> tuple[str, str]:
        """Ends an interrupted reply, whose queued words were dropped; returns what was said of it,
        and what was not."""
        said, unsaid = self.spoken, " ".join(self._waiting)
        self.last = said or self.last
        self._said, self._waiting, self.busy = [], [], False
        if said or unsaid:
            self.interrupted = said, unsaid
        return said, unsaid

    def recent(self, words: int = 16) -> str:
        """Returns the last words spoken, including the current one."""
        return " ".join([*self._said, *self._waiting[:1]][-words:])
