"""What of a caller's audio the recognizer is fed, utterance by utterance, and which of its finals
are words of the turn: a table of state × event → state, actions. Sans-io.

Positions are samples of what was received.
"""

from enum import Enum, auto

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.conversation.turns.caller_audio import MS, CallerAudio
from offhook.pipeline.conversation.turns.facts import Facts
from offhook.pipeline.conversation.turns.turn import Turn, TurnState
from offhook.pipeline.conversation.turns.turn_audio import TurnAudio
from offhook.pipeline.speech.recognizer import Final, Partial, RecognizerStream

PRE_ROLL_MS = 320
"""ms of audio before the detected onset that the recognizer also gets, since detection lags."""
PRE_ROLL_ECHO_MS = 120
"""Pre-roll in ms after echo of the agent, whose last words would otherwise be transcribed too."""
MANUAL_TURN_S = 120
"""Maximum length in s of a turn that only a program ends; a longer one starts anew, so that a line
that is open for hours is bounded."""
FEED_MS = 100
"""Chunk length in ms of audio fed to the recognizer."""
GAIN_LATE_MS = 1000
"""Audio in ms that waits while the gain for a quiet caller is being found, 0.3 s of voice: the
recognizer would take a rise of 20 dB within the first word for another sound."""


class UserAudioListener:
    """Receives the audio of the user's turns, as the recognizer does. Each method does nothing
    unless overridden."""

    def on_audio(self, pcm: Pcm) -> None:
        """More audio of the turn, 16 kHz, with a short pre-roll before its speech."""

    def on_discard(self) -> None:
        """The audio since the last commit belongs to no turn."""

    def on_commit(self, text: str) -> None:
        """The turn is over; `text` is its transcript, with the keys pressed in it."""


class FeedState(Enum):
    EMPTY = auto()
    """Nothing is fed, and no final is due."""
    FED = auto()
    """An utterance is being fed."""
    FED_ON = auto()
    """An utterance is being fed, and finals of those before it are due."""
    DUE = auto()
    """The utterance has ended; its final is due, perhaps behind those of others."""
    FINAL = auto()
    """The last final has come."""


class FeedEvent(Enum):
    BEGIN = auto()
    """More of the turn begins."""
    BEGIN_OVER = auto()
    """Sound over the agent begins; what was final before is no part of its turn."""
    FINISH = auto()
    """The utterance ends."""
    CANCEL = auto()
    """The sound so far is of no turn."""
    GO_ON = auto()
    """The caller goes on, in an utterance of its own."""
    FEED_AGAIN = auto()
    """The caller goes on, in the last utterance, which is fed again."""
    REPLACE = auto()
    """Another recognizer takes over."""
    PARTIAL = auto()
    CONTINUED = auto()
    """The final of the first part of an utterance, which the recognizer has split."""
    EARLIER_FINAL = auto()
    """A final that others are due after."""
    FINAL = auto()
    """The last final that is due, or one that nobody has requested."""


class FeedAction(Enum):
    CLEAR = auto()
    """Forget the text and the audio of the utterance before."""
    KEEP = auto()
    """Add the text to the turn."""
    APPEND = auto()
    """Add the final to the turn."""
    TEXT = auto()
    """Take the event's text for that of the utterance."""
    FINISH = auto()
    """Request the final of all audio so far."""
    STOP = auto()
    """Have the recognizer discard the utterance in progress."""
    FORGET = auto()
    """Ignore the finals that are due."""
    REPEAT = auto()
    """Feed the utterance from its beginning."""


