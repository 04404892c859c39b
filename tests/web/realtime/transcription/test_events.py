"""WS /v1/realtime: the events of both dialects, and real clients of both."""

import asyncio
import base64
import itertools
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import aiohttp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection

from offhook.media.codecs.g711 import ULAW_CODES
from offhook.media.codecs.resample import Resampler
from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm
from offhook.pipeline.speech.openai.recognizer_io import OpenAiRecognizer
from offhook.pipeline.speech.recognizer import Final, Partial, StreamOptions
from offhook.pipeline.speech.streams import utterance_queue
from offhook.pipeline.speech.vad.vad import WINDOW
from offhook.web.config.programs import Speech as Settings
from offhook.web.realtime.protocol.client_events import (
    MAX_EVENT_CHARS,
    ClientEvent,
    Dialect,
    parse,
)
from offhook.web.realtime.protocol.server_events import TranscriptDeltas
from offhook.web.realtime.protocol.session_object import EventError, ServerVad
from offhook.web.realtime.transcription import server_io as realtime_io
from offhook.web.realtime.transcription.session import (
    MAX_ERRORS,
    POLICY,
    Action,
    Begin,
    Cancel,
    Feed,
    Finish,
    Pause,
    RealtimeSession,
    RealtimeState,
    Send,
    Trigger,
)
from offhook.web.realtime.transcription.turn_detector import (
    TurnDetector,
    TurnSound,
    TurnStarted,
    TurnStopped,
)
from offhook.web.speech_api.errors import ApiError
from offhook.web.speech_api.sockets import worker_stream_io
from tests.support.waiting import HANGS_S, until
from tests.web.speech_api.conftest import Quick, Served, quickly_served
from tests.web.speech_api.recordings import QUESTION, spoken

PATH = "/v1/realtime"
module_loop = pytest.mark.asyncio(loop_scope="module")
Socket = aiohttp.ClientWebSocketResponse
Event = dict[str, Any]


def sound(pcm: Pcm) -> str:
    return base64.b64encode(pcm.astype("<i2").tobytes()).decode()


def append(pcm: Pcm) -> Event:
    return {"type": "input_audio_buffer.append", "audio": sound(pcm)}


def update(**of_input: object) -> Event:
    session = {"type": "transcription", "audio": {"input": of_input}}
    return {"type": "session.update", "session": session}


UPDATE = {"type": "session.update", "model": "ears"}
COMMIT = {"type": "input_audio_buffer.commit"}
FINAL = {"type": "input_audio_buffer.commit", "final": True}
CLEAR = {"type": "input_audio_buffer.clear"}


def check_model(name: str) -> None:
    if name != "ears":
        raise ApiError(404, f"there is no model {name!r}", "model", "model_not_found")


class Client:
    """Of a session without a socket."""

    def __init__(self, dialect: Dialect | None = None, model: str = "") -> None:
        self.session = RealtimeSession(dialect, StreamOptions(), model, check_model)
        self.session.created(1.5)

    def __call__(self, *events: Event) -> list[Action]:
        return [do for event in events for do in self.session.receive(json.dumps(event))]

    def told(self, *events: Event) -> list[Event]:
        return sent(self(*events))

    def hear(self, number: int, event: Partial | Final) -> list[Event]:
        return [json.loads(text) for text in self.session.recognized(number, event)]


def sent(dos: Iterable[Action]) -> list[Event]:
    return [json.loads(do.text) for do in dos if isinstance(do, Send)]


def kinds(dos: list[Action]) -> list[type[Action]]:
    return [type(do) for do in dos]


def fed(dos: list[Action]) -> Pcm:
    return np.concatenate([do.pcm for do in dos if isinstance(do, Feed)])


SECOND = np.ones(RATE_IN, np.int16)


# --- events ---


SIMPLE = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
JSON = SIMPLE | st.lists(SIMPLE, max_size=3) | st.dictionaries(st.text(max_size=4), SIMPLE)
SERVER_VAD = {"type": "server_vad", "threshold": 0.5, "silence_duration_ms": 500}
GOOD = [
    UPDATE,
    update(
        format={"type": "audio/pcm", "rate": 24000},
        transcription={"model": "ears", "language": "en", "prompt": "a", "keywords": ["b"]},
        turn_detection=SERVER_VAD,
    ),
    update(turn_detection=None),
    append(np.full(4000, 9000, np.int16)),
    append(np.zeros(9000, np.int16)),
    *(COMMIT, FINAL, CLEAR),
]


