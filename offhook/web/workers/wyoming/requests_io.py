"""The two requests of the Wyoming protocol, each of which uses an engine until it is answered."""

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import replace

from wyoming.asr import Transcribe, Transcript, TranscriptChunk, TranscriptStart, TranscriptStop
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.event import Event
from wyoming.tts import SynthesizeStopped, SynthesizeVoice

from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import (
    MAX_CONTEXT_CHARS,
    Final,
    StreamOptions,
    canonical_tag,
)
from offhook.pipeline.speech.remote.tts_protocol import MAX_AUDIO_BYTES
from offhook.pipeline.speech.remote.worker_protocol import bytes_of
from offhook.pipeline.speech.script.script_io import open_speech
from offhook.pipeline.speech.streams.languages import UNKNOWN
from offhook.pipeline.speech.synthesizer import Speech, TextTooLong, VoiceOptions
from offhook.web.speech_api.admission import Kind
from offhook.web.speech_api.errors import ApiError
from offhook.web.speech_api.reply_cache_io import choose
from offhook.web.speech_api.server_io import RequestContext, SpeechServer
from offhook.web.speech_api.sockets.asr_stream_io import RecognitionSession
from offhook.web.speech_api.sockets.engine_use_io import EngineUse
from offhook.web.speech_api.sockets.tts_stream_io import Reply
from offhook.web.speech_api.validation import plain_text
from offhook.web.workers.wyoming.info import DEFAULT_VOICE
from offhook.web.workers.wyoming.transcript import ChunkedTranscript

MAX_AUDIO_S = 600
"""Maximum audio of one transcription in s; with more the client gets an error and is disconnected.
Home Assistant ends a command after 15 s."""
SAMPLE_BYTES = 2
Send = Callable[[Event], Awaitable[None]]
"""Sends an event; waits while the client does not read. Raises ConnectionError."""


class WyomingRequest(ABC):
    """One request, from its first event to the last one of its answer."""

    kind: Kind
    name: str
    """In logs and metrics."""
    is_complete = False
    """Whether the client has sent all of it."""

    def __init__(self, server: SpeechServer, send: Send) -> None:
        self.context = RequestContext()
        self.server = server
        self.engine = EngineUse(server, self.context, self.kind)
        self._send = send

    @abstractmethod
    async def run(self) -> None:
        """Answers the request. Raises ApiError, EngineError, ValueError, ConnectionError."""


class Transcription(WyomingRequest):
    """Audio to text."""

    kind = "transcription"
    name = "wyoming/transcribe"

    def __init__(self, server: SpeechServer, send: Send, wanted: Transcribe) -> None:
        """Raises ApiError 400, 404."""
        super().__init__(server, send)
        if wanted.name:
            server.check_model("transcription", wanted.name)
        self._options = _stream_options(wanted)
        self._samples = 0
        self.session = RecognitionSession(self.engine)

    def feed(self, pcm: Pcm) -> None:
        """Adds 16 kHz samples. Raises ApiError 413."""
        self._samples += len(pcm)
        if self._samples > MAX_AUDIO_S * RATE_IN:
            raise ApiError(413, f"over {MAX_AUDIO_S} s of audio: send audio-stop sooner")
        self.session.feed(pcm)

    def finish(self) -> None:
        self.is_complete = True
        self.context.stages.mark("received")
        self.session.flush()

    async def run(self) -> None:
        with self.server.stream(self.kind, self.context) as ticket:
            ticket.waits = False
            try:
                await self.session.open(await self.engine.recognizer(), self._options)
                language = await self._send_chunks()
            finally:
                await self.session.close()
        self.context.stages.mark("inferred")
        await self._send(Transcript(self._transcript.text, language=language).event())
        await self._send(TranscriptStop().event())

    async def _send_chunks(self) -> str | None:
        """Sends the text as it becomes certain; returns its language. Raises EngineError."""
        self._transcript = ChunkedTranscript(self.engine.engine)
        await self._send(TranscriptStart(language=self._options.language).event())
        async for _, event in self.session.events():
            self.context.stages.mark("first")
            if chunk := self._transcript.update(event):
                await self._send(TranscriptChunk(chunk).event())
                self.context.stages.mark("first_byte")
            if isinstance(event, Final) and not event.continues:
                return event.language if event.language != UNKNOWN else None
        raise EngineError("the recognizer ended before the audio")