S, E, A = FeedState, FeedEvent, FeedAction
TABLE: dict[tuple[FeedState, FeedEvent], tuple[FeedState, tuple[FeedAction, ...]]] = {
    (S.EMPTY, E.BEGIN): (S.FED, (A.CLEAR,)),
    (S.EMPTY, E.BEGIN_OVER): (S.FED, (A.CLEAR,)),
    (S.DUE, E.BEGIN): (S.FED_ON, (A.CLEAR,)),
    (S.DUE, E.BEGIN_OVER): (S.FED_ON, (A.CLEAR,)),
    (S.FINAL, E.BEGIN): (S.FED, (A.KEEP, A.CLEAR)),
    (S.FINAL, E.BEGIN_OVER): (S.FED, (A.CLEAR,)),
    # Nothing was fed: no transcript comes, and there are no words.
    (S.EMPTY, E.FINISH): (S.FINAL, (A.TEXT,)),
    (S.FED, E.FINISH): (S.DUE, (A.FINISH,)),
    (S.FED_ON, E.FINISH): (S.DUE, (A.FINISH,)),
    (S.EMPTY, E.CANCEL): (S.EMPTY, (A.FORGET,)),
    (S.FED, E.CANCEL): (S.EMPTY, (A.STOP, A.FORGET)),
    (S.FED_ON, E.CANCEL): (S.EMPTY, (A.STOP, A.FORGET)),
    (S.DUE, E.CANCEL): (S.EMPTY, (A.FORGET,)),
    (S.FINAL, E.CANCEL): (S.EMPTY, (A.FORGET,)),
    (S.FINAL, E.GO_ON): (S.EMPTY, (A.KEEP,)),
    (S.EMPTY, E.FEED_AGAIN): (S.FED, ()),
    (S.DUE, E.FEED_AGAIN): (S.FED, ()),
    (S.FINAL, E.FEED_AGAIN): (S.FED, ()),
    (S.FED, E.REPLACE): (S.FED, (A.REPEAT,)),
    (S.FED_ON, E.REPLACE): (S.FED, (A.REPEAT,)),
    (S.DUE, E.REPLACE): (S.DUE, (A.REPEAT, A.FINISH)),
    (S.FED, E.PARTIAL): (S.FED, (A.TEXT,)),
    (S.FED_ON, E.PARTIAL): (S.FED_ON, (A.TEXT,)),
    (S.DUE, E.PARTIAL): (S.DUE, (A.TEXT,)),
    **{(state, E.CONTINUED): (state, (A.APPEND,)) for state in S},
    # The caller went on after the pause: the final becomes part of the turn.
    (S.FED, E.FINAL): (S.FED, (A.APPEND,)),
    (S.FED_ON, E.EARLIER_FINAL): (S.FED_ON, (A.APPEND,)),
    (S.FED_ON, E.FINAL): (S.FED, (A.APPEND,)),
    (S.DUE, E.EARLIER_FINAL): (S.DUE, (A.APPEND,)),
    (S.DUE, E.FINAL): (S.FINAL, (A.TEXT,)),
}
"""What is missing changes nothing."""

_FED, _FED_ON = FeedState.FED, FeedState.FED_ON
_HEARING, _SUSPECTED, _ENDING = TurnState.HEARING, TurnState.SUSPECTED, TurnState.ENDING
"""For what is asked 50 times a second: Python 3.11 takes long to find a member of an
enumeration."""