@st.composite
def events_with_a_fault(draw: st.DrawFn) -> Event:
    """Something somewhere in a good event is something else, or there is something more."""
    event: Event = json.loads(json.dumps(draw(st.sampled_from(GOOD))))
    table = event
    while draw(st.booleans()):
        inner: list[Event] = [v for v in table.values() if isinstance(v, dict)]
        table = draw(st.sampled_from(inner)) if inner else table
    table[draw(st.sampled_from([*table, "more", "event_id"]))] = draw(JSON)
    return event


@given(st.text() | JSON.map(json.dumps) | events_with_a_fault().map(json.dumps))
def test_any_text_is_an_event_or_says_what_is_wrong(text: str) -> None:
    with suppress(EventError):
        assert isinstance(parse(text), ClientEvent)


@given(
    st.lists(st.sampled_from(GOOD) | events_with_a_fault(), max_size=12),
    st.sampled_from([None, Dialect.OPENAI]),
)
def test_whatever_comes_is_answered_in_json(events: list[Event], dialect: Dialect | None) -> None:
    client = Client(dialect)
    begun = finished = 0
    for event in events:
        dos = client(event)
        sent(dos)
        assert all(len(do.pcm) for do in dos if isinstance(do, Feed))
        begun += kinds(dos).count(Begin)
        finished += kinds(dos).count(Finish)
    assert begun <= 1
    for number in range(finished):
        client.hear(number, Final("yes", 9))


@pytest.mark.parametrize("dialect", list(Dialect))
def test_the_policy_has_a_row_for_whatever_a_client_says(dialect: Dialect) -> None:
    said = (Trigger.APPEND, Trigger.COMMIT, Trigger.FINAL, Trigger.CLEAR)
    assert all((dialect, state, on) in POLICY for state in RealtimeState for on in said)


@pytest.mark.parametrize(
    ("event", "code", "says"),
    [
        ("flush", "invalid_json", "not JSON"),
        ("[]", "invalid_json", "not a JSON object"),
        ("[" * 100_000, "message_too_long", "more than 32768 values"),
        ({"type": "response.create"}, "unknown_event", "this server transcribes"),
        ({"type": "input_audio_buffer.append"}, "invalid_audio", "audio is missing"),
        ({"type": "input_audio_buffer.append", "audio": 5}, "invalid_audio", "base64"),
        ({"type": "input_audio_buffer.append", "audio": "AA*="}, "invalid_audio", "not base64"),
        ({"type": "input_audio_buffer.append", "audio": "é"}, "invalid_audio", "not base64"),
        ({"type": "input_audio_buffer.append", "audio": "AAAA"}, "invalid_audio", "two"),
        ({**FINAL, "final": 1}, "invalid_value", "not true or false"),
        ({**COMMIT, "now": 1}, "unknown_parameter", "now is not known"),
        ({**COMMIT, "event_id": "x" * 600}, "invalid_value", "at most 512"),
        (COMMIT, "model_not_validated", "name the model"),
        ({"type": "session.update"}, "invalid_value", "names a model"),
        ({"type": "session.update", "model": 5}, "invalid_value", "not a string"),
        ({"type": "session.update", "model": "\ud800"}, "invalid_value", "not a string"),
        ({"type": "session.update", "model": "gpt"}, "model_not_found", "no model 'gpt'"),
        ('{"type":"x","a":"' + "x" * MAX_EVENT_CHARS + '"}', "message_too_long", "not at most"),
    ],
)
def test_what_is_wrong_is_said_and_the_session_goes_on(
    event: str | Event, code: str, says: str
) -> None:
    client = Client()
    text = event if isinstance(event, str) else json.dumps(event)
    [error] = sent(client.session.receive(text))
    assert (error["type"], error["code"]) == ("error", code)
    assert says in error["error"]
    assert kinds(client(UPDATE, append(SECOND))) == [Begin, Feed]


