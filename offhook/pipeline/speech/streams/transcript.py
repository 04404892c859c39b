"""Parses the model's output: language, text and repetition loops.

The model writes ``language English<asr_text>so the text begins``, or ``language None<asr_text>``
for silence. Parsing follows parse_asr_output of qwen-asr 0.0.6, with these differences:

- Control tokens never reach the user. There, ``<non_speech>`` and a second ``<asr_text>`` stay in
  the text, and so does the header if the model writes one for a forced language.
- A header that ends before its tag is not text; there, "language Engl" is.
- Incomplete output can be parsed: a header or tag that is not complete is hidden.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

ASR_TEXT = "<asr_text>"
HEADER_START = "language "
MAX_HEADER = 64
"""Maximum characters of a header; output without a tag by then is text."""

REPETITIONS = 20
"""Consecutive copies of the same characters that count as a model error."""
MAX_PATTERN = 20
"""Maximum characters, or tokens, of such a repeated pattern."""
PROBE = 4
"""Characters by which `may_repeat` recognizes a pattern."""

CONTROL_TOKENS = (
    ASR_TEXT,
    *("<non_speech>", "<timestamp>", "<think>", "</think>"),
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    *("<tts_pad>", "<tts_text_bos>", "<tts_text_eod>", "<tts_text_bos_single>"),
    *(f"<blank{number}>" for number in range(1, 28)),
)
"""Control tokens besides those of the form <|name|>. Not all are marked as special, so decoding may
leave them in the text."""
_NAMED = "|".join(map(re.escape, CONTROL_TOKENS))
_ANY = rf"(?:{_NAMED}|<\|[^<|>\s]{{1,32}}\|>)"
_TAG = re.compile(rf"(?<=\s){_ANY} |{_ANY}")
"""Matches a tag, and one of two surrounding spaces."""
_HEADER = re.compile(r"language \w{1,32}<asr_text>")
_BROKEN_HEADER = re.compile(r"(?i)language(?: \w{0,32}(?:<[a-z_]*)?)?")
_OPENING = "<"
"""Begins every tag; most texts have none."""
_BEGUN = {token[:n] for token in CONTROL_TOKENS for n in range(1, len(token))}
_OPEN_TAG = re.compile(rf"(?:{'|'.join(sorted(_BEGUN, reverse=True))})\Z|<\|[^<|>\s]{{0,32}}\|?\Z")

MAX_TOKENS_PER_SECOND = 25
"""Fast speech has 7 or 8 syllables a second; scripts that the tokenizer covers badly (Thai, Hindi,
Greek) need up to three tokens for each."""
MIN_MAX_TOKENS = 32
"""Room for the header and a first word, however short the audio."""

_LOOP = {1: 20, 2: 12, 3: 10, 4: 8, 5: 7, **dict.fromkeys(range(6, 10), 6)}
LOOP_COPIES = tuple(_LOOP.get(period, 5) for period in range(MAX_PATTERN + 1))
"""Consecutive copies that make a loop, by period in tokens. One token: long numbers ("000 000 000"
is nine tokens) and laughter ("hahaha") are legitimate, so as many as in the official rule for text.
Two to four ("hello? hello?", "la la la"): 24 to 32 tokens, about 8 s of nothing else. A sentence
("Can you hear me?") is repeated three or four times, not five or six."""


@dataclass(frozen=True)
class Transcript:
    language: str
    """English name with a capital ("German"); empty if unknown or nobody spoke."""
    text: str


def parse(raw: str, language: str = "", complete: bool = True) -> Transcript:
    """Parses decoded output into language and text.

    `language` is the forced language, if any, whose header is part of the prompt. `complete` is
    False while the output is still being generated.
    """
    raw = raw.strip() if complete else raw.lstrip()
    header, tag, text = ("", "", raw) if language else raw.partition(ASR_TEXT)
    if not tag:
        if not language and header_pending(raw, complete):
            return Transcript("", "")
        header, text = "", raw
    text = polish(text)
    if not complete:
        text = text[: len(text) - open_tail(text)]
    return Transcript(language or header_language(header), text.strip())


def polish(text: str) -> str:
    """Returns the text without tags and loops."""
    bare = strip_tags(text)
    return fix_repetitions(bare) if may_repeat(bare) else bare


def header_language(header: str) -> str:
    """Returns the language that a header names ("language German" gives "German"); empty if
    none."""
    if HEADER_START + "none" in header.lower():
        return ""
    for line in header.splitlines():
        if line.strip().lower().startswith(HEADER_START):
            return line.strip()[len(HEADER_START) :].strip().capitalize()
    return ""


def header_pending(raw: str, complete: bool = False) -> bool:
    """Returns whether output without a tag is an incomplete or broken-off header, which is not
    shown."""
    if complete:
        return bool(_BROKEN_HEADER.fullmatch(raw))
    return HEADER_START.startswith(raw[: len(HEADER_START)].lower()) and len(raw) <= MAX_HEADER


def strip_tags(text: str) -> str:
    """Removes tags, with the header words before them, repeatedly, since removing one may create
    another."""
    while _OPENING in text:
        bare = _TAG.sub("", _HEADER.sub("", text))
        if bare == text:
            break
        text = bare
    return text


def open_tail(text: str) -> int:
    """Returns the number of trailing characters that may be an incomplete tag or character."""
    bare = text.rstrip("\N{REPLACEMENT CHARACTER}")
    while _OPENING in bare:
        closed = _OPEN_TAG.sub("", bare).rstrip("\N{REPLACEMENT CHARACTER}")
        if closed == bare:
            break
        bare = closed
    return len(text) - len(bare)


def fix_repetitions(text: str, threshold: int = REPETITIONS) -> str:
    """Keep one copy of what stands there over and over.

    First, more than `threshold` of one character in a row become one. Then, from the left, a piece
    of up to 20 characters, the shortest that fits, which stands there `threshold` times or more.

    The same as detect_and_fix_repetitions of qwen-asr 0.0.6, its oddity included: exactly
    `threshold` copies of one character become one only where `threshold` characters or more
    follow. That function calls itself once a repetition, copying the rest of the text each time,
    and fails with RecursionError on about a thousand of them; this one scans once.
    """
    text = re.sub(rf"(?s)(.)\1{{{threshold},}}", r"\1", text)
    piece = rf"(?s)(?=.{{{2 * threshold}}})(.{{1,{MAX_PATTERN}}}?)\1{{{threshold - 1},}}"
    return re.sub(piece, r"\1", text)


def may_repeat(text: str) -> bool:
    """Returns False where `fix_repetitions` surely finds nothing, in a thirtieth of its time.

    Whatever stands there REPETITIONS times spans so many characters. Some of them, PROBE long,
    begin where one is looked for here; they come again within MAX_PATTERN characters, and often
    enough without overlap.
    """
    for at in range(0, len(text) - PROBE, REPETITIONS - PROBE):
        probe = text[at : at + PROBE]
        again = text.find(probe, at + 1, at + MAX_PATTERN + PROBE)
        if again > 0 and text.count(probe) >= REPETITIONS // PROBE:
            return True
    return False


def repeats(tokens: Sequence[int]) -> int | None:
    """Is the tail a loop? Then how many tokens to keep: up to the end of the first copy. Decoding
    ends there as if the model had said so.

    To be asked after each new token: it looks only at the tail, and a loop is noticed at the token
    that makes it one. About half a microsecond when its last token is new.
    """
    size = len(tokens)
    if size < REPETITIONS:
        return None
    last = tokens[-1]
    if last not in tokens[-1 - MAX_PATTERN : -1]:
        return None
    for period in range(1, MAX_PATTERN + 1):
        if size <= period or tokens[-1 - period] != last:
            continue
        span = period * (LOOP_COPIES[period] - 1)
        if size >= span + period and tokens[-span:] == tokens[-span - period : -period]:
            start = size - span - period
            while start and tokens[start - 1] == tokens[start - 1 + period]:
                start -= 1
            return start + period
    return None


def most_tokens(audio_ms: int) -> int:
    """More than anybody says in `audio_ms` of audio: the end of all decoding."""
    return MIN_MAX_TOKENS + audio_ms * MAX_TOKENS_PER_SECOND // 1000
