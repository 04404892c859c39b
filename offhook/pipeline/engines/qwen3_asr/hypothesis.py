"""The text of one utterance as token ids: stable, draft and evicted.

Every update processes all audio so far and could produce an entirely new text. The previous text is
given back to the model in two parts, in this order:

- *stable* tokens are forced: they are part of the prompt and never change;
- *draft* tokens are the rest of the last hypothesis. The forward pass that reads them also predicts
  the model's own token at each position; those that agree are kept.

A draft token costs no more than a forced one, so nothing is forced early for speed; stability only
serves consumers that act on partial text. Official streaming (qwen-asr 0.0.6) processes audio in
chunks of 2 s, forces nothing in the first two, and then forces all but the last 5 tokens, seen
once, right or wrong. Here a token becomes stable once it is far enough from the end, old enough in
audio, and equal in successive hypotheses ("local agreement", Liu et al. 2020, Macháček et al.
2023): never sooner than there, and independently of the update rate.

Positions in `Hypothesis` count text tokens from the utterance's start, without the header.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from offhook.pipeline.engines.qwen3_asr.windows import WINDOW_S
from offhook.pipeline.speech.streams.transcript import (
    header_language,
    header_pending,
    open_tail,
    polish,
    repeats,
)

UNFIXED_TOKENS = 5
"""Trailing tokens that stay draft, as in official streaming: the last word may be incomplete."""
AGREEING_UPDATES = 3
"""Consecutive updates that must agree on a token. UNFIXED_MS already implies the usual 2; the third
matters for streams that are updated rarely."""
UNFIXED_MS = 2000
"""Audio in ms that must follow since a token first appeared: one chunk of official streaming, since
hypotheses 80 ms apart are hardly independent."""

MAX_WINDOWS = 4
"""Completed 8 s windows in the prompt. More do not improve accuracy; each costs attention time and
11 MB of KV cache."""
KEPT_WINDOWS = 2
"""Windows kept on eviction. Evicting two at a time halves how often the rest is prefilled again."""
MAX_PREFIX_TOKENS = 150
"""Maximum text tokens in the prompt: about 40 s of speech, as long as MAX_WINDOWS plus the active
window."""

HEADER_TOKENS = 8
"""The header's closing tag is among its first 8 tokens; a later one is a model error."""
MAX_WORD_TOKENS = 8
"""Tokens to search backwards for the start of a word."""

WINDOW_MS = WINDOW_S * 1000

Decode = Callable[[Sequence[int]], str]
"""Decodes token ids bytewise: decode(a + b) == decode(a) + decode(b) wherever `a` ends on a whole
character; an incomplete one becomes U+FFFD (byte-level BPE without space clean-up)."""


class HypothesisUpdate(NamedTuple):
    """The text of an utterance after an update."""

    text: str
    stable_chars: int
    """Leading characters that will not change."""
    language: str
    """Language name in English; empty if unknown."""
    audio_ms: int


class _Origin(NamedTuple):
    """The update that first produced a draft token where it is, after the same tokens; all since
    then have agreed."""

    audio_ms: int
    number: int


def verify(draft: Sequence[int], predicted: Sequence[int]) -> tuple[int, int]:
    """Returns how many draft tokens the model agrees with, and its next token after them.

    `predicted` [len(draft) + 1] holds the argmax token after the forced prefix and after each draft
    token. The returned token may be end-of-text.
    """
    accepted = 0
    while accepted < len(draft) and draft[accepted] == predicted[accepted]:
        accepted += 1
    return accepted, predicted[accepted]


