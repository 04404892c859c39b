"""Generated answers to calls: 200 people and 200 others, each with the words and when they are
over, on telephone lines with noise and losses. The same seed gives the same sound."""

import json
import wave
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.answers import second_texts, texts
from benchmarks.answers.voices import trimmed, voices_of
from benchmarks.speech.noises import Sound, at_power, fan, street, white
from offhook.media.answer_status import Result
from offhook.media.codecs.g711 import PcmaDecoder, PcmaEncoder, PcmuDecoder, PcmuEncoder
from offhook.media.codecs.resample import Resampler
from offhook.media.pcm import RATE_IN, RATE_OUT, SAMPLES_IN, Pcm

MS = RATE_IN // 1000
LASTS_MS = 16_000
"""Length of a scene at least; the line is quiet then."""
LOSS = 0.02
NOISE_DB = 10.0
ECHO_MS = 350
"""How long a room sounds on: the time to −60 dB."""

Words = list[tuple[int, str]]
"""Each word with the time in ms at which it was said."""


@dataclass
class Scene:
    """One answer."""

    kind: str
    language: str
    expected: frozenset[Result | None]
    """What may stand after 4 s."""
    sound: Sound
    words: Words = field(default_factory=list)
    over_ms: int = 0
    """The end of the first utterance."""
    beep_ms: int | None = None
    """The end of the beep."""
    text: str = ""
    line: str = ""
    pcm: Pcm = field(default_factory=lambda: np.zeros(0, np.int16))

    @property
    def is_person(self) -> bool:
        return self.expected == frozenset(("human",))


HUMAN: frozenset[Result | None] = frozenset(("human",))
MACHINE: frozenset[Result | None] = frozenset(("machine", "machine_end"))
MENU: frozenset[Result | None] = frozenset(("menu", "machine"))
SCREENING: frozenset[Result | None] = frozenset(("screening", "machine"))
UNAVAILABLE: frozenset[Result | None] = frozenset(("unavailable", "machine"))
MAILBOX = MACHINE | UNAVAILABLE
"""Of the mailbox of a telephone that is switched off, which is said first."""
NOBODY: frozenset[Result | None] = frozenset(("unknown", None))


def silence(ms: float) -> Sound:
    return np.zeros(int(ms) * MS)


def tone(frequencies: tuple[float, ...], ms: int, dbfs: float = -18.0) -> Sound:
    at = np.arange(ms * MS) / RATE_IN
    sound = np.sum([np.sin(2 * np.pi * f * at) for f in frequencies], axis=0)
    ramp = np.minimum(1.0, np.minimum(np.arange(len(at)), np.arange(len(at))[::-1]) / (5 * MS))
    return at_power(np.asarray(sound * ramp), (32768 * 10 ** (dbfs / 20)) ** 2)


def music(ms: int, rng: np.random.Generator) -> Sound:
    """Chords of decaying notes, with a bass, eight to three seconds."""
    sound = silence(ms)
    scale = 220 * 2 ** (np.array([0, 2, 4, 5, 7, 9, 11, 12, 16, 19]) / 12)
    for start in range(0, len(sound), int(0.36 * RATE_IN)):
        left = len(sound) - start
        at = np.arange(min(left, RATE_IN)) / RATE_IN
        for f in rng.choice(scale, 3, replace=False):
            note = sum(np.sin(2 * np.pi * f * k * at) / k**1.4 for k in range(1, 6))
            sound[start : start + len(at)] += note * np.exp(-3 * at)
    return at_power(sound, (32768 * 10 ** (-24 / 20)) ** 2)


