"""State of a stream in the TTS engine, and frame budgets of texts.

Speech has about 3.5 frames per token, more if it is spelled out or slow. A model that does not stop
is stopped after FLOOR_FRAMES plus FRAMES_PER_TOKEN per token, slower than any speaker. A missing
stop mostly yields room silence, which is detected much earlier; see `Loudness`.
"""

from dataclasses import dataclass
from enum import Enum, auto

from offhook.media.pcm import Pcm
from offhook.pipeline.engines.qwen3_tts.prompts import VoicePrompt
from offhook.pipeline.engines.qwen3_tts.script import Script
from offhook.pipeline.engines.shared.pages import PAGE_SIZE
from offhook.pipeline.engines.shared.synthesis.messages import MAX_TOKENS, Reason, Sampling
from offhook.pipeline.engines.shared.synthesis.scheduler import Speaker

MAX_FRAMES = 768
"""Maximum frames of a segment, one minute; in longer ones the voice reportedly drifts."""
FLOOR_FRAMES = 38
"""Base frame budget of any text: 3 s, for a single word with breaths."""
FRAMES_PER_TOKEN = 8
"""Frame budget per token, more than twice the usual."""
LEAST_TOKENS = 32
"""Minimum tokens of a segment when pages are scarce; it ends sooner then."""
RAMP_FRAMES = 8
"""Frames after which a stream no longer counts as starting."""
FEW_TOKENS = 2
"""Remaining tokens, e.g. a full stop, not worth another segment: the model may stop before them."""
EARLY_ENDS = 3
"""How often a stream restarts in a new segment after the model stopped before the end of the
text."""
QUIET_LEVEL = 200
"""Peak amplitude of silence, -44 dBFS."""
QUIET_SHARE = 0.03
"""Silence relative to the stream's loudest peak, -30 dB, since a clone includes its room noise."""
QUIET_FRAMES = 19
"""Frames of silence after the text (1.5 s) that are no longer a pause."""


class StreamState(Enum):
    IDLE = auto()
    """No segment, and no text for one."""
    WAITING = auto()
    """A segment is to start: queued for a batch or waiting for pages."""
    SPEAKING = auto()
    """It makes frames: queued or in the batch."""
    LAGGING = auto()
    """So far ahead of the codec that its codes would be overwritten."""
    STARVED = auto()
    """There is no text for the next frame."""
    SPENT = auto()
    """It has made all permitted frames; whether the model ended in the last one is not known
    yet."""
    DRAINING = auto()
    """The segment is over; the rest of its audio is pending."""
    CLOSED = auto()


class Event(Enum):
    TEXT = auto()
    BEGIN = auto()
    STARVE = auto()
    LAG = auto()
    SOUND = auto()
    SPEND = auto()
    OVER = auto()
    DRAINED = auto()
    CLOSE = auto()


TRANSITIONS = {
    StreamState.IDLE: {Event.TEXT: StreamState.WAITING, Event.CLOSE: StreamState.CLOSED},
    StreamState.WAITING: {Event.BEGIN: StreamState.SPEAKING, Event.CLOSE: StreamState.CLOSED},
    StreamState.SPEAKING: {
        Event.STARVE: StreamState.STARVED,
        Event.LAG: StreamState.LAGGING,
        Event.SPEND: StreamState.SPENT,
        Event.OVER: StreamState.DRAINING,
        Event.CLOSE: StreamState.CLOSED,
    },
    StreamState.LAGGING: {
        Event.SOUND: StreamState.SPEAKING,
        Event.OVER: StreamState.DRAINING,
        Event.CLOSE: StreamState.CLOSED,
    },
    StreamState.STARVED: {
        Event.TEXT: StreamState.SPEAKING,
        # In a frame in flight when the text ran out.
        Event.OVER: StreamState.DRAINING,
        Event.CLOSE: StreamState.CLOSED,
    },
    StreamState.SPENT: {Event.OVER: StreamState.DRAINING, Event.CLOSE: StreamState.CLOSED},
    StreamState.DRAINING: {Event.DRAINED: StreamState.IDLE, Event.CLOSE: StreamState.CLOSED},
    StreamState.CLOSED: {},
}


class Segment:
    """One run of the model. Frames are counted from its start."""

    __slots__ = ("before", "decoded", "frames", "length", "slot", "start", "stream", "told")

    def __init__(self, stream: "Stream") -> None:
        self.stream = stream
        self.slot = stream.slot
        self.start = stream.start
        self.before = stream.frames
        """Frames of the stream's earlier segments."""
        self.frames = 0
        """Frames launched."""
        self.decoded = 0
        """Frames given to the codec."""
        self.told = 0
        self.length: int | None = None
        """Valid frames, once the segment is over."""

    @property
    def made(self) -> int:
        """Valid frames as far as known."""
        return self.frames if self.length is None else self.length


