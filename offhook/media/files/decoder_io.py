"""Decodes the sound of an open file with FFmpeg, in the process that calls it: see `decoding_io`
for one of its own. Files are untrusted: only self-contained formats are read (a playlist refers to
others), by decoders of sound, and the duration is counted rather than believed."""

import io
import itertools
import math
from collections.abc import Generator

import av
from av.container import InputContainer

from offhook.media.codecs.downmix import MonoConverter
from offhook.media.files.formats import (
    CODECS,
    FORMATS,
    MANY_PACKETS,
    MAX_DECODER_BYTES,
    MAX_FAULTS,
    MAX_JOINED,
    MAX_RATE,
    MAX_STREAMS,
    MIN_RATE,
    PACKET_S,
    FileError,
    RawPcm,
    too_long,
)
from offhook.media.pcm import Pcm

FAULTS = (av.FFmpegError, OSError, ValueError, LookupError)
GATHERED_S = 0.2
"""Seconds of sound that are converted together; no more, as channels in antiphase are noticed
between conversions."""
NO_PROTOCOL = "none"
"""Name of no protocol of FFmpeg's, so that a file cannot have another one opened."""


class Decoder:
    """The blocks of a file's first audio track, mono, and what went wrong in it."""

    def __init__(
        self,
        file: io.RawIOBase,
        rate: int | None = None,
        raw: RawPcm | None = None,
        most_s: float = math.inf,
    ) -> None:
        """`file.name` has the ending by which FFmpeg tells what its content does not. `rate` in Hz
        of the blocks is the file's own if None."""
        self._file, self._raw, self._most_s = file, raw, most_s
        self._converter = Converter(rate)
        self.total: float | None = None
        """The file's length in s, if its header has it."""
        self.faults: list[str] = []
        """Reasons of packets that could not be decoded."""
        self.count = 0
        """Blocks so far."""

    @property
    def seconds(self) -> float:
        """Sound decoded so far."""
        return self._converter.seconds

    def blocks(self) -> Generator[tuple[Pcm, int]]:
        """Blocks and their rate in Hz; of a damaged file, what can be decoded. Raises FileError, at
        once for a file that has more than `most_s` seconds by its packets."""
        try:
            joined = joined_waves(self._file) if self._raw is None else []
            if len(parts := list(itertools.takewhile(self._can_open, joined))) > 1:
                self.total = sum(map(self._counted, parts))
                if self.total > self._most_s:
                    raise too_long(self._most_s)
                for part in parts:
                    with self._opened(part) as container:
                        yield from self._blocks(container)
                return
            with self._opened(self._file) as container:
                self.total = container.duration / av.time_base if container.duration else None
                if self.total is None or self.total <= self._most_s:
                    yield from self._blocks(container)
                    return
            self.total = self._counted(self._file)
            with self._opened(self._file) as container:
                yield from self._blocks(container)
        except MemoryError as error:
            words = f"decoding it takes more than {MAX_DECODER_BYTES >> 20} MB of memory"
            raise FileError(words) from error

    def _opened(self, file: io.RawIOBase) -> InputContainer:
        """The file as a container with at least one audio track. Raises FileError."""
        raw = self._raw
        options = {
            "format_whitelist": ",".join((*FORMATS, *(["s16le"] if raw else []))),
            "codec_whitelist": ",".join(CODECS),
            "protocol_whitelist": NO_PROTOCOL,
            "max_streams": str(MAX_STREAMS),
        }
        if raw is not None:
            options |= {"sample_rate": str(raw.rate), "ch_layout": f"{raw.channels}C"}
        try:
            file.seek(0)
            container = av.open(
                file,
                "r",
                format="s16le" if raw else None,
                container_options=options,
                metadata_errors="replace",
            )
        except MemoryError:
            raise
        except FAULTS as error:
            raise FileError(f"no audio or video that can be read{_reason(error)}") from error
        if not container.streams.audio:
            container.close()
            raise FileError("there is no audio track in it")
        codec = container.streams.audio[0].codec_context
        if codec is None or codec.name not in CODECS:
            container.close()
            name = "" if codec is None else f" ({codec.name})"
            raise FileError(f"its sound is of a kind that is not decoded here{name}")
        return container

    def _can_open(self, file: io.RawIOBase) -> bool:
        try:
            self._opened(file).close()
        except FileError:
            return False
        return True

    def _blocks(self, container: InputContainer) -> Generator[tuple[Pcm, int]]:
        """Raises FileError when none can be decoded."""
        converter, faults = self._converter, self.faults
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
            except MemoryError:
                raise
            except FAULTS as error:
                faults.append(_reason(error))
            self.count += len(blocks)
            for block in blocks:
                yield block, converter.rate
            if ended:
                break
        if faults and not self.count:
            raise FileError(f"its sound cannot be decoded{faults[0]}")

    def _counted(self, file: io.RawIOBase) -> float:
        """The file's length in s by its packets, none of which is decoded: a header may be wrong.
        Raises FileError when it is too long."""
        seconds = 0.0
        with self._opened(file) as container:
            try:
                for packet in container.demux(container.streams.audio[0]):
                    if packet.duration and packet.time_base:
                        seconds += float(packet.duration * packet.time_base)
                    if seconds > self._most_s:
                        raise too_long(self._most_s)
            except (av.FFmpegError, OSError, LookupError):
                pass  # truncated: decoding will report it
        return seconds


