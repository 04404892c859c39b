"""The life of one utterance's text, as token ids: what is sure, what is supposed, what forgotten.

Every update hears all audio so far and could say everything anew. What was said before comes back
to the model in two parts, in this order:

- *stable* tokens are forced: they stand in the prompt and are never taken back;
- *draft* tokens are the rest of the last hypothesis. The same forward pass that reads them says
  what the model would have written in their place; those it agrees with are kept.

A draft token costs what a forced one costs, so there is no hurry to force: stability is only for
whoever acts on the text early. Official streaming (qwen-asr 0.0.6) hears audio in chunks of 2 s,
forces nothing in the first two of them, and then all but the last 5 tokens, seen once, right or
wrong. Here a token becomes stable when it is far enough from the end, old enough in audio, and the
same in successive hypotheses ("local agreement", Liu et al. 2020, Macháček et al. 2023): never
sooner than there, and independently of how often a stream is updated.

Positions in `Hypothesis` count text tokens from the utterance's start, without the header.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from offhook.pipeline.engine.asr.windows import WINDOW_S
from offhook.pipeline.speech.streams.transcript import (
    header_language,
    header_pending,
    open_tail,
    polish,
    repeats,
)

UNFIXED_TOKENS = 5
"""Tokens at the end that stay draft, as in official streaming: a last word may be half heard."""
AGREEING_UPDATES = 3
"""Updates in a row that must have said a token. The 2 of the literature follow from UNFIXED_MS; a
third is asked for when a stream is updated late and seldom."""
UNFIXED_MS = 2000
"""ms of audio that must have come since a token was first said: one chunk of official streaming.
Two hypotheses 80 ms apart are hardly two opinions."""

MAX_WINDOWS = 4
"""Completed windows (of 8 s) in the prompt. More of them no longer help, and cost attention and
11 MB of cache each."""
KEPT_WINDOWS = 2
"""Left when there would be more: dropping two at a time halves how often the rest is read again."""
MAX_PREFIX_TOKENS = 150
"""Text tokens in the prompt: 40 s of speech, the length of MAX_WINDOWS and the active one."""

HEADER_TOKENS = 8
"""A header's tag is among the first so many tokens; a tag later on is a fault of the model."""
MAX_WORD_TOKENS = 8
"""Tokens to go back for the beginning of a word."""

WINDOW_MS = WINDOW_S * 1000

Decode = Callable[[Sequence[int]], str]
"""Token ids to text, byte by byte: decode(a + b) == decode(a) + decode(b) wherever a ends with a
whole character; a half one becomes U+FFFD. (Byte-level BPE without clean-up of spaces.)"""


@dataclass(frozen=True)
class HypothesisUpdate:
    """What the caller is told."""

    text: str
    stable_chars: int
    """The first so many characters are never taken back."""
    language: str
    """In English; empty when unknown."""
    audio_ms: int


@dataclass
class _Drafted:
    """A token supposed, and since when."""

    token: int
    since_ms: int
    """ms of audio of the update that first said it here, after the same tokens."""
    updates: int = 1
    """Updates in a row that said it."""


def verify(draft: Sequence[int], predicted: Sequence[int]) -> tuple[int, int]:
    """How much of the draft the model would have said itself, and what it says after that.

    `predicted` [len(draft) + 1]: the likeliest token after the forced prefix, then after each
    draft token. The token returned may be the end of the text.
    """
    accepted = 0
    while accepted < len(draft) and draft[accepted] == predicted[accepted]:
        accepted += 1
    return accepted, predicted[accepted]


