"""What FFmpeg opens of files, and how much a file may cost."""

from dataclasses import dataclass

FORMATS = (
    *("wav", "w64", "mp3", "ogg", "flac", "mov", "matroska", "aac", "aiff", "au", "caf", "amr"),
    *("gsm", "asf", "avi", "mpeg", "mpegts"),
)
"""FFmpeg's names of the containers that are read, those of docs/speech-api.md. Not among them: what
names other files or hosts (hls, dash, concat, imf, sdp, image2), devices, texts that are drawn, and
formats of games and studios that nobody has tried to break."""
PCM = (
    *("pcm_alaw", "pcm_mulaw", "pcm_u8", "pcm_s8", "pcm_s8_planar", "pcm_s16le", "pcm_s16be"),
    *("pcm_s16le_planar", "pcm_s16be_planar", "pcm_s24le", "pcm_s24be", "pcm_s24le_planar"),
    *("pcm_s32le", "pcm_s32be", "pcm_s32le_planar", "pcm_f32le", "pcm_f32be", "pcm_f64le"),
    *("pcm_f64be", "pcm_dvd", "pcm_bluray"),
)
CODECS = (
    *PCM,
    *("mp3float", "mp3", "mp2float", "mp2", "mp1float", "mp1", "aac", "aac_fixed", "aac_latm"),
    *("alac", "flac", "opus", "libopus", "vorbis", "libvorbis", "speex", "libspeex", "amrnb"),
    *("amrwb", "libopencore_amrnb", "libopencore_amrwb", "gsm", "gsm_ms", "adpcm_ima_wav"),
    *("adpcm_ima_qt", "adpcm_ms", "g722", "g726", "ac3", "ac3_fixed", "eac3", "wmav1", "wmav2"),
    *("wmavoice", "wmapro", "wmalossless"),
)
"""FFmpeg's names of the decoders that are used; pictures are not decoded at all."""
MIN_RATE, MAX_RATE = 1_000, 768_000
"""Accepted sample rates in Hz; each sample of a 1 Hz file would become 16 000."""
MAX_STREAMS = 64
"""Maximum tracks of a file; one with more is refused."""
MAX_JOINED = 1_000
"""Maximum WAV files joined in one; the rest is not read."""
MAX_FAULTS = 1_000
"""Undecodable packets after which the rest of the file is skipped."""
MANY_PACKETS = 10_000
PACKET_S = 0.001
"""Minimum mean packet duration in s; a file with many shorter packets is malicious, and the rest of
it is skipped."""
MAX_DECODER_BYTES = 512 << 20
"""Memory in bytes of a file's decoder; a file that needs more is refused."""
DECODER_START_S = 20.0
"""Processor time in s that a file's decoder has before there is sound; then it is killed, and the
file refused."""
DECODER_SPEED = 30.0
"""Seconds of sound that a decoder must make of a second of processor time, beyond DECODER_START_S;
a slower one is killed, and the file refused. FLAC, Opus and AAC are ten times as fast on any
machine."""


@dataclass(frozen=True)
class RawPcm:
    """A file of raw samples: 16-bit, little-endian, interleaved."""

    rate: int
    channels: int = 1


class FileError(ValueError):
    """Raised for an unreadable file. The message is the reason; those of files with a path begin
    with it and a colon."""


class TooLong(FileError):
    """A file with more sound than is heard."""


def too_long(most_s: float) -> TooLong:
    return TooLong(f"it has more than {most_s / 60:g} minutes of sound, the most heard")
