"""The voices of a server: listed, cloned with consent, kept, spoken with once, and removed; on the
engine itself and through a gateway."""

import asyncio
import io
import json
import wave
import zipfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import av
import numpy as np
import openai
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from offhook.media.pcm import RATE_OUT, Pcm
from offhook.pipeline.engines.qwen3_tts import voices_io as engine_voices_io
from offhook.pipeline.engines.qwen3_tts.recordings_io import read_recording
from offhook.pipeline.engines.qwen3_tts.voices import Clone, Reference, Voice, VoiceStore
from offhook.pipeline.engines.qwen3_tts.voices_io import MAX_CLONING, Cloning, VoiceFolder
from offhook.pipeline.engines.shared.tts_models import TtsModels
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.remote.synthesizer_io import RemoteSynthesizer
from offhook.pipeline.speech.remote.voices_protocol import MAX_SAMPLE_BYTES
from offhook.pipeline.speech.synthesizer import DEFAULT_VOICE, KnownVoice, VoiceOptions
from offhook.pipeline.speech.voice_cloning import Sample, VoiceCloner, VoiceError
from offhook.web.config.programs import Speech as Settings
from offhook.web.speech_api.http import form_io
from offhook.web.speech_api.server_io import SpeechServer
from offhook.web.speech_api.sockets.engine_metrics import TtsMetrics
from offhook.web.workers.local_worker_io import on_demand
from offhook.web.workers.worker_child_io import ChildSettings
from offhook.web.workers.worker_io import Worker, WorkerSettings
from tests.pipeline.engines.qwen3_tts.test_voices import HIDDEN, MODEL, WORDS, speech
from tests.support.waiting import HANGS_S, until
from tests.web.speech_api.conftest import (
    WORD_S,
    Quick,
    ScriptedRecognizer,
    ScriptedSpeaking,
    ScriptedSynthesizer,
    Served,
    at_once,
    client_of,
    listening,
)
from tests.web.workers.workers import worker_app


