"""What is known of a kind of agent outside its own files: an `AgentKind` stands beside each.

Importing one imports no agent: what takes more than a table is the import path of a function,
"module:name".
"""

from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pydantic import BaseModel

from offhook.media.line_recording import Wanted
from offhook.pipeline.conversation.agents.kinds.guide import NO_GUIDE, Guide
from offhook.pipeline.conversation.passages import FindPassages
from offhook.pipeline.speech.engine_spec import imported

if TYPE_CHECKING:  # what configures an agent runs none
    from offhook.pipeline.conversation.agents.mailbox.mailbox import Mailbox
    from offhook.pipeline.conversation.call_io import Agent, Call

OF_THE_VOICE = frozenset(
    {
        *("greeting", "greeting_interruptible", "silence", "goodbye", "voice", "speed", "lexicon"),
        *("machine_detection", "message", "on_machine", "on_screening"),
    }
)
"""Keys of agents that speak with the voice of [tts]."""
OF_A_MODEL = frozenset({"tools", "handoffs", "knowledge", "collect", "recording_tools"})
"""Keys of agents whose model calls functions."""


class Closes(Protocol):
    async def aclose(self) -> object: ...


Part = TypeVar("Part", bound=Closes)


class Shared:
    """What the calls of a process share, such as the connections to a model."""

    def __init__(self) -> None:
        self._parts: dict[Callable[[], Any], Any] = {}

    def one(self, make: Callable[[], Part]) -> Part:
        """Returns what `make` has returned at its first use; it is closed with the process."""
        if make not in self._parts:
            self._parts[make] = make()
        part: Part = self._parts[make]
        return part

    async def close(self) -> None:
        for part in self._parts.values():
            await part.aclose()


@dataclass(frozen=True)
class Fallback:
    """The agent that answers when another one's model fails."""

    kind: "AgentKind"
    table: Any
    """See `AgentContext`."""
    make: Callable[[], "Agent"]
    """Makes it for the call; it has no fallback of its own."""


@dataclass(frozen=True)
class AgentContext:
    """What an agent is made of for a call."""

    call: "Call"
    settings: Any
    """An instance of the kind's `settings`, or its `section` of the configuration."""
    table: Any
    """The agent's table of the configuration, with the keys that all kinds have."""
    instructions: str
    """Its instructions, with the call's variables filled in, and what the agent before has told."""
    greeting: str
    """First words, with the call's variables filled in. The call speaks them, unless the agent has
    a voice of its own."""
    shared: Shared
    log: Callable[[Any], None]
    """Logs what the agent does, a dataclass."""
    fallback: Fallback | None = None
    passages: FindPassages | None = None
    """Finds the passages of its documents that belong into a request; None: none do."""
    guide: Guide = NO_GUIDE
    """Leads its model through the conversation."""
    mailbox: "Mailbox | None" = None
    """The messages that whoever calls wants to hear; None: the call is for something else."""


def no_faults(table: Any) -> Iterable[str]:
    return ()


@dataclass(frozen=True)
class AgentKind:
    """A kind of agent: what configuration, doctor, page and edge know of it."""

    name: str
    """As `kind` in the configuration has it."""
    title: str
    """Who answers, as callers are told before the call: a sentence without its full stop."""
    makes: str = ""
    """Import path of a function of an `AgentContext` that returns the `Agent` of a call. Empty:
    nobody answers until a program has decided."""
    settings: type[BaseModel] | None = None
    """What its agents' table `settings` may have."""
    section: str = ""
    """The section of the configuration that all its agents share, in place of `settings`."""
    keys: frozenset[str] = OF_THE_VOICE
    """Keys of an agent's table that it has and some other kinds have not."""
    converses: bool = True
    """Whether it answers what is said, so that others may hand a call over to it."""
    records: Wanted | None = None
    """Which of its calls are recorded, in place of [recording] `enabled`, unless `record` of an
    agent says so."""
    own_voice: bool = False
    """Whether it hears and speaks by itself: callers hear no voice of [tts]."""
    faults: Callable[[Any], Iterable[str]] = no_faults
    """Yields what is wrong with an agent's table."""
    examines: str = ""
    """Import path of an async function that returns what the doctor says of an agent, given the
    name of its table, the table and its settings. Raises EngineError or OSError."""
    asks: str = ""
    """Import path of an async function, with the same arguments, that returns while the agent can
    answer: `ready_probe` calls it once a minute. Raises EngineError."""

    @property
    def answers(self) -> bool:
        """Whether it has agents; otherwise a program decides who answers."""
        return bool(self.makes)

    @property
    def has_model(self) -> bool:
        """Whether a model that calls functions answers."""
        return bool(OF_A_MODEL & self.keys)

    def stands_in_for(self, other: "AgentKind") -> bool:
        """Returns whether its agents can answer in the place of one of another kind. One with a
        voice of its own has no place in the pipeline of another one."""
        return self.converses and not (self.own_voice and other.answers)

    def make(self, context: AgentContext) -> "Agent":
        """Makes the agent of a call. Raises EngineError if it cannot be imported."""
        made: Agent = imported(self.makes)(context)
        return made

    def examine(self, where: str, table: Any, settings: Any) -> Coroutine[Any, Any, str]:
        """Returns what the doctor says of an agent; see `examines`."""
        found: Coroutine[Any, Any, str] = imported(self.examines)(where, table, settings)
        return found

    def ask(self, where: str, table: Any, settings: Any) -> Coroutine[Any, Any, None]:
        """Asks whether an agent can answer; see `asks`."""
        asked: Coroutine[Any, Any, None] = imported(self.asks)(where, table, settings)
        return asked