class UtteranceFeed:
    """The utterances of one caller."""

    def __init__(self, audio: CallerAudio, recognizer: RecognizerStream, facts: Facts) -> None:
        """Keeps the transcript in `facts` up to date."""
        self.recognizer = recognizer
        self.listener = UserAudioListener()
        self.state = FeedState.EMPTY
        self.requested_at = 0
        """Position at which the last final was requested."""
        self._audio = audio
        self._facts = facts
        self._turn_audio = TurnAudio(recognizer)
        self._fed_from = 0
        """Where the last utterance begins."""
        self._fed_until = 0
        """Up to where it was fed."""
        self._finished = 0
        """End of the last finished utterance, before which nothing is fed again; audio of a
        cancelled one may be."""
        self._gain: float | None = None
        """Gain in dB at the end of the utterance's audio so far; None before any."""
        self._due = 0
        """Finals to come; more of them are stale."""
        self._stale = 0
        """Finals to come of cancelled utterances, before those that count."""

    @property
    def feeding(self) -> bool:
        return self.state is _FED or self.state is _FED_ON

    def feed(self, turn: Turn, echo_until: int) -> None:
        """Feed new audio while there is speech that may be the caller's; what comes before
        `echo_until` is the agent's."""
        state, audio, facts = turn.state, self._audio, self._facts
        ending = state is _ENDING and not turn.finished
        if not (ending or state is _HEARING or state is _SUSPECTED):
            return
        if not self.feeding:
            if not (facts.voice or facts.suspected):
                return
            self._begin(
                max(audio.onset - PRE_ROLL_MS * MS, echo_until - PRE_ROLL_ECHO_MS * MS),
                over=state is _SUSPECTED and not turn.had_floor,
            )
        self._feed(GAIN_LATE_MS if audio.gain_due else FEED_MS)

    def feed_all(self, start: int) -> bool:
        """Feed all audio from `start` on, unless a final is due; return whether the utterance has
        become too long."""
        if self._facts.words_due:
            return False
        if not self.feeding:
            self._begin(start)
        if self._audio.end - start > MANUAL_TURN_S * RATE_IN:
            return True
        self._feed(FEED_MS)
        return False

    def _begin(self, start: int, *, over: bool = False) -> None:
        """Begin an utterance with the audio from `start` on; `over`: over the agent."""
        self._fed_from = self._fed_until = max(self._finished, start)
        self._gain = None
        self._apply(FeedEvent.BEGIN_OVER if over else FeedEvent.BEGIN)

    def _feed(self, chunk_ms: int) -> None:
        if self._audio.end - self._fed_until >= chunk_ms * MS:
            self._feed_rest()

    def feed_rest(self) -> None:
        """Feed all audio of the utterance so far."""
        if self.feeding:
            self._feed_rest()

    def finish(self) -> None:
        """End the utterance; its final follows."""
        self._apply(FeedEvent.FINISH)

    def cancel(self) -> None:
        """Forget the utterances so far, which are of no turn, or of one that is over."""
        self._apply(FeedEvent.CANCEL)

    def go_on(self) -> None:
        """Continue the turn: the caller has spoken on after what may have been its end."""
        # Of what was heard before the last utterance, the final would be taken back as well.
        if not self.feeding and self._due <= 1:
            withdrawn = self._turn_audio.feed_again(self._facts.text)
            if withdrawn is not None:
                self._stale += self._due - withdrawn
                self._due, self._fed_until = 0, self._finished
                self._apply(FeedEvent.FEED_AGAIN)
                return
        self._apply(FeedEvent.GO_ON)

    def replace(self, recognizer: RecognizerStream) -> None:
        """Have another stream recognize the utterance that is in progress or due, and those to
        come."""
        self.recognizer, self._turn_audio = recognizer, TurnAudio(recognizer)
        self._due = self._stale = 0
        self._apply(FeedEvent.REPLACE)

    def listen(self, listener: UserAudioListener) -> None:
        """Give the audio to another listener, with that of the utterance in progress."""
        self.listener = listener
        if self.feeding:
            listener.on_audio(self._audio.slice(self._fed_from, self._fed_until))

    def receive(self, event: Partial | Final) -> bool:
        """Process what the recognizer says; return whether it is what the utterance's text is now.
        The last final of a turn has been lost if it is `lost`: then the text before counts."""
        match event:
            case Partial(text):
                if self._stale or text == self._facts.text:
                    return False
                happened = FeedEvent.PARTIAL
            case Final() if self._stale:
                self._stale -= 1
                return False
            case Final(text, continues=True):
                happened = FeedEvent.CONTINUED
            case _:
                text = event.text
                self._due = max(0, self._due - 1)
                happened = FeedEvent.EARLIER_FINAL if self._due else FeedEvent.FINAL
                if event.lost and self.state is FeedState.DUE and not self._due:
                    text = self._turn_audio.text
        return self._apply(happened, text)

    def _apply(self, event: FeedEvent, text: str = "") -> bool:
        """Take a row of the table; return whether it takes `text` for that of the utterance."""
        row = TABLE.get((self.state, event))
        if row is None:
            return False
        facts = self._facts
        self.state, actions = row
        for action in actions:
            match action:
                case FeedAction.CLEAR:
                    self._turn_audio.clear()
                    facts.text = ""
                case FeedAction.KEEP:
                    facts.append(facts.text)
                    facts.text = ""
                case FeedAction.APPEND:
                    facts.append(text)
                case FeedAction.TEXT:
                    facts.text = text
                case FeedAction.FINISH:
                    self._feed_rest()
                    self._finished = self._fed_until
                    self._due += 1
                    self.requested_at = self._audio.end
                    self.recognizer.finish()
                case FeedAction.STOP:
                    self.recognizer.cancel()
                case FeedAction.FORGET:
                    self._forget()
                case _:  # REPEAT
                    self._fed_until, self._gain = self._fed_from, None
                    self._feed_rest()
        facts.final = self.state is FeedState.FINAL
        facts.words_due = self._due > 0
        return FeedAction.TEXT in actions

    def _forget(self) -> None:
        self._stale += self._due
        self._due = 0
        self._turn_audio.clear()
        if not self._facts.turn_text:  # else the words before are part of the turn
            self.listener.on_discard()
        self._facts.text = ""

    def _feed_rest(self) -> None:
        audio = self._audio
        if audio.end > self._fed_until:
            pcm = audio.amplify(audio.slice(self._fed_until, audio.end), self._gain)
            self._gain, self._fed_until = audio.gain, audio.end
            self.recognizer.feed(pcm)
            self._turn_audio.add(pcm)
            self.listener.on_audio(pcm)
