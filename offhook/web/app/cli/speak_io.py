"""`offhook speak`: synthesizes text to an audio file or player while it is being read."""

import asyncio
import codecs
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, BinaryIO

from offhook.media.pcm import RATE_OUT, Pcm
from offhook.pipeline.speech.remote.synthesizer_io import RemoteSynthesizer
from offhook.pipeline.speech.script.lexicon import NO_LEXICON, Lexicon
from offhook.pipeline.speech.script.script_io import open_speech
from offhook.pipeline.speech.synthesizer import Synthesizer, SynthesizerStream, VoiceOptions
from offhook.web.app.cli.transcribe_io import Bar
from offhook.web.speech_api.errors import ApiError
from offhook.web.speech_api.http.audio_encoder import Format, one_way, open_encoder
from offhook.web.speech_api.http.speech_request import find_voice

READ_CHARS = 4096
AHEAD_CHARS = 20_000
"""Characters given to the engine ahead of synthesis."""
STANDARD = "-"
"""The file name of standard input or output."""


class FileError(ValueError):
    """Raised when a file cannot be read or written; the message says why."""


@dataclass
class Spoken:
    """The result of `offhook speak`."""

    file: str
    engine: str
    voice: str
    seconds: float = 0.0
    """Duration of the audio in s."""
    first_sound_ms: int = 0
    """Time in ms from the first text to the first audio."""
    real_time_factor: float = 0.0
    """Time from the first text to the last audio, divided by the audio's duration."""
    words: list[dict[str, Any]] = field(default_factory=list)
    """Texts with the position in ms where their audio ends."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.file}: {self.seconds:.1f} s by {self.engine}, the first after "
            f"{self.first_sound_ms} ms, real-time factor {self.real_time_factor:.3f}"
        )


# --- text ---


async def of_text(text: str) -> AsyncIterator[str]:
    for at in range(0, len(text), READ_CHARS):
        yield text[at : at + READ_CHARS]


def read_text(path: Path) -> str:
    """Reads a text file. Raises FileError."""
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not text in UTF-8") from error


async def of_pipe(source: BinaryIO) -> AsyncIterator[str]:
    """Yields text from a pipe as soon as it arrives."""
    loop = asyncio.get_running_loop()
    came: asyncio.Queue[str | None] = asyncio.Queue(1)

    def read() -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        with suppress(RuntimeError):  # the loop has ended: nobody waits for more
            while data := os.read(source.fileno(), READ_CHARS):
                put(decoder.decode(data))
            put(decoder.decode(b"", final=True))
            put(None)

    def put(text: str | None) -> None:
        asyncio.run_coroutine_threadsafe(came.put(text), loop).result()

    # A daemon thread, because a read from a terminal cannot be interrupted.
    threading.Thread(target=read, name="standard input", daemon=True).start()
    while (text := await came.get()) is not None:
        yield text


# --- sound ---


SUFFIXES: dict[str, Format] = {
    ".wav": "wav",
    ".mp3": "mp3",
    ".ogg": "opus",
    ".opus": "opus",
    ".flac": "flac",
    ".aac": "aac",
}


def _to_player(data: bytes) -> None:
    """Flushes so that a player gets the audio at once."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


class AudioSink:
    """The destination of 24 kHz audio. Raises OSError, FileError."""

    def __init__(self, output: str) -> None:
        self._file: IO[bytes]
        if output == STANDARD:
            # Not seekable, even if it is a file, which may have other content.
            self._file = one_way(_to_player)
            self._encoder = open_encoder("wav", self._file)
            return
        try:
            self._file = Path(output).open("wb")  # noqa: SIM115
        except OSError as error:
            raise FileError(f"{output}: {error.strerror}") from error
        self._encoder = open_encoder(SUFFIXES[Path(output).suffix.lower()], self._file)

    def write(self, pcm: Pcm) -> None:
        self._encoder.write(pcm)

    def close(self) -> None:
        try:
            self._encoder.close()
        finally:
            self._file.close()


