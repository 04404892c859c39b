"""Servers of the speech API: one on the embedded engines, one on engines that do what a test says.

Both are whole applications on a TCP port, with all routes and the guard, as `offhook speech` is.
Their tests run on the module's loop: ``pytestmark = pytest.mark.asyncio(loop_scope="module")``.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import aiohttp
import numpy as np
import pytest_asyncio
from aiohttp import web
from openai import AsyncOpenAI

from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm
from offhook.pipeline.engines.embedded.pocketsphinx_io import PocketSphinxRecognizer
from offhook.pipeline.speech.errors import EngineError, EngineOverloaded
from offhook.pipeline.speech.recognizer import (
    DEFAULT_OPTIONS,
    Final,
    Partial,
    Recognizer,
    StreamOptions,
    Word,
)
from offhook.pipeline.speech.synthesizer import (
    DEFAULT_VOICE,
    Speech,
    Synthesizer,
    UnknownVoice,
    VoiceOptions,
)
from offhook.web.config.config import Config
from offhook.web.config.programs import Speech as Settings
from offhook.web.config.server import Server
from offhook.web.http.access import AccessPolicy
from offhook.web.speech_api.server_io import EngineHandle as ServedEngine
from offhook.web.speech_api.server_io import SpeechServer
from offhook.web.workers.engines.engines_io import at_hand, open_synthesizer
from offhook.web.workers.routes_io import application

WORD_S = 0.25
"""A word of the scripted synthesizer."""


@dataclass
class Served:
    """A running server, and programs that use it."""

    server: SpeechServer
    url: str
    """http://127.0.0.1:port"""
    client: aiohttp.ClientSession
    openai: AsyncOpenAI


# --- engines that do what a test says ---


@dataclass
class ScriptedRecognizer(Recognizer):
    """Answers each utterance that has sound with the next of `says`, and the last of them again."""

    name: str = "scripted"
    says: list[str] = field(default_factory=lambda: ["hello world"])
    slow_s: float = 0.0
    """Before each Final."""
    full: bool = False
    fails: str = ""
    """At `open`, with these words."""
    fails_within: str = ""
    """In the middle of a stream, with these words."""
    partials: bool = True
    opened: list["ScriptedHearing"] = field(default_factory=list)
    permits: asyncio.Semaphore | None = None
    """If set, each final takes one."""
    count: int = 0
    """Utterances heard."""

    async def start(self) -> None:
        pass

    async def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> "ScriptedHearing":
        if self.full:
            raise EngineOverloaded("all 1 streams are in use")
        if self.fails:
            raise EngineError(self.fails)
        self.opened.append(ScriptedHearing(self, options))
        return self.opened[-1]

    async def close(self) -> None:
        pass

    @property
    def open_streams(self) -> int:
        return sum(not stream.closed for stream in self.opened)

    def next_words(self) -> str:
        self.count += 1
        return self.says[min(self.count, len(self.says)) - 1] if self.says else ""


class ScriptedHearing:
    def __init__(self, engine: ScriptedRecognizer, options: StreamOptions) -> None:
        self.options = options
        self.closed = False
        self.samples = 0
        """Fed, in all."""
        self._engine = engine
        self._of_utterance = 0
        self._events: asyncio.Queue[Partial | Final | EngineError | None] = asyncio.Queue()
        self._finals: asyncio.Queue[Final] = asyncio.Queue()
        self._saying = asyncio.create_task(self._say(), name="scripted recognizer")

    def feed(self, pcm: Pcm) -> None:
        assert pcm.dtype == np.int16
        assert pcm.ndim == 1
        assert not self.closed
        self._of_utterance += len(pcm)
        self.samples += len(pcm)

    def finish(self) -> None:
        ms, begin = self._of_utterance * 1000 // RATE_IN, self.samples - self._of_utterance
        self._of_utterance = 0
        text = self._engine.next_words() if ms else ""
        words, start_ms = text.split(), begin * 1000 // RATE_IN
        step = ms / max(1, len(words))
        times = tuple(
            Word(word, start_ms + int(n * step), start_ms + int((n + 1) * step))
            for n, word in enumerate(words)
        )
        self._finals.put_nowait(Final(text, ms, times, self.options.language or "en"))

    def cancel(self) -> None:
        self._of_utterance = 0

    async def _say(self) -> None:
        while True:
            final = await self._finals.get()
            if self._engine.fails_within:
                self._events.put_nowait(EngineError(self._engine.fails_within))
                return
            words = final.text.split()
            if self._engine.partials and self.options.live:
                for count in range(1, len(words)):
                    text = " ".join(words[:count])
                    self._events.put_nowait(Partial(text, len(text), final.audio_ms))
            await asyncio.sleep(self._engine.slow_s)
            if self._engine.permits is not None:
                await self._engine.permits.acquire()
            self._events.put_nowait(final)

    async def events(self) -> AsyncIterator[Partial | Final]:
        while (event := await self._events.get()) is not None:
            if isinstance(event, EngineError):
                raise event
            yield event

    async def close(self) -> None:
        self.closed = True
        self._events.put_nowait(None)
        self._saying.cancel()
        await asyncio.gather(self._saying, return_exceptions=True)


