"""Wyoming clients, by the package that Home Assistant uses, on the embedded engines and on scripted
ones."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st
from wyoming.asr import Transcribe, Transcript, TranscriptChunk, TranscriptStart, TranscriptStop
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncClient
from wyoming.error import Error
from wyoming.event import Event, Eventable
from wyoming.info import Describe, Info, SelectProgram
from wyoming.ping import Ping, Pong
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeStopped,
    SynthesizeVoice,
)

from offhook.media import silence_io
from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm
from offhook.web.config.programs import Speech as Settings
from offhook.web.speech_api.server_io import SpeechServer
from offhook.web.workers.wyoming import connection_io, server_io
from offhook.web.workers.wyoming.door_io import wyoming_clients
from tests.support.waiting import HANGS_S, until
from tests.web.speech_api.conftest import (
    WORD_S,
    Quick,
    ScriptedRecognizer,
    ScriptedSynthesizer,
    Served,
    at_once,
    quickly_served,
)
from tests.web.speech_api.recordings import QUESTION, spoken

CHUNK_MS = 100
HERE = Settings(wyoming="0")


class WyomingClient:
    """A stock client and what Home Assistant does with it."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client

    async def send(self, *events: Eventable) -> None:
        for event in events:
            await self.client.write_event(event.event())

    async def read(self) -> Event:
        event = await self.client.read_event()
        assert event is not None, "the server hung up"
        return event

    async def read_to(self, kind: type[Any]) -> list[Event]:
        events = [await self.read()]
        while not kind.is_type(events[-1].type):
            assert events[-1].type != "error", events[-1].data
            events.append(await self.read())
        return events

    async def hung_up(self) -> bool:
        return await self.client.read_event() is None

    async def info(self) -> Info:
        await self.send(Describe())
        return Info.from_event((await self.read_to(Info))[-1])

    async def say_audio(
        self, pcm: Pcm, wanted: Transcribe | None = None, rate: int = RATE_IN
    ) -> None:
        form = {"rate": rate, "width": 2, "channels": 1}
        await self.send(wanted or Transcribe(language="en"), AudioStart(**form))
        step = rate * CHUNK_MS // 1000
        for at in range(0, len(pcm), step):
            block = pcm[at : at + step].astype("<i2").tobytes()
            await self.send(AudioChunk(**form, audio=block))
        await self.send(AudioStop())

    async def transcribe(self, pcm: Pcm, wanted: Transcribe | None = None) -> str:
        await self.say_audio(pcm, wanted)
        events = await self.read_to(Transcript)
        assert events[0].type == "transcript-start"
        text = Transcript.from_event(events[-1]).text
        chunks = [TranscriptChunk.from_event(e).text for e in events[1:-1]]
        assert "".join(chunks) == text
        assert TranscriptStop.is_type((await self.read()).type)
        return text

    async def fault(self) -> Error:
        """The error that ends the connection."""
        event = await self.read()
        while not Error.is_type(event.type):
            event = await self.read()
        assert await self.hung_up()
        return Error.from_event(event)


def sound_of(events: Sequence[Event]) -> Pcm:
    """Of an answer from audio-start to audio-stop."""
    assert events[0].type == "audio-start"
    assert AudioStart.from_event(events[0]).rate == RATE_OUT
    audio = b"".join(e.payload or b"" for e in events if AudioChunk.is_type(e.type))
    kinds = {e.type for e in events[1:-1]}
    assert kinds <= {"audio-chunk", "audio-stop"}
    return np.frombuffer(audio, "<i2").astype(np.int16)


@asynccontextmanager
async def client_at(where: str) -> AsyncIterator[WyomingClient]:
    async with AsyncClient.from_uri(where, read_timeout=HANGS_S) as client:
        yield WyomingClient(client)


@asynccontextmanager
async def listening(server: SpeechServer) -> AsyncIterator[str]:
    async with wyoming_clients(server, HERE) as where:
        yield where


@pytest_asyncio.fixture
async def quick() -> AsyncIterator[tuple[Quick, str]]:
    """Scripted engines, and their address for Wyoming clients."""
    async with quickly_served() as served, listening(served.server) as where:
        yield served, where