class FilePart(io.RawIOBase):
    """A part of a file as a file, with its name."""

    def __init__(self, file: io.RawIOBase, start: int, size: int) -> None:
        self._file, self._start, self._size, self._at = file, start, size, 0
        self.name = getattr(file, "name", "")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(base + offset, 0)
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(self._size - self._at, 0)
        self._file.seek(self._start + self._at)
        data = self._file.read(left if size < 0 else min(size, left)) or b""
        self._at += len(data)
        return data


def joined_waves(file: io.RawIOBase) -> list[io.RawIOBase]:
    """Returns each of the WAV files that follow one another in a file, MAX_JOINED at most, as `cat`
    joins them; FFmpeg reads the first only. Empty for any other file."""
    end = file.seek(0, io.SEEK_END)
    starts: list[int] = []
    at = 0
    while at < end and len(starts) < MAX_JOINED:
        file.seek(at)
        head = file.read(12) or b""
        if head[:4] != b"RIFF" or head[8:] != b"WAVE":
            break
        starts.append(at)
        size = int.from_bytes(head[4:8], "little")
        at += 8 + size + size % 2  # a chunk is padded to an even size
    ends = [*starts[1:], end]  # what comes after the last one belongs to it
    return [FilePart(file, a, b - a) for a, b in zip(starts, ends, strict=True)] if starts else []


def _reason(error: Exception) -> str:
    words = getattr(error, "strerror", None) or str(error)
    return f" ({words})" if words else ""


class Converter:
    """Frames of any sample format, layout and rate, which may change, to int16 mono at `rate` Hz
    or, without one, at their own. Frames are gathered first, or each would cost more to convert
    than to decode."""

    def __init__(self, rate: int | None) -> None:
        self._wanted = rate
        self._mono: MonoConverter | None = None
        self._gathered = av.AudioFifo()
        self._of: tuple[str, str, int] | None = None
        self.rate = rate or 0
        """Hz of the blocks that were converted last."""
        self.seconds = 0.0
        """Length of the frames so far."""

    def convert(self, frame: av.AudioFrame) -> list[Pcm]:
        """The blocks that are ready. Raises ValueError, av.FFmpegError."""
        blocks: list[Pcm] = []
        of = (frame.format.name, frame.layout.name, frame.sample_rate)
        if of != self._of:
            blocks = self.end()
            if not MIN_RATE <= frame.sample_rate <= MAX_RATE:
                raise ValueError(f"{frame.sample_rate} Hz, not {MIN_RATE} to {MAX_RATE}")
            self._mono, self._of = MonoConverter(frame, self._wanted), of
            self._gathered = av.AudioFifo()
            self.rate = self._wanted or frame.sample_rate
        frame.pts = None
        self.seconds += frame.samples / frame.sample_rate
        self._gathered.write(frame)
        if self._gathered.samples < GATHERED_S * frame.sample_rate:
            return blocks
        return blocks + self._converted()

    def _converted(self) -> list[Pcm]:
        assert self._mono is not None
        frame = self._gathered.read() if self._gathered.samples else None
        if frame is None:
            return []
        frame.pts = None
        try:
            return self._mono.convert(frame)
        except (av.FFmpegError, ValueError):
            self._mono = self._of = None
            raise

    def end(self) -> list[Pcm]:
        """The rest, also what the resampler held back. Raises ValueError, av.FFmpegError."""
        if self._mono is None:
            return []
        blocks, mono = self._converted(), self._mono
        self._mono = self._of = None
        return blocks + mono.convert(None)
