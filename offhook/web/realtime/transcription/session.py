"""One session of WS /v1/realtime: events of client and engine in, actions out. Sans-io."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.speech.recognizer import Final, Partial, StreamOptions
from offhook.pipeline.speech.remote.worker_protocol import Error
from offhook.web.realtime.protocol import server_events
from offhook.web.realtime.protocol.client_events import (
    Append,
    Clear,
    ClientEvent,
    Commit,
    Dialect,
    SessionUpdate,
    parse,
)
from offhook.web.realtime.protocol.frozen import NONE_FROZEN, FrozenFields
from offhook.web.realtime.protocol.server_events import TranscriptDeltas, new_id
from offhook.web.realtime.protocol.session_object import (
    Audio,
    AudioFormat,
    AudioInput,
    EventError,
    ServerVad,
    Session,
    Transcription,
    merged,
)
from offhook.web.realtime.transcription.turn_detector import (
    TurnDetector,
    TurnSound,
    TurnStarted,
    TurnStopped,
)
from offhook.web.speech_api.errors import ApiError
from offhook.web.speech_api.sockets.input_resampler import InputResampler

PIECE_S = 1.0
"""Audio in s that is resampled and searched for turns at a time."""
MAX_ERRORS = 100
"""Consecutive invalid events after which the session ends."""
USUAL: dict[Dialect, dict[str, Any]] = {
    Dialect.VLLM: {"format": AudioFormat(rate=RATE_IN), "turn_detection": None},
    Dialect.OPENAI: {"format": AudioFormat(), "turn_detection": ServerVad()},
}


# --- actions ---


@dataclass(frozen=True)
class Send:
    """Send the client a message."""

    text: str


@dataclass(frozen=True)
class Begin:
    """Open a stream of the recognizer."""

    options: StreamOptions


@dataclass(frozen=True, eq=False)
class Feed:
    """Give the stream audio."""

    pcm: Pcm
    """16 kHz samples."""


@dataclass(frozen=True)
class Finish:
    """End the utterance: its final text is wanted."""


@dataclass(frozen=True)
class Cancel:
    """Drop the utterance."""


@dataclass(frozen=True)
class Pause:
    """Let others run: what is left of an event takes long."""


Action = Send | Begin | Feed | Pause | Finish | Cancel


# --- policy ---


class RealtimeState(Enum):
    """State of the input audio buffer."""

    EMPTY = auto()
    OPEN = auto()
    """There is an item that is not committed."""


class Trigger(Enum):
    """What changes the state: a client event or an event of the turn detector."""

    APPEND = auto()
    COMMIT = auto()
    FINAL = auto()
    """A commit with `final`."""
    CLEAR = auto()
    START = auto()
    STOP = auto()


def _event(kind: str, **fields: Any) -> Send:
    """Sends an event of OpenAI's."""
    return Send(server_events.event(kind, **fields))


Handler = Callable[["RealtimeSession"], Iterator[Action]]


def _begin(session: "RealtimeSession") -> Iterator[Action]:
    return session.begin_item()


def _nothing(session: "RealtimeSession") -> Iterator[Action]:
    return iter(())


def _finish(session: "RealtimeSession") -> Iterator[Action]:
    yield from session.end_audio()
    yield from session.finish_item()


def _commit(session: "RealtimeSession") -> Iterator[Action]:
    yield from session.commit_item()
    yield from _finish(session)


def _end_turn(session: "RealtimeSession") -> Iterator[Action]:
    yield from session.commit_item()
    yield from session.finish_item()


def _clear(session: "RealtimeSession") -> Iterator[Action]:
    yield from session.drop_item()
    yield _event("input_audio_buffer.cleared")


def _empty(session: "RealtimeSession") -> Iterator[Action]:
    words = "nothing to commit: no audio was appended since the last commit"
    raise EventError(words, "input_audio_buffer_commit_empty")


def _unknown(session: "RealtimeSession") -> Iterator[Action]:
    raise EventError("this dialect has no input_audio_buffer.clear", "unknown_event", "type")


def _final_is_vllms(session: "RealtimeSession") -> Iterator[Action]:
    raise EventError("final is not known here", "unknown_parameter", "final")


