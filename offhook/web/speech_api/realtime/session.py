"""One session of WS /v1/realtime: events in; out come events to send and what to do with the sound.

Sans-io: texts and the engine's events in, `Do`s out. The messages are in `realtime`.
"""

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.speech.recognizer import Final, Partial, StreamOptions
from offhook.pipeline.speech.remote.worker_protocol import Error, ErrorCode
from offhook.web.speech_api.errors import ApiError
from offhook.web.speech_api.realtime.events import (
    Append,
    Clear,
    ClientEvent,
    Commit,
    Name,
    Update,
    Usage,
    Words,
    parse,
    to_text,
)
from offhook.web.speech_api.realtime.settings import (
    USUAL_FORMAT,
    Dialect,
    EventError,
    ServerVad,
    Settings,
    Table,
    updated,
    with_language,
)
from offhook.web.speech_api.realtime.turn_detector import (
    TurnDetector,
    TurnSound,
    TurnStarted,
    TurnStopped,
)
from offhook.web.speech_api.sockets.input_resampler import InputResampler

MAX_ERRORS = 100
"""A client that is wrong so often understands none of the answers: the session ends."""

_SERVER_FAULTS = {code.value for code in (ErrorCode.ENGINE, ErrorCode.FULL, ErrorCode.STOPPING)}


# --- what is to be done ---


@dataclass(frozen=True)
class Send:
    text: str


@dataclass(frozen=True)
class Begin:
    """The engine is wanted from now on, so."""

    options: StreamOptions


@dataclass(frozen=True, eq=False)
class Feed:
    """16 kHz."""

    pcm: Pcm


@dataclass(frozen=True)
class Finish:
    """The utterance is complete."""


@dataclass(frozen=True)
class Cancel:
    """The utterance is not wanted."""


Do = Send | Begin | Feed | Finish | Cancel


# --- policy ---


class RealtimeState(Enum):
    IDLE = auto()
    """Nothing is waiting to be committed."""
    HEARING = auto()


class On(Enum):
    APPEND = auto()
    COMMIT = auto()
    FINAL = auto()
    """A commit that says it is."""
    CLEAR = auto()
    START = auto()
    """The turn detector's."""
    STOP = auto()


Action = Callable[["RealtimeSession"], Iterator[Do]]


def _begin(session: "RealtimeSession") -> Iterator[Do]:
    return session.begin_item()


def _nothing(session: "RealtimeSession") -> Iterator[Do]:
    return iter(())


def _finish(session: "RealtimeSession") -> Iterator[Do]:
    yield from session.cut()
    yield from session.finish_item()


def _committed(session: "RealtimeSession") -> Iterator[Do]:
    yield from session.commit_item()
    yield from session.cut()
    yield from session.finish_item()


def _turn_over(session: "RealtimeSession") -> Iterator[Do]:
    yield from session.commit_item()
    yield from session.finish_item()


def _drop(session: "RealtimeSession") -> Iterator[Do]:
    yield from session.drop_item()
    yield from session.say("input_audio_buffer.cleared")


def _empty(session: "RealtimeSession") -> Iterator[Do]:
    words = "nothing to commit: no sound was appended since the last"
    raise EventError(words, "input_audio_buffer_commit_empty")


def _unknown(session: "RealtimeSession") -> Iterator[Do]:
    raise EventError("this dialect has no input_audio_buffer.clear", "unknown_event", "type")


def _final_is_vllms(session: "RealtimeSession") -> Iterator[Do]:
    raise EventError("final is not known here", "unknown_parameter", "final")


