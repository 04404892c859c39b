"""The agents of the configuration: `[agent]` and `[agents.NAME]`."""

import re
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from offhook.media.line_recording import Wanted
from offhook.pipeline.conversation.agents.agent_faults import Limits
from offhook.pipeline.conversation.agents.kinds import kinds
from offhook.pipeline.conversation.agents.kinds.agent_kind import AgentKind
from offhook.pipeline.conversation.agents.kinds.openai import OPENAI
from offhook.pipeline.conversation.call_variables import is_free, known_names, unknown_names
from offhook.pipeline.conversation.sentences import Occasion
from offhook.pipeline.conversation.turns.turn import TurnSettings
from offhook.pipeline.speech.enhancement.enhancer import SuppressionMode
from offhook.pipeline.speech.recognizer import MAX_CONTEXT_CHARS, canonical_tag
from offhook.pipeline.speech.synthesizer import MAX_SPEED, MAX_VOICE_CHARS, MIN_SPEED
from offhook.web.config.collect import MAX_FIELDS, Detail, DetailName
from offhook.web.config.collect import NOTE as NOTE
from offhook.web.config.flows import Flow, Flowing, faults_of_flow, read_flow
from offhook.web.config.language_models.analysis import Analysis
from offhook.web.config.language_models.chat_model import ChatModel
from offhook.web.config.mcp import McpTools
from offhook.web.config.pronunciation import Pronouncing
from offhook.web.config.section import Secrets, Section, or_plugin
from offhook.web.config.targets import checked_target
from offhook.web.config.tools import OWN, HttpTool, PythonFunction

MAX_SPOKEN_CHARS = 2000
"""Maximum characters of a text that an agent speaks as it stands."""
MAX_INSTRUCTIONS_BYTES = 1_000_000
"""Maximum size of the file with the instructions."""

if TYPE_CHECKING:
    KindName: TypeAlias = str
else:
    KindName = Annotated[Literal[*kinds.OURS], or_plugin(kinds.is_known)]


class OfKind(Section):
    kind: KindName = next(iter(kinds.OURS))
    """The built-in front desk, a language model, a speech-to-speech model, an agent that only
    listens, or a program that is asked by webhook whether it accepts the call; or an agent of
    another package, by the name by which that offers it, or as "module:name"."""


class AgentModel(ChatModel, OfKind):
    """An agent's model, and how it is queried."""


class Silence(Section):
    """What happens when neither the caller nor the agent has spoken for a while."""

    after: float = Field(ge=1, le=3600)
    """Time in s of silence, after what was said before."""
    say: str = Field("", max_length=MAX_SPOKEN_CHARS)
    """What the agent says."""
    hang_up: bool = False
    """Whether it then says goodbye and hangs up."""

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if not self.say and not self.hang_up:
            raise ValueError('needs say = "…" or hang_up = true')
        return self


def _zone(name: str) -> str:
    try:
        ZoneInfo(name or "UTC")
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(f"{name!r} is no time zone, such as Europe/Berlin") from error
    return name


def _steps(steps: tuple[Silence, ...]) -> tuple[Silence, ...]:
    if any(step.hang_up for step in steps[:-1]):
        raise ValueError("no step comes after hang_up = true")
    return steps


def _turn_changes(changes: dict[str, Any]) -> dict[str, Any]:
    """Raises ValueError for what is no time of turn-taking."""
    usual = {field.name: field.default for field in fields(TurnSettings)}
    wanted = {bool: "true or false", int: "a whole number", float: "a number"}
    for name, value in changes.items():
        if name not in usual:
            raise ValueError(f"{name}: [turn] has no such time")
        kind = type(usual[name])
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise ValueError(f"{name}: must be {wanted[kind]}")
    return changes


SEARCH = "search_knowledge"
"""Name of the tool with which a model searches its documents."""
RECORDING_TOOLS = {
    "pause": ("pause_recording", "resume_recording"),
    "start": ("start_recording", "stop_recording"),
}
"""Names of the tools with which a model changes the recording, by `recording_tools`."""
DEFAULT = "agent"
"""Name of the agent `[agent]` where others hand calls over to it."""


