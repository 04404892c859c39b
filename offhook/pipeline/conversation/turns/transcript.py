"""What is understood of a caller's turn so far."""

from dataclasses import dataclass


def join(first: str, second: str) -> str:
    """Return both texts with a space between them, or the one that is not empty."""
    return f"{first} {second}".strip() if first and second else first or second


@dataclass
class Transcript:
    """The words of the turn in progress, kept by UtteranceFeed."""

    text: str = ""
    """Transcript of the current utterance, partial or final."""
    final: bool = False
    """Whether `text` is final."""
    words_due: bool = False
    """A final transcript is still outstanding."""
    turn_text: str = ""
    """Final transcripts of the turn's earlier utterances."""
    before: str = ""
    """What the agent was already given of this turn, and has not been heard to answer."""

    @property
    def words(self) -> str:
        """Transcript of the turn so far."""
        return f"{self.turn_text} {self.text}".strip()

    def append(self, text: str) -> None:
        """Add the final transcript of an earlier utterance."""
        self.turn_text = join(self.turn_text, text)
