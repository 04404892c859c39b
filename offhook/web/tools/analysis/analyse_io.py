"""Has a model say what became of a call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from offhook.media.untrusted_json import read_json
from offhook.pipeline.conversation.agents.agent_faults import AgentFailure, Fault
from offhook.pipeline.conversation.agents.completion import Completion, reported
from offhook.pipeline.conversation.agents.kinds.chat_server_io import (
    ModelFailed,
    chat_server,
    complete,
)
from offhook.pipeline.conversation.agents.model_requests import ModelTraits
from offhook.pipeline.conversation.events import TokensUsed
from offhook.pipeline.speech.openai.client_io import OpenAiServer
from offhook.pipeline.speech.streams.retry import AttemptFailed
from offhook.web.config.language_models.analysis import Analysis
from offhook.web.config.language_models.chat_model import ChatModel
from offhook.web.tools.analysis.transcript import Transcript, transcript_of
from offhook.web.tools.analysis.verdicts import (
    MAX_ANSWER_CHARS,
    Analysed,
    Misfit,
    again,
    question,
    read,
    schema_of,
)

ANALYSIS_S = 120.0
"""Time limit in s for the analysis of a call, with a second answer if the first cannot be used."""
MAX_ANSWERS = 2
"""Answers that a model may give: it is told what was wrong with the first."""
REFUSED = (400, 413, 422)
"""Statuses with which a server refuses a request that it would refuse again, as of a call that is
too long for its model."""


class NoAnalysis(Exception):
    """Raised when there is none; says why."""

    def __init__(
        self,
        words: str,
        used: Sequence[TokensUsed] = (),
        *,
        hopeless: bool = False,
        after_s: float = 0.0,
    ) -> None:
        super().__init__(words)
        self.used = used
        """What the model has taken all the same."""
        self.hopeless = hopeless
        """Whether it would fail again."""
        self.after_s = after_s
        """Time in s that the server asks for before the next attempt."""


@dataclass(frozen=True)
class Answered:
    """An analysis, and what it took."""

    analysed: Analysed
    left_out: int
    """Lines of the call that the model was not told."""
    used: Sequence[TokensUsed]

    def as_dict(self) -> dict[str, Any]:
        """Returns what the record of the call says."""
        found = self.analysed
        more = {"left_out": self.left_out} if self.left_out else {}
        return {
            "summary": found.summary,
            "criteria": [vars(one) for one in found.criteria],
            "extracted": dict(found.extracted),
            **more,
        }


async def analyse(
    analysis: Analysis, model: ChatModel, timeline: Sequence[Mapping[str, Any]], where: str
) -> Answered:
    """Asks a model about the events of a call. `where` is the table of the analysis in the
    configuration, for messages. Raises NoAnalysis."""
    transcript = transcript_of(timeline)
    used: list[TokensUsed] = []
    try:
        async with chat_server(where, model, ANALYSIS_S) as server:
            analysed = await _ask(server, analysis, model, transcript, used)
    except ModelFailed as error:
        failed = error.failed
        hopeless = failed.status in REFUSED
        raise NoAnalysis(str(error), used, hopeless=hopeless, after_s=failed.after_s) from error
    except Misfit as error:
        words = f"{model.model} gave no answer that can be used: {error}"
        raise NoAnalysis(words, used, hopeless=True) from error
    return Answered(analysed, transcript.left_out, used)


async def _ask(
    server: OpenAiServer,
    analysis: Analysis,
    model: ChatModel,
    transcript: Transcript,
    used: list[TokensUsed],
) -> Analysed:
    """Raises AttemptFailed and Misfit."""
    messages = question(analysis, transcript)
    form = {"name": "analysis", "strict": True, "schema": schema_of(analysis)}
    traits = ModelTraits(model.model)
    for left in reversed(range(MAX_ANSWERS)):
        params = {
            **model.options.parameters(),
            "messages": messages,
            "response_format": {"type": "json_schema", "json_schema": form},
            "extra_body": dict(model.extra_body),
        }
        body = await complete(server, model.model, params, traits)
        text = ""
        try:
            text = _text_of(body, model.model, used)
            return read(text, analysis, transcript)
        except Misfit as misfit:
            if not left:
                raise
            messages = [*messages, *again(text[:MAX_ANSWER_CHARS], misfit)]
    raise AssertionError  # the last answer is returned or raised


def _text_of(body: bytes, model: str, used: list[TokensUsed]) -> str:
    """Returns the text of an answer, and notes what it took. Raises Misfit, and AttemptFailed if
    it is the server's error, which some send as an answer."""
    answer = Completion(MAX_ANSWER_CHARS, aloud=False)
    try:
        answer.add(read_json(body))
        answer.end()
    except (AgentFailure, ValueError) as error:
        if isinstance(error, AgentFailure) and error.fault is Fault.SERVER_ERROR:
            raise AttemptFailed(f"it refuses ({error})") from error
        raise Misfit("it is no answer of a chat API") from error
    if (usage := reported(answer.usage)) is not None:
        cached = usage.cache_read_input_tokens or 0
        tokens = (usage.prompt_tokens, cached, usage.completion_tokens)
        used.append(TokensUsed(0, model, *tokens))
    if answer.incomplete == "max_output_tokens":
        raise Misfit("it was not complete: be shorter")
    return answer.text