class Maker:
    """Makes the scenes of one seed, of the first set or of the second."""

    def __init__(self, seed: int, recordings: Path | None, *, second: bool = False) -> None:
        self.rng = np.random.default_rng(seed)
        self._second = second
        self._texts = second_texts if second else texts
        self._spoken: dict[tuple[str, int, str], Sound] = {}
        self._voices = {language: voices_of(language, second) for language in self._texts.HELLOS}
        self.languages = [language for language, voices in self._voices.items() if voices]
        self._recordings = [] if recordings is None else _short_recordings(recordings)

    def say(self, text: str, language: str, voice: int, level: float) -> Sound:
        """Returns a text as one of the voices says it, at a level in dBFS."""
        voices = self._voices[language]
        _, speak = voices[voice % len(voices)]
        key = language, voice % len(voices), text
        if key not in self._spoken:
            self._spoken[key] = trimmed(speak(text))
        return at_power(self._spoken[key], (32768 * 10 ** (level / 20)) ** 2)

    def spoken(self, kind: str, text: str, expected: frozenset[Result | None]) -> Scene:
        """Returns a scene in which a text is said."""
        rng = self.rng
        language = text[:2]
        text = text[3:]
        voice, level = int(rng.integers(100)), float(rng.uniform(-30, -20))
        before = float(rng.uniform(60, 900))
        if kind == "late":
            before += 1500
        sounds, words, at = [silence(before)], [], before
        over_ms = 0
        for part in _sentences(text):
            said = self.say(part, language, voice, level)
            words += _timed(part, at, len(said) / MS)
            at += len(said) / MS
            over_ms = over_ms or int(at)
            pause = float(rng.uniform(180, 620))
            sounds += [said, silence(pause)]
            at += pause
        if kind in ("person", "name", "firm", "late"):
            over_ms = int(at - pause)
        return Scene(kind, language, expected, np.concatenate(sounds), words, over_ms, text=text)

    def recorded(self, sound: Sound, text: str) -> Scene:
        before = float(self.rng.uniform(60, 900))
        said = at_power(trimmed(sound), (32768 * 10 ** (-24 / 20)) ** 2)
        length = len(said) / MS
        whole = np.concatenate((silence(before), said))
        words = _timed(text, before, length)
        return Scene("person", "en", HUMAN, whole, words, int(before + length), text=text)

    def with_beep(self, scene: Scene) -> Scene:
        rng = self.rng
        frequency, lasts = float(rng.uniform(400, 2100)), int(rng.uniform(10, 140)) * 10
        pause = silence(rng.uniform(0, 1300))
        beep = tone((frequency,), max(120, lasts), float(rng.uniform(-28, -14)))
        scene.sound = np.concatenate((scene.sound, pause, beep))
        scene.beep_ms = len(scene.sound) // MS
        scene.text += f" [{frequency:.0f} Hz, {len(beep) // MS} ms]"
        return scene

    def pick(self, table: dict[str, tuple[str, ...]]) -> str:
        language = str(self.rng.choice(self.languages))
        return f"{language} {self.rng.choice(np.array(table[language], dtype=object))}"

    def person(self, number: int) -> Scene:
        if number % 10 == 9 and self._recordings:
            return self.recorded(*self._recordings[number // 10 % len(self._recordings)])
        if number % 8 == 3 or (self._second and number % 8 == 7):
            return self.spoken("firm", self.pick(self._texts.FIRMS), HUMAN)
        if number % 16 == 5:
            return self.spoken("late", self.pick(self._texts.HELLOS), HUMAN)
        return self.spoken("person", self.pick(self._texts.HELLOS), HUMAN)

    def other(self, number: int) -> Scene:
        at = number % 20
        if at < 9:
            text = self.pick(self._texts.VOICEMAIL)
            scene = self.spoken("voicemail", text, MAILBOX if self._second else MACHINE)
            return scene if at == 8 else self.with_beep(scene)
        if at < 12:
            return self.spoken("menu", self.pick(self._texts.MENUS), MENU)
        if at < 14:
            return self.spoken("screening", self.pick(self._texts.SCREENING), SCREENING)
        if at < 16:
            scene = self.spoken("unavailable", self.pick(self._texts.UNAVAILABLE), UNAVAILABLE)
            if at == 15:
                tones = [tone((f,), 330) for f in (950.0, 1400.0, 1800.0)]
                added = [silence(200), *tones]
                scene.sound = np.concatenate((*added, scene.sound))
                moved = sum(map(len, added)) // MS
                scene.words = [(ms + moved, word) for ms, word in scene.words]
            return scene
        return self._sound_alone(at, number // 20)

    def _sound_alone(self, at: int, number: int) -> Scene:
        rng = self.rng
        before = silence(rng.uniform(100, 1500))
        if at == 16:
            fax = tone((2100.0,), 3000) if number % 2 else tone((1100.0,), 500)
            return Scene("fax", "", frozenset(("fax",)), np.concatenate((before, fax)))
        if at == 17:
            return Scene("music", "", frozenset(("unknown",)), music(14_000, rng))
        if at == 18:
            cadence: list[Sound] = [before]
            tones = ((440.0, 480.0), 2000) if number % 2 else ((425.0,), 1000)
            for _ in range(3):
                cadence += [tone(*tones), silence(4000)]
            return Scene("ringback", "", NOBODY, np.concatenate(cadence))
        if number % 2:
            return Scene("silence", "", frozenset(("unknown",)), silence(1000))
        busy: list[Sound] = []
        for _ in range(8):
            busy += [tone((480.0, 620.0) if number % 4 else (425.0,), 500), silence(500)]
        return Scene("busy", "", frozenset(("unavailable",)), np.concatenate(busy))

    def on_the_line(self, scene: Scene, number: int) -> Scene:
        """Puts a scene through noise, G.711 and losses."""
        rng = self.rng
        rest = max(0, LASTS_MS * MS - len(scene.sound))
        clean = np.concatenate((scene.sound, np.zeros(rest)))
        clean = clean[: len(clean) // SAMPLES_IN * SAMPLES_IN]
        if self._second and scene.is_person and number % 3 == 1:
            clean = _in_a_room(clean, rng)
        floor = white(len(clean), rng) * 6.0
        scene.line = "clean"
        if number % 4 == 1:
            make = (white, fan, street)[number // 4 % 3]
            loud = clean[np.abs(clean) > 50]
            power = float(np.mean(loud**2)) if len(loud) else 250.0**2
            floor = at_power(make(len(clean), rng), power / 10 ** (NOISE_DB / 10))
            scene.line = f"{make.__name__} 10 dB"
        pcm = np.clip(clean + floor, -32768, 32767).astype(np.int16)
        losses = LOSS if number % 4 in (1, 2) else 0.0
        scene.line += f", loss {losses:.0%}"
        scene.pcm = _through_g711(pcm, number % 2 == 0, losses, rng)
        return scene

    def scenes(self, people: int, others: int) -> Iterator[Scene]:
        for number in range(people):
            yield self.on_the_line(self.person(number), number)
        for number in range(others):
            yield self.on_the_line(self.other(number), number + number // 4)


def _in_a_room(sound: Sound, rng: np.random.Generator) -> Sound:
    """Returns what a telephone on the table picks up: the room sounds on, 6 dB below the voice."""
    at = np.arange(ECHO_MS * MS)
    tail = rng.standard_normal(len(at)) * 10 ** (-3 * at / len(at))
    size = 1 << int(len(sound) + len(tail)).bit_length()
    tail = at_power(tail, 0.25 / len(tail))
    echo = np.fft.irfft(np.fft.rfft(sound, size) * np.fft.rfft(tail, size), size)[: len(sound)]
    return sound + echo


def _sentences(text: str) -> list[str]:
    parts = text.replace("? ", "?|").replace(". ", ".|").split("|")
    return [part for part in parts if part]


def _timed(text: str, at: float, length: float) -> Words:
    """Shares out the time of a sentence by the letters of its words."""
    words = text.split()
    letters = np.cumsum([len(word) + 1 for word in words])
    return [(int(at + length * n / letters[-1]), w) for n, w in zip(letters, words, strict=True)]


def _through_g711(pcm: Pcm, is_mu: bool, losses: float, rng: np.random.Generator) -> Pcm:
    encoder = PcmuEncoder() if is_mu else PcmaEncoder()
    decoder = PcmuDecoder() if is_mu else PcmaDecoder()
    resampler = Resampler(RATE_IN, RATE_OUT)
    out = []
    for start in range(0, len(pcm), SAMPLES_IN):
        packet = encoder.encode(resampler.process(pcm[start : start + SAMPLES_IN]))
        lost = rng.random() < losses
        out.append(decoder.conceal(SAMPLES_IN) if lost else decoder.decode(packet))
    return np.concatenate(out)


def _short_recordings(folder: Path) -> list[tuple[Sound, str]]:
    """Returns the short clips of a folder with an index.json: file and text."""
    index = json.loads((folder / "index.json").read_text())
    found = []
    for entry in index:
        if entry["file"].startswith("short_"):
            with wave.open(str(folder / entry["file"])) as file:
                pcm = np.frombuffer(file.readframes(file.getnframes()), np.int16)
            found.append((pcm.astype(np.float64), str(entry["text"])))
    return found
