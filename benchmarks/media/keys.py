"""Keys of telephones, in every way that they come, and what is no key: `offhook bench keys`.

Streams of twenty keys: telephone events of senders that keep to RFC 4733 and of others, INFO, and
tones (ITU-T Q.23) within the limits of Q.24, in noise, behind G.711, with packets lost, and with
somebody speaking behind them. Then an hour of speech and music, in which every key found is false.
"""

import itertools
import sys
import wave
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.command import command
from benchmarks.processes.process import run as run_loop
from benchmarks.speech.lines import CONVERSATION, voiced
from benchmarks.speech.noises import Sound, at_power
from offhook.media.codecs.g711 import PcmaDecoder, PcmaEncoder, PcmuDecoder, PcmuEncoder
from offhook.media.codecs.resample import Resampler
from offhook.media.pcm import RATE_IN, RATE_OUT, SAMPLES_IN, SAMPLES_OUT, Pcm
from offhook.media.rtp.rtp import RtpPacket
from offhook.media.rtp.telephone_event import EventReceiver
from offhook.media.telephone_tones.dtmf import DIGITS
from offhook.media.telephone_tones.dtmf_detector import DtmfDetector
from offhook.media.telephone_tones.tones import FULL_SCALE_DBM0, digit_frequencies
from offhook.telephony.sip.messages.headers import Headers
from offhook.telephony.sip.messages.info import DTMF, DTMF_RELAY, TELEPHONE_EVENT, key_of
from offhook.telephony.sip.messages.message import Request
from offhook.telephony.sip.messages.uri import Uri

KEYS = DIGITS + "1155"
HOUR_S = 3600
STAMPS = ("of the press", "of each packet", "of the press, then of each end", "never another")
MARKERS = ("first", "none", "all")
DURATIONS = ("so far", "of the packet")

Line = Callable[[Sound, np.random.Generator], Sound]


# --- tones ---


