"""What is known of a call in one tick, for turn-taking."""

from collections.abc import Callable
from dataclasses import dataclass, field

from offhook.pipeline.conversation.turns.transcript import Transcript

PAUSE_MS = 400
"""Shortest silence in ms within a turn that is a pause, and not the breath between two clauses."""


@dataclass
class Facts(Transcript):
    """The inputs of one tick, filled in by UserTurnController and its parts and read by the
    conditions of turn.py."""

    voice: bool = False
    """The VAD currently detects speech."""
    suspected: bool = False
    """One VAD window scored high: speech may have started."""
    speech_ms: int = 0
    """Length in ms of the current or last speech, without parts that are or may be echo of the
    agent."""
    no_echo_ms: int = 0
    """ms of caller audio that did not match the agent's, since speech over the agent was suspected;
    counted only while `echo` is called."""
    silence_ms: int = 0
    """ms since the end of the last speech."""
    end_probability: float | None = None
    """What the end-of-turn model said in this pause; None if nothing, or if there is none."""
    agent_speaking: bool = False
    """Agent audio is being played or is paused."""
    agent_busy: bool = False
    """The agent is generating a reply."""
    agent_silent_ms: int = 0
    """ms since the last agent audio, or since the agent was given the turn."""
    echo_free: bool = False
    """The agent has been heard long enough to know that the line has no echo."""
    unheard: bool = False
    """Nothing of the reply has been heard, and the turn ended less than a second ago."""
    first: bool = False
    """The caller's sound began before the agent's, which nobody had asked for."""
    paused_ms: int = 0
    """Longest pause in ms within the turn so far."""
    asked: str = ""
    """What the agent said last, before the caller's turn."""
    language: str = "en"
    """ISO 639 code of the caller's words."""
    learned_ms: int = 0
    """Silence to wait for, as this caller's pauses have taught; 0 if nothing is learned."""
    agent_said: str = ""
    """The last words of the agent that were played; the same words recognized from the caller are
    echo."""
    agent_asks: bool = False
    """What the agent is saying ends with a question."""
    keying: bool = False
    """A key entry has started and is not complete."""
    keyed: bool = False
    """A key entry is complete and not yet handed over."""
    excused: bool = False
    """The transcript is late or lost and an apology is being spoken: the agent's audio is no
    reply."""
    lost: bool = False
    """The transcript is lost: the recognizer has failed."""
    agent_left_ms: Callable[[], int | None] = field(default=lambda: None)
    """Returns the ms up to the last audible sound of the agent that is still to be played; None if
    more of the reply is to come."""
    echo: Callable[[], bool] = field(default=lambda: False)
    """Returns whether the incoming audio is echo of the agent. Costs a correlation, so it is called
    only when needed."""

    def forget_turn(self) -> None:
        """Forget what is known of the turn, but for the text of its last utterance."""
        self.turn_text = self.before = ""
        self.paused_ms, self.end_probability = 0, None
        self.excused = self.lost = False

    def forget_pause(self, ms: int) -> None:
        """Forget what is known of the turn's end: after a pause of `ms` the caller goes on."""
        self.paused_ms = max(self.paused_ms, ms)
        self.excused, self.end_probability = False, None

    @property
    def has_paused(self) -> bool:
        """Whether the caller has gone on once when the turn might have been over."""
        return bool(self.before) or self.paused_ms >= PAUSE_MS