def check_output(output: str) -> None:
    """Checks the file extension. Raises FileError."""
    if output != STANDARD and Path(output).suffix.lower() not in SUFFIXES:
        named = ", ".join(SUFFIXES)
        raise FileError(f"{output}: name it {named}, or - for WAV to standard output")


# --- speaking ---


class SpeakCommand:
    """Synthesizes one text into one sink."""

    def __init__(self, result: Spoken, stream: SynthesizerStream, length: int | None) -> None:
        self._result = result
        self._stream = stream
        self._length = length
        """Length of the text in characters, if known."""
        self._written = 0
        self._spoken = 0
        self._room = asyncio.Event()
        self._began = 0.0
        self._bar = Bar(result.file)

    async def run(self, texts: AsyncIterator[str]) -> None:
        """Raises EngineError, FileError, OSError."""
        writing = asyncio.create_task(self._write(texts), name="text to speak")
        try:
            await self._receive()
            if writing.done():
                writing.result()
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            self._stream.cancel()
            self._bar.clear()

    async def _write(self, texts: AsyncIterator[str]) -> None:
        try:
            async for text in texts:
                self._began = self._began or time.monotonic()
                self._written += len(text)
                self._stream.write(text)
                while self._written - self._spoken > AHEAD_CHARS:
                    self._room.clear()
                    await self._room.wait()
        finally:
            self._stream.end()

    async def _receive(self) -> None:
        sink: AudioSink | None = None
        samples = 0
        try:
            async for speech in self._stream:
                if len(speech.pcm):
                    # Created with the first audio, so that text without any leaves no empty file.
                    if sink is None:
                        sink = await asyncio.to_thread(AudioSink, self._result.file)
                    self._note(samples := samples + len(speech.pcm))
                    await asyncio.to_thread(sink.write, speech.pcm)
                self._mark(speech.text, samples)
        finally:
            if sink is not None:
                await asyncio.to_thread(sink.close)
        if sink is None:
            raise FileError("there is nothing to say in this text")

    def _note(self, samples: int) -> None:
        elapsed = time.monotonic() - self._began
        result = self._result
        result.first_sound_ms = result.first_sound_ms or round(1000 * elapsed)
        result.seconds = samples / RATE_OUT
        result.real_time_factor = round(elapsed / result.seconds, 4)

    def _mark(self, text: str, samples: int) -> None:
        if not text:
            return
        self._spoken += len(text)
        self._room.set()
        self._result.words.append({"text": text, "end_ms": samples * 1000 // RATE_OUT})
        done = self._spoken / self._length if self._length else None
        seconds = int(self._result.seconds)
        self._bar.show(done, f"{seconds // 60}:{seconds % 60:02}")


def _voice(name: str, voices: Sequence[str]) -> str:
    """Resolves a voice name; OpenAI's names fall back to the default voice if the engine has none
    of that name. A remote server may have no list of voices."""
    try:
        return find_voice(name, voices) if voices else name
    except ApiError:
        return name  # the engine decides: its list may be outdated


async def speak(
    synthesizer: Synthesizer,
    options: VoiceOptions,
    texts: AsyncIterator[str],
    output: str,
    length: int | None = None,
    lexicon: Lexicon = NO_LEXICON,
) -> Spoken:
    """Synthesizes `texts` into the file `output`. Raises EngineError, FileError, OSError, and
    ValueError for unsupported options."""
    check_output(output)
    try:
        if isinstance(synthesizer, RemoteSynthesizer):
            await synthesizer.start(options)
        else:
            await synthesizer.start()
        options = replace(options, voice=_voice(options.voice, synthesizer.voices()))
        voice = options.voice or next(iter(synthesizer.voices()), "")
        result = Spoken(output, synthesizer.name, voice)
        await SpeakCommand(result, open_speech(synthesizer, options, lexicon), length).run(texts)
    finally:
        await synthesizer.close()
    return result