def pressed(
    digits: str = KEYS,
    on_ms: int = 80,
    off_ms: int = 80,
    dbm0: float = -9.0,
    twist_db: float = 2.0,
    off_percent: float = 0.0,
    delay: int = 0,
) -> Sound:
    """Return the tones of these keys, float64 at 16 kHz, after `delay` samples more than 200 ms.
    `dbm0` is the level of the lower tone, `twist_db` that of the higher one relative to it."""
    sound = [np.zeros(RATE_IN // 5 + delay)]
    amplitude = 32768 * 10 ** ((dbm0 - FULL_SCALE_DBM0) / 20)
    seconds = np.arange(RATE_IN * on_ms // 1000) / RATE_IN
    for digit in digits:
        low, high = (f * (1 + off_percent / 100) for f in digit_frequencies(digit))
        tones = np.sin(2 * np.pi * low * seconds)
        tones += 10 ** (twist_db / 20) * np.sin(2 * np.pi * high * seconds + 1)
        sound += [amplitude * tones, np.zeros(RATE_IN * off_ms // 1000)]
    return np.concatenate([*sound, np.zeros(RATE_IN // 2)])


def detected(sound: Sound) -> tuple[str, Pcm]:
    """Return the keys found in the sound, and the sound without them."""
    keys: list[str] = []
    detector = DtmfDetector(keys.append)
    pcm = sound.clip(-32768, 32767).astype(np.int16)
    whole = len(pcm) // SAMPLES_IN * SAMPLES_IN
    frames = [detector.process(frame) for frame in pcm[:whole].reshape(-1, SAMPLES_IN)]
    return "".join(keys), np.concatenate(frames)


def power(sound: Sound) -> float:
    """Return the mean power of what is not silent."""
    return float(np.mean(sound[sound != 0] ** 2))


def with_noise(db: float) -> Line:
    """White noise, `db` below the tones."""

    def line(sound: Sound, rng: np.random.Generator) -> Sound:
        noise = at_power(rng.standard_normal(len(sound)), power(sound) / 10 ** (db / 10))
        return np.asarray(sound + noise)

    return line


def with_speech(speech: Sound, db: float) -> Line:
    """Somebody speaks behind the tones, `db` below them."""

    def line(sound: Sound, rng: np.random.Generator) -> Sound:
        at = int(rng.integers(0, len(speech) - len(sound)))
        behind = speech[at : at + len(sound)] + 1e-3
        return np.asarray(sound + at_power(behind, power(sound) / 10 ** (db / 10)))

    return line


def with_loss(fraction: float) -> Line:
    """Packets of 20 ms are missing, and nothing takes their place."""

    def line(sound: Sound, rng: np.random.Generator) -> Sound:
        sound = sound.copy()
        for start in range(0, len(sound), SAMPLES_IN):
            if rng.random() < fraction:
                sound[start : start + SAMPLES_IN] = 0
        return sound

    return line


def through_g711(law: str) -> Line:
    """A-law or u-law, at 8 kHz."""
    encoder, decoder = {"a": (PcmaEncoder, PcmaDecoder), "u": (PcmuEncoder, PcmuDecoder)}[law]

    def line(sound: Sound, rng: np.random.Generator) -> Sound:
        pcm = Resampler(RATE_IN, RATE_OUT).process(sound.clip(-32768, 32767).astype(np.int16))
        encode, decode = encoder(), decoder()
        whole = len(pcm) // SAMPLES_OUT * SAMPLES_OUT
        packets = (encode.encode(piece) for piece in pcm[:whole].reshape(-1, SAMPLES_OUT))
        return np.concatenate([decode.decode(packet) for packet in packets]).astype(float)

    return line


def all_of(*lines: Line) -> Line:
    def line(sound: Sound, rng: np.random.Generator) -> Sound:
        for each in lines:
            sound = each(sound, rng)
        return sound

    return line


# --- telephone events ---


def event(
    digit: str, timestamp: int, duration: int, end: bool, marker: bool, number: int
) -> RtpPacket:
    payload = bytes((DIGITS.index(digit), 0x80 * end | 10)) + duration.to_bytes(2, "big")
    return RtpPacket(101, number & 0xFFFF, timestamp & 0xFFFFFFFF, 7, payload, marker)


def sent(
    digits: str,
    stamps: str,
    markers: str,
    durations: str = "so far",
    ends: int = 3,
    talks: bool = True,
) -> list[RtpPacket]:
    """Return the packets of a sender that keeps to its own rules: those of STAMPS, MARKERS and
    DURATIONS. `talks`: it sends sound between the keys, which takes sequence numbers."""
    packets, clock, number = [], 5000, 100
    began = clock
    for digit in digits:
        if stamps != "never another":
            began = clock
        for n in range(5 + ends):
            end = n >= 5
            new = stamps == "of each packet" or (stamps.endswith("each end") and end)
            lasted = 160 * (min(n, 4) + 1) if durations == "so far" else 160
            marker = markers == "all" or (markers == "first" and n == 0)
            packets.append(event(digit, clock if new else began, lasted, end, marker, number))
            clock, number = clock + 160, number + 1
        clock, number = clock + 160 * 4, number + 4 * talks
    return packets


def received(packets: Sequence[RtpPacket]) -> str:
    receiver = EventReceiver()
    return "".join(receiver.receive(packet) for packet in packets)


def by_info(content_type: str, body: Callable[[str], bytes]) -> str:
    """Return what is understood of all keys by INFO."""
    keys = ""
    for digit in KEYS:
        headers = Headers([("CSeq", "2 INFO"), ("Content-Type", content_type)])
        request = Request("INFO", Uri.parse("sip:us@192.0.2.1"), headers, body(digit))
        keys += key_of(request) or ""
    return keys


# --- the streams ---


def streams(speech: Sound) -> Iterator[tuple[str, str]]:
    """Yield what each stream is, and the keys understood of it."""
    for stamps, markers, durations, talks in itertools.product(
        STAMPS, MARKERS, DURATIONS, (True, False)
    ):
        pauses = "with sound between" if talks else "without sound between"
        name = f"events, timestamp {stamps}, marker {markers}, duration {durations}, {pauses}"
        yield name, received(sent(KEYS, stamps, markers, durations, talks=talks))
    yield "INFO, dtmf-relay", by_info(DTMF_RELAY, lambda key: f"Signal={key}\r\n".encode())
    yield "INFO, dtmf", by_info(DTMF, lambda key: key.encode())
    yield (
        "INFO, telephone-event",
        by_info(TELEPHONE_EVENT, lambda key: bytes((DIGITS.index(key), 0x8A, 1, 64))),
    )
    rng = np.random.default_rng(1)
    for on_ms, off_ms, off_percent in (
        (40, 40, 0.0),
        (50, 50, -1.5),
        (80, 80, 1.5),
        (200, 60, 0.0),
    ):
        name = f"tones, {on_ms} ms, {off_percent:+g} % off"
        yield name, detected(pressed(KEYS, on_ms, off_ms, off_percent=off_percent))[0]
    lines: dict[str, Line] = {
        "noise 20 dB below": with_noise(20),
        "G.711 A-law": through_g711("a"),
        "G.711 u-law": through_g711("u"),
        "2 % of packets lost": with_loss(0.02),
        "speech 20 dB below": with_speech(speech, 20),
        "speech 15 dB below": with_speech(speech, 15),
        "noise, u-law and 2 % lost": all_of(with_noise(20), through_g711("u"), with_loss(0.02)),
        "speech, u-law and 2 % lost": all_of(
            with_speech(speech, 20), through_g711("u"), with_loss(0.02)
        ),
    }
    for name, line in lines.items():
        yield f"tones, {name}", detected(line(pressed(), rng))[0]


# --- what is no key ---


def telephone(sound: Sound) -> Sound:
    """Return the sound as a telephone line passes it: 250 to 3450 Hz."""
    spectrum, hz = np.fft.rfft(sound), np.fft.rfftfreq(len(sound), 1 / RATE_IN)
    spectrum[(hz < 250) | (hz > 3450)] = 0
    sound = np.fft.irfft(spectrum, len(sound))
    return np.asarray(12_000 * sound / max(1.0, float(np.abs(sound).max())))


def voices_of(folder: Path) -> list[Sound]:
    """Return the recordings in a folder, WAV files of any rate, through a telephone line."""
    voices = []
    for file in sorted(folder.rglob("*.wav")):
        with wave.open(str(file)) as opened:
            pcm = np.frombuffer(opened.readframes(opened.getnframes()), np.int16).astype(float)
            pcm, rate = pcm[:: opened.getnchannels()], opened.getframerate()
        count = len(pcm) * RATE_IN // rate
        pcm = np.interp(np.arange(count) * rate / RATE_IN, np.arange(len(pcm)), pcm)
        voices.append(telephone(pcm))
    return voices


def at_speed(sound: Sound, speed: float) -> Sound:
    """Return the sound faster and higher, or slower and lower."""
    return np.asarray(np.interp(np.arange(0, len(sound) - 1, speed), np.arange(len(sound)), sound))


def music(seconds: float, rng: np.random.Generator) -> Sound:
    """Return chords of one to four notes with their harmonics, that fade away, some with vibrato:
    what telephones play to those who wait."""
    pieces: list[Sound] = []
    while sum(map(len, pieces)) < seconds * RATE_IN:
        time = np.arange(int(RATE_IN * rng.uniform(0.15, 0.8))) / RATE_IN
        chord = np.zeros(len(time))
        for _ in range(int(rng.integers(1, 5))):
            hz = 55 * 2 ** (rng.integers(0, 60) / 12)
            wobble = 1 + 0.003 * rng.integers(0, 2) * np.sin(2 * np.pi * 5 * time)
            phase = 2 * np.pi * np.cumsum(hz * wobble) / RATE_IN
            softness = 1 + 0.5 * rng.integers(0, 3)
            waves = [np.sin(k * phase + rng.uniform(0, 6)) / k**softness for k in range(1, 8)]
            note = np.sum(waves, axis=0)
            chord += note * np.exp(-time * rng.uniform(0.5, 6))
        pieces.append(9_000 * chord / np.abs(chord).max())
    return np.concatenate(pieces)


def spoken_here() -> list[Sound]:
    """Return some sentences in the included voice."""
    lines = run_loop(voiced(*CONVERSATION, apart=True)).values()
    return [telephone(Resampler(RATE_OUT, RATE_IN).process(pcm).astype(float)) for pcm in lines]


def hour_of_speech(voices: Sequence[Sound], seconds: float) -> Iterator[Sound]:
    """Yield the voices at ever other speeds, until there are so many seconds."""
    total = 0.0
    for speed in itertools.cycle(np.linspace(0.75, 1.35, 41)):
        for voice in voices:
            yield at_speed(voice, float(speed))
            total += len(voice) / speed / RATE_IN
            if total >= seconds:
                return


def main(argv: Sequence[str] | None = None) -> int:
    parser = command("keys", __doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="with WAV files of speech")
    parser.add_argument(
        "--seconds", type=float, default=HOUR_S, help="of speech and music, %(default)s"
    )
    arguments = parser.parse_args(argv)
    voices = voices_of(arguments.folder) if arguments.folder else spoken_here()
    wrong = total = 0
    for name, keys in streams(np.concatenate(voices)):
        total += 1
        if keys != KEYS:
            wrong += 1
            print(f"{name}: {keys}, not {KEYS}")
    print(f"{total - wrong} of {total} streams understood")
    false = "".join(detected(sound)[0] for sound in hour_of_speech(voices, arguments.seconds / 2))
    print(f"false keys in {arguments.seconds / 2:g} s of speech: {len(false)} {false}")
    false = detected(music(arguments.seconds / 2, np.random.default_rng(3)))[0]
    print(f"false keys in {arguments.seconds / 2:g} s of music: {len(false)} {false}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
