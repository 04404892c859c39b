"""The events of a call, shared by the log, the page, the recording's timeline, the metrics and the
scripted caller."""

from dataclasses import dataclass, field
from typing import Any, Literal

from offhook.media.answer_status import Result
from offhook.media.end_reason import EndReason
from offhook.media.line_recording import By


@dataclass(frozen=True)
class CallStarted:
    at_ms: int
    agent: str
    recognizer: str
    synthesizer: str
    edge: str = ""
    direction: str = ""
    caller: str = ""
    """Number or address; empty if withheld or unknown."""
    caller_name: str = ""
    called: str = ""
    diverted_from: str = ""
    """Number or address whose calls were forwarded to us; empty if nobody's were."""
    trunk: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SpeechStarted:
    at_ms: int


@dataclass(frozen=True)
class CallerPartial:
    at_ms: int
    text: str
    """The whole turn as recognized so far."""


@dataclass(frozen=True)
class CallerTurn:
    """The caller's turn has ended and was given to the agent."""

    at_ms: int
    turn: int
    text: str
    """Words, and digits as written by `digits.as_text`."""


@dataclass(frozen=True)
class CallerTyped:
    """The caller has written to the agent instead of speaking."""

    at_ms: int
    text: str


@dataclass(frozen=True)
class TurnDiscarded:
    """What began as a turn of the caller is none."""

    at_ms: int
    lost: bool = False
    """Whether the recognizer has failed; the caller was told that nothing was understood."""


@dataclass(frozen=True)
class PlayoutPaused:
    """The caller was heard over the agent; playout was paused."""

    at_ms: int
    onset_ms: int
    """Estimated onset of that sound, by the voice detector."""


@dataclass(frozen=True)
class PlayoutResumed:
    """It was no interruption: a cough, an echo, or the backchannel `text`."""

    at_ms: int
    text: str


@dataclass(frozen=True)
class Interrupted:
    """The caller interrupted the agent."""

    at_ms: int
    heard: str
    """The agent's words sent before playout paused."""
    unheard: str


@dataclass(frozen=True)
class AgentTurn:
    """The agent's reply has been spoken to its end (or to where it was cut)."""

    at_ms: int
    turn: int
    text: str
    interrupted: bool


@dataclass(frozen=True)
class AgentChanged:
    """Another agent of the configuration has taken the call over: from now on turns are its."""

    at_ms: int
    agent: str
    """Its name; "agent" is `[agent]`."""
    before: str
    """Name of the one that has handed the call over."""
    text: str = ""
    """What that one has told it: why, and the summary of the conversation if there is one."""


@dataclass(frozen=True)
class NodeEntered:
    """The conversation goes on in another node of the agent's flow."""

    at_ms: int
    node: str
    before: str
    function: str
    """Which the model has called."""


@dataclass(frozen=True)
class LanguageChanged:
    """The caller goes on in another language, and the agent follows."""

    at_ms: int
    language: str
    """ISO 639 code."""
    before: str


@dataclass(frozen=True)
class AgentFailed:
    """The agent's model or one of its tools failed; `action` says what was done about it."""

    at_ms: int
    fault: str
    """An agent_faults.Fault."""
    place: str
    """An agent_faults.Place."""
    action: str
    """An agent_faults.Action."""
    cause: str = ""
    """What the server says, for the operator, without keys."""


@dataclass(frozen=True)
class TokensUsed:
    """A language model has answered, or was interrupted, and its server has said what that took."""

    at_ms: int
    model: str
    """As the configuration names it."""
    input_tokens: int
    cached_tokens: int
    """Of these, such as the server had in its cache."""
    output_tokens: int
    audio_input_tokens: int = 0
    """Of the input, such as are audio."""
    cached_audio_tokens: int = 0
    audio_output_tokens: int = 0
    """Of the output, such as are audio."""


@dataclass(frozen=True)
class DetailNoted:
    """A detail that the agent is to find out is known, in its final form."""

    at_ms: int
    name: str
    text: str