_VLLM, _OPENAI, _IDLE, _HEARING = (
    Dialect.VLLM,
    Dialect.OPENAI,
    RealtimeState.IDLE,
    RealtimeState.HEARING,
)
POLICY: dict[tuple[Dialect, RealtimeState, On], tuple[RealtimeState, Action]] = {
    # vLLM: a commit begins to hear, a final one ends it; sound may also come before the first.
    (_VLLM, _IDLE, On.APPEND): (_HEARING, _begin),
    (_VLLM, _IDLE, On.COMMIT): (_HEARING, _begin),
    (_VLLM, _IDLE, On.FINAL): (_IDLE, _empty),  # vLLM would say nothing, for ever
    (_VLLM, _IDLE, On.CLEAR): (_IDLE, _unknown),
    (_VLLM, _HEARING, On.APPEND): (_HEARING, _nothing),
    (_VLLM, _HEARING, On.COMMIT): (_HEARING, _nothing),  # it hears already: vLLM passes it over too
    (_VLLM, _HEARING, On.FINAL): (_IDLE, _finish),
    (_VLLM, _HEARING, On.CLEAR): (_HEARING, _unknown),
    # OpenAI: a commit ends what was appended; with server_vad, so does the end of a turn.
    (_OPENAI, _IDLE, On.APPEND): (_HEARING, _begin),
    (_OPENAI, _IDLE, On.COMMIT): (_IDLE, _empty),
    (_OPENAI, _IDLE, On.FINAL): (_IDLE, _final_is_vllms),
    (_OPENAI, _IDLE, On.CLEAR): (_IDLE, _drop),
    (_OPENAI, _IDLE, On.START): (_HEARING, _begin),
    (_OPENAI, _HEARING, On.APPEND): (_HEARING, _nothing),
    (_OPENAI, _HEARING, On.COMMIT): (_IDLE, _committed),
    (_OPENAI, _HEARING, On.FINAL): (_HEARING, _final_is_vllms),
    (_OPENAI, _HEARING, On.CLEAR): (_IDLE, _drop),
    (_OPENAI, _HEARING, On.STOP): (_IDLE, _turn_over),
}


# --- the session ---


@dataclass
class Item:
    """One utterance, as it is told."""

    id: str
    words: Words = field(default_factory=Words)
    samples: int = 0
    """At 16 kHz, for the usage."""


def _new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"


