"""`offhook transcribe`: audio and video files to text, piece by piece as they are decoded."""

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import av
import numpy as np

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.engine.audio_chunks import SEARCH_SECONDS, split
from offhook.pipeline.recognizer import Final, Recognizer, RecognizerStream, StreamOptions, Word
from offhook.pipeline.remote_recognizer_io import RemoteRecognizer

CHUNK_SECONDS = 27.0
"""A file is cut at quiet places into pieces about so long."""
READ_SECONDS = 60
"""A file is decoded this far ahead, and is never in memory as a whole."""
CHUNKS_AHEAD = 3
"""Pieces given to the engine before their text is there, so that it never waits."""
FEED_SAMPLES = RATE_IN
BAR_WIDTH = 24


class FileError(ValueError):
    """A file that cannot be read; the message says why."""


@dataclass(frozen=True)
class Segment:
    """One piece and its text; times in seconds of the file."""

    start: float
    end: float
    text: str
    words: tuple[Word, ...] = ()
    """With times in ms of the file."""

    def in_words(self) -> str:
        """A line a word: begin and end in seconds of the file, and the word; what has no times of
        its own, in one line. (What Audacity imports as labels.)"""
        timed = [(w.start_ms / 1000, w.end_ms / 1000, w.text) for w in self.words]
        lines = timed or [(self.start, self.end, self.text)]
        return "\n".join(f"{start:.3f}\t{end:.3f}\t{text}" for start, end, text in lines)


@dataclass
class Transcription:
    file: str
    engine: str
    language: str = ""
    duration: float = 0.0
    segments: list[Segment] = field(default_factory=list)

    @property
    def text(self) -> str:
        return " ".join(segment.text for segment in self.segments if segment.text)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "text": self.text}


# --- decoding ---


@dataclass
class Piece:
    start: int
    """In samples of the file."""
    pcm: Pcm
    done: float | None
    """Which part of the file is read by its end; None where the file does not say its length."""


def read_pieces(path: Path) -> Iterator[Piece]:
    """The sound of a file at 16 kHz, cut at quiet places. Raises FileError."""
    waiting, start = np.zeros(0, np.int16), 0
    enough = max(READ_SECONDS, 2 * (CHUNK_SECONDS + SEARCH_SECONDS)) * RATE_IN
    blocks: list[Pcm] = []
    size, total = 0, None
    for block, total in decoded(path, RATE_IN):
        blocks.append(block.to_ndarray()[0])
        size += block.samples
        if len(waiting) + size < enough:
            continue
        waiting = np.concatenate((waiting, *blocks))
        blocks, size = [], 0
        cuts = split(waiting, CHUNK_SECONDS)[:-1]  # the last one may go on
        for a, b in cuts:
            yield Piece(start + a, waiting[a:b], _part(start + b, total))
        start += cuts[-1][1]
        waiting = waiting[cuts[-1][1] :].copy()
    waiting = np.concatenate((waiting, *blocks))
    if start + len(waiting) == 0:
        raise FileError(f"{path}: there is no sound in it")
    for a, b in split(waiting, CHUNK_SECONDS):
        yield Piece(start + a, waiting[a:b], _part(start + b, total))


def _part(samples: int, total: float | None) -> float | None:
    return min(1.0, samples / RATE_IN / total) if total else None


def decoded(path: Path, rate: int | None = None) -> Iterator[tuple[av.AudioFrame, float | None]]:
    """Blocks of int16 mono at `rate` Hz, or that of the file, each with the file's length in
    seconds if it says so. Raises FileError."""
    try:
        with av.open(str(path)) as container:
            if not container.streams.audio:
                raise FileError(f"{path}: there is no audio track in it")
            total = container.duration / av.time_base if container.duration else None
            resampler = av.AudioResampler("s16", "mono", rate)
            for frame in container.decode(audio=0):
                for block in resampler.resample(frame):
                    yield block, total
            for block in resampler.resample(None):
                yield block, total
    except FileNotFoundError as error:
        raise FileError(f"{path}: there is no such file") from error
    except IsADirectoryError as error:
        raise FileError(f"{path} is a folder: name the files in it") from error
    except PermissionError as error:
        raise FileError(f"{path} may not be read") from error
    except (av.FFmpegError, OSError) as error:
        raise FileError(f"{path}: no audio or video that can be read ({error})") from error