_VLLM, _OPENAI = Dialect.VLLM, Dialect.OPENAI
_EMPTY, _OPEN = RealtimeState.EMPTY, RealtimeState.OPEN
POLICY: dict[tuple[Dialect, RealtimeState, Trigger], tuple[RealtimeState, Handler]] = {
    # vLLM: a commit opens an item, a final one ends it; audio may also come before the first.
    (_VLLM, _EMPTY, Trigger.APPEND): (_OPEN, _begin),
    (_VLLM, _EMPTY, Trigger.COMMIT): (_OPEN, _begin),
    (_VLLM, _EMPTY, Trigger.FINAL): (_EMPTY, _empty),  # vLLM never answers it
    (_VLLM, _EMPTY, Trigger.CLEAR): (_EMPTY, _unknown),
    (_VLLM, _OPEN, Trigger.APPEND): (_OPEN, _nothing),
    (_VLLM, _OPEN, Trigger.COMMIT): (_OPEN, _nothing),  # ignored by vLLM, too
    (_VLLM, _OPEN, Trigger.FINAL): (_EMPTY, _finish),
    (_VLLM, _OPEN, Trigger.CLEAR): (_OPEN, _unknown),
    # OpenAI: a commit ends what was appended; with server_vad, so does the end of a turn.
    (_OPENAI, _EMPTY, Trigger.APPEND): (_OPEN, _begin),
    (_OPENAI, _EMPTY, Trigger.COMMIT): (_EMPTY, _empty),
    (_OPENAI, _EMPTY, Trigger.FINAL): (_EMPTY, _final_is_vllms),
    (_OPENAI, _EMPTY, Trigger.CLEAR): (_EMPTY, _clear),
    (_OPENAI, _EMPTY, Trigger.START): (_OPEN, _begin),
    (_OPENAI, _OPEN, Trigger.APPEND): (_OPEN, _nothing),
    (_OPENAI, _OPEN, Trigger.COMMIT): (_EMPTY, _commit),
    (_OPENAI, _OPEN, Trigger.FINAL): (_OPEN, _final_is_vllms),
    (_OPENAI, _OPEN, Trigger.CLEAR): (_EMPTY, _clear),
    (_OPENAI, _OPEN, Trigger.STOP): (_EMPTY, _end_turn),
}


# --- the session ---


@dataclass
class Item:
    """One utterance."""

    id: str
    transcript: TranscriptDeltas = field(default_factory=TranscriptDeltas)
    samples: int = 0
    """Samples at 16 kHz, for the usage."""