@dataclass
class ScriptedSynthesizer(Synthesizer):
    """Says a tone of WORD_S for each word, one word a piece."""

    name: str = "scripted"
    slow_s: float = 0.0
    """Before each word."""
    fails_after: int | None = None
    """Words, then an EngineError with the words of `fails`."""
    fails: str = "the voice broke"
    opened: list["ScriptedSpeaking"] = field(default_factory=list)

    def voices(self) -> list[str]:
        return ["tone", "low"]

    async def start(self) -> None:
        pass

    def open(self, options: VoiceOptions = DEFAULT_VOICE) -> "ScriptedSpeaking":
        if options.voice not in ("", *self.voices()):
            raise UnknownVoice(f"no voice is called {options.voice!r} (there: tone, low)")
        if options.language not in ("", "en"):
            raise ValueError(f"language is {options.language!r}: this voice speaks en")
        self.opened.append(ScriptedSpeaking(self, options))
        return self.opened[-1]

    async def close(self) -> None:
        pass

    @property
    def open_streams(self) -> int:
        return sum(not stream.over for stream in self.opened)


class ScriptedSpeaking:
    def __init__(self, engine: ScriptedSynthesizer, options: VoiceOptions) -> None:
        self.options = options
        self.over = False
        """Cancelled, or all was said."""
        self.was_cancelled = False
        self.said = 0
        """Words."""
        self._engine = engine
        self._text = ""
        self._ended = False
        self._news = asyncio.Event()

    def write(self, text: str) -> None:
        assert not self._ended
        self._text += text
        self._news.set()

    def end(self) -> None:
        self._ended = True
        self._news.set()

    def cancel(self) -> None:
        self.was_cancelled = not self.over
        self.over = True
        self._news.set()

    def _next(self) -> str:
        """The next word with the space after it, once it is whole; "" when there is none yet."""
        word = self._text.lstrip().partition(" ")[0]
        end = self._text.find(word) + len(word)
        if not word or (end == len(self._text) and not self._ended):
            return self._text if self._ended else ""
        while end < len(self._text) and self._text[end].isspace():
            end += 1
        return self._text[:end]

    async def __aiter__(self) -> AsyncIterator[Speech]:
        pitch = 220 if self.options.voice == "low" else 440
        samples = int(WORD_S * RATE_OUT / self.options.speed)
        wave = 8000 * np.sin(2 * np.pi * pitch * np.arange(samples) / RATE_OUT)
        tone = wave.astype(np.int16)
        while not self.over:
            self._news.clear()
            if text := self._next():
                if self.said == self._engine.fails_after:
                    raise EngineError(self._engine.fails)
                await asyncio.sleep(self._engine.slow_s)
                if self.over:
                    return
                self._text = self._text[len(text) :]
                self.said += bool(text.strip())
                yield Speech(tone if text.strip() else tone[:0], text)
            elif self._ended:
                self.over = True
            else:
                await self._news.wait()


@dataclass
class Quick(Served):
    """A server on scripted engines, which a test may change."""

    ears: ScriptedRecognizer
    voice: ScriptedSynthesizer


# --- servers ---


@asynccontextmanager
async def listening(server: SpeechServer, access: AccessPolicy | None = None) -> AsyncIterator[str]:
    """`server` on a TCP port: its address."""
    policy = access or AccessPolicy()
    app = application(server, lambda: policy)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.5)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


E = TypeVar("E")


def at_once(engine: E, name: str, model: str) -> ServedEngine[E]:
    """It is there."""

    async def get() -> E:
        return engine

    languages = engine.languages
    return ServedEngine(get, lambda: name, lambda: model, lambda: languages)


def client_of(url: str, key: str = "none") -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def speech_server() -> AsyncIterator[Served]:
    """On PocketSphinx and Flite (or eSpeak NG where Flite is not), started once a module."""
    recognizer = PocketSphinxRecognizer()
    synthesizer = open_synthesizer("embedded")
    await asyncio.gather(recognizer.start(), synthesizer.start())
    hears = at_once(recognizer, "pocketsphinx", "en-us")
    speaks = at_once(synthesizer, at_hand("embedded"), "")
    server = SpeechServer(Settings(), hears, speaks)
    try:
        async with (
            listening(server) as url,
            aiohttp.ClientSession(url) as client,
            client_of(url) as openai,
        ):
            yield Served(server, url, client, openai)
    finally:
        await server.close()
        await recognizer.close()
        await synthesizer.close()


@asynccontextmanager
async def quickly_served(
    settings: Settings | None = None,
    key: str = "",
    audio_cache: str = "",
    voice: ScriptedSynthesizer | None = None,
) -> AsyncIterator[Quick]:
    """A server on scripted engines, with settings of the test's own."""
    ears, voice = ScriptedRecognizer(), voice or ScriptedSynthesizer()
    hears = at_once(ears, "scripted", "scripted-ears")
    speaks = at_once(voice, "scripted", "scripted-voice")
    config = Config(speech=settings or Settings(), server=Server(api_key=key))
    server = SpeechServer(config.speech, hears, speaks, audio_cache=audio_cache)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with (
        listening(server, config.access()) as url,
        aiohttp.ClientSession(url, headers=headers) as client,
        client_of(url, key or "none") as openai,
    ):
        yield Quick(server, url, client, openai, ears, voice)
    await server.close()


@pytest_asyncio.fixture
async def quick_server() -> AsyncIterator[Quick]:
    """A fresh one for each test, on the test's loop: see `quickly_served` for other settings."""
    async with quickly_served() as quick:
        yield quick
