"""What of a language model's content is for the caller: reasoning, tool calls written as text,
special tokens and the name of the speaker are taken out of a stream, wherever it is cut.

Models without a parser for their dialect in front of them send all of that as content. Most tags
are opened and closed. The templates of DeepSeek-R1 and Qwen3 open the reasoning themselves, so that
the content begins inside it and only `</think>` ever comes. That is not known before it does:
until then an answer is passed on without delay, and `Spoken.anew` takes back what was passed on,
which the caller may have heard a part of. Who remembers that a model does this, or expects it, sets
`thinks_first` for its next answers, of which nothing is passed on before `</think>`, or the end.
"""

import re
from dataclasses import dataclass

_REASONING = {f"<{tag}>": f"</{tag}>" for tag in ("think", "thinking", "thought", "reasoning")}
_TOOLS = {f"<{tag}>": f"</{tag}>" for tag in ("tool_call", "tool_calls", "function_call")} | {
    "<function=": "</function>",
    "<｜tool▁calls▁begin｜>": "<｜tool▁calls▁end｜>",
    "[TOOL_CALLS]": "",
    "<|python_tag|>": "",
}
_OTHERS = {
    "<|channel|>analysis": "<|channel|>final<|message|>",
    "<|channel|>commentary": "<|channel|>final<|message|>",
    "<|im_start|>user": "<|im_start|>assistant",
    "<|im_start|>system": "<|im_start|>assistant",
    "<|im_start|>tool": "<|im_start|>assistant",
}
_CLOSED_BY = {tag.lower(): end for tag, end in (_REASONING | _TOOLS | _OTHERS).items()}
"""Tags, and what ends that which they open; empty: the end of the answer."""
_ENDS_REASONING = frozenset(_REASONING.values())
_CALLS_TOOL = frozenset(tag.lower() for tag in _TOOLS)
_LITERALS = (
    *_CLOSED_BY,
    *(end.lower() for end in _CLOSED_BY.values() if end),
    "<|start_header_id|>assistant<|end_header_id|>",
    "<|im_start|>assistant",
    "<|start|>assistant",
)
_LONGEST = max(map(len, _LITERALS))
MAX_TOKEN_CHARACTERS = 40
"""Maximum characters of a special token's name, as in `<|endoftext|>`; a longer one is text."""
PIECE_CHARACTERS = 1000
"""Characters of a whole content that are read at a time, as what is left is copied at each tag."""
_NAME = rf"[^|｜<>\s]{{1,{MAX_TOKEN_CHARACTERS}}}"
_FLAGS = re.IGNORECASE | re.ASCII
_TAG = re.compile(
    "|".join(re.escape(tag) for tag in sorted(_LITERALS, key=len, reverse=True))
    + rf"|<\|{_NAME}\|>|<｜{_NAME}｜>|\[/?INST\]|</?s>",
    _FLAGS,
)
_BEGINS_TOKEN = re.compile(
    rf"<(?:[|｜][^|｜<>\s]{{0,{MAX_TOKEN_CHARACTERS}}}[|｜]?|/?s?)|\[/?I?N?S?T?", _FLAGS
)
_MARK = re.compile(r"[<\[]")
_NAMED = "assistant"
_SPEAKER = re.compile(rf"{_NAMED} {{0,3}}:", _FLAGS)
_BEGINS_SPEAKER = re.compile(
    "|".join(_NAMED[:length] for length in range(1, len(_NAMED))) + rf"|{_NAMED} {{0,3}}", _FLAGS
)


@dataclass(frozen=True)
class Spoken:
    """What is passed on."""

    text: str = ""
    anew: bool = False
    """What was passed on before is reasoning; the answer begins here."""