class Stream(Speaker):
    __slots__ = (
        "at_once",
        "awaited",
        "early",
        "early_ends",
        "frames",
        "loudness",
        "number",
        "pages",
        "ramp_end",
        "reason",
        "sampling",
        "script",
        "seed",
        "segment",
        "segments",
        "silent",
        "slot",
        "start",
        "starvations",
        "state",
        "voice",
    )

    def __init__(
        self,
        number: int,
        slot: int,
        voice: VoicePrompt,
        sampling: Sampling,
        seed: int,
        live: bool,
        script: Script,
    ) -> None:
        super().__init__(live)
        self.number = number
        self.slot = slot
        self.voice = voice
        self.sampling = sampling
        self.seed = seed
        self.script = script
        self.at_once = tokens_at_once(voice)
        self.start = voice.start
        """Position of the segment's first frame."""
        self.state = StreamState.IDLE
        self.pages: list[int] = []
        self.segment: Segment | None = None
        self.segments = 0
        self.frames = 0
        """Frames of all completed segments."""
        self.silent = True
        """Nothing is audible now: the next frame starts new audio."""
        self.awaited = False
        """The audio of that frame is pending."""
        self.ramp_end = RAMP_FRAMES
        """Frames after which the stream no longer counts as starting."""
        self.starvations = 0
        self.early = False
        """The model ended the segment before its text."""
        self.early_ends = 0
        self.loudness = Loudness()
        self.reason = Reason.SPOKEN

    def move(self, event: Event) -> None:
        self.state = TRANSITIONS[self.state][event]


class Loudness:
    """Detects from the peaks of its pieces that a stream has fallen silent."""

    __slots__ = ("_loudest", "_quiet_frames")

    def __init__(self) -> None:
        self._loudest = 0
        self._quiet_frames = 0

    def silent(self, pcm: Pcm, frames: int, spent: bool) -> bool:
        """Returns whether the stream has been silent for QUIET_FRAMES up to the end of this piece,
        all after its text was `spent`; earlier silence is a pause."""
        peak = int(pcm.max())
        if peak > self._loudest:
            self._loudest = peak
        if spent and peak < max(QUIET_LEVEL, QUIET_SHARE * self._loudest):
            self._quiet_frames += frames
        else:
            self._quiet_frames = 0
        return self._quiet_frames >= QUIET_FRAMES


@dataclass
class Counters:
    """Totals since the engine started."""

    steps: int = 0
    """Batches run."""
    frames: int = 0
    """Frames made, including wasted ones."""
    wasted_frames: int = 0
    """Frames made after a segment's end, or for a cancelled stream."""
    late_frames: int = 0
    """Frames of live streams delivered after the preceding audio had run out."""
    segments: int = 0
    early_ends: int = 0
    """Segments that the model ended before their text."""
    budget_ends: int = 0
    silence_ends: int = 0


def frame_budget(tokens: int) -> int:
    """Returns the frame budget of a text with `tokens` tokens."""
    return FLOOR_FRAMES + FRAMES_PER_TOKEN * tokens


def positions_needed(voice: VoicePrompt, tokens: int) -> int:
    """Returns the cache positions of a segment with `tokens` tokens."""
    text = tokens + 1 if voice.whole_text else 0
    return voice.start + text + len(voice.lead) + frame_budget(tokens)


def token_limit(positions: int, voice: VoicePrompt) -> int:
    """Returns how many tokens a segment can have in `positions` cache positions."""
    room = positions - positions_needed(voice, 0)
    each = FRAMES_PER_TOKEN + voice.whole_text
    return min(room // each, (MAX_FRAMES - FLOOR_FRAMES) // FRAMES_PER_TOKEN)


def tokens_at_once(voice: VoicePrompt) -> int:
    """Returns the tokens that a segment needs to start, unless its text is shorter."""
    limit = token_limit(MAX_TOKENS, voice)
    return limit + 1 if voice.whole_text else min(len(voice.open) + 1, limit)


def pages_needed(stream: Stream) -> tuple[int, int]:
    """Returns the minimum and maximum pages for the next segment."""
    voice = stream.voice
    most = token_limit(MAX_TOKENS, voice)
    if stream.script.ended:
        most = min(most, stream.script.left)
    least = min(most, LEAST_TOKENS)
    return (
        -(-positions_needed(voice, least) // PAGE_SIZE),
        -(-positions_needed(voice, most) // PAGE_SIZE),
    )