class RealtimeSession:
    """The state of one session, whatever the dialect of its client."""

    def __init__(
        self,
        dialect: Dialect | None,
        options: StreamOptions,
        model: str,
        check_model: Callable[[str], None],
        *,
        lenient: bool = False,
        frozen: FrozenFields = NONE_FROZEN,
    ) -> None:
        """`dialect`: None if the first `session.update` decides. `options` and `model` are those of
        the address. `check_model` raises ApiError for a model that is not served. `lenient`:
        unknown fields are ignored. `frozen`: what the client cannot change."""
        self._check_model = check_model
        self._lenient = lenient
        self._frozen = frozen
        self._options = options
        self._dialect_known = dialect is not None
        self._resampler = InputResampler(RATE_IN)
        self._turns: TurnDetector | None = None
        transcription = Transcription(model=model or None, language=options.language)
        self._input = AudioInput(format=AudioFormat(rate=RATE_IN), transcription=transcription)
        self._set_dialect(dialect or Dialect.VLLM)
        self._model_known = bool(model)
        """vLLM wants that before a commit."""
        self._id = new_id("sess")
        self._state = RealtimeState.EMPTY
        self._began = False
        """The recognizer's stream is open: its options stay."""
        self._current: Item | None = None
        self._items: dict[int, Item] = {}
        """Without a final transcript, by the number of the utterance."""
        self._count = 0
        self._last_id: str | None = None
        self._errors = 0

    def created(self, time_s: float) -> str:
        """The first event, which suits both dialects; `time_s` in seconds since 1970."""
        fields = {"id": self._id, "created": int(time_s)}
        return server_events.event("session.created", **fields, session=self._session())

    @property
    def is_over(self) -> bool:
        """MAX_ERRORS events in a row were wrong."""
        return self._errors >= MAX_ERRORS

    def begin(self, session: Mapping[str, Any]) -> list[Action]:
        """Begins with the session object of the client's secret, which the frozen fields have their
        values from; never raises."""
        frozen, self._frozen = self._frozen, NONE_FROZEN
        try:
            update = json.dumps({"type": "session.update", "session": session})
            return list(self.receive(update))
        finally:
            self._frozen = frozen

    def receive(self, text: str) -> Iterator[Action]:
        """Handles a text message of the client while the actions are carried out; never raises."""
        event_id = None
        try:
            event = parse(text, lenient=self._lenient)
            event_id = event.event_id
            yield from self._handle(event)
            self._errors = 0
        except EventError as error:
            self._errors += 1
            error.event_id = error.event_id or event_id
            yield Send(server_events.error(self._dialect, error))

    def receive_bytes(self, data: bytes) -> list[Action]:
        """Handles a binary message, which is always an error."""
        self._errors += 1
        words = f"{len(data)} bytes that are not text: audio comes in input_audio_buffer.append"
        return [Send(server_events.error(self._dialect, EventError(words, "invalid_audio")))]

    def recognized(self, number: int, event: Partial | Final) -> list[str]:
        """The events that tell the client of the recognizer's event of utterance `number`."""
        item = self._items.get(number)
        if item is None:
            return []
        if isinstance(event, Partial):
            delta = item.transcript.partial(event.text[: event.stable_chars])
        else:
            delta = item.transcript.final(event.text)
        send = [server_events.transcription(self._dialect, item.id, delta=delta)] if delta else []
        if isinstance(event, Final) and not event.continues:
            del self._items[number]
            text, audio_s = item.transcript.text, item.samples / RATE_IN
            send.append(
                server_events.transcription_completed(self._dialect, item.id, text, audio_s)
            )
        return send

    def error_text(self, error: Error) -> str:
        """The last event of a session that the server ends."""
        return server_events.error(self._dialect, EventError(error.message, error.code.value))

    # --- client events ---

    def _handle(self, event: ClientEvent) -> Iterator[Action]:
        match event:
            case SessionUpdate(session=None):
                self._choose(Dialect.VLLM, "a session is set by its session object")
                given = event.model_dump(include={"model", "prompt", "language"}, exclude_none=True)
                transcription = self._input.transcription.model_copy(update=given)
                self._set(self._input.model_copy(update={"transcription": transcription}))
                self._model_known = True
            case SessionUpdate(session=Session(audio=Audio(input=changes))):
                self._choose(Dialect.OPENAI, "a session of vLLM's is set by model")
                self._set(merged(self._input, changes))
                yield _event("session.updated", session=self._session())
            case Append():
                yield from self._append(self._input.format.decode(event.audio))
            case Commit():
                if self._dialect is Dialect.VLLM and not self._model_known:
                    words = "name the model in a session.update before the commit"
                    raise EventError(words, "model_not_validated")
                yield from self._on(Trigger.FINAL if event.final else Trigger.COMMIT)
            case Clear():
                yield from self._on(Trigger.CLEAR)

    def _choose(self, dialect: Dialect, otherwise: str) -> None:
        """The first session.update decides, unless audio came before it, or the address did."""
        if dialect is not self._dialect:
            if self._dialect_known or self._began:
                raise EventError(otherwise, "invalid_value", "session")
            self._set_dialect(dialect)
        self._dialect_known = True

    def _set_dialect(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._configure(self._input.model_copy(update=USUAL[dialect]))

    def _set(self, new: AudioInput) -> None:
        """Raises EventError, and then nothing has changed."""
        old = self._input
        self._frozen.kept(_session_with(old), _session_with(new), "session")
        new.transcription.stream_options(self._options)
        if new.transcription.model:
            self._check(new.transcription.model)
        free = {"model": new.transcription.model}
        fixed = old.model_copy(
            update={
                "turn_detection": new.turn_detection,
                "transcription": old.transcription.model_copy(update=free),
            }
        )
        if self._began and new != fixed:
            words = "the audio input cannot change once audio has come: open another session"
            raise EventError(words, "session_begun", "session.audio.input")
        if new.server_vad != old.server_vad and self._state is RealtimeState.OPEN:
            words = "turn_detection cannot change within a turn: commit it first"
            raise EventError(words, "session_begun", "session.audio.input.turn_detection")
        self._configure(new)

    def _check(self, model: str) -> None:
        try:
            self._check_model(model)
        except ApiError as error:
            outer = "session.audio.input.transcription." * (self._dialect is Dialect.OPENAI)
            raise EventError(str(error), error.code or "invalid_value", f"{outer}model") from error

    def _configure(self, new: AudioInput) -> None:
        old, self._input = self._input, new
        if new.format != old.format:
            self._resampler = InputResampler(new.format.rate)
        if (vad := new.server_vad) != old.server_vad:
            self._turns = TurnDetector(vad) if vad is not None else None

    def _append(self, audio: Pcm) -> Iterator[Action]:
        """An event may have minutes of audio, which others cannot wait for."""
        piece = round(PIECE_S * self._input.format.rate)
        for at in range(0, len(audio), piece):
            if at:
                yield Pause()
            yield from self._append_piece(audio[at : at + piece])

    def _append_piece(self, audio: Pcm) -> Iterator[Action]:
        pcm = self._resampler.process(audio)
        if self._turns is None:
            yield from self._on(Trigger.APPEND)
            yield from self._feed(pcm)
            return
        for event in self._turns.feed(pcm):
            match event:
                case TurnStarted(at_ms):
                    yield from self._on(Trigger.START)
                    yield self._turn_event("speech_started", audio_start_ms=at_ms)
                case TurnSound(pcm):
                    yield from self._feed(pcm)
                case TurnStopped(at_ms):
                    yield self._turn_event("speech_stopped", audio_end_ms=at_ms)
                    yield from self._on(Trigger.STOP)

    def _on(self, trigger: Trigger) -> Iterator[Action]:
        state, handler = POLICY[self._dialect, self._state, trigger]
        yield from handler(self)
        self._state = state

    # --- what the policy's handlers do ---

    def begin_item(self) -> Iterator[Action]:
        """Opens an item."""
        if not self._began:
            yield Begin(self._input.transcription.stream_options(self._options))
            self._began = True
        self._current = self._items[self._count] = Item(new_id("item"))
        self._count += 1

    def end_audio(self) -> Iterator[Action]:
        """Feeds what is left in the turn detector; the audio that comes next is not connected."""
        if self._turns is not None:
            yield from self._feed(self._turns.end())
        self._resampler.reset()

    def finish_item(self) -> Iterator[Action]:
        """Closes the item; its transcript will come."""
        self._current = None
        yield Finish()

    def commit_item(self) -> Iterator[Action]:
        """Tells the client that the item is part of the conversation."""
        assert self._current is not None
        item, previous = self._current.id, self._last_id
        self._last_id = item
        yield _event("input_audio_buffer.committed", item_id=item, previous_item_id=previous)
        message = server_events.user_message(item)
        for kind in ("conversation.item.added", "conversation.item.done"):
            yield _event(kind, previous_item_id=previous, item=message)

    def drop_item(self) -> Iterator[Action]:
        """Drops the item, if there is one."""
        if self._turns is not None:
            self._turns.end()
        self._resampler.reset()
        if self._current is not None:
            del self._items[self._count - 1]
            self._count -= not self._current.samples  # an utterance begins with its first audio
            self._current = None
            yield Cancel()

    def _turn_event(self, kind: str, **fields: int) -> Send:
        assert self._current is not None
        return _event(f"input_audio_buffer.{kind}", item_id=self._current.id, **fields)

    def _feed(self, pcm: Pcm) -> Iterator[Action]:
        if len(pcm) and self._current is not None:
            self._current.samples += len(pcm)
            yield Feed(pcm)

    def _session(self) -> dict[str, Any]:
        return server_events.session(self._id, self._input)


def _session_with(audio_input: AudioInput) -> Session:
    return Session(type="transcription", audio=Audio(input=audio_input))
