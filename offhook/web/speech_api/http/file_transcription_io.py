"""Any audio or video file to text: piece by piece as it is decoded, each as one utterance of a
recognizer's stream.

A file is decoded in a process of its own, split at quiet places, and never in memory as a whole.
"""

import asyncio
import itertools
import math
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from offhook.media.files.decoding_io import Decoding
from offhook.media.files.formats import FileError as FileError
from offhook.media.files.formats import RawPcm as RawPcm
from offhook.media.files.formats import too_long
from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import Final, RecognizerStream, Word
from offhook.pipeline.speech.streams.audio_chunks import SEARCH_S, split
from offhook.web.speech_api.http.transcript import Segment

PIECE_S = 27.0
"""s of a piece when only the whole text is wanted: the length that engines transcribe best."""
CAPTION_S = 10.0
"""s of a piece when times are wanted: of an engine without times of words, those of the pieces."""
EARLY_S = (2.0, 4.0, 8.0)
"""s of the first pieces, and of all that follow them, when text is streamed. Of PocketSphinx' words
(42 s of read speech) 38 % are wrong in pieces of 2 s only, 22 % in growing ones, 23 % in pieces of
8 s, 27 % in pieces of 27 s."""
LEAST_S = 1.0
"""Minimum last piece in s; a shorter one is merged with the previous one."""
PIECES_AHEAD = 3
"""Pieces given to the engine beyond the one whose text is next, so that the engine never waits."""
PIECES_AHEAD_EARLY = 1
"""The same when text is streamed; none before the first text is there, for engines that work on
several at a time end each later."""
FEED_SAMPLES = RATE_IN
SILENCE_PEAK = 4
"""A piece with no sample beyond it (-78 dB) is silence and is not given to the engine."""

# --- decoding ---


@dataclass
class Piece:
    """Audio of a file between two quiet places."""

    start: int
    """Position in samples of the file."""
    pcm: Pcm
    total: float | None
    """Duration of the file in s, if known."""

    @property
    def end(self) -> int:
        return self.start + len(self.pcm)

    @property
    def silent(self) -> bool:
        return max(int(self.pcm.max()), -int(self.pcm.min())) <= SILENCE_PEAK


class PieceSource(Protocol):
    """The pieces of a file in order, for one thread; `stop` may be called from any."""

    def __next__(self) -> Piece:
        """The next piece. Raises FileError, DecoderUnavailable, StopIteration."""

    def stop(self) -> None:
        """Ends the reading of the next piece now, and of all others."""

    def close(self) -> None: ...


class Pieces(Iterator[Piece]):
    """The audio of a file at 16 kHz, cut at quiet places into pieces of about `lengths` in s, of
    which the last one repeats. A silent piece uses up no length. They raise FileError, also for
    more than `most_s` seconds of sound, and DecoderUnavailable."""

    def __init__(
        self,
        path: Path,
        lengths: Sequence[float],
        raw: RawPcm | None = None,
        most_s: float = math.inf,
    ) -> None:
        self._path, self._lengths, self._raw, self._most_s = path, lengths, raw, most_s
        self._decoding: Decoding | None = None
        self._stopped = False
        self._cut = self._cut_pieces()

    def __next__(self) -> Piece:
        return next(self._cut)

    def stop(self) -> None:
        self._stopped = True
        if self._decoding is not None:
            self._decoding.stop()

    def close(self) -> None:
        self.stop()
        self._cut.close()

    def _blocks(self) -> Generator[tuple[Pcm, int, float | None]]:
        self._decoding = opened(self._path, RATE_IN, self._raw, self._most_s)
        if self._stopped:
            self._decoding.stop()
        yield from of_path(self._path, self._decoding.blocks())

    def _cut_pieces(self) -> Generator[Piece]:
        lengths, most_s = self._lengths, self._most_s
        wanted = itertools.chain(lengths, itertools.repeat(lengths[-1]))
        length, start = next(wanted), 0
        waiting, blocks, size = np.zeros(0, np.int16), list[Pcm](), 0
        total = None

        def cut(until: int) -> Piece:
            nonlocal length, start, waiting
            piece = Piece(start, waiting[:until], total)
            start, waiting = start + until, waiting[until:]
            if not piece.silent:
                length = next(wanted)
            return piece

        for block, _, length_s in self._blocks():
            total = length_s
            blocks.append(block)
            size += len(block)
            if start + len(waiting) + size > most_s * RATE_IN:
                raise FileError(f"{self._path}: {too_long(most_s)}")
            if len(waiting) + size <= _samples_to_search(length):
                continue
            waiting = np.concatenate((waiting, *blocks))
            blocks, size = [], 0
            while len(waiting) > _samples_to_search(length):
                yield cut(_first_cut(waiting, length))
            waiting = waiting.copy()
        waiting = np.concatenate((waiting, *blocks))
        if start + len(waiting) == 0:
            raise FileError(f"{self._path}: there is no sound in it")
        while len(waiting):
            until = _first_cut(waiting, length)
            yield cut(until if len(waiting) - until >= LEAST_S * RATE_IN else len(waiting))


