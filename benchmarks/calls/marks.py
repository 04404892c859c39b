"""Word marks found in the sound beside where the words really end.

Flite and eSpeak tell exactly where their words end; for the recordings of people PocketSphinx is
made to align the words they are known to say. The sound is played to `WordMarks` in pieces of
80 ms, and after each the words it takes for said are counted against those that are. Beside it a
clock that only counts letters, which is what marks are without listening.
"""

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
import pocketsphinx
import soxr

from benchmarks.command import command
from benchmarks.speech.recordings import read_16k, references, speech_folder
from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm
from offhook.pipeline.engines.embedded.embedded_speech_io import EmbeddedSynthesizer
from offhook.pipeline.engines.embedded.espeak_io import EspeakSynthesizer
from offhook.pipeline.engines.embedded.flite_io import FliteSynthesizer
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.synthesizer import VoiceOptions
from offhook.pipeline.speech.text.spoken_text import SpokenWord
from offhook.pipeline.speech.voice.word_marks import Pace, WordMarks

PIECE = RATE_OUT * 80 // 1000
MAX_VOICES = 3
"""Voices of an engine that speak the texts, the first ones, which are English."""
LETTERS_A_SECOND = 14.0
LEARNING = "marks, the pace learnt from reply to reply"
REPLIES = (
    "Good morning, this is the front desk. We are open from nine in the morning, and the "
    "doctor will see you on Friday. Your total is twenty five dollars, with the parking at "
    "half past ten. Is that all right?",
    "Hello! How can I help you today?",
    "I'm sorry, I did not quite catch that. Could you say it again, a little slower?",
    "Your appointment with Doctor Miller is on Tuesday the fourteenth of March at three "
    "thirty in the afternoon. Please bring your insurance card, and arrive ten minutes early.",
    "We have three rooms left: a single room with a view of the garden, a double room, and a "
    "suite on the top floor. The suite is two hundred dollars a night, breakfast included.",
    "To reset your password, open the settings, choose account, and then press the button "
    "that says reset. You will receive an email with a link. It is valid for one hour.",
    "No problem at all.",
    "The nearest station is about five minutes away on foot. Turn left at the traffic lights, "
    "go straight on until you see the church, and it is on your right hand side.",
    "Artificial intelligence systems are increasingly used in customer service, because they "
    "answer immediately, never get tired, and can speak many languages. However, they still "
    "make mistakes.",
    "I think that is a really good question. There are a few things to consider, such as the "
    "price, the quality of the material, and how long it takes to deliver.",
)


@dataclass(frozen=True)
class Reply:
    words: list[str]
    """As written, with the white space after each."""
    pcm: Pcm
    """24 kHz."""
    ends: list[int]
    """The sample each word ends before."""


@dataclass
class Row:
    voice: str
    words: int
    within_one: float
    """Share of the moments at which at most one word too many or too few is taken for said."""
    mean: float
    """Words too many, on average."""
    fewest: int
    most: int
    """The worst of all moments."""
    median_ms: float
    p90_ms: float
    """By which a word's mark is away from its end, half of the words and nine in ten."""


async def _spoken(
    synthesizer: EmbeddedSynthesizer, options: VoiceOptions, texts: Sequence[str]
) -> list[Reply]:
    replies = []
    for text in texts:
        stream = synthesizer.open(options)
        stream.write(text)
        stream.end()
        words, sound, ends, samples = [], [], [], 0
        async for piece in stream:
            sound.append(piece.pcm)
            samples += len(piece.pcm)
            if piece.text:
                words.append(piece.text)
                ends.append(samples)
        replies.append(Reply(words, np.concatenate(sound), ends))
    return replies


async def embedded_replies(
    engines: Sequence[type[EmbeddedSynthesizer]] = (FliteSynthesizer, EspeakSynthesizer),
    speed: float = 1.0,
    texts: Sequence[str] = REPLIES,
) -> dict[str, list[Reply]]:
    """What the voices of the engines that this machine has make of the texts."""
    voices = {}
    for synthesizer in (engine() for engine in engines):
        try:
            await synthesizer.start()
        except EngineError as error:
            print(error)
            continue
        for voice in synthesizer.voices()[:MAX_VOICES]:
            options = VoiceOptions(voice=voice, speed=speed)
            voices[f"{synthesizer.name} {voice}"] = await _spoken(synthesizer, options, texts)
        await synthesizer.close()
    return voices


