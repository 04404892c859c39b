"""Messages between a worker and its fronts, the processes with its WebSockets and voices.

Beside these, those of `engine.far_streams_io` or `engine.far_recognizer_io` go both ways. A
`Connection` comes by a socket of its own, for it has the connection's file descriptor with it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from offhook.pipeline.engines.shared.recognition.far_recognizer_io import (
    FromRecognizer,
    ToRecognizer,
)
from offhook.pipeline.engines.shared.synthesis.far_streams_io import FromEngine, ToEngine
from offhook.pipeline.speech import timing
from offhook.pipeline.speech.synthesizer import Speech
from offhook.web.http.logs import Log
from offhook.web.speech_api.admission import Kind
from offhook.web.speech_api.errors import ApiError
from offhook.web.speech_api.metrics import Labels
from offhook.web.speech_api.stages import Stages

BEAT_S = 1.0
"""Interval in s at which a front sends a `Beat`."""
MAX_CONNECTION_BYTES = 1 << 18
"""Maximum size of a packed `Connection`; the worker serves one with a larger head itself."""

# --- to a front ---


class Setup(NamedTuple):
    """The first message."""

    worker: Any
    """The `WorkerSettings`."""
    engine: Any
    """The engine's `far_settings`; see `fronts_io.ServesFar`."""
    kind: Kind
    server_id: str
    log: Log


class Connection(NamedTuple):
    """A connection whose request the worker has read: one for a WebSocket, admitted or not, or one
    for speech, whose turn has come."""

    number: int
    request: bytes
    """The request as it came, with its body."""
    free: float = 1.0
    """Free share of the worker's streams; only for a WebSocket."""
    refused: ApiError | None = None
    stages: Stages | None = None
    """Of a request for speech until now; None for a WebSocket."""
    kept: bool = False
    """Whether the worker caches the reply; the front then sends a `Spoken`."""
    reusable: bool = True
    """Whether the worker may read another request from it afterwards."""

    @property
    def is_request(self) -> bool:
        """Whether its request is one for speech, and not for a WebSocket."""
        return self.stages is not None


class Granted(NamedTuple):
    """Answers a `Use`, but not one that is always granted."""

    number: int
    refused: ApiError | None


class Drain(NamedTuple):
    """The worker will stop."""


class Stop(NamedTuple):
    """The worker stops: streams end."""


# --- to the worker ---


class Begun(NamedTuple):
    """The front takes connections."""


class Beat(NamedTuple):
    """Its event loop runs."""


class Use(NamedTuple):
    """A connection begins to use the engine, if it may."""

    number: int
    always: bool = False


class Rest(NamedTuple):
    """It has stopped using it."""

    number: int


class Counted(NamedTuple):
    """What happened, for the worker's metrics."""

    audio_s: float
    """Seconds of audio sent since the last one."""
    first_s: float = -1.0
    """Time in s to the first audio of a reply that has begun; negative: none has."""
    reply: str = ""
    """How a reply ended; empty: none has."""
    final_s: float = -1.0
    """Time in s from the end of an utterance to its final; negative: there was none."""
    turn_s: float = -1.0
    """Time in s from a question whether a turn is over to its answer; negative: there was none."""
    turn_answered: bool = True
    stages: timing.Stages | None = None
    """Of a text of a sampled stream."""
    stream: str = ""
    """The error's code, or `none`, with which a stream ended; empty: none has."""


class Spoken(NamedTuple):
    """A whole reply, to be cached."""

    number: int
    pieces: Sequence[Speech]


class Answered(NamedTuple):
    """A request for speech has been answered, as far as its handler is concerned."""

    number: int
    status: int
    """Of the response; 499: the client has disconnected."""
    stages: Stages
    labels: Labels
    audio_s: float


class Closed(NamedTuple):
    """The front has closed its connection."""

    number: int
    reusable: bool
    """Whether all of a response has been sent after which the client may send a request."""


ToFront = Setup | Granted | Drain | Stop | FromEngine | FromRecognizer
ToWorker = (
    Begun | Beat | Use | Rest | Counted | Spoken | Answered | Closed | ToEngine | ToRecognizer
)