@dataclass(frozen=True)
class AnswerDropped:
    """An answer that the agent had begun in a pause is none: the caller went on, or the final
    transcript differs. A request to the language model was made for nothing."""

    at_ms: int
    characters: int = 0
    """Characters of it that the voice had prepared."""


@dataclass(frozen=True)
class ToolUsed:
    """The agent's model has called a tool, and it has answered or failed."""

    at_ms: int
    """When it was called."""
    name: str
    arguments: str
    """JSON, at most TOLD_CHARACTERS of it."""
    result: str
    """The same of what the model was told."""
    took_ms: int
    failed: bool


TOLD_CHARACTERS = 4000
"""Characters of a tool's arguments, and of its result, that events tell."""


@dataclass(frozen=True)
class PassagesFound:
    """The documents of the agent were searched, and the model answers by what was found."""

    at_ms: int
    text: str
    """What was looked for: the caller's words, or those of the model."""
    sources: tuple[str, ...]
    """File and line or page of each passage, the best first; none: nothing fits."""
    by: Literal["tool", "prompt"]
    """Whether the model has searched, or got the passages with the caller's words."""


@dataclass(frozen=True)
class TurnLatency:
    """The latency between the caller's last word and the agent's first packet.

    The spans are consecutive and have the same names in the log, on the page, in metrics and
    traces. `silence_ms` of the total was a deliberate wait for the end of the turn.
    """

    at_ms: int
    turn: int
    spans: tuple[tuple[str, int], ...]
    total_ms: int
    silence_ms: int


@dataclass(frozen=True)
class AnsweredBy:
    """Who or what has answered a call that we placed, as far as is known now: another one may
    follow."""

    at_ms: int
    by: Result
    after_ms: int
    """Time in ms from the answer."""
    why: str
    heard: str = ""
    """The words that say so."""


@dataclass(frozen=True)
class MessageLeft:
    """A message was played to its end on a machine."""

    at_ms: int
    text: str


@dataclass(frozen=True)
class VoicemailLeft:
    """A caller has left a message."""

    at_ms: int
    mailbox: str
    """Number of the extension for which it is, or the number that was called."""
    caller: str
    """Number or address; empty if withheld or unknown."""
    seconds: float
    """From the tone to the end of the call."""
    text: str
    """What was understood of it."""


@dataclass(frozen=True)
class Dtmf:
    """A key was pressed: one of 0-9 * # A-D."""

    at_ms: int
    digit: str


@dataclass(frozen=True)
class NoiseSuppressed:
    """Noise suppression was switched on or off, since the line became noisy or clean."""

    at_ms: int
    on: bool
    noise_dbfs: float
    """Level of the line's noise."""


@dataclass(frozen=True)
class CallerAmplified:
    """The caller is quiet and is amplified from now on; the gain follows the caller."""

    at_ms: int
    gain_db: float


@dataclass(frozen=True)
class CallHeld:
    """The call is on hold; nothing is heard or said until CallResumed."""

    at_ms: int
    by: Literal["caller", "agent"]


@dataclass(frozen=True)
class CallResumed:
    at_ms: int
    by: Literal["caller", "agent"]


@dataclass(frozen=True)
class RecordingStarted:
    """The call is recorded from now on; the sound's own time begins with the first of these."""

    at_ms: int
    by: By
    notice: str = ""
    """What the caller hears about it; empty: nothing."""


@dataclass(frozen=True)
class RecordingPaused:
    """Until RecordingResumed the recording has silence, and what is said is kept nowhere."""

    at_ms: int
    by: By


@dataclass(frozen=True)
class RecordingResumed:
    at_ms: int
    by: By


@dataclass(frozen=True)
class RecordingStopped:
    """The call is recorded no more."""

    at_ms: int
    by: By


TransferState = Literal[
    "requested",
    "ringing",
    "briefing",
    "accepted",
    "bridged",
    "rejected",
    "failed",
    "canceled",
    "completed",
]


@dataclass(frozen=True)
class TransferProgress:
    """A transfer by which a person is briefed before the caller is connected has come so far."""

    at_ms: int
    target: str
    """Its name in the configuration."""
    state: TransferState
    address: str = ""
    """Number or SIP address of the person whom it is about; empty: the transfer as a whole."""
    reason: str = ""
    called: str = ""
    """Id of the call to that person."""


