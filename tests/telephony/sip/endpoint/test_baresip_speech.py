"""Spoken words, over every codec and protection, both ways through a real phone: what arrived is
read by speech recognition and compared with what was said."""

import asyncio
import json
import re
import sys
import wave
from difflib import SequenceMatcher

import numpy as np
import pytest

from offhook.media.codecs.resample import Resampler
from offhook.media.pcm import RATE_IN, RATE_OUT
from tests.support.waiting import HANGS_S
from tests.telephony.sip.phones import (
    Baresip,
    ToneHost,
    endpoint,
    needs_baresip,
    port_of,
    write_certificate,
)

pytestmark = [needs_baresip, pytest.mark.slow]

OURS = "can you tell me the way to the station"
THEIRS = "please call me back in the morning"
CALLS = {
    "pcmu": ("pcmu", 8000, "", "udp"),
    "pcma": ("pcma", 8000, "", "tcp"),
    "g722": ("g722/16000/1", 16000, "", "udp"),
    "opus": ("opus/48000/2", 48000, "", "udp"),
    "pcmu-dtls": ("pcmu", 8000, ";mediaenc=dtls_srtp", "udp"),
    "opus-sdes": ("opus/48000/2", 48000, ";mediaenc=srtp-mand", "tls"),
}
CALL_S = 4.5
ALIKE = {8_000: 0.45, 16_000: 0.7, 48_000: 0.7}
"""Of the words, at least, by the codec's rate in Hz: PocketSphinx's model knows speech of 8 kHz
bandwidth, and errs in some words of what a telephone leaves of it. Other sentences share none."""


async def offhook(*arguments: str) -> bytes:
    command = (sys.executable, "-m", "offhook", *arguments)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output


def read_wav(path) -> tuple[np.ndarray, int]:
    with wave.open(str(path)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2"), file.getframerate()


def write_wav(path, pcm: np.ndarray, rate: int) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(pcm.astype("<i2").tobytes())


def at_rate(pcm: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    return pcm if rate == wanted else Resampler(rate, wanted).process(pcm[: len(pcm) // 6 * 6])


class SpeakingHost(ToneHost):
    """Says a sentence instead of a tone."""

    def __init__(self, speech: np.ndarray) -> None:
        super().__init__()
        self.speech = speech
        self.heard: list[np.ndarray] = []
        self.over = asyncio.Event()

    async def run_call(self, leg, agent):
        stop = leg.listen(lambda heard, said, now: self.heard.append(heard.copy()))
        self.clock.add(leg)
        asyncio.get_running_loop().call_later(0.5, leg.playout.write, self.speech)
        await leg.until_closed()
        stop()
        self.clock.remove(leg)
        self.over.set()


async def spoken(tmp_path, name: str, ours: np.ndarray, theirs: np.ndarray) -> list:
    """One call: the files of what each side heard."""
    codec, rate, protection, transport = CALLS[name]
    certificate, key = write_certificate(tmp_path / name)
    (tmp_path / name / "both.pem").write_text(certificate.read_text() + key.read_text())
    lines = [f"sip_certificate {tmp_path}/{name}/both.pem"]
    phone = Baresip(tmp_path / name / "phone", codec, rate, protection, lines)
    quiet = np.zeros(rate, np.int16)
    said = np.concatenate((quiet, at_rate(theirs, RATE_OUT, rate), np.tile(quiet, 30)))
    write_wav(tmp_path / name / "phone" / "tone.wav", said, rate)
    host = SpeakingHost(ours)
    settings = {"certificate": certificate, "key": key, "tls": 0}
    async with endpoint(host, **settings) as (sip, _), phone.running():
        port = port_of(sip, transport.upper())
        await phone.dial(f"sip:agent@127.0.0.1:{port};transport={transport}")
        await asyncio.sleep(CALL_S)
        await phone.hang_up()
        await asyncio.wait_for(host.over.wait(), HANGS_S)
    files = [tmp_path / f"{name}-us.wav", tmp_path / f"{name}-them.wav"]
    write_wav(files[0], np.concatenate(host.heard), RATE_IN)
    write_wav(files[1], phone.heard(), rate)
    return files


def alike(said: str, heard: str) -> float:
    words = re.findall(r"[a-z]+", heard.lower())
    return SequenceMatcher(None, said.split(), words).ratio()


async def test_what_is_said_is_understood_at_the_other_end(tmp_path):
    for name in CALLS:
        (tmp_path / name).mkdir()
    speech = {}
    for who, text in (("ours", OURS), ("theirs", THEIRS)):
        await offhook("speak", text, "-o", str(tmp_path / f"{who}.wav"))
        pcm, rate = read_wav(tmp_path / f"{who}.wav")
        speech[who] = at_rate(pcm, rate, RATE_OUT)
    calls = (spoken(tmp_path, name, speech["ours"], speech["theirs"]) for name in CALLS)
    files = [file for pair in await asyncio.gather(*calls) for file in pair]
    output = await offhook("transcribe", "--json", *map(str, files))
    texts = [json.loads(line)["text"] for line in output.splitlines()]
    heard = {
        name: (alike(THEIRS, texts[2 * i]), alike(OURS, texts[2 * i + 1]))
        for i, name in enumerate(CALLS)
    }
    wanted = {name: ALIKE[rate] for name, (_, rate, _, _) in CALLS.items()}
    assert all(min(both) >= wanted[name] for name, both in heard.items()), (heard, texts)