def human_replies() -> Iterator[Reply]:
    """The recordings, each a sentence, with the ends that forced alignment gives its words."""
    decoder = pocketsphinx.Decoder(samprate=RATE_IN, loglevel="FATAL")
    for path, text in references(speech_folder()).items():
        pcm = read_16k(path)
        decoder.set_align_text(text)
        decoder.start_utt()
        decoder.process_raw(pcm.tobytes(), full_utt=True)
        decoder.end_utt()
        segments = [s for s in decoder.seg() or () if not s.word.startswith(("<", "["))]
        words = [re.sub(r"\(\d+\)", "", segment.word) for segment in segments]
        if words != text.split():
            continue
        words = [f"{word} " for word in words[:-1]] + [f"{words[-1]}."]
        sound = soxr.resample(pcm.astype(np.float32), RATE_IN, RATE_OUT)
        sound = np.clip(np.rint(sound), -32768, 32767).astype(np.int16)
        yield Reply(words, sound, [(s.end_frame + 1) * RATE_OUT // 100 for s in segments])


def marks(reply: Reply, pace: Pace | None = None, speed: float = 1.0) -> list[int]:
    """The sample after which each word is taken for said."""
    listener = WordMarks(speed, pace)
    for word in reply.words:
        listener.write(SpokenWord(word, word.strip()))
    found: list[int] = []
    for start in range(0, len(reply.pcm), PIECE):
        stop = min(start + PIECE, len(reply.pcm))
        found += [stop] * len(listener.feed(reply.pcm[start:stop]))
    return found + [len(reply.pcm)] * len(listener.finish())


def letter_marks(reply: Reply) -> list[int]:
    """The same by a steady number of letters a second."""
    letters = np.cumsum([len(word) for word in reply.words])
    return [min(len(reply.pcm), int(n / LETTERS_A_SECOND * RATE_OUT)) for n in letters]


def judge(voice: str, replies: Sequence[Reply], find: Callable[[Reply], list[int]]) -> Row:
    too_many: list[int] = []
    away_ms: list[float] = []
    for reply in replies:
        found, ends = np.array(find(reply)), np.array(reply.ends)
        moments = np.arange(PIECE, len(reply.pcm), PIECE)
        counts = [np.searchsorted(of, moments, "right") for of in (found, ends)]
        too_many += (counts[0] - counts[1]).tolist()
        away_ms += (np.abs(found - ends) * 1000 / RATE_OUT).tolist()
    off = np.array(too_many)
    median, most = np.percentile(away_ms, (50, 90))
    within = float(np.mean(np.abs(off) <= 1))
    words = sum(len(reply.words) for reply in replies)
    mean = float(off.mean())
    return Row(voice, words, within, mean, off.min().item(), off.max().item(), median, most)


def measure() -> dict[str, list[Row]]:
    voices = asyncio.run(embedded_replies())
    if speech_folder().exists():
        voices["people"] = list(human_replies())
    rows: dict[str, list[Row]] = {"letters a second": [], "marks": [], LEARNING: []}
    for voice, replies in voices.items():
        rows["letters a second"].append(judge(voice, replies, letter_marks))
        rows["marks"].append(judge(voice, replies, marks))
        rows[LEARNING].append(judge(voice, replies, partial(marks, pace=Pace())))
    return rows


def cost_us(reply: Reply) -> float:
    """Median microseconds of one 80 ms piece."""
    listener = WordMarks()
    for word in reply.words:
        listener.write(SpokenWord(word, word.strip()))
    times = []
    for start in range(0, len(reply.pcm) - PIECE, PIECE):
        begin = time.perf_counter()
        listener.feed(reply.pcm[start : start + PIECE])
        times.append(time.perf_counter() - begin)
    return float(np.median(times)) * 1e6


def main(argv: Sequence[str] | None = None) -> int:
    parser = command("marks", __doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    rows = measure()
    if arguments.json:
        print(json.dumps({name: [asdict(row) for row in some] for name, some in rows.items()}))
        return 0
    for name, some in rows.items():
        print(f"{name}:")
        for r in some:
            print(
                f"  {r.voice:14} {r.words:4} words, within one {100 * r.within_one:5.1f} %, mean "
                f"{r.mean:+.2f}, worst {r.fewest:+d} {r.most:+d}; away {r.median_ms:.0f} ms, "
                f"nine in ten {r.p90_ms:.0f} ms"
            )
    replies = asyncio.run(embedded_replies())
    print(f"{cost_us(next(iter(replies.values()))[0]):.0f} µs for a piece of 80 ms")
    return 0