@dataclass(frozen=True)
class TransferFailed:
    """A transfer failed and the conversation continues."""

    at_ms: int
    target: str
    reason: str


@dataclass(frozen=True)
class CallTransferred:
    """The agent has left the call. The line may stay up, with the caller and the target on it."""

    at_ms: int
    target: str


@dataclass(frozen=True)
class MemberJoined:
    """Somebody else has come into the call: hears it, and may be heard."""

    at_ms: int
    member: str
    """The member's name in the room of the call."""
    role: str
    """"speak", "listen", or "whisper:" and the name of the member who alone hears it."""
    member_call: str
    """Id of the member's own call."""
    number: str = ""
    """Number of a phone, or address of a browser."""


@dataclass(frozen=True)
class MemberChanged:
    """What a member may do in the call has changed."""

    at_ms: int
    member: str
    role: str
    muted: bool
    on_hold: bool


@dataclass(frozen=True)
class MemberLeft:
    at_ms: int
    member: str
    reason: str


@dataclass(frozen=True)
class MemberTurn:
    """A member of a call in which several people speak has said something."""

    at_ms: int
    member: str
    text: str
    began_ms: int
    """When the member began to say it."""


@dataclass(frozen=True)
class RoomTurn:
    """The agent was given a turn of all who speak in the call; what each of them has said is in
    MemberTurn."""

    at_ms: int
    turn: int
    text: str


@dataclass(frozen=True)
class MemberRaisedHand:
    """A member who is not heard would like to speak."""

    at_ms: int
    member: str


@dataclass(frozen=True)
class MemberLoweredHand:
    """He would no longer, or may speak now."""

    at_ms: int
    member: str


@dataclass(frozen=True)
class AgentLeft:
    """People have taken the call over: the agent neither hears nor speaks until AgentReturned."""

    at_ms: int


@dataclass(frozen=True)
class AgentReturned:
    at_ms: int


@dataclass(frozen=True)
class AgentInstructed:
    """The operator has written to the agent."""

    at_ms: int
    text: str
    spoken: bool
    """Whether the agent says it as it stands; otherwise its model knows it from now on."""


@dataclass(frozen=True)
class ParticipantsKnown:
    """Who takes part in a call that is recorded for another system, as that says now."""

    at_ms: int
    participants: tuple[dict[str, str], ...]
    """Each with `number` and `name`."""


@dataclass(frozen=True)
class WordsMissing:
    """What one side of a recorded call, or one member of a room, says is not recognized from now
    on."""

    at_ms: int
    side: str
    """"caller", "called", or the member's name."""
    cause: str


@dataclass(frozen=True)
class CallEnded:
    at_ms: int
    reason: EndReason
    statistics: dict[str, float | int | None] = field(default_factory=dict)


Event = (
    CallStarted
    | SpeechStarted
    | CallerPartial
    | CallerTurn
    | CallerTyped
    | TurnDiscarded
    | PlayoutPaused
    | PlayoutResumed
    | Interrupted
    | AgentTurn
    | AgentChanged
    | NodeEntered
    | LanguageChanged
    | AgentFailed
    | TokensUsed
    | DetailNoted
    | AnswerDropped
    | ToolUsed
    | PassagesFound
    | TurnLatency
    | AnsweredBy
    | MessageLeft
    | VoicemailLeft
    | Dtmf
    | NoiseSuppressed
    | CallerAmplified
    | CallHeld
    | CallResumed
    | RecordingStarted
    | RecordingPaused
    | RecordingResumed
    | RecordingStopped
    | TransferProgress
    | TransferFailed
    | CallTransferred
    | MemberJoined
    | MemberChanged
    | MemberLeft
    | MemberTurn
    | RoomTurn
    | MemberRaisedHand
    | MemberLoweredHand
    | AgentLeft
    | AgentReturned
    | AgentInstructed
    | ParticipantsKnown
    | WordsMissing
    | CallEnded
)