class Cloner(ScriptedSynthesizer):
    """Tones that clone: stores and forms are real, what is computed of a recording is not. A clone
    speaks at a pitch of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.store = VoiceStore(
            *(MODEL, "base", HIDDEN, ["tone"], VoiceFolder(folder, MODEL)), languages=("en", "de")
        )
        self.cloning = Cloning(self.store, self._compute)
        self.made = 0
        """References that were computed."""
        self.may_compute = asyncio.Event()
        self.may_compute.set()
        self.breaks = ""
        """With these words, when it is to compute."""

    async def _compute(self, reference: Reference) -> Clone:
        await self.may_compute.wait()
        if self.breaks:
            raise EngineError(self.breaks)
        self.made += 1
        digest = np.frombuffer(bytes.fromhex(reference.digest(""))[:HIDDEN], np.uint8)
        return Clone(digest.astype(np.float32), None)

    def voices(self) -> list[str]:
        return [voice.name for voice in self.store.voices()]

    def open(self, options: VoiceOptions = DEFAULT_VOICE) -> ScriptedSpeaking:
        voice = self.store.voice(options.voice or "tone")
        return self._speak(voice, options)

    def _speak(self, voice: Voice, options: VoiceOptions) -> ScriptedSpeaking:
        speaking = ScriptedSpeaking(self, options)
        if voice.kind == "clone":
            self.store.clone(voice)
            speaking.options = VoiceOptions("low", speed=options.speed)
        self.opened.append(speaking)
        return speaking

    async def known_voices(self) -> list[KnownVoice]:
        return [KnownVoice(v.name, v.kind, (v.language or "en",), 7) for v in self.store.voices()]

    async def add_voice(self, name: str, sample: Sample, language: str = "") -> KnownVoice:
        voice = await self.cloning.add(name, sample, language)
        return KnownVoice(voice.name, voice.kind, (language or "en",), 7)

    async def remove_voice(self, name: str) -> None:
        self.store.remove(name)

    async def open_clone(self, sample: Sample, options: VoiceOptions) -> ScriptedSpeaking:
        self.store.check_language(options.language)
        return self._speak(await self.cloning.nameless(sample), options)


@dataclass
class CloningServer(Served):
    """One whose engine clones."""

    voice: Cloner


@asynccontextmanager
async def here(folder: Path) -> AsyncIterator[CloningServer]:
    """A server on the engine."""
    async with served(Cloner(folder)) as cloning:
        yield cloning


@asynccontextmanager
async def elsewhere(folder: Path) -> AsyncIterator[CloningServer]:
    """A server in front of a worker that has the engine."""
    voice = Cloner(folder)
    async with worker_with(voice) as url:
        remote = RemoteSynthesizer(url)
        async with served(voice, remote) as cloning:
            yield cloning
        await remote.close()


@asynccontextmanager
async def worker_with(voice: Cloner) -> AsyncIterator[str]:
    worker = Worker(WorkerSettings("scripted", MODEL), lambda told: voice, TtsMetrics())
    runner = web.AppRunner(worker_app(worker), access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
        await worker.close()


@asynccontextmanager
async def served(voice: Cloner, engine: Any = None) -> AsyncIterator[CloningServer]:
    hears = at_once(ScriptedRecognizer(), "scripted", "ears")
    speaks = at_once(engine or voice, "scripted", MODEL)
    server = SpeechServer(Settings(), hears, speaks)
    async with (
        listening(server) as url,
        aiohttp.ClientSession(url) as client,
        client_of(url) as stock,
    ):
        yield CloningServer(server, url, client, stock, voice)


@pytest.fixture(params=[here, elsewhere], ids=["here", "elsewhere"])
async def cloning(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[CloningServer]:
    async with request.param(tmp_path) as cloning:
        yield cloning


# --- what is sent ---


def wav(pcm: Pcm, rate: int = RATE_OUT, channels: int = 1) -> bytes:
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setparams((channels, 2, rate, 0, "NONE", ""))
        file.writeframes(np.repeat(pcm[:, None], channels, axis=1).astype("<i2").tobytes())
    return data.getvalue()


def encoded(pcm: Pcm, kind: str, codec: str) -> bytes:
    data = io.BytesIO()
    with av.open(data, "w", format=kind) as container:
        stream = container.add_stream(codec, rate=RATE_OUT, layout="mono")
        frame = av.AudioFrame.from_ndarray(pcm[None], "s16", "mono")
        frame.sample_rate = RATE_OUT
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    return data.getvalue()


ANNA, BERT = wav(speech(4)), wav(speech(5)[: 5 * RATE_OUT] // 2)


def form(file: str, data: bytes, **fields: str) -> aiohttp.FormData:
    form = aiohttp.FormData()
    form.add_field(file, data, filename="../../etc/passwd", content_type="audio/wav")
    for name, value in fields.items():
        form.add_field(name, value)
    return form


async def add(cloning: Served, name: str, data: bytes = ANNA, **fields: str) -> dict[str, Any]:
    fields = {"name": name, "consent": "true", **fields}
    body = form("audio_sample", data, **fields)
    async with cloning.client.post("/v1/audio/voices", data=body) as response:
        return {"status": response.status, **await response.json()}


async def clone(cloning: Served, said: str, data: bytes = ANNA, **fields: str) -> tuple[int, bytes]:
    fields = {"input": said, "consent": "yes", "response_format": "pcm", **fields}
    async with cloning.client.post("/v1/audio/clone", data=form("file", data, **fields)) as answer:
        return answer.status, await answer.read()


async def names(cloning: Served) -> list[str]:
    async with cloning.client.get("/v1/audio/voices") as response:
        assert response.status == 200
        return [voice["id"] for voice in (await response.json())["data"]]


async def heard(cloning: Served, voice: str) -> float:
    """Hz that a reply with the voice has."""
    speech = await cloning.openai.audio.speech.create(
        input="one two", model="tts-1", voice=voice, response_format="pcm"
    )
    return pitch(speech.content)


def pitch(data: bytes) -> float:
    pcm = np.frombuffer(data, "<i2")
    assert len(pcm) == 2 * WORD_S * RATE_OUT
    return round(float(np.argmax(np.abs(np.fft.rfft(pcm))) * RATE_OUT / len(pcm)), -1)


# --- kept ---


async def test_a_voice_is_cloned_listed_spoken_with_and_removed_by_the_stock_client(
    cloning: CloningServer,
) -> None:
    voices = cloning.openai.audio.voices
    voice = await voices.create(name="Anna", consent="true", audio_sample=("a.wav", ANNA))
    assert (voice.id, voice.name, voice.object, voice.type) == (
        *("Anna", "Anna", "audio.voice"),
        "audio_sample",
    )
    assert voice.created_at > 0
    assert await names(cloning) == ["tone", "Anna"]
    assert await heard(cloning, "Anna") == 220
    assert await heard(cloning, "anna") == 220
    assert await heard(cloning, "tone") == 440
    assert await heard(cloning, "alloy") == 440
    deleted = await voices.delete("Anna")
    assert (deleted.id, deleted.deleted) == ("Anna", True)
    assert await names(cloning) == ["tone"]
    with pytest.raises(openai.BadRequestError, match="no voice"):
        await heard(cloning, "Anna")
    with pytest.raises(openai.NotFoundError, match="no voice 'Anna'"):
        await voices.delete("Anna")


async def test_the_list_says_what_there_is_to_know(cloning: CloningServer) -> None:
    await add(cloning, "anna", language="de", text=WORDS)
    async with cloning.client.get("/v1/audio/voices") as response:
        listed = await response.json()
    assert listed["object"] == "list"
    assert listed["default"] == "tone"
    assert listed["voices"] == [{"id": "tone", "name": "tone"}, {"id": "anna", "name": "anna"}]
    assert listed["data"][1] == {
        "object": "audio.voice",
        "id": "anna",
        "name": "anna",
        "type": "audio_sample",
        "languages": ["de"],
        "created_at": 7,
    }


async def test_a_voice_that_another_server_added_to_the_folder_is_there_at_once(
    tmp_path: Path,
) -> None:
    async with here(tmp_path) as one, elsewhere(tmp_path) as other:
        assert await heard(other, "tone") == 440
        assert (await add(one, "anna"))["status"] == 200
        assert await heard(other, "anna") == 220
        assert (await add(other, "bert", BERT))["status"] == 200
        assert await heard(one, "bert") == 220
        async with one.client.delete("/v1/audio/voices/anna") as response:
            assert response.status == 200
        assert await names(other) == ["tone", "bert"]


@pytest.mark.parametrize("consent", [None, "", "false", "no", "cons_1234", "maybe"])
async def test_nobody_is_cloned_without_consent(
    cloning: CloningServer, consent: str | None
) -> None:
    for path, file, more in (
        ("/v1/audio/voices", "audio_sample", {"name": "anna"}),
        ("/v1/audio/clone", "file", {"input": "one"}),
    ):
        fields = more if consent is None else {**more, "consent": consent}
        async with cloning.client.post(path, data=form(file, ANNA, **fields)) as response:
            answer = await response.json()
        assert (response.status, answer["error"]["code"]) == (403, "no_consent")
        assert "consent" in answer["error"]["message"]
        assert answer["error"]["param"] == "consent"
    assert await names(cloning) == ["tone"]
    assert not cloning.voice.made


@pytest.mark.parametrize(
    ("fields", "status", "code", "says"),
    [
        ({"name": ""}, 400, None, "name is missing"),
        ({"name": "../anna"}, 400, "invalid_voice", "is no name: a voice is called by letters"),
        ({"name": "x" * 65}, 400, "invalid_voice", "is no name"),
        ({"name": "TONE"}, 409, "voice_exists", "of the model itself"),
        ({"name": "Taken"}, 409, "voice_exists", "there is a voice Taken already"),
        ({"language": "English"}, 400, "invalid_voice", "language is 'English'"),
        ({"language": "sv"}, 400, "invalid_voice", "does not speak 'sv'; it speaks en, de"),
        ({"type": "prompt"}, 400, None, "only voices of an audio_sample"),
        ({"text": "x" * 2000}, 400, "invalid_voice", "over 1000 characters"),
        ({"colour": "red"}, 400, "unknown_parameter", "there is no field 'colour'"),
        ({"text": "a\0b"}, 400, None, "control character"),
    ],
)
async def test_what_no_voice_can_be_is_said(
    cloning: CloningServer, fields: dict[str, str], status: int, code: str | None, says: str
) -> None:
    assert (await add(cloning, "taken"))["status"] == 200
    answer = await add(cloning, **{"name": "anna", **fields})
    assert (answer["status"], answer["error"]["code"]) == (status, code)
    assert says in answer["error"]["message"]
    assert await names(cloning) == ["tone", "taken"]


def zipped() -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("silence", bytes(1 << 20))
    return data.getvalue()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"no sound", "no audio or video that can be read"),
        (zipped(), "no audio or video that can be read"),
        (ANNA[:60], "3 to 30 s of one person"),
        (ANNA[:40], "no audio or video that can be read"),
        (b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n/etc/passwd\n", "no audio or video"),
        (b"ffconcat version 1.0\nfile '/etc/passwd'\n", "no audio or video"),
        (wav(speech(4)[: 2 * RATE_OUT]), "3 to 30 s of one person"),
        (wav(np.zeros(5 * RATE_OUT, np.int16)), "is silent"),
        (wav(speech(4), 4_000), "of 4000 Hz"),
    ],
    ids=range(9),
)
async def test_a_recording_that_is_none_is_said(
    cloning: CloningServer, data: bytes, says: str
) -> None:
    answer = await add(cloning, "anna", data)
    assert (answer["status"], answer["error"]["code"]) == (400, "invalid_voice")
    assert says in answer["error"]["message"]
    status, body = await clone(cloning, "one", data)
    assert status == 400
    assert says in json.loads(body)["error"]["message"]
    assert await names(cloning) == ["tone"]


@pytest.mark.parametrize(("kind", "codec"), [("flac", "flac"), ("ogg", "libopus"), ("mp3", "mp3")])
async def test_any_file_of_sound_will_do(cloning: CloningServer, kind: str, codec: str) -> None:
    assert (await add(cloning, "anna", encoded(speech(4), kind, codec)))["status"] == 200
    assert await heard(cloning, "anna") == 220


# --- spoken with once ---


async def test_a_clone_speaks_and_leaves_no_name(cloning: CloningServer, tmp_path: Path) -> None:
    status, sound = await clone(cloning, "one two")
    assert status == 200
    assert pitch(sound) == 220
    assert await names(cloning) == ["tone"]
    assert not kept_in(tmp_path)


def kept_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_the_same_recording_is_computed_once(
    cloning: CloningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[bytes] = []

    def counted(data: bytes) -> tuple[Pcm, int]:
        decoded.append(data)
        return read_recording(data)

    monkeypatch.setattr(engine_voices_io, "read_recording", counted)
    voice, clones = cloning.voice, cloning.voice.store.clones
    for _ in range(3):
        assert (await clone(cloning, "one two"))[0] == 200
    assert (voice.made, len(decoded)) == (1, 1)
    assert clones.hits >= 2
    # In another file it is the same recording, and a name given to it costs nothing either.
    assert (await clone(cloning, "one two", encoded(speech(4), "flac", "flac")))[0] == 200
    assert (await add(cloning, "anna"))["status"] == 200
    assert voice.made == 1
    assert (await clone(cloning, "one two", text=WORDS))[0] == 200
    assert (await clone(cloning, "one two", BERT))[0] == 200
    assert voice.made == 3


@pytest.mark.parametrize(
    ("fields", "magic"),
    [
        ({"response_format": "wav"}, b"RIFF"),
        ({"response_format": "flac", "stream": "false"}, b"fLaC"),
        ({"response_format": "opus", "speed": "1.5", "seed": "3"}, b"OggS"),
        ({"stream_format": "sse"}, b"data: {"),
    ],
)
async def test_a_clone_answers_in_the_formats_of_speech(
    cloning: CloningServer, fields: dict[str, str], magic: bytes
) -> None:
    status, data = await clone(cloning, "one two", **fields)
    assert (status, data[: len(magic)]) == (200, magic)
    assert len(data) > 1000


@pytest.mark.parametrize(
    ("fields", "status", "says"),
    [
        ({"input": ""}, 400, "input is missing"),
        ({"response_format": "gsm"}, 400, "response_format is"),
        ({"speed": "fast"}, 400, 'speed is "fast", not a number'),
        ({"speed": "nan"}, 400, "speed is"),
        ({"seed": "-1"}, 400, "seed is -1"),
        ({"stream": "perhaps"}, 400, 'stream is "perhaps"'),
        ({"voice": "tone"}, 400, "there is no field 'voice'"),
        ({"model": "whisper-1"}, 404, "no model"),
        ({"language": "sv"}, 400, "does not speak 'sv'; it speaks en, de"),
    ],
)
async def test_what_cannot_be_said_with_a_clone(
    cloning: CloningServer, fields: dict[str, str], status: int, says: str
) -> None:
    body = form("file", ANNA, **{"input": "one", "consent": "true", **fields})
    async with cloning.client.post("/v1/audio/clone", data=body) as response:
        answer = await response.json()
    assert response.status == status
    assert says in answer["error"]["message"]
    assert not cloning.voice.made


async def test_what_breaks_while_it_is_computed_is_an_error_and_the_next_is_served(
    cloning: CloningServer,
) -> None:
    cloning.voice.breaks = "the encoder is ill"
    status, body = await clone(cloning, "one")
    assert status == 503
    assert "the speech engine failed" in json.loads(body)["error"]["message"]
    assert (await add(cloning, "anna"))["status"] == 503
    cloning.voice.breaks = ""
    assert (await clone(cloning, "one two"))[0] == 200


async def test_a_client_that_leaves_frees_the_voice(cloning: CloningServer) -> None:
    voice = cloning.voice
    voice.slow_s = 0.05
    body = form("file", ANNA, input="word " * 200, consent="1", response_format="pcm")
    async with cloning.client.post("/v1/audio/clone", data=body) as response:
        await response.content.readexactly(1000)
        response.close()
    await until(lambda: voice.opened[0].was_cancelled)
    await until(lambda: not cloning.server.admission.lanes["speech"].running)


async def test_more_clones_than_can_wait_are_refused(cloning: CloningServer) -> None:
    cloning.voice.may_compute.clear()
    waiting = [asyncio.create_task(clone(cloning, "one two")) for _ in range(MAX_CLONING)]
    await until(lambda: cloning.voice.cloning._asked == MAX_CLONING)
    body = form("audio_sample", BERT, name="bert", consent="true")
    async with cloning.client.post("/v1/audio/voices", data=body) as response:
        answer = await response.json()
    assert (response.status, answer["error"]["code"]) == (503, "too_many_clones")
    assert int(response.headers["Retry-After"]) >= 1
    cloning.voice.may_compute.set()
    assert {status for status, _ in await asyncio.gather(*waiting)} == {200}


async def test_a_worker_that_dies_in_the_middle_is_no_hang(tmp_path: Path) -> None:
    voice = Cloner(tmp_path)
    voice.slow_s = 0.05
    async with AsyncExitStack() as life, AsyncExitStack() as of_worker:
        url = await of_worker.enter_async_context(worker_with(voice))
        remote = RemoteSynthesizer(url)
        cloning = await life.enter_async_context(served(voice, remote))
        body = form("file", ANNA, input="word " * 200, consent="1", response_format="pcm")
        async with (
            asyncio.timeout(HANGS_S),
            cloning.client.post("/v1/audio/clone", data=body) as response,
        ):
            assert response.status == 200
            await response.content.readexactly(1000)
            await of_worker.aclose()
            with pytest.raises(aiohttp.ClientError):
                await response.read()
            answer = await add(cloning, "anna")
            assert answer["status"] == 503
            assert answer["error"]["code"] == "engine_unreachable"
            assert url not in answer["error"]["message"]
        await remote.close()


# --- hostile bodies ---


async def post(
    cloning: Served, data: Any, kind: str = "multipart/form-data; boundary=b"
) -> tuple[int, str]:
    headers = {"Content-Type": kind}
    async with cloning.client.post("/v1/audio/voices", data=data, headers=headers) as response:
        return response.status, (await response.json())["error"]["message"]


def part(name: str, data: bytes = b"x") -> bytes:
    head = f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'
    return head.encode() + data + b"\r\n"


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"", 400, "no multipart/form-data"),
        (b"nonsense", 400, "no multipart/form-data"),
        (b"--b--\r\n", 400, "audio_sample is missing"),
        (part("name") + b"--b--\r\n", 400, "audio_sample is missing"),
        (part("name") + part("name") + b"--b--\r\n", 400, "name comes twice"),
        (part("audio_sample") * 2 + b"--b--\r\n", 400, "audio_sample comes twice"),
        (part("audio_sample", ANNA), 400, "no multipart/form-data"),
        (b"--b\r\n\r\nx\r\n--b--\r\n", 400, "fields with names"),
        (b"".join(part(f"f{n}") for n in range(200)), 400, "there is no field 'f0'"),
        (b"--b\r\nContent-Type: multipart/mixed; boundary=c\r\n\r\n--c--\r\n--b--", 400, "form"),
        (part("name", b"\xff\xfe") + b"--b--\r\n", 400, "name is not UTF-8"),
        (part("name" + ";" * 2000), 400, "Content-Disposition of a part has more than 1024 bytes"),
    ],
    ids=range(12),
)
async def test_a_body_that_is_no_form_is_refused_in_words(
    cloning: CloningServer, body: bytes, status: int, says: str
) -> None:
    answered, words = await post(cloning, body)
    assert (answered, says in words) == (status, True), words


async def test_a_body_of_another_type_is_refused(cloning: CloningServer) -> None:
    assert (await post(cloning, b"{}", "application/json"))[0] == 415
    assert (await post(cloning, b"--b--", "multipart/form-data"))[0] == 400


async def test_a_recording_that_is_too_large_is_not_read(cloning: CloningServer) -> None:
    large = bytes(MAX_SAMPLE_BYTES + 1)
    answer = await add(cloning, "anna", large)
    assert answer["status"] == 413
    assert "10 MB" in answer["error"]["message"]

    async def endless() -> AsyncIterator[bytes]:
        yield part("audio_sample", b"")[:-2]
        while True:
            yield bytes(1 << 16)

    async with asyncio.timeout(HANGS_S):
        with suppress(aiohttp.ClientError):  # it may hang up in the middle
            assert (await post(cloning, endless()))[0] == 413


async def test_a_body_that_does_not_come_is_not_waited_for(
    cloning: CloningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(form_io, "FORM_S", 0.2)

    async def slow() -> AsyncIterator[bytes]:
        yield part("name")
        await asyncio.sleep(HANGS_S)

    async with asyncio.timeout(HANGS_S / 2):
        with suppress(aiohttp.ClientError):
            assert (await post(cloning, slow()))[0] == 408
    await until(lambda: not cloning.server.admission.lanes["speech"].running)


# --- engines that clone nobody ---


async def test_an_engine_that_clones_nobody_says_so_before_it_reads(quick_server: Quick) -> None:
    for path, file in (("/v1/audio/voices", "audio_sample"), ("/v1/audio/clone", "file")):
        body = form(file, ANNA, name="anna", consent="true", input="one")
        async with quick_server.client.post(path, data=body) as response:
            answer = await response.json()
        assert (response.status, answer["error"]["code"]) == (501, "cannot_clone")
        assert "qwen3-tts with a Base model" in answer["error"]["message"]
    async with quick_server.client.delete("/v1/audio/voices/tone") as response:
        assert response.status == 501
    assert await names(quick_server) == ["tone", "low"]


@pytest.mark.asyncio(loop_scope="module")
async def test_the_small_voices_say_what_they_speak(speech_server: Served) -> None:
    async with speech_server.client.get("/v1/audio/voices") as response:
        listed = await response.json()
    assert [voice["id"] for voice in listed["data"]] == (await _engine(speech_server)).voices()
    assert {tuple(voice["languages"]) for voice in listed["data"]} == {("en",)}


async def _engine(served: Served) -> Any:
    return await served.server.synthesizer()


async def test_a_voice_of_the_model_itself_stays(cloning: CloningServer) -> None:
    async with cloning.client.delete("/v1/audio/voices/tone") as response:
        answer = await response.json()
    assert (response.status, answer["error"]["code"]) == (400, "invalid_voice")
    assert "cannot be removed" in answer["error"]["message"]
    for name in ("..", "%2e%2e%2fanna", "x" * 300, "ä"):
        async with cloning.client.delete(f"/v1/audio/voices/{name}") as response:
            assert response.status in (404, 405)


def test_the_engines_that_clone_are_known_as_such(tmp_path: Path) -> None:
    assert isinstance(RemoteSynthesizer("http://nowhere"), VoiceCloner)
    assert not isinstance(ScriptedSynthesizer(), VoiceCloner)


# --- decoding ---


SEED = ANNA[:4000]


@given(
    st.one_of(
        st.binary(max_size=400),
        st.lists(st.tuples(st.integers(0, 3999), st.integers(0, 255)), max_size=20).map(
            lambda places: _changed(SEED, places)
        ),
    )
)
def test_no_file_breaks_the_reader(data: bytes) -> None:
    try:
        pcm, rate = read_recording(data)
    except VoiceError:
        return
    assert len(pcm)
    assert 8_000 <= rate <= 192_000


def _changed(data: bytes, places: list[tuple[int, int]]) -> bytes:
    changed = bytearray(data)
    for at, value in places:
        changed[at] = value
    return bytes(changed)


def test_an_hour_of_silence_in_a_small_file_costs_a_minute() -> None:
    hour = np.zeros(3600 * 8000, np.int16)
    data = io.BytesIO()
    with av.open(data, "w", format="flac") as container:
        stream = container.add_stream("flac", rate=8000, layout="mono")
        for at in range(0, len(hour), 80_000):
            frame = av.AudioFrame.from_ndarray(hour[at : at + 80_000][None], "s16", "mono")
            frame.sample_rate = 8000
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    assert len(data.getvalue()) < 1 << 20
    pcm, rate = read_recording(data.getvalue())
    assert len(pcm) < 70 * rate


# --- the real engine ---


@pytest.mark.slow
async def test_qwen3_tts_clones_behind_a_gateway(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from tests.pipeline.engines.qwen3_tts import tiny_cloning

    model, voices = tmp_path / "model", tmp_path / "voices"
    model.mkdir()
    tiny_cloning.write(model)
    models = TtsModels(str(model), "cpu", str(voices))
    settings = ChildSettings("qwen3-tts", models, 4, 0, "INFO")
    async with on_demand(settings) as url:
        remote = RemoteSynthesizer(url)
        speaks = at_once(remote, "qwen3-tts", "")
        server = SpeechServer(Settings(), None, speaks)
        async with (
            listening(server) as address,
            aiohttp.ClientSession(address) as client,
            client_of(address) as stock,
        ):
            gateway = Served(server, address, client, stock)
            async with asyncio.timeout(HANGS_S):
                assert await names(gateway) == []
                said = dict(seed="3", text=WORDS)
                status, with_words = await clone(gateway, "the cat sat on the mat", **said)
                assert (status, len(with_words) > 4800) == (200, True)
                status, without = await clone(gateway, "the cat sat on the mat", seed="3")
                assert without != with_words
                assert not voices.exists()
                assert (await add(gateway, "anna", text=WORDS, language="en"))["status"] == 200
                status, refused = await clone(gateway, "one", language="sv", text=WORDS)
                assert (status, b"does not speak 'sv'" in refused) == (400, True)
                added = await add(gateway, "sven", text=WORDS, language="sv")
                assert "does not speak 'sv'" in added["error"]["message"]
                assert await names(gateway) == ["anna"]
                body = {"input": "the cat sat on the mat", "voice": "anna", "seed": 3}
                body |= {"language": "en", "response_format": "pcm"}
                async with client.post("/v1/audio/speech", json=body) as response:
                    assert response.status == 200
                    kept = await response.read()
                status, nameless = await clone(
                    gateway, "the cat sat on the mat", language="en", **said
                )
                # The same person with the same seed says the same, kept or not.
                one, other = (np.frombuffer(d, "<i2").astype(int) for d in (kept, nameless))
                assert np.abs(one - other).max() <= 16
                async with client.delete("/v1/audio/voices/anna") as response:
                    assert response.status == 200
                assert not kept_in(voices)
        health, scrape = await asked_of_worker(url)
        assert health["voice_cache"]["voices"] >= 1
        assert health["voice_cache"]["hits"] >= 2
        assert "offhook_tts_voice_cache_hits_total" in scrape
        await remote.close()


async def asked_of_worker(url: str) -> tuple[dict[str, Any], str]:
    connector = aiohttp.UnixConnector(url.removeprefix("unix:"))
    async with aiohttp.ClientSession("http://localhost", connector=connector) as http:
        async with http.get("/healthz") as response:
            health = await response.json()
        async with http.get("/metrics") as response:
            return health, await response.text()
