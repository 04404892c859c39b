"""One answer of a chat model while it comes in, whatever the server's dialect: what is spoken,
which tools are called, and how it ends. Sans-io; all input is untrusted."""

from collections.abc import Collection, Mapping
from typing import Any

from pipecat.metrics.metrics import LLMTokenUsage

from offhook.pipeline.conversation.agents.agent_faults import AgentFailure, Fault
from offhook.pipeline.conversation.agents.spoken_content import Spoken, SpokenContent
from offhook.pipeline.conversation.agents.tool_calls import ToolCall, ToolCalls
from offhook.pipeline.conversation.agents.turn_marks import WAITS_S, TurnMark, read_mark
from offhook.pipeline.conversation.directed_io import Incomplete
from offhook.pipeline.speech.openai.answers import plain

SENTENCE_ENDS = (".", "!", "?", "…", "。", "！", "？")
CUT_CHARACTERS = 200
"""Characters by which an answer that is too long may continue to the end of its sentence."""
MAX_CONTENT_CHARACTERS = 400_000
"""Maximum characters of an answer with its reasoning; an answer with more is a fault, as one that
is too long."""
MAX_TOKENS = 1_000_000_000
"""Maximum count of tokens that a server is believed; a larger one counts as none."""

_INCOMPLETE: dict[str, Incomplete] = {
    "length": "max_output_tokens",
    "content_filter": "content_filter",
}


def is_speakable(text: str) -> bool:
    """Returns whether a voice makes a sound of a text: faces and dashes have none."""
    return any(map(str.isalnum, text))


class Completion:
    """One answer."""

    def __init__(
        self,
        limit: int,
        functions: Collection[str] = (),
        *,
        thinks_first: bool = False,
        first_token_by: float = 0.0,
        aloud: bool = True,
        marked: bool = False,
    ) -> None:
        """`limit`: maximum characters of its text and tool arguments together. `functions`: the
        names of those it may call. `thinks_first`: its content begins inside the reasoning.
        `aloud`: a voice speaks it, so that it begins with its first letter or digit, and is empty
        without one. `marked`: it begins with a `TurnMark`."""
        self.first_token_by = first_token_by
        """Deadline for its first token."""
        self.text = ""
        """What is spoken of it."""
        self.mark: TurnMark | None = None
        """Whether the caller has finished, as far as it is marked."""
        self.finish_reason: str | None = None
        self.usage: dict[str, Any] | None = None
        self.model = ""
        """The model that the server says has answered."""
        self.is_thinking = False
        """Whether reasoning has come, and so far nothing else."""
        self.too_long = False
        self.tools = ToolCalls(functions)
        self.content = SpokenContent(thinks_first=thinks_first)
        self.thoughts: dict[str, str] = {}
        """Reasoning that came beside the content, by the name of its field."""
        self._limit = limit
        self._aloud = aloud
        self._marked = marked
        self._held = ""
        """Its beginning, in which nothing is to be heard."""
        self._characters = 0
        """Characters of its content and reasoning."""
        self._choice: int | None = None
        """Index of the choice that is spoken."""

    @property
    def has_begun(self) -> bool:
        return bool(self.text or self.tools)

    @property
    def waits(self) -> bool:
        """Whether it is none, since the caller has not finished."""
        return self.mark in WAITS_S and not self.tools

    @property
    def ends_sentence(self) -> bool:
        return self.text.rstrip().endswith(SENTENCE_ENDS)

    @property
    def incomplete(self) -> Incomplete | None:
        """Why it is incomplete; None: it is not."""
        return _INCOMPLETE.get(self.finish_reason or "")

    def add(self, event: Any) -> Spoken:
        """Adds an event of a stream, or a response that is no stream, and returns what is spoken of
        it. Raises AgentFailure if it does not conform to the API, or reports an error."""
        if not isinstance(event, dict):
            raise AgentFailure(Fault.BAD_ANSWER, "an event that is no object")
        if error := event.get("error"):
            words = error.get("message") if isinstance(error, dict) else error
            raise AgentFailure(Fault.SERVER_ERROR, plain(words or "an error without a message"))
        if isinstance(usage := event.get("usage"), dict):
            self.usage = usage
        if isinstance(model := event.get("model"), str):
            self.model = model
        choices = event.get("choices")
        if choices is None and ("choices" in event or "usage" in event):
            return Spoken()
        if not isinstance(choices, list):
            raise AgentFailure(Fault.BAD_ANSWER, "an event without choices")
        choice = self._spoken_choice(choices)
        return Spoken() if choice is None else self._add_choice(choice)

    def end(self) -> Spoken:
        """Returns what is spoken of its end, once all of it has come."""
        return self._speak(self.content.end(cut=self.finish_reason == "length"))

    def calls(self) -> list[ToolCall]:
        """Returns its tool calls, once all of it has come. Raises AgentFailure if one is invalid,
        or one was announced and none came."""
        if self.too_long and self.tools:
            raise AgentFailure(Fault.TOO_LONG, "arguments of a tool")
        calls = self.tools.finished()
        for call in calls:
            call.parsed()
        announced = self.tools or self.content.calls_tool or self.finish_reason == "tool_calls"
        if announced and not calls:
            raise AgentFailure(Fault.EMPTY, "a tool call that cannot be made")
        return calls

    def may_end(self) -> bool:
        """Whether it is long enough and a sentence ends here, or never does."""
        over = len(self.text) + self.tools.characters - self._limit
        return over >= CUT_CHARACTERS or (over >= 0 and self.ends_sentence)

    def _spoken_choice(self, choices: list[Any]) -> dict[str, Any] | None:
        """Returns the choice that is spoken: of several, always the same one."""
        found: dict[int, dict[str, Any]] = {}
        for choice in choices:
            if not isinstance(choice, dict):
                raise AgentFailure(Fault.BAD_ANSWER, "a choice of another shape")
            index = choice.get("index")
            found.setdefault(index if isinstance(index, int) else 0, choice)
        if found and self._choice is None:
            self._choice = min(found)
        return found.get(self._choice) if self._choice is not None else None

    def _add_choice(self, choice: dict[str, Any]) -> Spoken:
        delta = choice.get("delta")
        if delta is None:
            delta = choice.get("message")
        tools = delta.get("tool_calls") if isinstance(delta, dict) else None
        if not isinstance(delta, dict | None) or not isinstance(tools, list | None):
            raise AgentFailure(Fault.BAD_ANSWER, "a delta of another shape")
        if isinstance(reason := choice.get("finish_reason"), str):
            self.finish_reason = reason
        if delta is None:
            return Spoken()
        text = _text_of(delta.get("content")) + _text_of(delta.get("refusal"))
        audio = delta.get("audio")
        if isinstance(audio, dict):  # of a model that speaks itself
            text += _text_of(audio.get("transcript"))
        thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
        self._characters += len(text) + self._add_thoughts(delta)
        if self._characters > MAX_CONTENT_CHARACTERS:
            raise AgentFailure(Fault.TOO_LONG, "reasoning without end")
        if thought:
            self.content.reasoning_comes_apart()
        for tool in tools or ():
            self.tools.add(tool)
        spoken = self._speak(self.content.feed(text))
        came = thought or text or delta.get("content")
        self.is_thinking = not self.has_begun and (self.is_thinking or bool(came))
        return spoken

    def _add_thoughts(self, delta: dict[str, Any]) -> int:
        """Adds the reasoning of a delta; returns its characters."""
        characters = 0
        for name in ("reasoning_content", "reasoning"):
            if (text := delta.get(name)) and isinstance(text, str):
                self.thoughts[name] = self.thoughts.get(name, "") + text
                characters += len(text)
        return characters

    def _speak(self, spoken: Spoken) -> Spoken:
        if spoken.anew:
            self.text = self._held = ""
            self.mark = None
        room = self._limit + CUT_CHARACTERS - len(self.text) - len(self._held)
        text = self._held + spoken.text[: max(0, room)]
        if self._marked and not self.text:
            if self.mark is None:
                self.mark, text = read_mark(text)
            text = "" if self.mark in WAITS_S else text.lstrip()
        if self._aloud and not self.text and not is_speakable(text):
            self._held = text
            return Spoken("", spoken.anew)
        self._held = ""
        self.text += text
        return Spoken(text, spoken.anew)