@asynccontextmanager
async def raw(where: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = where.removeprefix("tcp://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()


async def answer_to(where: str, data: bytes) -> list[dict[str, Any]]:
    """What the server sends until it hangs up."""
    async with raw(where) as (reader, writer):
        writer.write(data)
        async with asyncio.timeout(HANGS_S):
            lines = (await reader.read()).splitlines()
    return [json.loads(line) for line in lines]


# --- on the embedded engines ---


@pytest.mark.asyncio(loop_scope="module")
async def test_speech_is_spoken_and_understood(speech_server: Served) -> None:
    """All on one connection: it is described, hears, speaks, and hears itself."""
    async with listening(speech_server.server) as where, client_at(where) as client:
        info = await client.info()
        (asr,), (tts,) = info.asr, info.tts
        assert (asr.name, asr.installed, asr.models[0].languages) == ("offhook", True, ["en"])
        assert (tts.name, tts.installed, tts.supports_synthesize_streaming) == (
            *("offhook", True),
            True,
        )
        voice = tts.voices[0]
        assert (voice.languages, voice.attribution.name != "offhook") == (["en"], True)

        assert await client.transcribe(spoken()) == QUESTION
        await client.send(Synthesize(QUESTION, SynthesizeVoice(voice.name)))
        sound = sound_of(await client.read_to(AudioStop))
        assert len(sound) > RATE_OUT
        await client.say_audio(sound, Transcribe(language="en-US"), RATE_OUT)
        heard = Transcript.from_event((await client.read_to(Transcript))[-1])
        assert len(set(heard.text.split()) & set(QUESTION.split())) >= 4


@pytest.mark.asyncio(loop_scope="module")
async def test_text_is_spoken_while_it_is_written(speech_server: Served) -> None:
    """The first sentence is heard before the second is written; then comes all of the text once
    more, as Home Assistant sends it, and is not spoken again."""
    first, second = "The kitchen light is on. ", "The door is locked."
    async with listening(speech_server.server) as where, client_at(where) as client:
        await client.send(SynthesizeStart())
        for word in first.split(" ")[:-1]:
            await client.send(SynthesizeChunk(word + " "))
        await client.send(SynthesizeChunk("The "))
        begun = [await client.read(), await client.read()]
        assert [event.type for event in begun] == ["audio-start", "audio-chunk"]
        await client.send(SynthesizeChunk(second.removeprefix("The ")))
        await client.send(Synthesize(first + second), SynthesizeStop())
        rest = await client.read_to(SynthesizeStopped)
        assert [event.type for event in rest].count("audio-stop") == 1
        streamed = len(sound_of([*begun, *rest]))

        await client.send(Synthesize(first + second))
        assert abs(len(sound_of(await client.read_to(AudioStop))) - streamed) < RATE_OUT / 2


# --- what Home Assistant relies on ---


async def test_chunks_come_before_the_end_from_engines_that_never_revise_them() -> None:
    recognizer = ScriptedRecognizer(says=["turn on the light"], slow_s=0.05)
    ears = at_once(recognizer, "nemotron", "nvidia/nemotron")
    server = SpeechServer(Settings(), ears, None)
    async with listening(server) as where, client_at(where) as client:
        info = await client.info()
        assert info.asr[0].supports_transcript_streaming
        assert "de" in info.asr[0].models[0].languages  # an engine that does not say
        assert not info.tts
        await client.say_audio(spoken())
        events = await client.read_to(Transcript)
        assert TranscriptStart.is_type(events[0].type)
        chunks = [event.data["text"] for event in events[1:-1]]
        assert chunks == ["turn", " on", " the", " light"]
    await server.close()


async def test_a_command_without_a_word_is_answered(quick: tuple[Quick, str]) -> None:
    served, where = quick
    async with client_at(where) as client:
        await client.send(Transcribe(), AudioStart(16000, 2, 1), AudioStop())
        assert Transcript.from_event((await client.read_to(Transcript))[-1]).text == ""
        await client.read_to(TranscriptStop)
        await client.send(Synthesize(" "))
        assert [e.type for e in await client.read_to(AudioStop)] == ["audio-start", "audio-stop"]
        await client.send(SynthesizeStart(), SynthesizeStop())
        kinds = [e.type for e in await client.read_to(SynthesizeStopped)]
        assert kinds == ["audio-start", "audio-stop", "synthesize-stopped"]
    assert served.voice.open_streams == 0


async def test_requests_may_be_sent_ahead_and_are_answered_in_order(
    quick: tuple[Quick, str],
) -> None:
    served, where = quick
    served.ears.says = ["one", "two"]
    async with client_at(where) as client:
        await client.send(SelectProgram("offhook"), Ping("still there?"))
        assert Pong.from_event(await client.read()).text == "still there?"
        await client.say_audio(spoken(), Transcribe("scripted-ears", transcript_names=["Lumos"]))
        await client.send(Synthesize("three words here", SynthesizeVoice("low")))
        await client.say_audio(spoken(), Transcribe())
        assert (await client.read_to(Transcript))[-1].data["text"] == "one"
        await client.read_to(TranscriptStop)
        sound = sound_of(await client.read_to(AudioStop))
        assert len(sound) == 3 * WORD_S * RATE_OUT
        assert (await client.read_to(Transcript))[-1].data["text"] == "two"
    assert [stream.options.context for stream in served.ears.opened] == ["Lumos", ""]
    assert served.voice.opened[0].options.voice == "low"
    assert served.voice.opened[0].options.whole_text
    await until(lambda: served.ears.open_streams == 0)


async def test_audio_of_any_common_format_is_heard(quick: tuple[Quick, str]) -> None:
    served, where = quick
    async with client_at(where) as client:
        for rate, width, channels in ((48_000, 2, 2), (8_000, 1, 1), (44_100, 4, 1)):
            block = bytes(rate * width * channels)
            await client.send(AudioChunk(rate, width, channels, block), AudioStop())
            await client.read_to(TranscriptStop)
    heard = [stream.samples for stream in served.ears.opened]
    assert all(abs(samples - RATE_IN) < 500 for samples in heard), heard


async def test_requests_are_counted_and_limited_like_others() -> None:
    settings = Settings(streams=1)
    async with (
        quickly_served(settings) as served,
        listening(served.server) as where,
        client_at(where) as one,
        client_at(where) as other,
    ):
        await one.send(SynthesizeStart(), SynthesizeChunk("hello "), SynthesizeChunk("there "))
        await one.read()
        await other.send(Synthesize("hello"))
        fault = await other.fault()
        assert fault.code == "streams_full"
        await one.send(SynthesizeStop())
        await one.read_to(SynthesizeStopped)
        async with served.client.get("/metrics") as answer:
            metrics = await answer.text()
    labels = 'endpoint="wyoming/synthesize",status='
    assert f'offhook_speech_requests_total{{{labels}"200"}} 1.0' in metrics
    assert f'offhook_speech_requests_total{{{labels}"503"}} 1.0' in metrics
    assert 'offhook_speech_audio_seconds_total{kind="speech"} 0.5' in metrics


# --- clients that leave, stall, or are stopped ---


@pytest.mark.parametrize("request_kind", ["transcribe", "synthesize"])
async def test_who_leaves_in_the_middle_frees_the_engine(
    quick: tuple[Quick, str], request_kind: str
) -> None:
    served, where = quick
    served.voice.slow_s = served.ears.slow_s = 0.2
    engine = served.ears if request_kind == "transcribe" else served.voice
    async with client_at(where) as client:
        if request_kind == "transcribe":
            await client.say_audio(spoken())
            await client.read()
        else:
            await client.send(Synthesize("word " * 1000))
            await client.read_to(AudioChunk)
        assert engine.open_streams == 1
    await until(lambda: engine.open_streams == 0)
    await until(lambda: not served.server.admission.is_busy)
    async with served.client.get("/metrics") as answer:
        metrics = await answer.text()
    assert f'offhook_speech_cancelled_total{{endpoint="wyoming/{request_kind}"}} 1.0' in metrics


async def test_who_does_not_read_pauses_the_voice_and_is_disconnected(
    quick: tuple[Quick, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_io, "UNREAD_S", 1.0)
    served, where = quick
    host, _, port = where.removeprefix("tcp://").rpartition(":")
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect((host, int(port)))
        deaf.setblocking(False)
        data = json.dumps({"type": "synthesize", "data": {"text": "word " * 8000}})
        await asyncio.get_running_loop().sock_sendall(deaf, data.encode() + b"\n")
        await until(lambda: served.voice.opened)
        speaking = served.voice.opened[0]
        await until(lambda: speaking.over)
        assert speaking.was_cancelled
        assert speaking.said < 2000


async def test_a_stopping_server_says_so(quick: tuple[Quick, str]) -> None:
    served, _ = quick
    async with client_at_end_of(served) as (client, door):
        await client.send(SynthesizeStart(), SynthesizeChunk("hello there "))
        await client.read_to(AudioChunk)
        await door.__aexit__(None, None, None)
        assert (await client.fault()).code == "stopping"
    assert served.voice.open_streams == 0


@asynccontextmanager
async def client_at_end_of(served: Quick) -> AsyncIterator[tuple[WyomingClient, Any]]:
    door = wyoming_clients(served.server, HERE)
    async with client_at(await door.__aenter__()) as client:
        yield client, door


async def test_a_draining_server_takes_no_more(quick: tuple[Quick, str]) -> None:
    served, where = quick
    async with client_at(where) as client:
        served.server.draining = True
        await client.send(Synthesize("hello"))
        assert "stopping" in (await client.fault()).text


@pytest.mark.parametrize(
    ("start", "code"),
    [
        (b'{"type": "transcr', "idle"),
        (b'{"type": "x", "data_length": 10}\n{', "idle"),
        (b'{"type": "x", "payload_length": 1000000}\n123', "idle"),
        (b"", "idle"),
    ],
)
async def test_who_stalls_is_disconnected(
    quick: tuple[Quick, str], monkeypatch: pytest.MonkeyPatch, start: bytes, code: str
) -> None:
    monkeypatch.setattr(connection_io, "IDLE_S", 0.3)
    monkeypatch.setattr(silence_io, "FIRST_S", 0.6)
    _, where = quick
    (head, data) = await answer_to(where, start)
    assert head["type"] == "error"
    assert data["code"] == code


async def test_who_waits_for_an_answer_is_not_idle(
    quick: tuple[Quick, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_io, "IDLE_S", 0.1)
    monkeypatch.setattr(silence_io, "FIRST_S", 0.1)
    monkeypatch.setattr(silence_io, "QUIET_S", 0.3)
    served, where = quick
    served.ears.slow_s = 0.8
    async with client_at(where) as client:
        assert await client.transcribe(spoken()) == "hello world"


# --- errors ---


@pytest.mark.parametrize(
    ("events", "code", "words"),
    [
        ([Synthesize("hi", SynthesizeVoice("amy"))], "voice_not_found", "voices here are tone"),
        ([Synthesize("hi", SynthesizeVoice(language="fr"))], "invalid_request_error", "speaks en"),
        ([Synthesize("hi", SynthesizeVoice("tone", speaker="2"))], "", "one speaker"),
        ([Synthesize("<p>", text_format="ssml")], "", "only text is spoken"),
        ([Synthesize("\x00")], "", "control character"),
        ([Synthesize("x" * 100_001)], "", "100000 characters"),
        ([SynthesizeChunk("hi")], "bad_request", "synthesize-chunk without synthesize-start"),
        ([SynthesizeStop()], "bad_request", "synthesize-stop without synthesize-start"),
        ([SynthesizeStart(), SynthesizeStart()], "", "synthesize-start before synthesize-stop"),
        ([SynthesizeStart(), Transcribe()], "", "transcribe before synthesize-stop"),
        ([AudioStop()], "bad_request", "audio-stop without audio"),
        ([AudioChunk(16000, 2, 1, b"123")], "bad_request", "3 bytes of audio"),
        ([AudioChunk(16000, 2, 1, b"12"), Transcribe()], "", "transcribe before audio-stop"),
        ([AudioChunk(16000, 2, 1, b"12"), Synthesize("hi")], "", "synthesize before audio-stop"),
        ([AudioStart(1 << 40, 2, 1)], "bad_request", "rate is 1099511627776"),
        ([Transcribe("whisper-9"), AudioStop()], "model_not_found", "no model 'whisper-9'"),
        ([Transcribe(language="klingon"), AudioStop()], "", "not a code such as 'en'"),
        ([Transcribe(transcript_names=["a\ud800"]), AudioStop()], "", "surrogate"),
    ],
)
async def test_an_error_says_what_is_wrong_and_ends_the_connection(
    quick: tuple[Quick, str], events: list[Eventable], code: str, words: str
) -> None:
    served, where = quick
    data = b"".join(as_line(event.event()) for event in events)
    answers = await answer_to(where, data)
    assert answers[-2]["type"] == "error"
    assert words in answers[-1]["text"]
    assert code in ("", answers[-1]["code"])
    assert served.ears.open_streams == served.voice.open_streams == 0


def as_line(event: Event) -> bytes:
    """In ASCII, unlike stock clients, so that it may be no Unicode."""
    data, payload = json.dumps(event.data).encode(), event.payload or b""
    head = {"type": event.type, "data_length": len(data), "payload_length": len(payload)}
    return json.dumps(head).encode() + b"\n" + data + payload


@pytest.mark.parametrize(
    "data",
    [
        b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n" + b'{"type": "describe"}\n',
        b'{"type": "synthesize", "data": {"text": 5}}\n',
        b'{"type": "synthesize", "data": {}}\n',
        b'{"type": "audio-start", "data": {"rate": "fast", "width": 2, "channels": 1}}\n',
        b'{"type": "transcribe", "data": {"language": ["en"]}}\n',
        b'{"type": "ping", "data": {"text": {}}}\n',
    ],
)
async def test_what_is_no_request_does_nothing(quick: tuple[Quick, str], data: bytes) -> None:
    """Not even a web page that posts events to this machine."""
    served, where = quick
    head, body = await answer_to(where, data)
    assert (head["type"], body["code"]) == ("error", "bad_request")
    assert not served.ears.opened
    assert not served.voice.opened


async def test_an_engine_that_fails_is_told_without_its_words(quick: tuple[Quick, str]) -> None:
    served, where = quick
    served.ears.fails_within = "http://10.0.0.7 broke"
    served.voice.fails_after, served.voice.fails = 1, "http://10.0.0.8 broke"
    async with client_at(where) as client:
        await client.say_audio(spoken())
        fault = await client.fault()
        assert (fault.code, "10.0.0" in fault.text) == ("engine_error", False)
    async with client_at(where) as client:
        await client.send(Synthesize("hello there"))
        fault = await client.fault()
        assert (fault.code, "10.0.0" in fault.text) == ("engine_error", False)


async def test_too_much_is_refused(
    quick: tuple[Quick, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    served, where = quick
    monkeypatch.setattr("offhook.web.workers.wyoming.requests_io.MAX_AUDIO_S", 2)
    served.voice.slow_s = 0.2
    second = AudioChunk(16000, 2, 1, bytes(32_000))
    async with client_at(where) as client:
        await client.send(*[second] * 3)
        assert "over 2 s of audio" in (await client.fault()).text
    for requests in (
        [Synthesize("a b c d")] * (connection_io.MAX_REQUESTS + 1),
        [Synthesize("word " * 9000)] * 3,
    ):
        async with client_at(where) as client:
            await client.send(*requests)
            assert (await client.fault()).code == "behind"


WORDS = st.sampled_from(["text", "ssml", "en", "fr-FR", "tone", "low", "amy", "", "scripted-ears"])
FIELDS = st.dictionaries(
    st.sampled_from(
        ["text", "voice", "name", "language", "rate", "width", "channels", "text_format", "context"]
    ),
    WORDS
    | st.sampled_from([1, 2, 4, 8000, 16000, 44100])
    | st.dictionaries(st.sampled_from(["name", "language", "speaker"]), WORDS, max_size=2)
    | st.none()
    | st.booleans()
    | st.lists(st.text(max_size=3), max_size=2),
    max_size=5,
)
TYPES = st.sampled_from(
    [
        *("describe", "ping", "transcribe", "audio-start", "audio-chunk", "audio-stop"),
        *("synthesize", "synthesize-start", "synthesize-chunk", "synthesize-stop", "other"),
    ]
)
SOUND = {"rate": 16000, "width": 2, "channels": 1}
REQUESTS = st.lists(
    st.builds(Event, type=TYPES, data=FIELDS, payload=st.sampled_from([None, b"1234", b"123"]))
    | st.sampled_from(
        [
            *(Event("audio-start", SOUND), Event("audio-chunk", SOUND, bytes(640))),
            *(Event("audio-stop"), Event("transcribe"), Event("synthesize-start")),
            *(Event("synthesize", {"text": "hi"}), Event("synthesize-chunk", {"text": "hi "})),
            Event("synthesize-stop"),
        ]
    ),
    max_size=8,
)


@settings(max_examples=settings.default.max_examples // 4)
@given(REQUESTS, st.booleans())
def test_whatever_comes_is_answered_or_refused_and_frees_the_engine(
    events: list[Event], leaves: bool
) -> None:
    async def run() -> None:
        async with quickly_served() as served, listening(served.server) as where:
            async with raw(where) as (reader, writer):
                for event in events:
                    writer.write(as_line(event))
                if not leaves:
                    writer.write(b"the end\n")  # an error, which ends the connection
                    async with asyncio.timeout(HANGS_S):
                        lines = (await reader.read()).rpartition(b'{"type": "error"')[2]
                    assert b"internal server error" not in lines
            await until(lambda: not served.server.admission.is_busy)
            assert served.ears.open_streams == served.voice.open_streams == 0

    asyncio.run(run())


# --- who may connect ---


async def test_a_flood_of_connections_is_bounded(
    quick: tuple[Quick, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_io, "MAX_CONNECTIONS", 3)
    _, where = quick
    async with client_at(where) as one, client_at(where) as two, client_at(where) as three:
        for client in (one, two, three):
            assert await client.info()
        async with client_at(where) as fourth:
            assert (await fourth.fault()).code == "connections_full"
        assert await one.info()

    async def there_is_room() -> bool:
        with suppress(ConnectionError):
            async with client_at(where) as client:
                await client.send(Ping())
                return (await client.read()).type == "pong"
        return False

    for _ in range(100):
        if await there_is_room():
            return
        await asyncio.sleep(0.05)
    pytest.fail("no client is admitted after the others have left")


async def test_strangers_are_not_admitted(
    quick: tuple[Quick, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, where = quick
    peers: list[str] = []

    def strange(peer: str, networks: object) -> bool:
        peers.append(peer)
        return False

    monkeypatch.setattr(server_io, "may_connect", strange)
    async with client_at(where) as client:
        assert await client.hung_up()
    assert peers == ["127.0.0.1"]


async def test_engines_that_load_are_not_described_by_half(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Home Assistant would take an engine that is missing for one that will never be there."""
    monkeypatch.setattr(server_io, "LOADING_S", 0.2)
    voice, loaded = ScriptedSynthesizer(), asyncio.Event()
    speaks = at_once(voice, "scripted", "")

    async def later() -> ScriptedSynthesizer:
        await loaded.wait()
        return voice

    object.__setattr__(speaks, "get", later)
    server = SpeechServer(Settings(), at_once(ScriptedRecognizer(), "scripted", ""), speaks)
    async with listening(server) as where:
        async with client_at(where) as client:
            await client.send(Describe())
            assert (await client.fault()).code == "engine_loading"
        loaded.set()
        async with client_at(where) as client:
            info = await client.info()
            assert (len(info.asr), [v.name for v in info.tts[0].voices]) == (1, ["tone", "low"])
    await server.close()