class SpokenContent:
    """The content of one answer. What is passed on, joined from the last `anew`, is the same for
    any division of the content into deltas."""

    def __init__(self, *, thinks_first: bool = False) -> None:
        """`thinks_first`: the content begins inside the reasoning."""
        self.thinks_first = thinks_first
        """Whether the content began inside the reasoning, as far as is known."""
        self.calls_tool = False
        """Whether a tool call was written as text."""
        self._held = thinks_first
        """Nothing is passed on before the reasoning ends."""
        self._rest = ""
        """What is not decided yet."""
        self._until: str | None = None
        """What ends that which is being left out."""
        self._begun = False
        """Whether the answer has begun."""

    def feed(self, delta: str) -> Spoken:
        """Returns what can be passed on once this much of the content is known."""
        self._rest += delta
        if self._held:
            late = self._rest[-len(delta) - _LONGEST :].lower()
            self._held = not any(end in late for end in _ENDS_REASONING)
        return Spoken() if self._held else self._pass_on(final=False)

    def reasoning_comes_apart(self) -> None:
        """The server sends the reasoning beside the content, which so is the answer."""
        self._held = self.thinks_first = False

    def end(self, *, cut: bool = False) -> Spoken:
        """Returns the rest of a content that has ended, or was `cut` by a limit. If it was to begin
        with reasoning, ended by itself, and nothing ended that, there was none."""
        if self._held:
            if cut:
                return Spoken()
            self._held = self.thinks_first = False
        return self._pass_on(final=True)

    def _pass_on(self, *, final: bool) -> Spoken:
        passed, anew = "", False
        while self._rest:
            if self._until is not None:
                if self._leave_out():
                    continue
                break
            at, tag = self._find_tag(final)
            text, after = self._rest[:at], self._rest[at + len(tag) :]
            if not self._begun:
                text = _without_speaker(text)
                if _BEGINS_SPEAKER.fullmatch(text) and not (tag or final):
                    self._rest = text + after
                    break
            self._begun = self._begun or bool(text)
            passed += text
            self._rest = after
            if not tag:
                break
            if tag in _ENDS_REASONING:
                passed, anew, self._begun, self.thinks_first = "", True, False, True
            self._until = _CLOSED_BY.get(tag)
            self.calls_tool |= tag in _CALLS_TOOL
        return Spoken(passed, anew)

    def _find_tag(self, final: bool) -> tuple[int, str]:
        """Returns where the next tag is, and the tag in small letters; or where what is not decided
        yet begins, and none."""
        for mark in _MARK.finditer(self._rest):
            at = mark.start()
            if not final and _is_undecided(self._rest[at : at + _LONGEST + MAX_TOKEN_CHARACTERS]):
                return at, ""
            if tag := _TAG.match(self._rest, at):
                return at, tag[0].lower()
        return len(self._rest), ""

    def _leave_out(self) -> bool:
        """Leaves out what was opened; returns whether it has ended."""
        assert self._until is not None
        end = re.search(re.escape(self._until), self._rest, _FLAGS) if self._until else None
        if end is None:
            self._rest = self._rest[-len(self._until) + 1 :] if self._until else ""
            return False
        self._rest, self._until = self._rest[end.end() :], None
        return True


def spoken_text(content: str) -> str:
    """Returns what is for the listener of a content that is known as a whole."""
    reader, text = SpokenContent(), ""
    pieces = (
        content[at : at + PIECE_CHARACTERS] for at in range(0, len(content), PIECE_CHARACTERS)
    )
    for spoken in (*map(reader.feed, pieces), reader.end()):
        text = spoken.text if spoken.anew else text + spoken.text
    return text


def _without_speaker(text: str) -> str:
    text = text.lstrip()
    while name := _SPEAKER.match(text):
        text = text[name.end() :].lstrip()
    return text


def _is_undecided(text: str) -> bool:
    """Whether a text may be the beginning of a tag, or of a longer one than it is."""
    if _BEGINS_TOKEN.fullmatch(text):
        return True
    small = text.lower()
    return any(tag.startswith(small) and len(tag) > len(small) for tag in _LITERALS)
