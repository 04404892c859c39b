"""Any audio or video file to text: piece by piece as it is decoded, each as one utterance of a
recognizer's stream.

A file is split at quiet places and never in memory as a whole. Uploads are untrusted: only
self-contained formats are read (a playlist refers to others), and the duration is counted rather
than believed.
"""

import asyncio
import itertools
import math
from collections import deque
from collections.abc import AsyncGenerator, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from loguru import logger

from offhook.media.codecs.downmix import MonoConverter
from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.speech.recognizer import EngineError, Final, RecognizerStream, Word
from offhook.pipeline.speech.streams.audio_chunks import SEARCH_S, split
from offhook.web.speech_api.http.transcript import Segment

if TYPE_CHECKING:  # loaded with the first file, to save memory
    import av
    from av.container import InputContainer


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
MIN_RATE, MAX_RATE = 1_000, 768_000
"""Accepted sample rates in Hz; each sample of a 1 Hz file would become 16 000."""
MAX_FAULTS = 1_000
"""Undecodable packets after which the rest of the file is skipped."""
MANY_PACKETS = 10_000
PACKET_S = 0.001
"""Minimum mean packet duration in s; a file with many shorter packets is malicious, and the rest of
it is skipped."""

FORMATS = (
    *("aac", "ac3", "ac4", "act", "aiff", "alaw", "amr", "amrnb", "amrwb", "ape", "apm", "asf"),
    *("au", "avi", "avr", "caf", "codec2", "daud", "dsf", "dsicin", "dss", "dts", "dtshd", "dv"),
    *(
        "eac3",
        "flac",
        "flv",
        "g722",
        "gsm",
        "gxf",
        "iff",
        "ircam",
        "kux",
        "lc3",
        "live_flv",
        "loas",
    ),
    *("matroska", "mlp", "mmf", "mov", "mp3", "mpc", "mpc8", "mpeg", "mpegts", "mulaw", "mxf"),
    *("nistsphere", "nsv", "nut", "ogg", "oma", "osq", "paf", "pva", "pvf", "qcp", "qoa", "r3d"),
    *("rm", "roq", "rpl", "rso", "s337m", "sds", "shn", "smjpeg", "smk", "sol", "sox", "spdif"),
    *("swf", "tak", "truehd", "tta", "voc", "vqf", "w64", "wav", "wsd", "wtv", "wv", "xa", "xwma"),
)
"""FFmpeg's names of the formats that are read. Not among them: formats that name other files or
hosts (hls, dash, concat, imf, sdp, image2), devices, and texts that are drawn."""


class FileError(ValueError):
    """Raised for an unreadable file; the message is the path, a colon and the reason."""


@dataclass(frozen=True)
class RawPcm:
    """A file of raw samples: 16-bit, little-endian, interleaved."""

    rate: int
    channels: int = 1


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


def read_pieces(
    path: Path,
    lengths: Sequence[float],
    raw: RawPcm | None = None,
    most_s: float = math.inf,
) -> Generator[Piece]:
    """The audio of a file at 16 kHz, cut at quiet places into pieces of about `lengths` in s, of
    which the last one repeats. A silent piece uses up no length.
    Raises FileError, also for more than `most_s` seconds of sound."""
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

    for block, _, length_s in decoded(path, RATE_IN, raw, most_s):
        total = length_s
        blocks.append(block)
        size += len(block)
        if start + len(waiting) + size > most_s * RATE_IN:
            raise _too_long(path, most_s)
        if len(waiting) + size <= _samples_to_search(length):
            continue
        waiting = np.concatenate((waiting, *blocks))
        blocks, size = [], 0
        while len(waiting) > _samples_to_search(length):
            yield cut(_first_cut(waiting, length))
        waiting = waiting.copy()
    waiting = np.concatenate((waiting, *blocks))
    if start + len(waiting) == 0:
        raise FileError(f"{path}: there is no sound in it")
    while len(waiting):
        until = _first_cut(waiting, length)
        yield cut(until if len(waiting) - until >= LEAST_S * RATE_IN else len(waiting))


def _samples_to_search(length: float) -> int:
    """Samples that must be there to find the best place for a cut at about `length` s."""
    return int((length + min(SEARCH_S, length / 2)) * RATE_IN)


def _first_cut(pcm: Pcm, length: float) -> int:
    return split(pcm[: _samples_to_search(length) + 1], length)[0][1]


def _too_long(path: Path, most_s: float) -> FileError:
    return FileError(f"{path}: it has more than {most_s / 60:g} minutes of sound, the most heard")


def decoded(
    path: Path, rate: int | None = None, raw: RawPcm | None = None, most_s: float = math.inf
) -> Generator[tuple[Pcm, int, float | None]]:
    """Blocks of mono audio, each with its rate in Hz (`rate`, or the file's own) and the file's
    length in s, if its header has it; of a damaged file, what can be decoded. Raises FileError, at
    once for a file that has more than `most_s` seconds by its packets."""
    import av

    with opened(path, raw) as container:
        total = container.duration / av.time_base if container.duration else None
        if total is not None and total > most_s:
            total = _counted(path, raw, most_s)
        for block, hz in _blocks(path, container, rate):
            yield block, hz, total


