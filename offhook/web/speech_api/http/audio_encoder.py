"""Encodes 24 kHz audio while it is produced.

For output that cannot seek, such as a response body, each frame is written as soon as it is
complete, and lengths in headers are left open. For seekable output the headers are corrected at the
end.
"""

import io
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Literal, cast, get_args

from offhook.media.pcm import RATE_OUT, Pcm

Format = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
RAW: tuple[Format, ...] = ("pcm", "wav")
"""Formats of plain samples."""
FORMATS: tuple[Format, ...] = get_args(Format)
MEDIA_TYPES: dict[Format, str] = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg; codecs=opus",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": f"audio/pcm;rate={RATE_OUT};encoding=signed-integer;bits=16;channels=1",
}
ENDLESS = 0xFFFFFFFF
"""Length in the WAV header while the end is unknown."""
_WAV_HEADER = struct.Struct("<4sI4s4sIHHIIHH4sI")


class Encoder(ABC):
    """Encodes audio into a file, which stays open. Raises OSError."""

    @abstractmethod
    def write(self, pcm: Pcm) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Writes the end of the file."""


def open_encoder(form: Format, file: IO[bytes], faster: float = 1.0) -> Encoder:
    """Creates an encoder into an open file; `faster`, 0.5..2, changes the tempo at constant pitch.
    The first call loads FFmpeg."""
    encoder: Encoder
    match form:
        case "pcm":
            encoder = PcmEncoder(file)
        case "wav":
            encoder = WavEncoder(file)
        case _:
            encoder = AvEncoder(_CODECS[form], file)
    return encoder if faster == 1 else FasterEncoder(encoder, faster)


class PcmEncoder(Encoder):
    """Raw little-endian samples."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, pcm: Pcm) -> None:
        self._file.write(pcm.astype("<i2", copy=False).tobytes())

    def close(self) -> None:
        pass


class WavEncoder(PcmEncoder):
    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self._bytes = 0
        self._begin = file.tell() if file.seekable() else None
        file.write(_wav_header(ENDLESS))

    def write(self, pcm: Pcm) -> None:
        super().write(pcm)
        self._bytes += 2 * len(pcm)

    def close(self) -> None:
        if self._begin is not None:
            self._file.seek(self._begin)
            self._file.write(_wav_header(self._bytes))
            self._file.seek(0, io.SEEK_END)


def _wav_header(size: int) -> bytes:
    """Returns the header for `size` bytes of audio."""
    whole = min(size + _WAV_HEADER.size - 8, ENDLESS)
    form = (b"fmt ", 16, 1, 1, RATE_OUT, 2 * RATE_OUT, 2, 16)
    return _WAV_HEADER.pack(b"RIFF", whole, b"WAVE", *form, b"data", min(size, ENDLESS))


@dataclass(frozen=True)
class _Codec:
    """FFmpeg's names and options."""

    container: str
    name: str
    bit_rate: int = 0
    options: Mapping[str, str] = field(default_factory=dict)
    muxing: Mapping[str, str] = field(default_factory=dict)


_CODECS: dict[Format, _Codec] = {
    # Without the bit reservoir frames are independent of each other and need no later one.
    "mp3": _Codec("mp3", "libmp3lame", 64_000, {"reservoir": "0"}, {"id3v2_version": "0"}),
    "opus": _Codec("ogg", "libopus", 48_000, muxing={"page_duration": "20000"}),
    "aac": _Codec("adts", "aac", 64_000),
    "flac": _Codec(
        "flac",
        "flac",
        options={"frame_size": str(RATE_OUT // 50)},
        muxing={"metadata_header_padding": "0"},
    ),
}


class AvEncoder(Encoder):
    def __init__(self, codec: _Codec, file: IO[bytes]) -> None:
        import av  # loaded only when needed: it takes tens of megabytes

        self._frame = av.AudioFrame
        muxing = {"flush_packets": "1", **codec.muxing}
        self._container = av.open(file, "w", format=codec.container, options=muxing)
        stream = self._container.add_stream(
            codec.name, rate=RATE_OUT, layout="mono", options=dict(codec.options)
        )
        assert isinstance(stream, av.AudioStream)
        if codec.bit_rate:
            stream.bit_rate = codec.bit_rate
        self._stream = stream
        self._written = 0

    def write(self, pcm: Pcm) -> None:
        if not len(pcm):
            return
        frame = self._frame.from_ndarray(pcm.reshape(1, -1), format="s16", layout="mono")
        frame.sample_rate = RATE_OUT
        frame.pts = self._written
        self._written += len(pcm)
        self._container.mux(self._stream.encode(frame))

    def close(self) -> None:
        self._container.mux(self._stream.encode(None))
        self._container.close()


class FasterEncoder(Encoder):
    """Encodes with a changed tempo."""

    def __init__(self, encoder: Encoder, faster: float) -> None:
        from offhook.pipeline.speech.voice.voice_sound import Tempo  # requires FFmpeg

        self._encoder = encoder
        self._tempo = Tempo(faster)

    def write(self, pcm: Pcm) -> None:
        self._encoder.write(self._tempo.push(pcm))

    def close(self) -> None:
        self._encoder.write(self._tempo.finish())
        self._encoder.close()


class _OneWay(io.RawIOBase):
    def __init__(self, take: Callable[[bytes], object]) -> None:
        self._take = take

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._take(bytes(data))
        return len(data)


def one_way(take: Callable[[bytes], object]) -> IO[bytes]:
    """Returns a file that cannot seek and passes each chunk written to `take`."""
    return cast(IO[bytes], _OneWay(take))


def is_quick(form: Format, faster: float) -> bool:
    """Returns whether encoding takes less time than handing it to another thread."""
    return form in RAW and faster == 1


class StreamEncoder:
    """Encodes audio into the bytes of an endless file."""

    def __init__(self, form: Format, faster: float = 1.0) -> None:
        self._parts: list[bytes] = []
        self._encoder = open_encoder(form, one_way(self._parts.append), faster)

    def push(self, pcm: Pcm) -> bytes:
        """Returns the bytes that are ready."""
        self._encoder.write(pcm)
        return self._taken()

    def finish(self) -> bytes:
        """Returns the remaining bytes."""
        self._encoder.close()
        return self._taken()

    def _taken(self) -> bytes:
        taken = b"".join(self._parts)
        self._parts.clear()
        return taken
