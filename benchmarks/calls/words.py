"""Words recognised through the whole server beside the recogniser fed the file directly.

Each recording is played into a real call; the server's final transcripts are compared with the
reference, and so is what PocketSphinx makes of the file without a network in between.
"""

import argparse
import asyncio
import json
import os
import re
import time
import wave
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import soxr

from benchmarks.calls.noisy_words import KINDS, WAYS
from benchmarks.calls.noisy_words import run as run_noisy
from benchmarks.media.loss import SCENARIOS, hear, hear_aiortc
from benchmarks.media.noises import SPEECH_DBFS
from offhook.bench.speech.recordings import encode
from offhook.bench.transcript import prefix_distances, recognise, words
from offhook.bench.turns import server
from offhook.media.codecs.g711 import PcmuDecoder, PcmuEncoder
from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm
from offhook.pipeline.speech.embedded.pocketsphinx_io import PocketSphinxRecognizer
from offhook.signaling.peer_io import use_addresses
from offhook.web.cli.caller_io import ScriptedCall, ScriptLine

SPEECH = Path(os.environ.get("OFFHOOK_SPEECH", "../shared/speech"))
NO_RECORDINGS = (
    f"no recordings: name their folder in OFFHOOK_SPEECH (not {SPEECH}); "
    "`python -m benchmarks recordings FOLDER` fetches them"
)
PACKET_MS = 20
PHONE_HZ, PHONE_GAIN = (150, 300, 3400, 3800), (0, 1, 1, 0)
TRANSCRIPT_S = 20
"""The longest wait for the words of a recording after its end."""
SETTLED_S = 3
"""No further words for this long: the turn is over."""


@dataclass
class Row:
    file: str
    reference: str
    direct: str
    server: str
    direct_errors: int
    server_errors: int


def references(folder: Path) -> dict[Path, str]:
    """Recordings and their words, from the table in the folder's README."""
    table = re.findall(r"^\| (\S+\.wav) \| (.+?) \|$", (folder / "README.md").read_text(), re.M)
    return {folder / name: text for name, text in table}


def word_errors(heard: str, reference: str) -> int:
    """Substitutions, insertions and deletions."""
    return prefix_distances(words(heard), reference.lower().split())[-1]


def read_16k(path: Path) -> Pcm:
    with wave.open(str(path)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), np.int16)


class Listener(ScriptedCall):
    """A call that waits for the words and for no reply."""

    async def _listen(self, cut: float | None) -> None:
        assert self._turn is not None
        deadline = time.monotonic() + TRANSCRIPT_S
        heard, since = "", time.monotonic()
        while time.monotonic() < deadline:
            await asyncio.sleep(0.1)
            if self._turn.heard != heard:
                heard, since = self._turn.heard, time.monotonic()
            elif heard and time.monotonic() - since > SETTLED_S:
                break


async def measure(folder: Path) -> list[Row]:
    use_addresses(["127.0.0.1"])
    recognizer = PocketSphinxRecognizer(1)
    await recognizer.start()
    rows = []
    async with server(OFFHOOK_AGENT_KIND="silent") as url:
        for path, reference in references(folder).items():
            direct = (await recognise(recognizer, read_16k(path))).text
            pcm = soxr.resample(read_16k(path), RATE_IN, RATE_OUT).astype(np.int16)
            silence = np.zeros(RATE_OUT // 2, np.int16)
            line = ScriptLine(path.name, np.concatenate((silence, pcm, silence)))
            call = Listener(url, [line])
            report = await call.run()
            heard = report.turns[0].heard
            rows.append(
                Row(
                    path.name,
                    reference,
                    direct,
                    heard,
                    word_errors(direct, reference),
                    word_errors(heard, reference),
                )
            )
    await recognizer.close()
    return rows


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
                packets = encode(soxr.resample(read_16k(file), RATE_IN, RATE_OUT).astype(np.int16))
                heard = await recognise(recognizer, receive(packets, impairment))
                errors += word_errors(heard.text, reference)
            wrong.setdefault(impairment.name, {})[path] = errors
    await recognizer.close()
    return wrong


def run_impaired(as_json: bool) -> int:
    wrong = asyncio.run(measure_impaired(SPEECH))
    total = sum(len(text.split()) for text in references(SPEECH).values())
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
    wrong = asyncio.run(measure_by_phone(SPEECH))
    total = sum(len(text.split()) for text in references(SPEECH).values())
    if as_json:
        print(json.dumps({"words": total, "wrong": wrong}))
        return 0
    for name, errors in wrong.items():
        print(f"{name:12} words wrong: {100 * errors / total:5.1f} % of {total}")
    return 0


def run(as_json: bool) -> int:
    rows = asyncio.run(measure(SPEECH))
    total = sum(len(r.reference.split()) for r in rows)
    direct, served = (sum(getattr(r, f"{k}_errors") for r in rows) for k in ("direct", "server"))
    if as_json:
        print(json.dumps([asdict(r) for r in rows], indent=1))
        return 0
    for r in rows:
        print(f"{r.file}: {r.reference}")
        print(f"  direct {r.direct_errors:2}: {r.direct}")
        print(f"  server {r.server_errors:2}: {r.server}")
    print(
        f"{total} words: direct {100 * direct / total:.1f} %, server {100 * served / total:.1f} %"
    )
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks words")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--impaired", action="store_true", help="simulated loss and jitter instead")
    parser.add_argument("--phone", action="store_true", help="on a telephone line instead")
    parser.add_argument("--noise", nargs="?", const=",".join(KINDS), help=",".join(KINDS))
    parser.add_argument("--snr", default="20,10,5", help="of the noise, dB")
    parser.add_argument("--level", type=float, default=SPEECH_DBFS, help="of the caller, dBFS")
    parser.add_argument("--ways", default=",".join(WAYS), help="where noise is suppressed")
    parser.add_argument("--seeds", type=int, default=1, help="noises for each recording")
    arguments = parser.parse_args(argv)
    if not SPEECH.exists():
        parser.error(NO_RECORDINGS)
    if arguments.noise:
        recordings = {path: (read_16k(path), text) for path, text in references(SPEECH).items()}
        ratios, ways = [float(n) for n in arguments.snr.split(",")], arguments.ways.split(",")
        kinds, level, seeds = arguments.noise.split(","), arguments.level, arguments.seeds
        return run_noisy(recordings, kinds, ratios, level, ways, seeds, arguments.json)
    if arguments.phone:
        return run_by_phone(arguments.json)
    return (run_impaired if arguments.impaired else run)(arguments.json)
