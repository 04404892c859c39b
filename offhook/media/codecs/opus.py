"""Opus (RFC 6716, RFC 7587) through libopus, decoding to 16 kHz and encoding from 24 kHz.

libopus comes with the PyAV wheel, so no system library is needed; the system's libopus is used if
the wheel has none. ctypes releases the GIL during each call.
"""

import ctypes
import ctypes.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import av
import numpy as np

from offhook.media import native
from offhook.media.codecs.codec import CodecError
from offhook.media.codecs.downmix import Downmix
from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm

CLOCK_RATE = 48_000
"""RTP timestamp rate of Opus in Hz, whatever the audio rate (RFC 7587 §4.1)."""
MAX_PACKET_BYTES = 1275
MAX_FRAME_MS = 120
STEREO = 0x04
"""TOC bit that marks a stereo packet (RFC 6716 §3.1)."""

# opus_defines.h
APPLICATION_VOIP = 2048
SET_BITRATE = 4002
SET_COMPLEXITY = 4010
SET_INBAND_FEC = 4012
SET_PACKET_LOSS_PERC = 4014
SET_DTX = 4016
SET_SIGNAL = 4024
SIGNAL_VOICE, SIGNAL_MUSIC = 3001, 3002

CELT_BITRATE = 48_000
"""Bit rate in bit/s from which speech is coded by CELT alone while nothing is lost. At 48 kbit/s it
scores higher than SILK and CELT together, for a third of the CPU time (docs/choices.md), but has
neither SILK's redundancy nor its concealment."""


@cache
def libopus() -> ctypes.CDLL:
    """Load libopus and declare the functions used. Raises OSError if it is not found."""
    package = Path(av.__file__).parent
    bundled = [*package.parent.glob("av.libs/libopus*"), *package.glob(".dylibs/libopus*")]
    path = str(bundled[0]) if bundled else ctypes.util.find_library("opus")
    if not path:
        raise OSError("libopus not found: install the package libopus0 or a PyAV wheel")
    lib = ctypes.CDLL(path)
    void, i32, integer = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int
    lib.opus_strerror.restype = ctypes.c_char_p
    lib.opus_get_version_string.restype = ctypes.c_char_p
    lib.opus_decoder_create.restype = void
    lib.opus_decoder_create.argtypes = [i32, integer, ctypes.POINTER(integer)]
    lib.opus_decoder_destroy.argtypes = [void]
    lib.opus_decode.argtypes = [void, ctypes.c_char_p, i32, void, integer, integer]
    lib.opus_packet_get_nb_samples.argtypes = [ctypes.c_char_p, i32, i32]
    lib.opus_packet_has_lbrr.argtypes = [ctypes.c_char_p, i32]
    lib.opus_encoder_create.restype = void
    lib.opus_encoder_create.argtypes = [i32, integer, integer, ctypes.POINTER(integer)]
    lib.opus_encoder_destroy.argtypes = [void]
    lib.opus_encode.argtypes = [void, void, integer, ctypes.c_char_p, i32]
    # opus_encoder_ctl is variadic: only its fixed arguments are declared, so that ctypes passes the
    # rest by the variadic convention, which differs on Apple silicon.
    lib.opus_encoder_ctl.argtypes = [void, integer]
    return lib


def _check(code: int) -> int:
    if code < 0:
        raise CodecError(f"opus: {libopus().opus_strerror(code).decode()}")
    return code


