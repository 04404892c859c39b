"""What is played to the server: callers' turns, and where each of their words is in the sound."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.speech.recordings import resample
from benchmarks.turn_taking.speak import lines_of
from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm

PAUSE_MS = (300, 1200)
"""Shortest and longest pause within a turn."""
LEAD_MS = 600
"""Silence in ms before a turn."""
ROOM_LEVEL = 6.0
"""Level of the room's noise, in units of a sample."""
VOICED = 0.02
"""Share of the loudest 10 ms from which 10 ms count as voiced."""
STEP = RATE_IN // 100


@dataclass(frozen=True)
class Word:
    text: str
    start: int
    end: int
    """In samples at 16 kHz."""


@dataclass(frozen=True)
class Utterance:
    """One turn of a caller."""

    name: str
    language: str
    kind: str
    asked: str
    """What the agent said before."""
    sound: Pcm
    """16 kHz, without the silence after it."""
    words: tuple[Word, ...]
    pauses: tuple[int, ...] = ()
    """Of those within it, in ms."""
    question: Pcm | None = None
    """What the agent plays from the beginning, 24 kHz; None: it has asked before."""

    @property
    def end(self) -> int:
        """In samples: the end of the last word."""
        return self.words[-1].end

    @property
    def text(self) -> str:
        return " ".join(word.text for word in self.words)