class Hypothesis:
    """The text of one utterance. One update calls `prompt`, runs the model, then `update` and
    `evict`.

    `asr_text` is the id of the tag that ends the header. With a forced `language` the header is
    part of the prompt rather than of these tokens. `guess` is the first draft, e.g. the header of
    the caller's previous utterance; if the model agrees, three decode steps are saved.
    """

    def __init__(
        self, decode: Decode, asr_text: int, language: str = "", guess: Sequence[int] = ()
    ) -> None:
        self._decode = decode
        self._asr_text = asr_text
        self._language = language
        self._begun = False  # whether the header, if any, is stable
        self._header: list[int] = []
        self._stable: list[int] = []  # stable text tokens still in the prompt
        self._draft = list(guess)
        self._origins: list[_Origin] = []
        """Of each draft token; none of a guess."""
        self._updates = 0
        self._forgotten = 0  # text tokens evicted from the prompt
        self._said = ""  # text of all stable tokens, evicted ones included
        self._audio_ms = 0
        self._named: tuple[Sequence[int], str] = ((), "")  # a header and the language it names
        self._window_ends: list[int] = []  # end position of each completed window in the prompt

    @property
    def header(self) -> list[int]:
        """Returns the current tokens of "language X<asr_text>"; empty if forced or not yet
        generated."""
        return self._header or self._draft[: self._drafted_header()]

    def prompt(self) -> tuple[list[int], list[int]]:
        """Returns the forced and the draft tokens that follow the prompt's tail."""
        return self._header + self._stable, self._draft.copy()

    def update(
        self, new_tokens: Sequence[int], audio_ms: int, final: bool = False
    ) -> HypothesisUpdate:
        """Adds the tokens that an update produced after the forced ones, without end-of-text, and
        returns the new text. `audio_ms` is the audio covered; with `final` no update follows and
        all text is stable.

        If the tokens end in a loop (`transcript.repeats`), one copy is kept. Copies that are
        already stable stay in the text but leave the prompt; otherwise the model would loop
        forever.
        """
        before = self._end()
        new_tokens = self._without_loop(new_tokens)
        agree = 0
        most = min(len(new_tokens), len(self._origins))
        while agree < most and self._draft[agree] == new_tokens[agree]:
            agree += 1
        self._updates += 1
        self._draft = list(new_tokens)
        self._origins[agree:] = [_Origin(audio_ms, self._updates)] * (len(new_tokens) - agree)
        self._complete_windows(before, audio_ms)
        self._audio_ms = audio_ms
        self._settle(len(self._draft) if final else self._agreed(), final)
        return self._result()

    def reopen(self) -> None:
        """Turns forced tokens back into draft before the last update, so that the final text is
        what the model predicts for the whole audio. Evicted text and the header before it stay."""
        again = self._stable
        if self._forgotten:
            kept = polish(self._decode(self._stable))
            if not self._said.endswith(kept):  # a loop was cut from it: do not go back
                return
            self._said = self._said[: len(self._said) - len(kept)]
        else:
            again = self._header + again
            self._said, self._begun, self._header = "", False, []
        self._draft[:0] = again
        self._origins[:0] = [_Origin(0, self._updates)] * len(again)
        self._stable = []

    def evict(self) -> int:
        """Returns how many of the oldest completed windows leave the prompt now, usually 0. Their
        text becomes stable and is evicted with them."""
        windows = len(self._window_ends)
        leave = 0
        if windows > KEPT_WINDOWS and (windows > MAX_WINDOWS or self._is_long()):
            leave = windows - KEPT_WINDOWS
            self._evict_until(self._window_ends[leave - 1])
            del self._window_ends[:leave]
        if self._is_long():
            # Very fast speech, or a script with many tokens per word: the text alone is too long.
            until = self._end() - MAX_PREFIX_TOKENS + MAX_WORD_TOKENS
            self._evict_until(min(until, self._stable_end()))
        return leave

    def _is_long(self) -> bool:
        return self._end() - self._forgotten > MAX_PREFIX_TOKENS

    def _stable_end(self) -> int:
        return self._forgotten + len(self._stable)

    def _end(self) -> int:
        return self._stable_end() + len(self._draft) - self._drafted_header()

    def _drafted_header(self) -> int:
        """Returns the number of header tokens at the start of the draft."""
        if self._begun:
            return 0
        start = self._draft[:HEADER_TOKENS]
        return start.index(self._asr_text) + 1 if self._asr_text in start else 0

    def _headless(self, complete: bool) -> bool:
        """Returns whether the draft is so far only an incomplete header."""
        if self._begun or self._language or self._drafted_header():
            return False
        return header_pending(self._decode(self._draft).strip(), complete)

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
        """Assigns tokens to the windows completed by this update, assuming that the new tokens are
        spread evenly over the new audio."""
        ends_ms = range((self._audio_ms // WINDOW_MS + 1) * WINDOW_MS, audio_ms + 1, WINDOW_MS)
        new = max(0, self._end() - before) if ends_ms else 0
        for end_ms in ends_ms:
            share = (end_ms - self._audio_ms) / (audio_ms - self._audio_ms)
            self._window_ends.append(min(before, self._end()) + round(new * share))

    def _agreed(self) -> int:
        """Returns how many leading draft tokens may become stable."""
        old_ms, old = self._audio_ms - UNFIXED_MS, self._updates - AGREEING_UPDATES + 1
        count = 0
        for origin in self._origins[: max(0, len(self._draft) - UNFIXED_TOKENS)]:
            if origin.audio_ms > old_ms or origin.number > old:
                break
            count += 1
        return count

    def _settle(self, count: int, final: bool = False) -> None:
        """Makes up to `count` leading draft tokens stable, but never part of a header, a tag or a
        character unless the text is final."""
        header = self._drafted_header()
        if not count or count < header or (not header and self._headless(final)):
            return
        tokens = self._draft[header:count]
        text = polish(self._decode(tokens))
        while not final and tokens and open_tail(text):
            tokens.pop()
            text = polish(self._decode(tokens))
        self._begun = True
        self._said += text if self._said else text.lstrip()
        self._header += self._draft[:header]
        self._stable += tokens
        del self._draft[: header + len(tokens)], self._origins[: header + len(tokens)]

    def _evict_until(self, position: int) -> None:
        """Makes text tokens before `position` stable and evicts them."""
        if position > self._stable_end():
            self._settle(self._drafted_header() + position - self._stable_end())
        leave = min(position - self._forgotten, len(self._stable))
        leave = self._word_start(leave) if leave < len(self._stable) else leave
        del self._stable[:leave]
        self._forgotten += leave

    def _word_start(self, position: int) -> int:
        """Returns the position, at or shortly before this one, where a word starts, or at least a
        character in scripts without spaces."""
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
        text = ""
        if not self._headless(complete=False):
            text = polish(self._decode(self._draft[header:]))
            text = text[: len(text) - open_tail(text)]
        text = self._said + (text if self._said else text.lstrip())
        language = self._language or self._language_named()
        return HypothesisUpdate(text.rstrip(), len(self._said.rstrip()), language, self._audio_ms)

    def _language_named(self) -> str:
        """Returns the language that the header names; empty if there is no header yet."""
        header = self.header
        if header != self._named[0]:
            self._named = header.copy(), header_language(self._decode(header[:-1]))
        return self._named[1]