class Hypothesis:
    """The text of one utterance. The loop of an update: `prompt`, the model, `take`, `forget`.

    `asr_text`: id of the tag that ends the header. `language`: the forced one; the header is then
    part of the prompt and not of the tokens here. `guess`: the first draft, such as the header of
    the caller's last utterance: if the model agrees, three decode steps are saved.
    """

    def __init__(
        self, decode: Decode, asr_text: int, language: str = "", guess: Sequence[int] = ()
    ) -> None:
        self._decode = decode
        self._asr_text = asr_text
        self._language = language
        self._begun = False  # the header, if there is one, is stable
        self._header: list[int] = []
        self._stable: list[int] = []  # text tokens still in the prompt
        self._draft = [_Drafted(token, 0, 0) for token in guess]
        self._forgotten = 0  # text tokens that left the prompt
        self._said = ""  # the text of all stable tokens, forgotten ones too
        self._audio_ms = 0
        self._window_ends: list[int] = []  # of each completed window in the prompt: its last + 1

    @property
    def header(self) -> list[int]:
        """The tokens "language X<asr_text>" as now believed; none when forced or not yet said."""
        return self._header or [d.token for d in self._draft[: self._drafted_header()]]

    def prompt(self) -> tuple[list[int], list[int]]:
        """Forced tokens and draft tokens, for after the prompt's tail."""
        return self._header + self._stable, [d.token for d in self._draft]

    def update(
        self, new_tokens: Sequence[int], audio_ms: int, final: bool = False
    ) -> HypothesisUpdate:
        """Take what an update said after the forced tokens, its end-of-text token left out, having
        heard `audio_ms` of the utterance. `final`: no update follows, all is stable.

        If the tokens end in a loop (`transcript.repeats`), one copy is kept. Copies that are
        stable already stay in the text but leave the prompt, or the model would loop for ever.
        """
        before = self._end()
        new_tokens = self._without_loop(new_tokens)
        agree = 0
        while agree < min(len(new_tokens), len(self._draft)):
            drafted = self._draft[agree]
            if drafted.token != new_tokens[agree]:
                break
            if not drafted.updates:  # a guess
                drafted.since_ms = audio_ms
            drafted.updates += 1
            agree += 1
        self._draft[agree:] = [_Drafted(token, audio_ms) for token in new_tokens[agree:]]
        self._complete_windows(before, audio_ms)
        self._audio_ms = audio_ms
        self._settle(len(self._draft) if final else self._agreed(), final)
        return self._result()

    def reopen(self) -> None:
        """Before the last update: what is forced becomes draft, so that the final text is what
        the model says of the whole sound, whatever was stable on the way. Forgotten text stands,
        and so does the header before it."""
        again = self._stable
        if self._forgotten:
            kept = polish(self._decode(self._stable))
            if not self._said.endswith(kept):  # a loop was cut out of it: better not gone back to
                return
            self._said = self._said[: len(self._said) - len(kept)]
        else:
            again = self._header + again
            self._said, self._begun, self._header = "", False, []
        self._draft[:0] = [_Drafted(token, 0) for token in again]
        self._stable = []

    def evict(self) -> int:
        """How many of the oldest completed windows leave the prompt now, mostly none. Their text
        becomes stable and leaves it with them."""
        windows = len(self._window_ends)
        tokens = self._end() - self._forgotten
        leave = 0
        if windows > KEPT_WINDOWS and (windows > MAX_WINDOWS or tokens > MAX_PREFIX_TOKENS):
            leave = windows - KEPT_WINDOWS
            self._evict_until(self._window_ends[leave - 1])
            del self._window_ends[:leave]
        if self._end() - self._forgotten > MAX_PREFIX_TOKENS:
            # Very fast speech, or a script that takes many tokens: the text alone is too long.
            until = self._end() - MAX_PREFIX_TOKENS + MAX_WORD_TOKENS
            self._evict_until(min(until, self._stable_end()))
        return leave

    def _stable_end(self) -> int:
        return self._forgotten + len(self._stable)

    def _end(self) -> int:
        return self._stable_end() + len(self._draft) - self._drafted_header()

    def _drafted_header(self) -> int:
        """Tokens of the header at the beginning of the draft."""
        if self._begun:
            return 0
        start = [d.token for d in self._draft[:HEADER_TOKENS]]
        return start.index(self._asr_text) + 1 if self._asr_text in start else 0

    def _headless(self, complete: bool) -> bool:
        """The draft is the beginning of a header and nothing else yet."""
        if self._begun or self._language or self._drafted_header():
            return False
        return header_pending(self._decode([d.token for d in self._draft]).strip(), complete)

    def _without_loop(self, new_tokens: Sequence[int]) -> Sequence[int]:
        tokens = [*self._stable, *new_tokens]
        keep = repeats(tokens)
        if keep is None:
            return new_tokens
        half = "\N{REPLACEMENT CHARACTER}"
        while keep < len(tokens) and self._decode(tokens[max(0, keep - 4) : keep]).endswith(half):
            keep += 1  # a character has up to four tokens, and the copy may end inside one
        new_tokens = tokens[len(self._stable) : keep]
        del self._stable[keep:]
        return new_tokens

    def _complete_windows(self, before: int, audio_ms: int) -> None:
        """Give tokens to the windows that completed in this update: what was said by the time one
        ended, taking the tokens new since the last update as said evenly."""
        ends_ms = range((self._audio_ms // WINDOW_MS + 1) * WINDOW_MS, audio_ms + 1, WINDOW_MS)
        new = max(0, self._end() - before)
        for end_ms in ends_ms:
            share = (end_ms - self._audio_ms) / (audio_ms - self._audio_ms)
            self._window_ends.append(min(before, self._end()) + round(new * share))

    def _agreed(self) -> int:
        """Draft tokens, from the first on, that may become stable."""
        count = 0
        for drafted in self._draft[: max(0, len(self._draft) - UNFIXED_TOKENS)]:
            young = self._audio_ms - drafted.since_ms < UNFIXED_MS
            if young or drafted.updates < AGREEING_UPDATES:
                break
            count += 1
        return count

    def _settle(self, count: int, final: bool = False) -> None:
        """Make the first `count` draft tokens stable, or fewer: never a part of the header, nor up
        to within a character or a tag, unless nothing will follow."""
        header = self._drafted_header()
        if not count or count < header or (not header and self._headless(final)):
            return
        tokens = [d.token for d in self._draft[header:count]]
        text = polish(self._decode(tokens))
        while not final and tokens and open_tail(text):
            tokens.pop()
            text = polish(self._decode(tokens))
        self._begun = True
        self._said += text if self._said else text.lstrip()
        self._header += [d.token for d in self._draft[:header]]
        self._stable += tokens
        del self._draft[: header + len(tokens)]

    def _evict_until(self, position: int) -> None:
        """Text tokens before `position` become stable and leave the prompt."""
        if position > self._stable_end():
            self._settle(self._drafted_header() + position - self._stable_end())
        leave = min(position - self._forgotten, len(self._stable))
        leave = self._word_start(leave) if leave < len(self._stable) else leave
        del self._stable[:leave]
        self._forgotten += leave

    def _word_start(self, position: int) -> int:
        """The stable token, this or one shortly before, that begins a word; or at least one that
        begins a character, for scripts without spaces."""
        character = 0
        for start in range(position, max(0, position - MAX_WORD_TOKENS), -1):
            text = self._decode(self._stable[start : start + 1])
            if text[:1].isspace():
                return start
            if not character and not text.startswith("\N{REPLACEMENT CHARACTER}"):
                character = start
        return character

    def _result(self) -> HypothesisUpdate:
        header = self._drafted_header()
        language = self._language
        if not language and (tokens := self.header):
            language = header_language(self._decode(tokens[:-1]))
        text = ""
        if not self._headless(complete=False):
            text = polish(self._decode([d.token for d in self._draft[header:]]))
            text = text[: len(text) - open_tail(text)]
        text = self._said + (text if self._said else text.lstrip())
        return HypothesisUpdate(text.rstrip(), len(self._said.rstrip()), language, self._audio_ms)