def _address(function: object) -> int:
    """Where a function of libopus begins, for the compiled path."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]


class _Memory:
    """What libopus keeps of a stream, until nothing refers to it any more."""

    def __init__(self, address: int, free: Callable[[int], None]) -> None:
        self.address = address
        self._free = free

    def __del__(self) -> None:
        self._free(self.address)


class OpusDecoder:
    """Decodes one Opus stream to 16 kHz mono int16."""

    clock_rate = CLOCK_RATE
    sound_rate = RATE_IN

    def __init__(self) -> None:
        self._lib = libopus()
        self._downmix: Downmix | None = None
        """Set after the first stereo packet; libopus would average the channels."""
        self._create(1)

    def _create(self, channels: int) -> None:
        error = ctypes.c_int()
        self._state = self._lib.opus_decoder_create(RATE_IN, channels, ctypes.byref(error))
        _check(error.value)
        self._memory = _Memory(self._state, self._lib.opus_decoder_destroy)
        self.compiled = (
            native.OpusDecoder(
                self._memory,
                _address(self._lib.opus_decode),
                _address(self._lib.opus_packet_get_nb_samples),
            )
            if native.used and channels == 1
            else None
        )
        """Decodes the usual packet of the same stream."""
        self._max_samples = RATE_IN * MAX_FRAME_MS // 1000
        self._pcm = np.empty(channels * self._max_samples, np.int16)
        self._pcm_address = self._pcm.ctypes.data

    def _decode(self, payload: bytes | None, samples: int, fec: int) -> Pcm:
        if samples > self._max_samples:  # libopus would write beyond the buffer
            raise CodecError(f"opus: a packet cannot hold {samples} samples")
        size = len(payload) if payload else 0
        n = _check(
            self._lib.opus_decode(self._state, payload, size, self._pcm_address, samples, fec)
        )
        if self._downmix is not None:
            return self._downmix.mix(self._pcm[: 2 * n])
        return self._pcm[:n].copy()

    def decode(self, payload: bytes) -> Pcm:
        if not payload:
            raise CodecError("opus: empty payload")
        if self._downmix is None and payload[0] & STEREO:
            self._create(2)
            self._downmix = Downmix(RATE_IN)
        if self.compiled is not None:
            _check(self.compiled.take_failure())  # it has tried this payload
        return self._decode(payload, self._max_samples, 0)

    def recover(self, following: bytes, samples: int) -> Pcm | None:
        if self._lib.opus_packet_has_lbrr(following, len(following)) != 1:
            return None
        return self._decode(following, samples, 1)

    def conceal(self, samples: int) -> Pcm:
        """Synthesize `samples` lost samples; libopus requires a multiple of 40 (2.5 ms)."""
        return self._decode(None, samples, 0)


@dataclass(frozen=True)
class OpusSettings:
    """Opus encoder settings. Complexity 5 costs three quarters of 10 and sounds the same for
    speech."""

    bitrate: int = 48_000
    complexity: int = 5
    fec: bool = True
    dtx: bool = True
    """Discontinuous transmission. The sender enables it in silence only: within speech libopus
    mistakes steady sounds for silence (it drops 86 % of a dial tone)."""


class OpusEncoder:
    """Encodes 24 kHz mono int16 to one Opus stream, one frame per packet."""

    clock_rate = CLOCK_RATE
    packets_ms = (10, 20, 40, 60)
    """Opus's own frame durations in ms (RFC 6716 §2.1.4). 30 ms would take three 10 ms frames, at
    the cost of FEC and bitrate; a far end that asks for 30 ms can be given 20."""

    def __init__(self, settings: OpusSettings | None = None) -> None:
        settings = settings or OpusSettings()
        self._lib = libopus()
        error = ctypes.c_int()
        self._state = self._lib.opus_encoder_create(
            RATE_OUT, 1, APPLICATION_VOIP, ctypes.byref(error)
        )
        _check(error.value)
        self._memory = _Memory(self._state, self._lib.opus_encoder_destroy)
        self.compiled = (
            native.OpusEncoder(self._memory, _address(self._lib.opus_encode))
            if native.used
            else None
        )
        """Encodes the usual packet of the same stream."""
        self._packet = ctypes.create_string_buffer(MAX_PACKET_BYTES)
        self._loss_percent = 0
        self._signal = 0
        self.bitrate = settings.bitrate
        self.set_bitrate(settings.bitrate)
        self._set(SET_COMPLEXITY, settings.complexity)
        self._set(SET_INBAND_FEC, int(settings.fec))

    def _set(self, request: int, value: int) -> None:
        _check(self._lib.opus_encoder_ctl(self._state, request, ctypes.c_int32(value)))

    def encode(self, pcm: Pcm) -> bytes:
        """Encode one packet of contiguous samples. A result of one or two bytes is DTX and need not
        be sent (RFC 7587 §3.1.3)."""
        n = _check(
            self._lib.opus_encode(
                self._state, pcm.ctypes.data, len(pcm), self._packet, MAX_PACKET_BYTES
            )
        )
        return self._packet.raw[:n]

    def set_dtx(self, on: bool) -> None:
        """Switch discontinuous transmission on or off (RFC 7587 §3.1.3)."""
        self._set(SET_DTX, int(on))

    def set_bitrate(self, bitrate: int) -> None:
        """Set the target bitrate in bits per second, from the next packet on."""
        self._set(SET_BITRATE, bitrate)
        self._current_bitrate = bitrate
        self._choose_mode()

    def set_loss(self, fraction: float) -> None:
        """Adapt mode and in-band FEC to the reported loss, 0..1; libopus adds FEC from 1 % up."""
        percent = min(30, round(fraction * 100))
        if percent != self._loss_percent:
            self._loss_percent = percent
            self._set(SET_PACKET_LOSS_PERC, percent)
            self._choose_mode()

    def _choose_mode(self) -> None:
        """Choose by the kind of signal, which decides libopus's mode: music is CELT at any bitrate
        of ours, speech has SILK in it up to 72 kbit/s."""
        celt = self._current_bitrate >= CELT_BITRATE and not self._loss_percent
        signal = SIGNAL_MUSIC if celt else SIGNAL_VOICE
        if signal != self._signal:
            self._signal = signal
            self._set(SET_SIGNAL, signal)