def _samples_to_search(length: float) -> int:
    """Samples that must be there to find the best place for a cut at about `length` s."""
    return int((length + min(SEARCH_S, length / 2)) * RATE_IN)


def _first_cut(pcm: Pcm, length: float) -> int:
    return split(pcm[: _samples_to_search(length) + 1], length)[0][1]


def opened(
    path: Path, rate: int | None = None, raw: RawPcm | None = None, most_s: float = math.inf
) -> Decoding:
    """A file that is being decoded. Raises FileError, DecoderUnavailable."""
    try:
        with path.open("rb") as file:
            return Decoding(file, rate, raw, most_s, path.name)
    except FileNotFoundError as error:
        raise FileError(f"{path}: there is no such file") from error
    except IsADirectoryError as error:
        raise FileError(f"{path}: this is a folder: name the files in it") from error
    except PermissionError as error:
        raise FileError(f"{path}: it may not be read") from error


def of_path(
    path: Path, blocks: Generator[tuple[Pcm, int, float | None]]
) -> Generator[tuple[Pcm, int, float | None]]:
    """The blocks of a file, whose path its errors begin with."""
    try:
        yield from blocks
    except FileError as error:
        raise FileError(f"{path}: {error}") from error


class PieceReader:
    """Reads pieces in a thread, one at a time."""

    def __init__(self, pieces: PieceSource) -> None:
        self._pieces = pieces
        self._step: asyncio.Future[Piece | None] | None = None

    async def next(self) -> Piece | None:
        """The next piece; None at the end. Raises FileError, DecoderUnavailable."""
        loop = asyncio.get_running_loop()
        self._step = loop.run_in_executor(None, next, self._pieces, None)
        return await asyncio.shield(self._step)

    async def close(self) -> None:
        """Ends the reading, of the piece that is being read too."""
        self._pieces.stop()
        if self._step is not None:
            await asyncio.wait((self._step,))
            self._step.exception()
        await asyncio.to_thread(self._pieces.close)


# --- transcription ---


@dataclass(frozen=True)
class SegmentProgress:
    """A segment that is done, and how far the file is."""

    segment: Segment
    total: float | None
    """Duration of the file in s, if known."""

    @property
    def done(self) -> float | None:
        """The fraction of the file that is done, 0..1; None: its length is not known."""
        return min(1.0, self.segment.end / self.total) if self.total else None


class FileTranscription:
    """One file through one stream: an utterance a piece, some pieces ahead of the text. `early`:
    text is streamed, and the first of it is to come soon."""

    def __init__(
        self, stream: RecognizerStream, pieces: PieceSource, *, early: bool = False
    ) -> None:
        self._stream = stream
        self._events = stream.events()
        self._reader = PieceReader(pieces)
        self._waiting: deque[Piece] = deque()
        """Pieces without text yet, oldest first."""
        self._early = early
        self._fed = 0
        """Samples fed to the stream before the next piece; word times count from the start of the
        stream."""
        self._ended = False

    async def begin(self) -> None:
        """Reads the first piece, which shows that there is audio in the file. Raises FileError."""
        await self._feed_next()

    async def segments(self) -> AsyncGenerator[SegmentProgress]:
        """The segment of each piece when it is done. Raises FileError, EngineError."""
        while True:
            while not self._ended and len(self._waiting) <= self._pieces_ahead():
                await self._feed_next()
            if not self._waiting:
                return
            piece = self._waiting.popleft()
            yield SegmentProgress(await self._text_of(piece), piece.total)

    async def close(self) -> None:
        """Ends the reading; the stream must have been closed by its owner before."""
        await self._reader.close()

    def _pieces_ahead(self) -> int:
        if not self._early:
            return PIECES_AHEAD
        return PIECES_AHEAD_EARLY if self._fed else 0

    async def _feed_next(self) -> None:
        piece = await self._reader.next()
        if piece is None:
            self._ended = True
            return
        self._waiting.append(piece)
        if piece.silent:
            return
        for at in range(0, len(piece.pcm), FEED_SAMPLES):
            self._stream.feed(piece.pcm[at : at + FEED_SAMPLES])
        self._stream.finish()

    async def _text_of(self, piece: Piece) -> Segment:
        start, end = piece.start / RATE_IN, piece.end / RATE_IN
        if piece.silent:
            return Segment(start, end, "")
        finals = await self._finals()
        shift = (piece.start - self._fed) * 1000 // RATE_IN
        self._fed += len(piece.pcm)
        words = tuple(
            Word(w.text, w.start_ms + shift, w.end_ms + shift) for f in finals for w in f.words
        )
        said = [final for final in finals if final.text]
        text = " ".join(final.text for final in said)
        return Segment(start, end, text, words, said[0].language if said else "")

    async def _finals(self) -> list[Final]:
        """The finals of one utterance, which may be several. Raises EngineError."""
        finals: list[Final] = []
        async for event in self._events:
            if isinstance(event, Final):
                finals.append(event)
                if not event.continues:
                    return finals
        raise EngineError("the engine ended before it had heard the file: ask again")