def opened(path: Path, raw: RawPcm | None = None) -> "InputContainer":
    """The file as a container of FFmpeg's with at least one audio track. Raises FileError."""
    import av

    options = {"format_whitelist": ",".join((*FORMATS, *(["s16le"] if raw else [])))}
    if raw is not None:
        options |= {"sample_rate": str(raw.rate), "ch_layout": f"{raw.channels}C"}
    try:
        container = av.open(
            str(path),
            format="s16le" if raw else None,
            options=options,
            metadata_errors="replace",
        )
    except FileNotFoundError as error:
        raise FileError(f"{path}: there is no such file") from error
    except IsADirectoryError as error:
        raise FileError(f"{path}: this is a folder: name the files in it") from error
    except PermissionError as error:
        raise FileError(f"{path}: it may not be read") from error
    except (av.FFmpegError, OSError, ValueError, LookupError) as error:
        words = f"no audio or video that can be read{_reason(error)}"
        raise FileError(f"{path}: {words}") from error
    if not container.streams.audio:
        container.close()
        raise FileError(f"{path}: there is no audio track in it")
    return container


def _reason(error: Exception) -> str:
    words = getattr(error, "strerror", None) or str(error)
    return f" ({words})" if words else ""


def _blocks(
    path: Path, container: "InputContainer", rate: int | None
) -> Generator[tuple[Pcm, int]]:
    """Blocks of the first audio track and their rate. Raises FileError when none can be decoded."""
    import av

    converter, faults, good = Converter(rate), list[str](), 0
    packets = container.demux(container.streams.audio[0])
    for count in itertools.count():
        blocks: list[Pcm] = []
        ended = len(faults) > MAX_FAULTS or count > MANY_PACKETS + converter.seconds / PACKET_S
        try:
            # An error on the previous packet means that it was the last.
            packet = None if ended else next(packets, None)
            for frame in packet.decode() if packet is not None else ():
                if isinstance(frame, av.AudioFrame):
                    blocks += converter.convert(frame)
            if packet is None:
                ended = True
                blocks += converter.end()
        except (av.FFmpegError, OSError, ValueError, LookupError) as error:
            faults.append(_reason(error))
        good += len(blocks)
        for block in blocks:
            yield block, converter.rate
        if ended:
            break
    if faults and not good:
        raise FileError(f"{path}: its sound cannot be decoded{faults[0]}")
    if faults:
        logger.info("x {} faults in a file, {} blocks decoded", len(faults), good)


class Converter:
    """Frames of any sample format, layout and rate, which may change, to int16 mono at `rate` Hz
    or, without one, at their own."""

    def __init__(self, rate: int | None) -> None:
        self._wanted = rate
        self._mono: MonoConverter | None = None
        self._of: tuple[str, str, int] | None = None
        self.rate = rate or 0
        """Hz of the blocks that were converted last."""
        self.seconds = 0.0
        """Length of the frames converted so far."""

    def convert(self, frame: "av.AudioFrame") -> list[Pcm]:
        """The blocks of a frame. Raises ValueError, av.FFmpegError."""
        import av

        blocks: list[Pcm] = []
        of = (frame.format.name, frame.layout.name, frame.sample_rate)
        if of != self._of:
            blocks = self.end()
            if not MIN_RATE <= frame.sample_rate <= MAX_RATE:
                raise ValueError(f"{frame.sample_rate} Hz, not {MIN_RATE} to {MAX_RATE}")
            self._mono, self._of = MonoConverter(frame, self._wanted), of
            self.rate = self._wanted or frame.sample_rate
        assert self._mono is not None
        frame.pts = None
        self.seconds += frame.samples / frame.sample_rate
        try:
            return blocks + self._mono.convert(frame)
        except (av.FFmpegError, ValueError):
            self._mono = self._of = None
            raise

    def end(self) -> list[Pcm]:
        """The rest, which the resampler held back. Raises av.FFmpegError."""
        mono, self._mono, self._of = self._mono, None, None
        return mono.convert(None) if mono is not None else []


def _counted(path: Path, raw: RawPcm | None, most_s: float) -> float:
    """The file's length in s by its packets, none of which is decoded: a header may be wrong.
    Raises FileError when it is too long."""
    import av

    seconds = 0.0
    with opened(path, raw) as container:
        try:
            for packet in container.demux(container.streams.audio[0]):
                if packet.duration and packet.time_base:
                    seconds += float(packet.duration * packet.time_base)
                if seconds > most_s:
                    raise _too_long(path, most_s)
        except (av.FFmpegError, OSError, LookupError):
            pass  # truncated: decoding will report it
    return seconds


class PieceReader:
    """Reads pieces in a thread, one at a time."""

    def __init__(self, pieces: Generator[Piece]) -> None:
        self._pieces = pieces
        self._step: asyncio.Future[Piece | None] | None = None

    async def next(self) -> Piece | None:
        """The next piece; None at the end. Raises FileError."""
        loop = asyncio.get_running_loop()
        self._step = loop.run_in_executor(None, next, self._pieces, None)
        return await asyncio.shield(self._step)

    async def close(self) -> None:
        """Waits for the piece that is being read and ends the reading."""
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
        self, stream: RecognizerStream, pieces: Generator[Piece], *, early: bool = False
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