async def _in_thread(pieces: Iterator[Piece]) -> AsyncIterator[Piece]:
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        yield piece


# --- hearing ---


class Bar:
    """How far it is, in one line of standard error that is written over; nothing when that is no
    terminal."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._shown = sys.stderr.isatty()

    def show(self, done: float | None, where: str) -> None:
        if self._shown:
            filled = round((done or 0) * BAR_WIDTH)
            bar = "█" * filled + "·" * (BAR_WIDTH - filled)
            part = "" if done is None else f" {done:4.0%}"
            sys.stderr.write(f"\r\x1b[K{bar}{part} {self._name} {where}")
            sys.stderr.flush()

    def loading(self, fraction: float, doing: str) -> None:
        """A recogniser's `Progress`."""
        if fraction < 1:
            self.show(fraction, doing)
        else:
            self.clear()

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


class FileHearing:
    """One file into one stream: an utterance a piece, some pieces ahead of the text."""

    def __init__(
        self, stream: RecognizerStream, result: Transcription, say: Callable[[Segment], None]
    ) -> None:
        self._stream = stream
        self._result = result
        self._say = say
        self._events = stream.events()
        self._fed: deque[Piece] = deque()
        self._bar = Bar(result.file)
        self._heard = 0
        """Samples given to the stream, whose words count from its beginning."""

    async def run(self, path: Path) -> None:
        """Raises FileError."""
        try:
            async for piece in _in_thread(read_pieces(path)):
                for at in range(0, len(piece.pcm), FEED_SAMPLES):
                    self._stream.feed(piece.pcm[at : at + FEED_SAMPLES])
                self._stream.finish()
                self._fed.append(piece)
                while len(self._fed) > CHUNKS_AHEAD:
                    await self._take()
            while self._fed:
                await self._take()
        finally:
            self._bar.clear()

    async def _take(self) -> None:
        """The text of the oldest piece."""
        piece = self._fed.popleft()
        texts: list[str] = []
        words: list[Word] = []
        async for event in self._events:
            if isinstance(event, Final):
                texts.append(event.text)
                words += event.words
                self._result.language = self._result.language or event.language
                if not event.continues:
                    break
        shift = (piece.start - self._heard) * 1000 // RATE_IN
        self._heard += len(piece.pcm)
        end = (piece.start + len(piece.pcm)) / RATE_IN
        placed = tuple(Word(w.text, w.start_ms + shift, w.end_ms + shift) for w in words)
        text = " ".join(filter(None, texts))
        segment = Segment(piece.start / RATE_IN, end, text, placed)
        self._result.segments.append(segment)
        self._result.duration = end
        self._bar.clear()
        if text:
            self._say(segment)
        self._bar.show(piece.done, f"{int(end) // 60}:{int(end) % 60:02}")


async def transcribe_all(
    files: Sequence[Path],
    recognizer: Recognizer,
    options: StreamOptions,
    say: Callable[[Segment], None],
    show: Callable[[Transcription], None],
) -> list[str]:
    """Each piece to `say` as it comes, each file's result to `show`; returns what could not be
    read, in words. Raises EngineError."""
    faults = []
    if isinstance(recognizer, RemoteRecognizer):
        await recognizer.start(options)
    else:
        await recognizer.start()
    try:
        for path in files:
            result = Transcription(str(path), recognizer.name)
            stream = await recognizer.open(options)
            try:
                await FileHearing(stream, result, say).run(path)
                show(result)
            except FileError as error:
                faults.append(str(error))
            finally:
                await stream.close()
    finally:
        await recognizer.close()
    return faults