@pytest.mark.parametrize(
    ("changes", "param", "says"),
    [
        ({"format": {"type": "audio/opus"}}, "format.type", "not audio/pcm or audio/pcmu"),
        ({"format": {"rate": 44100}}, "format.rate", "not one of 8000"),
        ({"format": 5}, "format", "not an object"),
        ({"transcription": None}, "transcription", "transcribes"),
        ({"transcription": {"language": "English"}}, "transcription.language", "not a code"),
        ({"transcription": {"keywords": ["a", 5]}}, "transcription.keywords", "not a string"),
        ({"transcription": {"model": "gpt"}}, "transcription.model", "no model"),
        ({"transcription": {"delay": "none"}}, "transcription.delay", "minimal or low"),
        ({"transcription": {"langauge": "en"}}, "transcription.langauge", "did you mean language?"),
        ({"transcription": {"prompt": "x" * 4001}}, "transcription", "4000"),
        ({"turn_detection": {"type": "vad"}}, "turn_detection.type", "server_vad"),
        (
            {"turn_detection": {"type": "semantic_vad", "eagerness": "max"}},
            "turn_detection.eagerness",
            "low or medium",
        ),
        (
            {"turn_detection": {"type": "server_vad", "idle_timeout_ms": 1}},
            "turn_detection.idle_timeout_ms",
            "at least 5000",
        ),
        (
            {"turn_detection": {"type": "server_vad", "threshold": 2}},
            "turn_detection.threshold",
            "at most 1",
        ),
        (
            {"turn_detection": {"type": "server_vad", "silence_duration_ms": -1}},
            "turn_detection.silence_duration_ms",
            "at least 0",
        ),
        ({"noise": 5}, "noise", "not known"),
    ],
)
def test_a_session_that_cannot_be_says_which_field(changes: Event, param: str, says: str) -> None:
    client = Client(Dialect.OPENAI)
    [answer] = client.told({**update(**changes), "event_id": "mine"})
    error = answer["error"]
    assert error["param"] == f"session.audio.input.{param}"
    assert says in error["message"]
    assert error["event_id"] == "mine"
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("eagerness", "silence_ms"), [(None, 800), ("auto", 800), ("low", 1500), ("high", 400)]
)
def test_a_semantic_vad_is_the_silence_that_its_eagerness_bears(
    eagerness: str | None, silence_ms: int
) -> None:
    """And the answer says that it is no semantic one."""
    asked = {"type": "semantic_vad", "create_response": False, "interrupt_response": True}
    client = Client(Dialect.OPENAI)
    more = {"eagerness": eagerness} if eagerness else {}
    [answer] = client.told(update(turn_detection={**asked, **more}))
    done = answer["session"]["audio"]["input"]["turn_detection"]
    assert (done["type"], done["silence_duration_ms"]) == ("server_vad", silence_ms)
    loud = (9000 * np.sin(np.arange(RATE_OUT) / 8)).astype(np.int16)
    quiet = np.zeros(RATE_OUT * (silence_ms - 200) // 1000, np.int16)
    told = client.told(append(quiet), append(loud), append(quiet))
    assert [event["type"] for event in told] == ["input_audio_buffer.speech_started"]
    told = client.told(append(np.zeros(RATE_OUT * 400 // 1000, np.int16)))
    assert told[0]["type"] == "input_audio_buffer.speech_stopped"


def test_what_is_not_done_is_accepted_and_shown_as_off() -> None:
    client = Client(Dialect.OPENAI)
    event = update(
        transcription={"model": "ears", "delay": "xhigh"},
        turn_detection={"type": "server_vad", "idle_timeout_ms": 6000},
        noise_reduction={"type": "near_field"},
    )
    event["session"]["include"] = ["item.input_audio_transcription.logprobs"]
    [answer] = client.told(event)
    session = answer["session"]
    assert session["include"] is None
    heard = session["audio"]["input"]
    assert heard["turn_detection"]["idle_timeout_ms"] is None
    assert heard["noise_reduction"] is None
    assert heard["transcription"]["delay"] == "xhigh"
    assert client(append(SECOND), CLEAR)  # a delay is how often the words are updated
    client = Client(Dialect.OPENAI)
    begin = client(update(transcription={"delay": "minimal"}, turn_detection=None), append(SECOND))[
        1
    ]
    assert isinstance(begin, Begin)
    assert begin.options.update_ms == 80


def test_null_is_as_if_absent_except_for_turn_detection() -> None:
    client = Client(Dialect.OPENAI)
    client(update(transcription={"model": "ears", "language": "de"}))
    nothing = dict.fromkeys(("model", "language", "prompt", "keywords", "delay", "more"))
    event = {**update(transcription=nothing, turn_detection=None, more=None), "more": None}
    [answer] = client.told({**event, "event_id": None})
    heard = answer["session"]["audio"]["input"]
    assert heard["transcription"] == {"model": "ears", "language": "de", "prompt": ""}
    assert heard["turn_detection"] is None


@pytest.mark.parametrize("detection", [None, {"type": "server_vad"}])
def test_minutes_in_one_event_are_as_short_events_with_pauses_for_others(detection: object) -> None:
    at = np.arange(30 * RATE_OUT)
    loud = at // (2 * RATE_OUT) % 2 * 9000 * np.sin(at / 9)
    pcm = loud.astype(np.int16)
    long, short = Client(), Client()
    whole = [*long(update(turn_detection=detection), append(pcm))]
    pieces = np.split(pcm, range(4800, len(pcm), 4800))
    parts = [*short(update(turn_detection=detection), *map(append, pieces))]
    assert np.array_equal(fed(whole), fed(parts))
    assert whole.count(Pause()) == 29
    assert Pause() not in parts
    told = [[event["type"] for event in sent(actions)] for actions in (whole, parts)]
    assert told[0] == told[1]


def test_the_longest_event_of_openais_is_heard() -> None:
    client = Client()
    seconds = 230
    actions = client(update(turn_detection=None), append(np.zeros(seconds * RATE_OUT, np.int16)))
    assert len(fed(actions)) == pytest.approx(seconds * RATE_IN, abs=RATE_IN)
    assert not [event for event in sent(actions) if event["type"] == "error"]


def test_fields_that_are_not_known_are_passed_over_when_so_set() -> None:
    session = RealtimeSession(Dialect.OPENAI, StreamOptions(), "", check_model, lenient=True)
    event = {**update(colour=1, turn_detection={"type": "semantic_vad", "x": {}}), "more": 2}
    [answer] = sent(session.receive(json.dumps(event)))
    assert answer["type"] == "session.updated"
    assert answer["session"]["audio"]["input"]["turn_detection"]["silence_duration_ms"] == 800


def test_who_is_wrong_all_the_time_is_let_go() -> None:
    client = Client()
    for _ in range(MAX_ERRORS - 1):
        client({"type": "nonsense"})
    client(UPDATE)
    assert not client.session.is_over
    for _ in range(MAX_ERRORS):
        client({"type": "nonsense"})
    assert client.session.is_over


# --- what is told of words ---


@given(st.lists(st.lists(st.sampled_from(["a", "bc", "d"]), max_size=4), max_size=6), st.data())
def test_deltas_take_nothing_back_and_make_the_whole(parts: list[list[str]], data: Any) -> None:
    words = TranscriptDeltas()
    told = ""
    for part in parts:
        text = " ".join(part)
        for end in sorted(data.draw(st.lists(st.integers(0, len(part)), max_size=3))):
            told += words.partial(" ".join(part[:end]))
        told += words.final(text)
        assert told == words.sent
    assert told == words.text


def test_a_final_that_differs_adds_what_is_beyond_what_was_told() -> None:
    words = TranscriptDeltas()
    assert words.partial("four queen") == "four queen"
    assert words.final("for queen of clubs") == " of clubs"
    assert words.text == "for queen of clubs"
    chinese = TranscriptDeltas()
    assert chinese.partial("你好") == "你好"
    assert chinese.final("您好吗") == "吗"


# --- vLLM's dialect ---


def test_vllms_order_of_events() -> None:
    client = Client()
    assert kinds(client(UPDATE)) == []
    assert kinds(client(COMMIT)) == [Begin]
    assert kinds(client(append(SECOND), append(SECOND), COMMIT)) == [Feed, Feed]
    assert client.hear(0, Partial("hello th", 5, 500)) == [
        {"type": "transcription.delta", "delta": "hello"}
    ]
    assert kinds(client(FINAL)) == [Finish]
    assert kinds(client(append(SECOND))) == [Feed]  # the next, before the first is done
    assert client.hear(0, Final("hello there", 2000)) == [
        {"type": "transcription.delta", "delta": " there"},
        {
            "type": "transcription.done",
            "text": "hello there",
            "usage": {"type": "duration", "seconds": 2.0},
        },
    ]
    assert kinds(client(FINAL)) == [Finish]
    [done] = client.hear(1, Final("", 1000))
    assert done["text"] == ""


def test_language_and_prompt_may_come_with_the_model() -> None:
    client = Client()
    [begin] = client({**UPDATE, "language": "en", "prompt": "a shop"}, COMMIT)
    assert begin == Begin(StreamOptions(language="en", context="a shop"))
    assert client.told(UPDATE, FINAL)[0]["code"] == "session_begun"
    [error] = Client().told({**UPDATE, "language": "English"})
    assert "not a code" in error["error"]


def test_sound_before_the_model_is_named_is_not_lost() -> None:
    client = Client()
    assert kinds(client(append(SECOND), UPDATE, COMMIT, FINAL)) == [Begin, Feed, Finish]


def test_a_commit_of_nothing_is_an_error_and_no_waiting_for_ever() -> None:
    client = Client(model="ears")
    [error] = client.told(FINAL)
    assert error["code"] == "input_audio_buffer_commit_empty"
    [error] = client.told(CLEAR)
    assert error["code"] == "unknown_event"


def test_an_utterance_longer_than_the_engine_bears_is_one_text() -> None:
    client = Client(model="ears")
    client(append(SECOND), FINAL)
    first = client.hear(0, Final("hello", 500, continues=True))
    last = client.hear(0, Final("there", 500))
    deltas = [event["delta"] for event in [*first, *last] if "delta" in event]
    assert deltas == ["hello", " there"]
    assert last[-1]["text"] == "hello there"


# --- OpenAI's dialect ---


BY_HAND = {"turn_detection": None}


def test_openais_order_of_events() -> None:
    client = Client(Dialect.OPENAI)
    format_ = {"type": "audio/pcm", "rate": 24000}
    named = {"model": "ears", "language": "en", "prompt": "a shop", "keywords": ["Riverside"]}
    [changed] = client.told(update(format=format_, transcription=named, **BY_HAND))
    assert changed["type"] == "session.updated"
    effective = changed["session"]["audio"]["input"]
    assert effective["format"] == format_
    assert effective["transcription"] == named
    assert effective["turn_detection"] is None
    dos = client(append(np.ones(RATE_OUT, np.int16)))
    assert isinstance(dos[0], Begin)
    assert dos[0].options == StreamOptions(language="en", context="a shop Riverside")
    assert sum(len(do.pcm) for do in dos if isinstance(do, Feed)) == RATE_IN
    [delta] = client.hear(0, Partial("hello", 5, 500))
    dos = client(COMMIT)
    told = sent(dos)
    assert [event["type"] for event in told] == [
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
    ]
    assert isinstance(dos[-1], Finish)
    [end] = client.hear(0, Final("hello", 1000))
    assert end["type"] == "conversation.item.input_audio_transcription.completed"
    assert (end["transcript"], end["usage"]["seconds"]) == ("hello", 1.0)
    assert len({event["item_id"] for event in (delta, told[0], end)}) == 1
    client(append(SECOND))
    assert client.told(COMMIT)[0]["previous_item_id"] == end["item_id"]


def test_what_is_cleared_is_not_heard_and_the_next_is() -> None:
    client = Client(Dialect.OPENAI)
    client(update(**BY_HAND))
    assert client.told(CLEAR)[0]["type"] == "input_audio_buffer.cleared"
    dos = client(append(SECOND), CLEAR)
    assert kinds(dos) == [Begin, Feed, Cancel, Send]
    assert client.told(COMMIT)[0]["error"]["code"] == "input_audio_buffer_commit_empty"
    client(append(SECOND), COMMIT)
    assert client.hear(0, Final("old", 9)) == []
    assert client.hear(1, Final("new", 9))[-1]["transcript"] == "new"


def test_how_it_is_heard_stays_once_sound_has_come() -> None:
    client = Client(Dialect.OPENAI)
    client(update(**BY_HAND), append(SECOND))
    [error] = client.told(update(transcription={"language": "de"}))
    assert error["error"]["code"] == "session_begun"
    [error] = client.told(update(turn_detection={"type": "server_vad"}))
    assert error["error"]["code"] == "session_begun"
    client(COMMIT)
    [changed] = client.told(update(turn_detection={"type": "server_vad"}))
    assert changed["session"]["audio"]["input"]["turn_detection"]["type"] == "server_vad"


def test_the_first_update_says_which_dialect_it_is() -> None:
    client = Client()
    [changed] = client.told(update(transcription={"model": "ears"}))
    assert changed["type"] == "session.updated"
    assert changed["session"]["audio"]["input"]["format"]["rate"] == RATE_OUT
    [error] = client.told(UPDATE)
    assert "session object" in error["error"]["message"]
    vllm = Client()
    vllm(UPDATE)
    [error] = vllm.told(update())
    assert isinstance(error["error"], str)


def test_g711_is_understood() -> None:
    client = Client(Dialect.OPENAI)
    client(update(format={"type": "audio/pcmu"}, **BY_HAND))
    tone = (8000 * np.sin(np.arange(8000) * 2 * np.pi * 440 / 8000)).astype(np.int16)
    codes = base64.b64encode(ULAW_CODES[tone.view(np.uint16)].tobytes()).decode()
    dos = client({"type": "input_audio_buffer.append", "audio": codes})
    heard = np.concatenate([do.pcm for do in dos if isinstance(do, Feed)])
    assert len(heard) == RATE_IN
    assert 7000 < np.abs(heard[1000:-1000]).max() < 9000


# --- turns ---


def noise(seconds: float, dbfs: float) -> Pcm:
    size = int(seconds * RATE_IN)
    level = 32768 * 10 ** (dbfs / 20)
    return np.random.default_rng(3).normal(0, level, size).astype(np.int16)


TALK = np.concatenate(
    (noise(1, -60), noise(1, -20), noise(0.2, -60), noise(0.5, -20), noise(1.5, -60))
)


def test_a_turn_is_what_is_loud_and_a_little_around() -> None:
    events = TurnDetector(ServerVad(silence_duration_ms=500)).feed(TALK)
    [start] = [event for event in events if isinstance(event, TurnStarted)]
    [stop] = [event for event in events if isinstance(event, TurnStopped)]
    assert abs(start.at_ms - (1000 - 300)) <= 64
    assert abs(stop.at_ms - (2700 + 500)) <= 64
    heard = np.concatenate([event.pcm for event in events if isinstance(event, TurnSound)])
    begin = start.at_ms * RATE_IN // 1000
    assert np.array_equal(heard, TALK[begin : begin + len(heard)])
    assert abs(begin + len(heard) - stop.at_ms * 16) < 16


@settings(max_examples=50)
@given(st.lists(st.integers(1, 9000), min_size=1))
def test_turns_are_the_same_in_whatever_pieces_the_sound_comes(sizes: list[int]) -> None:
    detector = TurnDetector(ServerVad())
    at = 0
    found = []
    for size in itertools.cycle(sizes):
        found += detector.feed(TALK[at : at + size])
        at += size
        if at >= len(TALK):
            break
    whole = TurnDetector(ServerVad()).feed(TALK)
    assert [type(event) for event in found] == [type(event) for event in whole]
    for one, other in zip(found, whole, strict=True):
        if isinstance(one, TurnSound):
            assert np.array_equal(one.pcm, cast(TurnSound, other).pcm)
        else:
            assert one == other


def test_a_commit_within_a_turn_takes_all_its_sound() -> None:
    client = Client(Dialect.OPENAI)
    client(update(format={"type": "audio/pcm", "rate": 16000}))
    spoken_part = TALK[: int(1.5 * RATE_IN) + 100]
    dos = [*client(append(spoken_part)), *client(COMMIT)]
    fed = sum(len(do.pcm) for do in dos if isinstance(do, Feed))
    started = next(e for e in sent(dos) if e["type"] == "input_audio_buffer.speech_started")
    assert fed == len(spoken_part) - started["audio_start_ms"] * 16
    assert fed % WINDOW
    assert isinstance(dos[-1], Finish)
    more = client(append(TALK[len(spoken_part) :]))
    started, stopped = sent(more)[:2]
    assert started["type"] == "input_audio_buffer.speech_started"
    assert stopped["type"] == "input_audio_buffer.speech_stopped"
    heard = np.concatenate([do.pcm for do in more if isinstance(do, Feed)])
    begins = range(started["audio_start_ms"] * 16, started["audio_start_ms"] * 16 + 16)
    assert any(np.array_equal(TALK[at : at + len(heard)], heard) for at in begins)
    assert started["audio_start_ms"] * 16 >= len(spoken_part) - 16


def test_two_turns_in_one_append_are_two_items() -> None:
    client = Client(Dialect.OPENAI)
    client(update(format={"type": "audio/pcm", "rate": 16000}))
    dos = client(append(np.concatenate((TALK, TALK))))
    assert kinds(dos).count(Finish) == 2
    started = [e for e in sent(dos) if e["type"] == "input_audio_buffer.speech_started"]
    assert len({event["item_id"] for event in started}) == 2
    assert client.hear(0, Final("one", 9))[-1]["item_id"] == started[0]["item_id"]
    assert client.hear(1, Final("two", 9))[-1]["item_id"] == started[1]["item_id"]


def test_a_turn_that_begins_where_another_ends_is_whole() -> None:
    client = Client(Dialect.OPENAI)
    client(update(format={"type": "audio/pcm", "rate": 16000}))
    sound = np.concatenate((TALK, TALK))
    middle = len(TALK) + int(1.5 * RATE_IN) + 100
    dos = [*client(append(sound[:middle])), *client(append(sound[middle:]))]
    stopped = [e for e in sent(dos) if e["type"] == "input_audio_buffer.speech_stopped"]
    assert len(stopped) == 2
    second = kinds(dos).index(Finish) + 1
    heard = np.concatenate([do.pcm for do in dos[second:] if isinstance(do, Feed)])
    end = stopped[1]["audio_end_ms"] * 16
    assert np.array_equal(heard, sound[end - len(heard) : end])


# --- over a socket: real clients, the embedded engine ---


async def converse(socket: Socket, *events: Event) -> list[Event]:
    """As vLLM's example does: until done or an error."""
    for event in events:
        await socket.send_json(event)
    told: list[Event] = []
    async with asyncio.timeout(HANGS_S):
        while not told or told[-1]["type"] not in ("transcription.done", "error"):
            told.append(await socket.receive_json())
    return told


@module_loop
async def test_a_client_of_vllms_hears_words_as_they_come(speech_server: Served) -> None:
    phrase = spoken()
    pieces = [append(phrase[at : at + 2048]) for at in range(0, len(phrase), 2048)]
    async with speech_server.client.ws_connect(PATH) as socket:
        created = await socket.receive_json()
        assert created["type"] == "session.created"
        assert created["id"].startswith("sess")
        assert isinstance(created["created"], int)
        named = {"type": "session.update", "model": "en-us"}
        for _ in range(2):
            told = await converse(socket, named, COMMIT, *pieces, FINAL)
            deltas = [event["delta"] for event in told[:-1]]
            assert len(deltas) >= 2
            assert "".join(deltas) == told[-1]["text"]
            assert len(set(told[-1]["text"].split()) & set(QUESTION.split())) >= 4


@asynccontextmanager
async def connected(openai: AsyncOpenAI) -> AsyncIterator[AsyncRealtimeConnection]:
    query = {"intent": "transcription"}
    async with openai.realtime.connect(extra_query=query) as connection:
        yield connection


async def until_completed(connection: AsyncRealtimeConnection) -> list[Any]:
    events: list[Any] = []
    async with asyncio.timeout(HANGS_S):
        async for event in connection:
            events.append(event)
            assert event.type != "error", event
            if event.type.endswith(".completed"):
                break
    return events


@module_loop
@pytest.mark.parametrize("turns", [None, {"type": "server_vad", "silence_duration_ms": 400}])
async def test_the_stock_client_of_openai_is_served(
    speech_server: Served, turns: dict[str, Any] | None
) -> None:
    pytest.importorskip("websockets")
    around = np.zeros(RATE_IN if turns else 0, np.int16)
    pcm = Resampler(RATE_IN, RATE_OUT).process(np.concatenate((around, spoken(), around)))
    transcription = {"model": "gpt-4o-transcribe", "language": "en"}
    heard = {
        "format": {"type": "audio/pcm", "rate": 24000},
        "transcription": transcription,
        "turn_detection": turns,
    }
    async with connected(speech_server.openai) as connection:
        session: Any = {"type": "transcription", "audio": {"input": heard}}
        await connection.session.update(session=session)
        for at in range(0, len(pcm), 2400):
            await connection.input_audio_buffer.append(audio=sound(pcm[at : at + 2400]))
        if turns is None:
            await connection.input_audio_buffer.commit()
        events = await until_completed(connection)
    names = [event.type.rpartition(".")[2] for event in events]
    assert names[:2] == ["created", "updated"]
    assert "committed" in names
    assert ("speech_started" in names) == ("speech_stopped" in names) == (turns is not None)
    deltas = [event.delta for event in events if event.type.endswith(".delta")]
    assert "".join(deltas) == events[-1].transcript
    assert len(set(events[-1].transcript.split()) & set(QUESTION.split())) >= 4


@module_loop
async def test_our_own_client_of_such_servers_hears_through_it(speech_server: Served) -> None:
    recognizer = OpenAiRecognizer(f"{speech_server.url}/v1")
    stream = await recognizer.open(StreamOptions(language="en"))
    try:
        for _ in range(2):
            events: list[Partial | Final] = []
            phrase = spoken()
            for at in range(0, len(phrase), 1600):
                stream.feed(phrase[at : at + 1600])
            async with asyncio.timeout(HANGS_S):
                async for event in stream.events():
                    if not events:
                        stream.finish()
                    events.append(event)
                    if isinstance(event, Final):
                        break
            assert isinstance(events[0], Partial)
            assert len(set(events[-1].text.split()) & set(QUESTION.split())) >= 4
    finally:
        await stream.close()
        await recognizer.close()


# --- over a socket: what is refused, and bounds ---


@pytest.mark.parametrize(
    ("query", "status", "param"),
    [
        ({"intent": "conversation"}, 400, "intent"),
        ({"model": "gpt-realtime"}, 404, "model"),
        ({"language": "English"}, 400, "language"),
        ({"rate": "8000"}, 400, "rate"),
    ],
)
async def test_what_cannot_be_is_refused_before_the_upgrade(
    quick_server: Quick, query: dict[str, str], status: int, param: str
) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await quick_server.client.ws_connect(PATH, params=query)
    assert refused.value.status == status
    async with quick_server.client.get(PATH, params=query) as plain:
        assert plain.status == 426


async def test_streams_are_counted_with_the_others() -> None:
    async with (
        quickly_served(Settings(streams=1)) as quick,
        quick.client.ws_connect(PATH) as socket,
    ):
        await socket.receive_json()
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await quick.client.ws_connect("/ws/transcribe")
        assert refused.value.status == 503


async def test_the_query_says_how_it_is_heard(quick_server: Quick) -> None:
    query = {"model": "scripted", "update_ms": "200", "language": "en", "gate": "true"}
    async with quick_server.client.ws_connect(PATH, params=query) as socket:
        told = await converse(socket, append(SECOND), FINAL)
    assert told[-1]["text"] == "hello world"
    [stream] = quick_server.ears.opened
    assert stream.options == StreamOptions(update_ms=200, language="en", gate=True)


async def test_a_browsers_sub_protocol_is_taken(quick_server: Quick) -> None:
    async with quick_server.client.ws_connect(PATH, protocols=("realtime",)) as socket:
        assert socket.protocol == "realtime"


async def test_a_ping_is_answered_and_the_session_goes_on(quick_server: Quick) -> None:
    async with quick_server.client.ws_connect(PATH, params={"intent": "transcription"}) as socket:
        await socket.receive_json()
        await socket.ping()
        await socket.send_json(update(**BY_HAND))
        assert "updated" in (await socket.receive_json())["type"]


async def _until_closed(socket: Socket) -> Event:
    last: Event = {}
    async with asyncio.timeout(HANGS_S):
        while (message := await socket.receive()).type is aiohttp.WSMsgType.TEXT:
            last = message.json()
    return last


@pytest.mark.parametrize(
    ("case", "code", "closed"),
    [("flood", "behind", 1008), ("idle", "idle", 1008), ("wrong", "bad_request", 1008)],
)
async def test_what_is_too_much_ends_the_session_in_words(
    quick_server: Quick, monkeypatch: pytest.MonkeyPatch, case: str, code: str, closed: int
) -> None:
    monkeypatch.setattr(utterance_queue, "MAX_UNHEARD_S", 3)
    if case == "idle":
        monkeypatch.setattr(worker_stream_io, "IDLE_S", 0.1)
    async with quick_server.client.ws_connect(PATH, params={"intent": "transcription"}) as socket:
        if case == "flood":
            await socket.send_json(update(**BY_HAND))
            for _ in range(6):
                await socket.send_json(append(SECOND))
        for _ in range(MAX_ERRORS if case == "wrong" else 0):
            await socket.send_bytes(b"sound")
        last = await _until_closed(socket)
        assert (last["type"], last["error"]["code"]) == ("error", code)
        assert socket.close_code == closed
    await until(lambda: not quick_server.ears.open_streams)


async def test_an_event_beyond_all_bounds_closes_the_connection(quick_server: Quick) -> None:
    async with quick_server.client.ws_connect(PATH) as socket:
        await socket.receive_json()
        with suppress(ConnectionError, aiohttp.ClientError):  # it need not read it to the end
            await socket.send_str("x" * (realtime_io.MAX_EVENT_BYTES + 1))
        lane = quick_server.server.admission.lanes["transcription"]
        await until(lambda: not lane.streams)


@pytest.mark.parametrize("intent", ["", "transcription"])
async def test_an_engine_that_fails_is_said_in_the_clients_dialect(
    quick_server: Quick, intent: str
) -> None:
    quick_server.ears.fails = "the engine is broken"
    query = {"model": "scripted", **({"intent": intent} if intent else {})}
    async with quick_server.client.ws_connect(PATH, params=query) as socket:
        if intent:
            await socket.send_json(update(**BY_HAND))
        await socket.send_json(append(SECOND))
        last = await _until_closed(socket)
        assert socket.close_code == aiohttp.WSCloseCode.INTERNAL_ERROR
    words = last["error"]["message"] if intent else last["error"]
    assert words.startswith("the speech engine failed")
    assert not intent or last["error"]["type"] == "server_error"


async def test_a_client_that_leaves_frees_the_engine(quick_server: Quick) -> None:
    async with quick_server.client.ws_connect(PATH) as socket:
        await socket.send_json(append(SECOND))
        await until(lambda: quick_server.ears.open_streams == 1)
    await until(lambda: not quick_server.ears.open_streams)
