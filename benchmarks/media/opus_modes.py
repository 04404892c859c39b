"""`offhook bench opus_modes`: what the modes of Opus cost, and how speech sounds in them.

Recordings at 24 kHz are encoded at several bit rates and complexities, with SILK and CELT together
(as libopus does for speech) and with CELT alone, and decoded again, nothing being lost. Columns:
bit/s asked for and used; CPU time in us to encode 20 ms; PESQ (ITU-T P.862.2, wideband: 1 to 4.64),
the mean over the recordings and the worst of them. It needs the package `pesq`, which is compiled
when it is installed, and the recordings of the folder OFFHOOK_SPEECH.
"""

import ctypes
import wave
from collections.abc import Sequence
from pathlib import Path
from time import thread_time

import numpy as np
import soxr

from benchmarks.command import command
from benchmarks.speech.recordings import no_recordings, speech_folder
from benchmarks.table import Table
from offhook.media.codecs.opus import (
    SET_SIGNAL,
    SIGNAL_MUSIC,
    SIGNAL_VOICE,
    OpusEncoder,
    OpusSettings,
    libopus,
)
from offhook.media.pcm import RATE_OUT, Pcm

PESQ_RATE = 16_000
PACKET = RATE_OUT // 50
MOST_S = 12
COLUMNS = "mode complexity asked used us pesq worst"


def recordings(folder: Path) -> list[Pcm]:
    """Returns the first seconds of each recording at 24 kHz, in whole packets."""
    found = []
    for path in sorted(folder.glob("*.wav")):
        with wave.open(str(path)) as file:
            sound = np.frombuffer(file.readframes(file.getnframes()), np.int16)
            rate = file.getframerate()
        sound = resampled(sound, rate, RATE_OUT)[: MOST_S * RATE_OUT]
        found.append(sound[: len(sound) // PACKET * PACKET])
    return found


def resampled(sound: Pcm, rate: int, to: int) -> Pcm:
    changed: Pcm = soxr.resample(sound, rate, to)
    return changed


def decoded(packets: Sequence[bytes]) -> Pcm:
    """Returns the packets' sound at 24 kHz."""
    lib, error = libopus(), ctypes.c_int()
    state = lib.opus_decoder_create(RATE_OUT, 1, ctypes.byref(error))
    pcm, pieces = np.empty(PACKET, np.int16), []
    for packet in packets:
        lib.opus_decode(state, packet, len(packet), pcm.ctypes.data, PACKET, 0)
        pieces.append(pcm.copy())
    lib.opus_decoder_destroy(state)
    return np.concatenate(pieces)


def score(sent: Pcm, heard: Pcm) -> float:
    """Returns PESQ of `heard`, which is as long as `sent` and late by the codec's delay."""
    import pesq  # type: ignore[import-not-found]

    a, b = (resampled(sound, RATE_OUT, PESQ_RATE) for sound in (sent, heard))
    found: float = pesq.pesq(PESQ_RATE, a, b, "wb")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = command("opus_modes", __doc__)
    parser.add_argument("--json", action="store_true", help="a JSON line a row")
    options = parser.parse_args(argv)
    sounds = recordings(speech_folder())
    if not sounds:
        parser.error(no_recordings())
    table = Table("opus_modes", f"{len(sounds)} recordings", COLUMNS, options.json)
    for bitrate in (24_000, 32_000, 48_000):
        for mode, signal in (("SILK + CELT", SIGNAL_VOICE), ("CELT", SIGNAL_MUSIC)):
            for complexity in (1, 2, 5, 10):
                spent, size, scores = 0.0, 0, []
                for sound in sounds:
                    encoder = OpusEncoder(OpusSettings(bitrate, complexity))
                    encoder._set(SET_SIGNAL, signal)
                    begin = thread_time()
                    packets = [encoder.encode(block) for block in sound.reshape(-1, PACKET)]
                    spent += thread_time() - begin
                    size += sum(map(len, packets))
                    scores.append(score(sound, decoded(packets)))
                count = sum(map(len, sounds)) // PACKET
                table.row(
                    mode=mode,
                    complexity=complexity,
                    asked=bitrate,
                    used=round(8 * size * 50 / count),
                    us=1e6 * spent / count,
                    pesq=float(np.mean(scores)),
                    worst=min(scores),
                )
    return 0