class RealtimeSession:
    """`check_model` raises ApiError for a model that is not here; `lenient`: fields that are not
    known are passed over."""

    def __init__(
        self,
        dialect: Dialect | None,
        options: StreamOptions,
        model: str,
        check_model: Callable[[str], None],
        *,
        lenient: bool = False,
    ) -> None:
        self._lenient = lenient
        self._decided = dialect is not None
        self._turns: TurnDetector | None = None
        self._speak(dialect or Dialect.VLLM, Settings(USUAL_FORMAT[Dialect.VLLM], options, model))
        self._named = bool(model)
        """vLLM wants that before a commit."""
        self._check_model = check_model
        self._id = _new_id("sess")
        self._state = RealtimeState.IDLE
        self._begun = False
        """The engine was asked for: how it hears stays so."""
        self._current: Item | None = None
        self._items: dict[int, Item] = {}
        """Without a final; by the number of the utterance."""
        self._count = 0
        self._last_id: str | None = None
        self._errors = 0

    def greet(self, time_s: float) -> str:
        """The first event, as both dialects know it; `time_s` in seconds since 1970."""
        event = {**self._event("session.created"), "id": self._id, "created": int(time_s)}
        return to_text({**event, "session": self._session()})

    @property
    def is_over(self) -> bool:
        """It was wrong too often in a row."""
        return self._errors >= MAX_ERRORS

    def receive(self, text: str) -> list[Do]:
        """A message of the client's."""
        said = parse(text, lenient=self._lenient)
        done: list[Do] = []
        try:
            if isinstance(said.event, EventError):
                raise said.event
            for do in self._obey(said.event):
                done.append(do)
            self._errors = 0
        except EventError as error:
            self._errors += 1
            done.append(Send(self._error_text(str(error), error.code, error.param, said.id)))
        return done

    def receive_bytes(self, data: bytes) -> list[Do]:
        """A binary message, which is none."""
        self._errors += 1
        words = f"{len(data)} bytes that are not text: sound comes in input_audio_buffer.append"
        return [Send(self._error_text(words, "invalid_audio", None, None))]

    def hear(self, number: int, event: Partial | Final) -> list[str]:
        """What the engine says of an utterance."""
        item = self._items.get(number)
        if item is None:
            return []
        if isinstance(event, Partial):
            return self._delta(item, item.words.stable(event.text[: event.stable_chars]))
        told = self._delta(item, item.words.final(event.text))
        if event.continues:
            return told
        del self._items[number]
        text, usage = item.words.text, Usage(item.samples / RATE_IN).as_dict()
        if self._dialect is Dialect.VLLM:
            return [*told, to_text({"type": "transcription.done", "text": text, "usage": usage})]
        done = self._of_item("completed", item, transcript=text, usage=usage)
        return [*told, done]

    def error_text(self, error: Error) -> str:
        """The end of the session, with what the server says of it."""
        return self._error_text(error.message, error.code.value, None, None)

    # --- the client's events ---

    def _obey(self, event: ClientEvent) -> Iterator[Do]:
        match event:
            case Name(model, language, prompt):
                self._choose(Dialect.VLLM, "a session is set by its session object")
                settings = replace(self._settings, model=model, prompt=prompt)
                if language is not None:
                    settings = with_language(settings, language, "language")
                self._set(settings)
                self._named = True
            case Update(session):
                self._choose(Dialect.OPENAI, "a session of vLLM's way is set by model")
                self._set(updated(self._settings, session, lenient=self._lenient))
                yield from self.say("session.updated", session=self._session())
            case Append(audio):
                yield from self._append(self._settings.format.decode(audio))
            case Commit(final):
                if self._dialect is Dialect.VLLM and not self._named:
                    words = "name the model in a session.update before the commit"
                    raise EventError(words, "model_not_validated")
                yield from self._on(On.FINAL if final else On.COMMIT)
            case Clear():
                yield from self._on(On.CLEAR)

    def _choose(self, dialect: Dialect, otherwise: str) -> None:
        """The first session.update decides, unless sound was heard by then, or the address did."""
        if dialect is self._dialect:
            self._decided = True
            return
        if self._decided or self._begun:
            raise EventError(otherwise, "invalid_value", "session")
        self._decided = True
        self._speak(dialect, self._settings)

    def _speak(self, dialect: Dialect, settings: Settings) -> None:
        """With what is usual in the dialect."""
        turns = ServerVad() if dialect is Dialect.OPENAI else None
        self._dialect = dialect
        self._settings = replace(settings, format=USUAL_FORMAT[dialect], turns=turns)
        self._ears = InputResampler(self._settings.format.rate)
        self._turns = TurnDetector(turns) if turns is not None else None

    def _name_model(self, name: str) -> None:
        try:
            self._check_model(name)
        except ApiError as error:
            outer = "session.audio.input.transcription." if self._dialect is Dialect.OPENAI else ""
            place = f"{outer}model"
            raise EventError(str(error), error.code or "invalid_value", place) from error

    def _set(self, settings: Settings) -> None:
        before = self._settings
        settings.stream_options  # noqa: B018 - raises when they do not fit together
        if settings.model:
            self._name_model(settings.model)
        fixed = replace(before, turns=settings.turns, model=settings.model)
        if self._begun and settings != fixed:
            words = "how it is heard cannot change once sound has come: open another session"
            raise EventError(words, "session_begun", "session.audio.input")
        if settings.turns != before.turns and self._state is RealtimeState.HEARING:
            words = "turn_detection cannot change within a turn: commit it first"
            raise EventError(words, "session_begun", "session.audio.input.turn_detection")
        if settings.format != before.format:
            self._ears = InputResampler(settings.format.rate)
        if settings.turns != before.turns:
            self._turns = TurnDetector(settings.turns) if settings.turns is not None else None
        self._settings = settings

    def _append(self, sound: Pcm) -> Iterator[Do]:
        pcm = self._ears.hear(sound)
        if self._turns is None:
            if len(sound):
                yield from self._on(On.APPEND)
                yield from self._feed(pcm)
            return
        for event in self._turns.hear(pcm):
            match event:
                case TurnStarted(at_ms):
                    yield from self._on(On.START)
                    yield from self._say_turn("speech_started", audio_start_ms=at_ms)
                case TurnSound(pcm):
                    yield from self._feed(pcm)
                case TurnStopped(at_ms):
                    yield from self._say_turn("speech_stopped", audio_end_ms=at_ms)
                    yield from self._on(On.STOP)

    def _on(self, event: On) -> Iterator[Do]:
        state, action = POLICY[self._dialect, self._state, event]
        yield from action(self)
        self._state = state

    # --- actions ---

    def begin_item(self) -> Iterator[Do]:
        if not self._begun:
            yield Begin(self._settings.stream_options)
            self._begun = True
        self._current = self._items[self._count] = Item(_new_id("item"))
        self._count += 1

    def cut(self) -> Iterator[Do]:
        """What comes now does not belong to what was."""
        if self._turns is not None:
            yield from self._feed(self._turns.end())
        self._ears.forget()

    def finish_item(self) -> Iterator[Do]:
        self._current = None
        yield Finish()

    def commit_item(self) -> Iterator[Do]:
        assert self._current is not None
        item, previous = self._current.id, self._last_id
        self._last_id = item
        yield from self.say("input_audio_buffer.committed", item_id=item, previous_item_id=previous)
        message = {
            "id": item,
            "object": "realtime.item",
            "type": "message",
            "status": "completed",
            "role": "user",
            "content": [{"type": "input_audio", "transcript": None}],
        }
        for event in ("conversation.item.added", "conversation.item.done"):
            yield from self.say(event, previous_item_id=previous, item=message)

    def drop_item(self) -> Iterator[Do]:
        if self._turns is not None:
            self._turns.end()
        self._ears.forget()
        if self._current is not None:
            del self._items[self._count - 1]
            self._count -= not self._current.samples  # an utterance begins with its first sound
            self._current = None
            yield Cancel()

    def _feed(self, pcm: Pcm) -> Iterator[Do]:
        if len(pcm) and self._current is not None:
            self._current.samples += len(pcm)
            yield Feed(pcm)

    # --- what is told ---

    def say(self, kind: str, **fields: Any) -> Iterator[Do]:
        yield Send(to_text({**self._event(kind), **fields}))

    def _say_turn(self, kind: str, **fields: int) -> Iterator[Do]:
        assert self._current is not None
        yield from self.say(f"input_audio_buffer.{kind}", item_id=self._current.id, **fields)

    def _event(self, kind: str) -> Table:
        return {"type": kind, "event_id": _new_id("event")}

    def _session(self) -> Table:
        return {
            "id": self._id,
            "object": "realtime.transcription_session",
            "type": "transcription",
            "audio": self._settings.as_dict(),
            "include": None,
        }

    def _delta(self, item: Item, delta: str) -> list[str]:
        if not delta:
            return []
        if self._dialect is Dialect.VLLM:
            return [to_text({"type": "transcription.delta", "delta": delta})]
        return [self._of_item("delta", item, delta=delta)]

    def _of_item(self, kind: str, item: Item, **fields: object) -> str:
        event = self._event(f"conversation.item.input_audio_transcription.{kind}")
        return to_text({**event, "item_id": item.id, "content_index": 0, **fields})

    def _error_text(self, message: str, code: str, param: str | None, event_id: str | None) -> str:
        if self._dialect is Dialect.VLLM:
            return to_text({"type": "error", "error": message, "code": code})
        error = {
            "type": "server_error" if code in _SERVER_FAULTS else "invalid_request_error",
            "code": code,
            "message": message,
            "param": param,
            "event_id": event_id,
        }
        return to_text({**self._event("error"), "error": error})
