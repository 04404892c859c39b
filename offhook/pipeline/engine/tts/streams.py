"""What the speech engine knows of a stream, and how many frames a text may have.

Field: speech is about 3.5 frames a token, more where it is spelt out or spoken slowly. A model that
does not find its end is stopped at FLOOR_FRAMES and FRAMES_PER_TOKEN for each token, slower than
anybody speaks. What comes without an end is mostly the silence of the room, and that is
noticed long before; see `Loudness`.
"""

from dataclasses import dataclass
from enum import Enum, auto

from offhook.media.pcm import Pcm
from offhook.pipeline.engine.pages import PAGE_SIZE
from offhook.pipeline.engine.tts.messages import MAX_TOKENS, Reason, Sampling
from offhook.pipeline.engine.tts.prompts import VoicePrompt
from offhook.pipeline.engine.tts.scheduler import Speaker
from offhook.pipeline.engine.tts.script import Script

MAX_FRAMES = 768
"""Of a segment: a minute. In longer ones, it is reported, the voice drifts."""
FLOOR_FRAMES = 38
"""Of any text: 3 s, for a word alone with the breath around it."""
FRAMES_PER_TOKEN = 8
"""More than twice the usual."""
LEAST_TOKENS = 32
"""Where pages are short a segment begins with room for so many, and ends the sooner."""
RAMP_FRAMES = 8
"""After which a stream is no longer beginning."""
FEW_TOKENS = 2
"""The end of a text, a full stop, that is not worth speaking by itself: the model may end before it
has had it."""
EARLY_ENDS = 3
"""How often a stream goes on in a new segment after the model ended before the text."""
QUIET_LEVEL = 200
"""Peak of silence, -44 dB of full scale."""
QUIET_SHARE = 0.03
"""Or so much of the loudest that was heard of the stream, -30 dB: a clone has its room with it."""
QUIET_FRAMES = 19
"""1.5 s of silence after the text are no pause."""


class StreamState(Enum):
    IDLE = auto()
    """No segment, and no text for one."""
    WAITING = auto()
    """A segment is to begin: in the queue, for a place in a batch or for pages."""
    SPEAKING = auto()
    """It makes frames: in the queue or in the batch."""
    LAGGING = auto()
    """So far ahead of the codec that its codes would be overwritten."""
    STARVED = auto()
    """There is no text for the next frame."""
    SPENT = auto()
    """It has made all frames it may; whether the model ended in the last of them is not known."""
    DRAINING = auto()
    """The segment is over, the rest of its sound is to come."""
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
        # In a frame that was being made when the text ran out.
        Event.OVER: StreamState.DRAINING,
        Event.CLOSE: StreamState.CLOSED,
    },
    StreamState.SPENT: {Event.OVER: StreamState.DRAINING, Event.CLOSE: StreamState.CLOSED},
    StreamState.DRAINING: {Event.DRAINED: StreamState.IDLE, Event.CLOSE: StreamState.CLOSED},
    StreamState.CLOSED: {},
}


class Segment:
    """One run of the model. Frames are counted from its beginning."""

    __slots__ = ("before", "decoded", "frames", "length", "slot", "start", "stream", "told")

    def __init__(self, stream: "Stream") -> None:
        self.stream = stream
        self.slot = stream.slot
        self.start = stream.start
        self.before = stream.frames
        """Frames of the stream's segments before it."""
        self.frames = 0
        """Launched."""
        self.decoded = 0
        """Given to the codec."""
        self.told = 0
        self.length: int | None = None
        """Frames that count, once it is over."""

    @property
    def made(self) -> int:
        """Frames that count, as far as is known."""
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
        """Position of the first frame of its segment."""
        self.state = StreamState.IDLE
        self.pages: list[int] = []
        self.segment: Segment | None = None
        self.segments = 0
        self.frames = 0
        """Of all segments that are over."""
        self.silent = True
        """Nobody hears it now: its next frame is a beginning."""
        self.awaited = False
        """The sound of that frame is not there yet."""
        self.ramp_end = RAMP_FRAMES
        """Frames after which it is no longer beginning."""
        self.starvations = 0
        self.early = False
        """The model ended the segment before its text."""
        self.early_ends = 0
        self.loudness = Loudness()
        self.reason = Reason.SPOKEN

    def move(self, event: Event) -> None:
        self.state = TRANSITIONS[self.state][event]


class Loudness:
    """Notices when a stream has fallen silent, by the peaks of its pieces."""

    __slots__ = ("_loudest", "_quiet_frames")

    def __init__(self) -> None:
        self._loudest = 0
        self._quiet_frames = 0

    def silent(self, pcm: Pcm, frames: int, spent: bool) -> bool:
        """Whether the stream has been silent for QUIET_FRAMES up to the end of this piece, all
        after its text was `spent`: what is silent before is a pause."""
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
    """Since the engine began."""

    steps: int = 0
    """Batches."""
    frames: int = 0
    """Made, with the wasted ones."""
    wasted_frames: int = 0
    """Made after a segment's end, or of a cancelled stream and never told."""
    late_frames: int = 0
    """Of live streams, told after the sound before them was over."""
    segments: int = 0
    early_ends: int = 0
    """The model ended a segment before its text."""
    budget_ends: int = 0
    silence_ends: int = 0


def frame_budget(tokens: int) -> int:
    """Frames that so many tokens of text may take."""
    return FLOOR_FRAMES + FRAMES_PER_TOKEN * tokens


def positions_needed(voice: VoicePrompt, tokens: int) -> int:
    """Of the cache, by a segment with so many tokens."""
    text = tokens + 1 if voice.whole_text else 0
    return voice.start + text + len(voice.lead) + frame_budget(tokens)


def token_limit(positions: int, voice: VoicePrompt) -> int:
    """Tokens a segment may have for whose prompt and frames there is room in so many positions of
    the cache."""
    room = positions - positions_needed(voice, 0)
    each = FRAMES_PER_TOKEN + voice.whole_text
    return min(room // each, (MAX_FRAMES - FLOOR_FRAMES) // FRAMES_PER_TOKEN)


def tokens_at_once(voice: VoicePrompt) -> int:
    """Tokens that a segment needs to begin, if its text is not shorter."""
    limit = token_limit(MAX_TOKENS, voice)
    return limit + 1 if voice.whole_text else min(len(voice.open) + 1, limit)


def pages_needed(stream: Stream) -> tuple[int, int]:
    """Pages for the segment that is to begin: at least, and at most."""
    voice = stream.voice
    most = token_limit(MAX_TOKENS, voice)
    if stream.script.ended:
        most = min(most, stream.script.left)
    least = min(most, LEAST_TOKENS)
    return (
        -(-positions_needed(voice, least) // PAGE_SIZE),
        -(-positions_needed(voice, most) // PAGE_SIZE),
    )
