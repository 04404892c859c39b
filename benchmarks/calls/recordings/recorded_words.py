"""Words that PocketSphinx gets wrong where a call's sound is only simulated: with loss and jitter,
on a telephone line, in noise. `offhook bench words` has real calls, and every engine.
"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import soxr

from benchmarks.calls.recordings.noisy_words import KINDS, WAYS
from benchmarks.calls.recordings.noisy_words import run as run_noisy
from benchmarks.command import command
from benchmarks.media.loss import SCENARIOS, hear, hear_aiortc
from benchmarks.speech.lines import encode, opus
from benchmarks.speech.noises import SPEECH_DBFS
from benchmarks.speech.recordings import no_recordings, read_16k, references, speech_folder
from benchmarks.speech.transcript import prefix_distances, recognise, words
from offhook.media.codecs.g711 import PcmuDecoder, PcmuEncoder
from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm
from offhook.pipeline.engines.embedded.pocketsphinx_io import PocketSphinxRecognizer

PACKET_MS = 20
PHONE_HZ, PHONE_GAIN = (150, 300, 3400, 3800), (0, 1, 1, 0)


def word_errors(heard: str, reference: str) -> int:
    """Substitutions, insertions and deletions."""
    return prefix_distances(words(heard), reference.lower().split())[-1]


IMPAIRED = ("none", "1 % loss", "5 % loss", "30 ms jitter + 5 % loss")


async def measure_impaired(folder: Path) -> dict[str, dict[str, int]]:
    """Wrong words by line and receive path, recordings and impairments simulated."""
    recognizer = PocketSphinxRecognizer(1)
    await recognizer.start()
    wrong: dict[str, dict[str, int]] = {}
    for impairment in (s for s in SCENARIOS if s.name in IMPAIRED):
        for path, receive in (("offhook", hear), ("aiortc", hear_aiortc)):
            errors = 0
            for file, reference in references(folder).items():
                pcm = soxr.resample(read_16k(file), RATE_IN, RATE_OUT).astype(np.int16)
                packets = encode(pcm, opus(0.05))
                heard = await recognise(recognizer, receive(packets, impairment))
                errors += word_errors(heard.text, reference)
            wrong.setdefault(impairment.name, {})[path] = errors
    await recognizer.close()
    return wrong


def run_impaired(as_json: bool) -> int:
    wrong = asyncio.run(measure_impaired(speech_folder()))
    total = sum(len(text.split()) for text in references(speech_folder()).values())
    if as_json:
        print(json.dumps({"words": total, "wrong": wrong}))
        return 0
    for name, paths in wrong.items():
        rates = "  ".join(f"{path} {100 * n / total:5.1f} %" for path, n in paths.items())
        print(f"{name:24} words wrong: {rates}")
    return 0


def by_phone(pcm: Pcm) -> Pcm:
    """What a telephone line leaves of 16 kHz: 300 to 3,400 Hz (ITU-T G.712) in G.711."""
    encoder, decoder = PcmuEncoder(), PcmuDecoder()
    spectrum = np.fft.rfft(pcm)
    hz = np.fft.rfftfreq(len(pcm), 1 / RATE_IN)
    spectrum *= np.interp(hz, PHONE_HZ, PHONE_GAIN)
    line = np.fft.irfft(spectrum, len(pcm))
    played = soxr.resample(line, RATE_IN, RATE_OUT).clip(-32768, 32767).astype(np.int16)
    size = RATE_OUT * PACKET_MS // 1000
    blocks = np.pad(played, (0, -len(played) % size)).reshape(-1, size)
    return np.concatenate([decoder.decode(encoder.encode(block)) for block in blocks])


async def measure_by_phone(folder: Path) -> dict[str, int]:
    """Wrong words of the recordings as they are, and as a telephone line leaves them."""
    recognizer = PocketSphinxRecognizer(1)
    await recognizer.start()
    wrong = {"wideband": 0, "telephone": 0}
    for file, reference in references(folder).items():
        pcm = read_16k(file)
        for name, sound in (("wideband", pcm), ("telephone", by_phone(pcm))):
            heard = (await recognise(recognizer, sound)).text
            wrong[name] += word_errors(heard, reference)
    await recognizer.close()
    return wrong


def run_by_phone(as_json: bool) -> int:
    wrong = asyncio.run(measure_by_phone(speech_folder()))
    total = sum(len(text.split()) for text in references(speech_folder()).values())
    if as_json:
        print(json.dumps({"words": total, "wrong": wrong}))
        return 0
    for name, errors in wrong.items():
        print(f"{name:12} words wrong: {100 * errors / total:5.1f} % of {total}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = command("recorded_words", __doc__)
    parser.add_argument("--json", action="store_true")
    lines = parser.add_mutually_exclusive_group(required=True)
    lines.add_argument("--impaired", action="store_true", help="with loss and jitter")
    lines.add_argument("--phone", action="store_true", help="on a telephone line")
    lines.add_argument("--noise", nargs="?", const=",".join(KINDS), help=",".join(KINDS))
    parser.add_argument("--snr", default="20,10,5", help="of the noise, dB")
    parser.add_argument("--level", type=float, default=SPEECH_DBFS, help="of the caller, dBFS")
    parser.add_argument("--ways", default=",".join(WAYS), help="where noise is suppressed")
    parser.add_argument("--seeds", type=int, default=1, help="noises for each recording")
    arguments = parser.parse_args(argv)
    if not speech_folder().exists():
        parser.error(no_recordings())
    if arguments.noise:
        recordings = {
            path: (read_16k(path), text) for path, text in references(speech_folder()).items()
        }
        ratios, ways = [float(n) for n in arguments.snr.split(",")], arguments.ways.split(",")
        kinds, level, seeds = arguments.noise.split(","), arguments.level, arguments.seeds
        return run_noisy(recordings, kinds, ratios, level, ways, seeds, arguments.json)
    if arguments.phone:
        return run_by_phone(arguments.json)
    return run_impaired(arguments.json)