def handoff_tool(agent: str) -> str:
    """Returns the name of the tool with which a model hands a call over to an agent."""
    return f"hand_over_to_{re.sub('[^A-Za-z0-9_-]', '_', agent)}"


TOOL_KINDS = {"url": HttpTool, "function": PythonFunction, "mcp": McpTools}
"""The kinds of tools, each by the key that only its table has."""


def _of_one_kind(table: Any) -> Any:
    if isinstance(table, dict):
        given = [key for key in TOOL_KINDS if key in table]
        if not given:
            raise ValueError('needs url = "https://…", function = "module:name" or mcp = "server"')
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other")
    return table


def _kind_of_tool(tool: Any) -> str:
    if isinstance(tool, dict):
        return next(kind.__name__ for key, kind in TOOL_KINDS.items() if key in tool)
    return type(tool).__name__


AgentTool = Annotated[
    Annotated[HttpTool, Tag("HttpTool")]
    | Annotated[PythonFunction, Tag("PythonFunction")]
    | Annotated[McpTools, Tag("McpTools")],
    Discriminator(_kind_of_tool),
    BeforeValidator(_of_one_kind),
]
"""One of TOOL_KINDS."""


def _instructions_in(file: str) -> str:
    try:
        with Path(file).expanduser().open("rb") as opened:
            data = opened.read(MAX_INSTRUCTIONS_BYTES + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise ValueError(f"instructions_file {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"instructions_file {file}: is not UTF-8") from error
    if len(data) > MAX_INSTRUCTIONS_BYTES:
        raise ValueError(f"instructions_file {file}: is over {MAX_INSTRUCTIONS_BYTES} bytes")
    return text.strip()


class Agent(AgentModel, Pronouncing, Flowing):
    settings: dict[str, Any] = Field({}, repr=False)
    """Settings of an agent of another package, as that describes them."""
    description: str = Field("", max_length=1000)
    """What other agents are told that it does, and when to hand a call over to it; empty: its name
    alone."""
    handoffs: tuple[str, ...] = Field((), max_length=32)
    """Names of the agents of [agents] to which the model may hand calls over; "agent" is that of
    [agent]."""
    handoff_context: Literal["keep", "summary", "reset"] = "keep"
    """What this agent knows of a conversation that it takes over: all that was said, a summary by
    the model of the agent before, or only why it was handed over."""
    greeting: str = Field("", max_length=MAX_SPOKEN_CHARS)
    """First words of the agent, spoken at once and always the same; empty: the agent finds its
    own."""
    greeting_interruptible: bool = True
    """Whether a caller who speaks interrupts the greeting."""
    machine_detection: Literal["off", "detect", "message"] = "off"
    """What is done about who answers the calls that this agent places, unless the trunk or
    `POST /calls` says so: nothing; the agent learns it, and hangs up on machines; or it leaves
    `message` on them."""
    message: str = Field("", max_length=MAX_SPOKEN_CHARS)
    """What is left on an answering machine, once, after its tone."""
    on_machine: str = Field("", max_length=MAX_SPOKEN_CHARS)
    """Instructions for the language model when an answering machine records; empty: the agent hangs
    up."""
    on_screening: str = Field("", max_length=MAX_SPOKEN_CHARS)
    """What is said to a service that asks who calls and why: both in one sentence. Empty: the
    language model says it."""
    silence: Annotated[tuple[Silence, ...], Field(max_length=20), AfterValidator(_steps)] = ()
    """What happens when the caller is silent, step by step:
    `[{after = 8, say = "Are you still there?"}, {after = 10, hang_up = true}]`. It begins anew once
    the caller has spoken."""
    goodbye: str = Field("", max_length=MAX_SPOKEN_CHARS)
    """Last words before the agent hangs up by itself, after a silence or `max_minutes`."""
    max_minutes: float = Field(0, ge=0, le=24 * 60)
    """Maximum length of a call in minutes; 0: `max_call_minutes` of [server], which is never
    exceeded."""
    language: str = ""
    """BCP 47 tag, e.g. "en" or "pt-BR", of what callers of this agent speak and are told; empty:
    as in [asr] and [tts]."""
    languages: tuple[str, ...] = Field((), max_length=16, examples=[["en", "de"]])
    """ISO 639 codes of the languages in which the agent follows its callers, in place of
    `language`; the call begins in the first."""
    voices: dict[str, Annotated[str, Field(max_length=MAX_VOICE_CHARS)]] = Field({})
    """Voices of these languages, where they are others than `voice`: `{de = "anna"}`."""
    voice: str = Field("", max_length=MAX_VOICE_CHARS)
    """Name of the voice; empty: that of [tts], or a speech-to-speech model's default."""
    speed: float | None = Field(None, ge=MIN_SPEED, le=MAX_SPEED)
    """Speaking rate; 2 is twice as fast. By default that of [tts]."""
    context: str = Field("", max_length=MAX_CONTEXT_CHARS)
    """Names and words that callers of this agent may say; empty: as in [asr]."""
    noise_suppression: SuppressionMode | None = None
    """As in [asr], which is the default, for calls that begin with this agent."""
    turn: Annotated[dict[str, Any], AfterValidator(_turn_changes)] = Field({})
    """Times of turn-taking in ms that are others than in [turn]: `{end_silence = 600}` for callers
    who speak slowly."""
    variables: dict[str, str] = Field({})
    """Variables of its texts beside those of every call, with the values that they have where
    neither `POST /calls` nor a carrier's stream sets them: `{{customer}}` in the instructions needs
    `variables = {customer = "unknown"}`."""
    time_zone: Annotated[str, AfterValidator(_zone)] = Field("", examples=["Europe/Berlin"])
    """Of `{{now}}`, `{{date}}`, `{{time}}` and `{{weekday}}`; empty: this machine's."""
    instructions_file: str = ""
    """File with the instructions, in place of `instructions`; read at the start and on a reload. A
    relative path begins at the folder in which the server is started."""
    instructions: str = (
        "You are on a phone call. Answer in one or two short spoken sentences, without lists or "
        "markup. Greet the caller first."
    )
    """System prompt of the language model."""
    images: bool = False
    """Whether the language model takes images, which Realtime clients may send."""
    record: Wanted | None = None
    """Which of its calls are recorded, in place of [recording] `enabled`."""
    recording_tools: Annotated[tuple[Literal["pause", "start"], ...], Field(max_length=2)] = ()
    """What the model may do with the recording: pause and resume it, as for card numbers, and start
    and stop it."""
    transfers: list[str] = Field([])
    """Numbers and SIP addresses, or patterns of them ("+4930*", "*" for all), to which the model
    may transfer calls. Empty by default, because callers could talk a model into expensive
    calls."""
    tools: Annotated[tuple[AgentTool, ...], Field(max_length=64)] = ()
    """Functions that the model may call, `[[agents.NAME.tools]]`: an HTTP request, a Python
    function, or tools of an MCP server."""
    knowledge: Annotated[tuple[str, ...], Field(max_length=32, examples=["papers"])] = ()
    """Folder with documents by which the model answers, or a list of folders and files: Markdown,
    text, HTML and PDF. It searches them by a tool. A relative path begins at the folder in which
    the server is started."""
    knowledge_in_prompt: bool = False
    """Whether the passages that fit the caller's words best are in every request to the language
    model as well, which then answers without having searched."""
    collect: dict[DetailName, Detail] = Field({}, max_length=MAX_FIELDS)
    """Details that the agent is to find out, `[agents.NAME.collect.DETAIL]`: it asks for them, they
    are checked, and the record of the call has them."""
    analysis: Analysis | None = None
    """What a language model finds of the agent's calls once they are over,
    `[agents.NAME.analysis]`."""
    fallback: str = ""
    """Name of another agent in [agents] that answers when the model fails, or when no program
    accepts the call."""
    url: str = Field(
        "",
        pattern=r"^(https?://[^/?#@\s]+(/[^#\s]*)?)?$",
        examples=["https://app.example/hook"],
    )
    """URL of the webhook's receiver."""
    secrets: Secrets = ()
    """Secrets that sign the webhook, usually one; a second one while the receiver changes over.
    `whsec_` and base64, or any text."""
    accept_seconds: float = Field(20, gt=0, le=60)
    """Time in s that the program has to accept a call, webhook included; then the fallback answers,
    or the call is rejected with 603."""
    first_token_seconds: float = Field(Limits.first_token_seconds, gt=0, le=60)
    """Time limit in s from the end of the caller's turn to the first token of the answer; then the
    caller hears an apology. With a fallback, half of it for each."""
    between_tokens_seconds: float = Field(Limits.between_tokens_seconds, gt=0, le=60)
    """Time limit in s between tokens of an answer; then it is aborted."""
    answer_characters: int = Field(Limits.answer_characters, ge=100, le=100_000)
    """Length in characters after which an answer ends with the current sentence."""
    tool_rounds: int = Field(Limits.tool_rounds, ge=1, le=100)
    """Maximum rounds of tool calls in one turn; then the turn ends with an apology."""
    tool_seconds: float = Field(Limits.tool_seconds, gt=0, le=60)
    """Time limit of a tool in s, after which the model gets an error as its result; a transfer
    lasts as long as it rings."""
    failures: int = Field(Limits.failures, ge=1)
    """Consecutive turns without an answer after which the agent gives up."""
    gives_up_to: str = ""
    """Number or SIP address to which the caller is then transferred; empty: the agent says goodbye
    and hangs up."""
    sentences: dict[Occasion, str] = Field({})
    """What is said when the model fails, replacing the default sentences; may contain variables."""
    think_ahead: bool = True
    """Whether the language model begins its answer in pauses of the caller that may be the end of
    the turn; if the caller goes on, it is dropped. That costs some requests more, see the metric
    `offhook_agent_answers_dropped_total`, and saves a part of the model's time to its first
    token."""
    speak_ahead: bool = True
    """Whether the voice prepares the first sentence of such an answer, which saves its time to its
    first sound; `offhook_agent_characters_dropped_total` counts what it prepares for nothing."""
    judges_turns: bool = False
    """Whether the language model judges with the first token of its answer whether the caller has
    finished; if not, the agent stays silent for some seconds more. For models that follow
    instructions exactly."""
    ready_probe: bool = False
    """Whether /readyz fails while the model does not answer, which is asked for a token once a
    minute; a speech-to-speech model's server, for its list of models."""

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        """An agent of another package is looked at where it is imported."""
        kind = kinds.OURS.get(self.kind)
        if kind is not None and (faults := list(kinds.faults_of(kind, self))):
            raise ValueError("\n".join(faults))
        return self

    @model_validator(mode="after")
    def _has_its_message(self) -> Self:
        if self.machine_detection == "message" and not self.message:
            raise ValueError('machine_detection = "message" needs message: what is left')
        return self

    @model_validator(mode="after")
    def _has_a_model_for_its_analysis(self) -> Self:
        if self.analysis is None:
            return self
        if not self.analysis.model and self.kind != OPENAI.name:
            raise ValueError(f'analysis: needs model, as this agent is no "{OPENAI.name}" one')
        if not self.analysis.model_beside(self).base_url.startswith(("http://", "https://")):
            raise ValueError("analysis: needs a base_url that begins with http:// or https://")
        return self

    @model_validator(mode="after")
    def _names_its_tools_once(self) -> Self:
        names = [name for tool in self.tools for name in tool.function_names]
        names += map(handoff_tool, self.handoffs)
        if self.knowledge:
            names.append(SEARCH)
        if self.collect:
            names.append(NOTE)
        names += self.own_recording_tools
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"tools, handoffs: two are called {name}")
            if name in OWN:
                raise ValueError(f"tools: {name} is a tool that agents have anyway")
        return self

    @property
    def own_recording_tools(self) -> tuple[str, ...]:
        """Returns the names of the tools with which the model changes the recording."""
        wanted = set(self.recording_tools)
        if any(detail.secret for detail in self.collect.values()):
            wanted.add("pause")
        return tuple(
            name for what, names in RECORDING_TOOLS.items() if what in wanted for name in names
        )

    @model_validator(mode="after")
    def _reads_its_flow(self) -> Self:
        self._flow = _flow_of(self) if self.flow else None
        return self

    def recorded(self, usual: Wanted) -> Wanted:
        """Returns which of its calls are recorded; `usual` is `enabled` of [recording]."""
        kind = kinds.OURS.get(self.kind)
        return self.record or (kind.records if kind is not None else None) or usual

    @property
    def of_kind(self) -> AgentKind:
        """Returns its kind, which is imported if it is of another package. Raises EngineError."""
        return kinds.kind_of(self.kind)

    @property
    def own_settings(self) -> BaseModel | None:
        """Returns `settings` as its kind has them. Raises pydantic's ValidationError."""
        model = self.of_kind.settings
        return None if model is None else model.model_validate(self.settings)

    @model_validator(mode="before")
    @classmethod
    def _reads_its_instructions(cls, table: Any) -> Any:
        file = table.get("instructions_file") if isinstance(table, dict) else None
        if not isinstance(file, str) or not file:
            return table
        if "instructions" in table:
            raise ValueError("instructions and instructions_file exclude each other")
        return {**table, "instructions": _instructions_in(file)}

    @field_validator("knowledge", mode="before")
    @classmethod
    def _may_be_one(cls, paths: Any) -> Any:
        return ((paths,) if paths else ()) if isinstance(paths, str) else paths

    @model_validator(mode="after")
    def _has_documents(self) -> Self:
        if self.knowledge_in_prompt and not self.knowledge:
            raise ValueError("knowledge_in_prompt needs knowledge, a folder with documents")
        return self

    @field_validator("language")
    @classmethod
    def _is_a_tag(cls, language: str) -> str:
        return canonical_tag(language) if language else ""

    @model_validator(mode="after")
    def _knows_its_variables(self) -> Self:
        faults = []
        for key, text in self._texts():
            if unknown := unknown_names(text, self.variables):
                names = ", ".join(f"{{{{{one}}}}}" for one in unknown)
                faults.append(f"{key} has {names}, which is none of {known_names(self.variables)}")
        if faults:
            raise ValueError("\n".join(faults))
        return self

    @field_validator("variables")
    @classmethod
    def _are_variables(cls, variables: dict[str, str]) -> dict[str, str]:
        for name in variables:
            if not is_free(name):
                raise ValueError(
                    f"{name!r} cannot be a variable: every call has it, or it is no name"
                )
        return variables

    def _texts(self) -> Iterator[tuple[str, str]]:
        """Yields the texts in which variables are filled in, with their keys."""
        yield "instructions_file" if self.instructions_file else "instructions", self.instructions
        yield "greeting", self.greeting
        yield "goodbye", self.goodbye
        yield "message", self.message
        yield "on_machine", self.on_machine
        yield "on_screening", self.on_screening
        for occasion, text in self.sentences.items():
            yield f"sentences.{occasion}", text
        for index, step in enumerate(self.silence):
            yield f"silence.{index}.say", step.say
        for index, tool in enumerate(self.tools):
            yield from ((f"tools.{index}.{key}", text) for key, text in tool.texts())
        for name, detail in self.collect.items():
            yield f"collect.{name}.ask", detail.ask

    @field_validator("gives_up_to")
    @classmethod
    def _can_be_called(cls, target: str) -> str:
        return checked_target(target) if target else ""

    @property
    def limits(self) -> Limits:
        return Limits(**{name: getattr(self, name) for name in asdict(Limits())})


def _flow_of(agent: Agent) -> Flow:
    """Reads the flow of an agent. Raises ValueError with all that is wrong with it."""
    functions = dict.fromkeys((*OWN, *map(handoff_tool, agent.handoffs)), False)
    functions |= {name: True for tool in agent.tools for name in tool.function_names}
    functions |= {SEARCH: True} if agent.knowledge else {}
    functions |= {NOTE: False} if agent.collect else {}
    functions |= dict.fromkeys(agent.own_recording_tools, False)
    try:
        flow = read_flow(Path(agent.flow).expanduser())
        faults = faults_of_flow(
            *(flow, functions, agent.variables, agent.collect),
            has_others=any(not tool.function_names for tool in agent.tools),
            greets=bool(agent.greeting),
        )
        if words := "\n".join(faults):
            raise ValueError(words)
    except ValueError as error:
        lines = (f"flow: {line}" for line in str(error).splitlines())
        raise ValueError("\n".join(lines)) from error
    return flow
