"""The caller's last turn, which may turn out to go on. Sans-io; positions are samples of what was
received."""

from offhook.media.pcm import RATE_IN

MS = RATE_IN // 1000
NEVER = -(10**9)
GOES_ON_MS = 1000
"""ms after a turn's end within which whatever the caller says is more of that turn, also if the
first words of the answer are heard."""
TAKEN_BACK_MS = 3000
"""ms after a turn's end within which a caller who goes on before the answer is heard continues that
turn."""


class LastTurn:
    """What the agent was given last."""

    def __init__(self) -> None:
        self.number = 0
        """Counts from 1; 0: there was none yet."""
        self.committed_at = 0
        self.text = ""
        """Its text, with what was taken back before."""
        self._speech_end = NEVER

    def commit(self, now: int, silence_ms: int, text: str) -> None:
        """Begin a new one, whose speech ended `silence_ms` ago."""
        self.number += 1
        self.committed_at, self._speech_end = now, now - silence_ms * MS
        self.text = text

    def pause_ms(self, onset: int) -> int:
        """Return the ms from the end of its speech to a sound that begins at `onset`."""
        return (onset - self._speech_end) // MS

    def is_fresh(self, now: int) -> bool:
        """Return whether it has ended so recently that whatever the caller says is more of it."""
        return (now - self.committed_at) // MS < GOES_ON_MS

    def goes_on(self, now: int, onset: int, answer_heard: bool) -> bool:
        """Return whether a sound that interrupts its answer at `now` is more of it."""
        since, began = now - self.committed_at, onset - self.committed_at
        taken_back = not answer_heard and since < TAKEN_BACK_MS * MS
        return taken_back or 0 < began < GOES_ON_MS * MS