class Synthesis(WyomingRequest):
    """Text to audio."""

    kind = "speech"
    name = "wyoming/synthesize"

    def __init__(
        self,
        server: SpeechServer,
        send: Send,
        voice: SynthesizeVoice | None,
        text_format: str | None,
        *,
        streams: bool,
    ) -> None:
        """`streams` means that the text comes in chunks. Raises ApiError 400."""
        super().__init__(server, send)
        if text_format not in (None, "text"):
            raise ApiError(400, f"text_format is {text_format[:50]!r}: only text is spoken here")
        self._streams = streams
        self._reply = Reply(0, _voice_options(server, voice, whole_text=not streams))

    @property
    def waiting_chars(self) -> int:
        """Text that has not been spoken."""
        return self._reply.waiting

    def write(self, text: str) -> None:
        """Adds text. Raises ApiError 400, 413 if the engine buffers no more."""
        try:
            plain_text(text)
        except ValueError as error:
            raise ApiError(400, f"text {error}", "text") from error
        try:
            self._reply.write(text)
        except TextTooLong as error:
            raise ApiError(413, str(error)) from error

    def finish(self) -> None:
        self.is_complete = True
        self.context.stages.mark("received")
        self._reply.end()

    async def run(self) -> None:
        with self.server.stream(self.kind, self.context) as ticket:
            ticket.waits = False
            synthesizer = await self.engine.synthesizer()
            options = self._reply.options
            voice = await choose(synthesizer, options.voice)
            began = time.monotonic()
            options = self.server.prioritized(replace(options, voice=voice.name))
            stream = open_speech(synthesizer, options, self.server.lexicon)
            try:
                self._reply.begin(stream)
                async for speech in stream:
                    if len(speech.pcm) and not self._reply.samples:
                        self.engine.reply_began(time.monotonic() - began)
                        await self._start()
                    self.engine.count_audio(len(speech.pcm) / RATE_OUT)
                    await self._send_speech(speech)
            finally:
                stream.cancel()
        self.engine.reply_ended("end")
        if not self._reply.samples:  # nothing to say: clients wait for the end of audio
            await self._start()
        await self._send(AudioStop(self._position_ms()).event())
        if self._streams:
            await self._send(SynthesizeStopped().event())

    async def _start(self) -> None:
        await self._send(AudioStart(RATE_OUT, SAMPLE_BYTES, 1, timestamp=0).event())
        self.context.stages.mark("first_byte")

    async def _send_speech(self, speech: Speech) -> None:
        data = bytes_of(speech.pcm)
        for at in range(0, len(data), MAX_AUDIO_BYTES):
            block = data[at : at + MAX_AUDIO_BYTES]
            chunk = AudioChunk(RATE_OUT, SAMPLE_BYTES, 1, block, self._position_ms())
            await self._send(chunk.event())
            self._reply.samples += len(block) // SAMPLE_BYTES
        self._reply.waiting = max(0, self._reply.waiting - len(speech.text))

    def _position_ms(self) -> int:
        return self._reply.samples * 1000 // RATE_OUT


def _stream_options(wanted: Transcribe) -> StreamOptions:
    """Raises ApiError 400."""
    language = wanted.language if wanted.language not in ("", "auto") else None
    expected = ", ".join((*(wanted.transcript_names or ()), *(wanted.transcript_terms or ())))
    try:
        plain_text(expected)
        return StreamOptions(context=expected[:MAX_CONTEXT_CHARS], language=language)
    except ValueError as error:
        raise ApiError(400, f"transcribe: {error}") from error


def _voice_options(
    server: SpeechServer, voice: SynthesizeVoice | None, *, whole_text: bool
) -> VoiceOptions:
    """A name overrides the language. Raises ApiError 400."""
    voice = voice or SynthesizeVoice()
    name, language = voice.name or "", ""
    if voice.speaker not in (None, "", name) and not server.settings.lenient:
        raise ApiError(400, "speaker: a voice here has one speaker, leave it out", "voice")
    try:
        plain_text(name)
        if not name and voice.language:
            language = canonical_tag(voice.language).partition("-")[0]
        name = "" if name == DEFAULT_VOICE else server.voice_called(name)
        return VoiceOptions(name, language, whole_text=whole_text)
    except ValueError as error:
        raise ApiError(400, f"voice: {error}", "voice") from error