def words_of(text: str, sound: Pcm, start: int) -> list[Word]:
    """Shares the voiced parts of a piece among its words, by their letters."""
    said = text.split()
    steps = sound[: len(sound) // STEP * STEP].reshape(-1, STEP).astype(np.float64)
    power = np.sqrt((steps**2).mean(axis=1))
    voiced = np.flatnonzero(power > VOICED * power.max())
    first, last = int(voiced[0]), int(voiced[-1]) + 1
    letters = np.cumsum([0, *(len(word) + 1 for word in said)])
    edges = start + STEP * (first + (last - first) * letters / letters[-1])
    return [
        Word(word, int(a), int(b)) for word, a, b in zip(said, edges[:-1], edges[1:], strict=True)
    ]


def room(samples: int, seed: int) -> Pcm:
    noise = np.random.default_rng(seed).normal(0, ROOM_LEVEL, samples)
    return np.round(noise).astype(np.int16)


def utterances(folder: Path, texts_of: str) -> Iterator[Utterance]:
    """Yields the turns of all voices of a file of texts in a folder of sounds by `speak.py`."""
    language = texts_of[:2]
    for file in sorted(folder.glob(f"{texts_of}_*.npz")):
        sounds = np.load(file)
        rate = int(sounds["rate"])
        for number, (kind, asked, texts) in enumerate(lines_of(texts_of)):
            name = f"{file.stem}:{number}"
            chance = random.Random(name)
            parts, words, pauses = [room(LEAD_MS * RATE_IN // 1000, number)], [], []
            for index, text in enumerate(texts):
                if index:
                    pause = chance.randint(*PAUSE_MS)
                    pauses.append(pause)
                    parts.append(room(pause * RATE_IN // 1000, number + index))
                piece = resample(sounds[f"{number}_{index}"], rate, RATE_IN)
                words += words_of(text, piece, sum(map(len, parts)))
                parts.append(piece)
            sound = np.concatenate(parts)
            yield Utterance(name, language, kind, asked, sound, tuple(words), tuple(pauses))


SHORT = (
    "Yes.",
    "No.",
    "Sure.",
    "Please.",
    "Okay.",
    "Yeah.",
    "Correct.",
    "Blue.",
    "Seven.",
    "Card.",
)
"""Answers of which each is one word, and some are also said while listening."""
QUESTION_MS = 2000
OFFSETS_MS = range(-600, 801, 175)
TAILS_MS = (0, 200, 400, 600, 800)


def short_pieces(folder: Path) -> Iterator[tuple[str, str, Pcm]]:
    """Yields the short answers of all English voices in a folder: voice, text and 16 kHz sound."""
    for file in sorted(folder.glob("en_*.npz")):
        sounds = np.load(file)
        said = {texts[0]: n for n, (_, _, texts) in enumerate(lines_of("en")) if len(texts) == 1}
        for text in SHORT:
            piece = resample(sounds[f"{said[text]}_0"], int(sounds["rate"]), RATE_IN)
            yield file.stem, text, piece


def answers(folder: Path) -> Iterator[Utterance]:
    """Yields short answers that begin about when the agent's question ends: OFFSETS_MS behind its
    last sound, which silence of TAILS_MS follows, as servers' voices send it."""
    for voice, text, piece in short_pieces(folder):
        for offset in OFFSETS_MS:
            for tail in TAILS_MS:
                name = f"{voice}:{text}:{offset}:{tail}"
                start = (QUESTION_MS + offset) * RATE_IN // 1000
                sound = np.concatenate([room(start, offset + 1000), piece])
                words = tuple(words_of(text, piece, start))
                question = _question(QUESTION_MS, tail)
                yield Utterance(
                    *(name, "en", f"{offset} ms", "Shall I do that?", sound, words),
                    question=question,
                )


OVER_MS = 9000
"""Length in ms of what the agent says while the caller makes a sound."""
BEGINS_MS = (2500, 4000)
"""Earliest and latest begin in ms of that sound."""
AGENT_LEVEL = 4000
"""Amplitude of the agent's steady sound."""


def over_the_agent(folder: Path) -> Iterator[Utterance]:
    """Yields what is said over the agent, by all voices in a folder: short agreement, and
    interruptions; and noises."""
    time = np.arange(OVER_MS * RATE_OUT // 1000) / RATE_OUT
    steady = (AGENT_LEVEL * np.sin(2 * np.pi * 180 * time)).astype(np.int16)
    for file in sorted(folder.glob("over_*.npz")):
        sounds = np.load(file)
        for number, (kind, said, [text]) in enumerate(lines_of("over")):
            name = f"{file.stem}:{number}"
            begins = random.Random(name).randint(*BEGINS_MS) * RATE_IN // 1000
            piece = resample(sounds[f"{number}_0"], int(sounds["rate"]), RATE_IN)
            words = tuple(words_of(text, piece, begins))
            sound = np.concatenate([room(begins, number), piece])
            yield Utterance(name, "en", kind, said, sound, words, question=steady)
    for number in range(NOISES):
        begins = random.Random(number).randint(*BEGINS_MS) * RATE_IN // 1000
        piece = _noise(number)
        sound = np.concatenate([room(begins, number), piece])
        nothing = (Word("", begins, begins + len(piece)),)
        yield Utterance(f"noise:{number}", "en", "noise", said, sound, nothing, question=steady)


NOISES = 60


def _noise(number: int) -> Pcm:
    """A knock, a breath, a click or a rustle, different for each number."""
    chance = np.random.default_rng(number)
    kind, level = number % 4, chance.uniform(800, 6000)
    length = int(RATE_IN * (chance.uniform(0.05, 0.15), 0.4, 0.02, 0.3)[kind])
    time = np.arange(length) / RATE_IN
    white = chance.normal(0, 1, length)
    match kind:
        case 0:
            shape = np.exp(-time * 40)
            white = white * 0.3 + np.sin(2 * np.pi * chance.uniform(80, 300) * time)
        case 1:
            shape = np.sin(np.pi * time / time[-1]) * 0.3
        case 2:
            shape = np.exp(-time * 300)
        case _:
            shape = chance.uniform(0, 1, length // 160 + 1).repeat(160)[:length]
    return (level * shape * white).clip(-32768, 32767).astype(np.int16)


def _question(ms: int, tail_ms: int) -> Pcm:
    """A sound as loud as speech, and silence."""
    time = np.arange(ms * RATE_OUT // 1000) / RATE_OUT
    loud = 4000 * np.sin(2 * np.pi * 180 * time) * (0.6 + 0.4 * np.sin(2 * np.pi * 4 * time))
    return np.concatenate([loud, np.zeros(tail_ms * RATE_OUT // 1000)]).astype(np.int16)


def is_held_out(utterance: Utterance) -> bool:
    """Whether a turn belongs to the half on which nothing was tuned: by its text, so that the two
    voices of a text are in the same half."""
    return int(utterance.name.rpartition(":")[2]) % 2 == 1
