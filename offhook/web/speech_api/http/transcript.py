"""The transcript of a file and its formats: text, SubRip, WebVTT and OpenAI's JSON.

The shapes are those of OpenAI's transcriptions (openapi.yaml of 2026). A verbose
segment has figures that only Whisper has; here they are neutral, so that no filter drops a segment:
`tokens` is empty, `temperature`, `avg_logprob` and `no_speech_prob` are 0. `compression_ratio` is
computed as Whisper does, `seek` is the segment's start in frames of 10 ms.
"""

import math
import re
import textwrap
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, Literal, get_args

from offhook.pipeline.speech.recognizer import Word
from offhook.pipeline.speech.streams.languages import NAMES

Format = Literal["json", "text", "srt", "vtt", "verbose_json"]
FORMATS: tuple[Format, ...] = get_args(Format)
Task = Literal["transcribe", "translate"]
Granularity = Literal["word", "segment"]

PHRASE_S = 7.0
"""s of the longest phrase that a segment is cut into, if its words have times: one caption."""
LINE_CHARS = 42
LINES = 2
"""Of one caption, the most that is read at a glance."""
PAUSE_S = 0.8
"""s of silence between two words after which a new phrase begins."""
SHOWN_S = 1.0
"""Minimum duration in s of a caption, if the next one permits."""

_SENTENCE_END = re.compile(r"[.!?…。！？]['\"”’)\]]*$")
_UNSPACED = re.compile("[\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uff00-\uffef]")
"""Chinese and Japanese characters, which have no spaces between sentences."""


@dataclass(frozen=True)
class Segment:
    """A piece of the file and its text; times in seconds of the file."""

    start: float
    end: float
    text: str
    words: tuple[Word, ...] = ()
    """Words with times in ms of the file."""
    language: str = ""
    """ISO 639 code; empty if nothing was said."""

    def labels(self) -> str:
        """A line for each word: begin and end in seconds of the file, and the word; one line for a
        segment whose words have no times. Audacity imports it as labels."""
        timed = [(w.start_ms / 1000, w.end_ms / 1000, w.text) for w in self.words]
        lines = timed or [(self.start, self.end, self.text)]
        return "\n".join(f"{start:.3f}\t{end:.3f}\t{text}" for start, end, text in lines)


@dataclass
class Transcript:
    """The transcript of a file as its segments arrive."""

    duration: float = 0.0
    """Seconds of audio transcribed so far."""
    segments: list[Segment] = field(default_factory=list)
    text: str = ""

    def add(self, segment: Segment) -> str:
        """Adds the next segment and returns what it adds to the text."""
        before = len(self.text)
        self.segments.append(segment)
        self.duration = segment.end
        self.text = joined((self.text, segment.text))
        return self.text[before:]

    @property
    def language(self) -> str:
        """The language of most of the text; empty when nothing was said."""
        said: Counter[str] = Counter()
        for segment in self.segments:
            said[segment.language] += len(segment.text)
        return max(said, key=lambda language: said[language]) if said.total() else ""

    def render(
        self, form: Format, wanted: Collection[Granularity] = (), task: Task = "transcribe"
    ) -> str | dict[str, Any]:
        """The transcript in `form`: a text, or a JSON object."""
        match form:
            case "json":
                return {"text": self.text, "usage": self.usage()}
            case "text":
                return self.text + "\n"
            case "srt":
                return srt(self.segments)
            case "vtt":
                return vtt(self.segments)
            case "verbose_json":
                return self._verbose(wanted, task)

    def _verbose(self, wanted: Collection[Granularity], task: Task) -> dict[str, Any]:
        phrases = [phrase for segment in self.segments for phrase in phrases_of(segment)]
        table: dict[str, Any] = {
            "task": task,
            "language": "english" if task == "translate" else name_of(self.language),
            "duration": round(self.duration, 3),
            "text": self.text,
        }
        if "segment" in wanted or not wanted:
            table["segments"] = [_verbose_segment(n, phrase) for n, phrase in enumerate(phrases)]
        if "word" in wanted:
            table["words"] = [openai_word(word) for s in self.segments for word in s.words]
        return {**table, "usage": self.usage()}

    def usage(self) -> dict[str, Any]:
        """The audio in seconds, rounded up, as OpenAI counts it."""
        return {"type": "duration", "seconds": math.ceil(self.duration)}