def _text_of(content: Any) -> str:
    """Returns the text of a content: a string, a list of parts, or none. Raises AgentFailure."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise AgentFailure(Fault.BAD_ANSWER, "a content of another shape")
    texts = (part.get("text") if isinstance(part, dict) else part for part in content)
    return "".join(text for text in texts if isinstance(text, str))


def reported(usage: Any) -> LLMTokenUsage | None:
    """Returns what a server reports as `usage`, of a chat completion or of a response of the
    Realtime API; None if that is of another shape or counts nothing."""
    if not isinstance(usage, Mapping):
        return None
    asked = _table(usage, "prompt_tokens_details", "input_token_details")
    answered = _table(usage, "completion_tokens_details", "output_token_details")
    prompt = _count(usage, "prompt_tokens", "input_tokens")
    completion = _count(usage, "completion_tokens", "output_tokens")
    if not prompt and not completion:
        return None
    cached, audio = _count(asked, "cached_tokens"), _count(asked, "audio_tokens")
    cached_audio = _count(_table(asked, "cached_tokens_details"), "audio_tokens")
    return LLMTokenUsage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        cache_read_input_tokens=min(cached, prompt),
        reasoning_tokens=min(_count(answered, "reasoning_tokens"), completion),
        input_audio_tokens=min(audio, prompt),
        output_audio_tokens=min(_count(answered, "audio_tokens"), completion),
        cache_read_input_audio_tokens=min(cached_audio, cached, audio, prompt),
    )


def _table(of: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    return next((value for name in names if isinstance(value := of.get(name), Mapping)), {})


def _count(of: Mapping[str, Any], *names: str) -> int:
    for name in names:
        value = of.get(name)
        if isinstance(value, int | float) and 0 <= value <= MAX_TOKENS:
            return int(value)
    return 0