def _verbose_segment(number: int, segment: Segment) -> dict[str, Any]:
    text = segment.text.encode()
    return {
        "id": number,
        "seek": int(segment.start * 100),
        "start": round(segment.start, 3),
        "end": round(segment.end, 3),
        "text": segment.text,
        "tokens": [],
        "temperature": 0.0,
        "avg_logprob": 0.0,
        "compression_ratio": round(len(text) / len(zlib.compress(text)), 3),
        "no_speech_prob": 0.0,
    }


def openai_word(word: Word) -> dict[str, Any]:
    return {"word": word.text, "start": word.start_ms / 1000, "end": word.end_ms / 1000}


def name_of(language: str) -> str:
    """OpenAI's name of a language, as "english"; its code where no name is known."""
    return NAMES.get(language, language).lower()


def joined(texts: Iterable[str]) -> str:
    """Joins texts with spaces unless the script has none."""
    whole = ""
    for text in filter(None, texts):
        spaced = whole and not (_UNSPACED.match(whole[-1]) or _UNSPACED.match(text[0]))
        whole += f" {text}" if spaced else text
    return whole


# --- captions ---


def phrases_of(segment: Segment) -> list[Segment]:
    """The segment cut into phrases that fit a caption; uncut if its words have no times. Empty if
    nothing was said."""
    if not segment.text:
        return []
    slices = _slices(segment)
    if not slices:
        return [segment]
    phrases: list[list[tuple[Word, str]]] = [[]]
    for word, text in slices:
        if phrases[-1] and _starts_phrase(phrases[-1], word, text):
            phrases.append([])
        phrases[-1].append((word, text))
    return [
        replace(
            segment,
            start=phrase[0][0].start_ms / 1000,
            end=phrase[-1][0].end_ms / 1000,
            text="".join(text for _, text in phrase).strip(),
            words=tuple(word for word, _ in phrase),
        )
        for phrase in phrases
    ]


def _starts_phrase(phrase: list[tuple[Word, str]], word: Word, text: str) -> bool:
    """Whether a new phrase begins with `word`."""
    first, last = phrase[0][0], phrase[-1][0]
    said = "".join(text for _, text in phrase)
    return (
        word.start_ms - last.end_ms >= PAUSE_S * 1000
        or word.end_ms - first.start_ms > PHRASE_S * 1000
        or len(_lines(said + text)) > LINES
        or bool(_SENTENCE_END.search(said.rstrip()))
    )


def _slices(segment: Segment) -> list[tuple[Word, str]]:
    """Returns each word with its slice of the text, including punctuation and space; empty if the
    words do not match the text."""
    text, at = segment.text, 0
    # Some letters change length in lower case; then the text must be written exactly like the
    # words.
    plain: Callable[[str], str] = str.lower if len(text.lower()) == len(text) else str
    within, begins = plain(text), []
    for word in segment.words:
        found = within.find(plain(word.text), at)
        if found < 0 or not word.text:
            return []
        begins.append(found)
        at = found + len(word.text)
    cuts = [0, *begins[1:], len(text)]
    return [(word, text[a:b]) for word, a, b in zip(segment.words, cuts, cuts[1:], strict=False)]


def _captions(segments: Iterable[Segment]) -> Iterator[tuple[int, int, list[str]]]:
    """Each caption's begin and end in ms, and its lines."""
    phrases = [phrase for segment in segments for phrase in phrases_of(segment)]
    for phrase, following in zip_longest(phrases, phrases[1:]):
        start, end = round(phrase.start * 1000), round(phrase.end * 1000)
        end = max(end, start + round(SHOWN_S * 1000))
        if following is not None:
            end = min(end, round(following.start * 1000))
        yield start, max(end, start + 1), _lines(phrase.text)


def _lines(text: str) -> list[str]:
    return textwrap.wrap(text, LINE_CHARS, break_on_hyphens=False)


def srt(segments: Iterable[Segment]) -> str:
    """The captions as a SubRip file."""
    blocks = []
    for number, (start, end, lines) in enumerate(_captions(segments), 1):
        # Nothing escapes an arrow: no row of hyphens may become one.
        text = re.sub("-+>", "->", "\n".join(lines))
        blocks.append(f"{number}\n{_clock(start, ',')} --> {_clock(end, ',')}\n{text}\n")
    return "\n".join(blocks)


def vtt(segments: Iterable[Segment]) -> str:
    """The captions as a WebVTT file."""
    blocks = ["WEBVTT\n"]
    for start, end, lines in _captions(segments):
        text = "\n".join(lines).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        blocks.append(f"{_clock(start, '.')} --> {_clock(end, '.')}\n{text}\n")
    return "\n".join(blocks)


def _clock(ms: int, point: str) -> str:
    seconds, ms = divmod(ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}{point}{ms:03}"
