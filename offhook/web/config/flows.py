"""The file of an agent's flow: a conversation as nodes, between which functions lead."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)

from offhook.pipeline.conversation.call_variables import known_names, unknown_names
from offhook.web.config.collect import NOTE
from offhook.web.config.reading.faults import faults_of, mistaken_types, nearest, placed
from offhook.web.config.reading.names import misread_names
from offhook.web.config.reading.toml_text import KeyPath, read_toml
from offhook.web.config.section import Section
from offhook.web.config.targets import checked_target
from offhook.web.config.tools import schema_of

MAX_FLOW_BYTES = 1_000_000
"""Maximum size of a flow's file; with a larger one the server does not start."""


class FlowAction(Section):
    """Something that is done without the model: exactly one of its keys is set."""

    say: str = Field("", max_length=2000)
    """What the caller hears; may contain variables."""
    hang_up: bool = False
    """Whether the call ends."""
    transfer: str = ""
    """Number or SIP address to which the caller is transferred."""
    hand_over: str = ""
    """Name of the agent that takes the call over; "agent" is that of [agent]."""

    @property
    def ends(self) -> bool:
        """Whether the flow ends with it."""
        return not self.say

    @field_validator("transfer")
    @classmethod
    def _can_be_called(cls, target: str) -> str:
        return checked_target(target) if target else ""

    @model_validator(mode="after")
    def _does_one_thing(self) -> Self:
        if sum(map(bool, (self.say, self.hang_up, self.transfer, self.hand_over))) != 1:
            raise ValueError(
                'needs one of say = "…", hang_up = true, transfer = "…" and hand_over = "…"'
            )
        return self


class FlowFunction(Section):
    """A function that the model may call in a node. With a description it is one of the flow, which
    leads to another node; without, one that the agent has, as one of its tools."""

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$", examples=["order_status"])
    """What the model calls it."""
    description: str = Field("", max_length=4000)
    """What the model is told that it does, and when to call it."""
    parameters: dict[str, Any] = Field({})
    """Its arguments, as those of an HTTP tool."""
    next: str | dict[str, str] = ""
    """Node that it leads to; with `next_by`, a node for each value of that argument. Of a tool, the
    node that it leads to unless it fails."""
    next_by: str = ""
    """Argument by which `next` is chosen."""

    @property
    def is_of_the_flow(self) -> bool:
        """Whether it does nothing but lead to another node."""
        return bool(self.description)

    @property
    def targets(self) -> tuple[str, ...]:
        """Returns the nodes to which it may lead."""
        if isinstance(self.next, dict):
            return tuple(self.next.values())
        return (self.next,) if self.next else ()

    @property
    def schema_of_arguments(self) -> dict[str, Any]:
        """The arguments as a JSON Schema of an object, with the values that `next_by` may have.
        Raises ValueError."""
        schema = schema_of(self.parameters)
        if not isinstance(self.next, dict) or self.next_by not in schema["properties"]:
            return schema
        chosen = {"enum": list(self.next), **schema["properties"][self.next_by]}
        required = dict.fromkeys((*schema.get("required", ()), self.next_by))
        properties = {**schema["properties"], self.next_by: chosen}
        return {**schema, "properties": properties, "required": list(required)}

    @model_validator(mode="after")
    def _leads_somewhere(self) -> Self:
        if isinstance(self.next, dict) != bool(self.next_by):
            raise ValueError('next_by = "ARGUMENT" and next = {VALUE = "NODE"} need each other')
        if not self.is_of_the_flow:
            if self.parameters or self.next_by:
                raise ValueError('needs description = "…", what the model is told that it does')
            return self
        if not self.next:
            raise ValueError('needs next = "NODE", to which it leads')
        if self.next_by and self.next_by not in self.schema_of_arguments["properties"]:
            raise ValueError(f"next_by: {self.next_by!r} is none of its parameters")
        self.schema_of_arguments  # noqa: B018 - raises ValueError
        return self


def _by_name(given: Any) -> Any:
    return {"name": given} if isinstance(given, str) else given


Functions = Annotated[
    tuple[Annotated[FlowFunction, BeforeValidator(_by_name)], ...], Field(max_length=64)
]
Actions = Annotated[tuple[FlowAction, ...], Field(max_length=16)]


class FlowNode(Section):
    """A part of the conversation."""

    task: str = ""
    """What the model is told in this node, behind the agent's instructions; may contain
    variables."""
    functions: Functions = ()
    """What the model may call here: names of functions that the agent has, and functions of the
    flow."""
    collect: tuple[str, ...] = Field((), max_length=50)
    """Names of the agent's details that must be noted before a function leads on from here."""
    pre_actions: Actions = ()
    """What is done before the model is asked."""
    post_actions: Actions = ()
    """What is done once the caller has heard the model's first answer to its end."""
    context: Literal["append", "reset", "summary"] = "append"
    """What the model knows here of the conversation before: all of it; what the caller has said
    last and the functions called since; or that and a summary by the model."""
    respond_immediately: bool = True
    """Whether the model speaks first; otherwise the caller does."""

    @property
    def is_silent(self) -> bool:
        """Whether it ends before the model would be asked."""
        return any(action.ends for action in self.pre_actions)

    @model_validator(mode="after")
    def _says_what_to_do(self) -> Self:
        if not self.task and not self.is_silent:
            raise ValueError('needs task = "…", what the model is told here')
        for key, actions in (
            ("pre_actions", self.pre_actions),
            ("post_actions", self.post_actions),
        ):
            if any(action.ends for action in actions[:-1]):
                raise ValueError(f"{key}: nothing comes after the action that ends the flow")
        return self


class Flow(Section):
    """A conversation as nodes."""

    initial: str
    """Node with which the conversation begins."""
    global_functions: Functions = ()
    """What the model may call in every node."""
    nodes: dict[Annotated[str, Field(max_length=64)], FlowNode] = Field(min_length=1)
    _places: Mapping[KeyPath, str] = PrivateAttr(default_factory=dict)

    def functions_of(self, node: str) -> Iterator[FlowFunction]:
        """Yields what the model may call in a node."""
        listed = (*self.nodes[node].functions, *self.global_functions)
        yield from listed
        if self.nodes[node].collect and NOTE not in (one.name for one in listed):
            yield FlowFunction(name=NOTE)

    def functions(self) -> Iterator[tuple[KeyPath, FlowFunction]]:
        """Yields all functions, with their keys."""
        for index, function in enumerate(self.global_functions):
            yield ("global_functions", index), function
        for name, node in self.nodes.items():
            for index, function in enumerate(node.functions):
                yield ("nodes", name, "functions", index), function

    def actions(self) -> Iterator[tuple[KeyPath, FlowAction]]:
        """Yields the actions of all nodes, with their keys."""
        for name, node in self.nodes.items():
            for key, actions in (
                ("pre_actions", node.pre_actions),
                ("post_actions", node.post_actions),
            ):
                for index, action in enumerate(actions):
                    yield ("nodes", name, key, index), action

    def placed(self, path: KeyPath, words: str) -> str:
        """Returns what is wrong with a key, with the file and the line where it stands."""
        return placed(path, f"{'.'.join(map(str, path))}: {words}", self._places)

    @property
    def first_words(self) -> str:
        """What is said before anything else."""
        return " ".join(action.say for action in self.nodes[self.initial].pre_actions)


class Flowing(Section):
    flow: str = ""
    """TOML file with the nodes of a conversation that the model is led through; read at the start
    and on a reload. A relative path begins at the folder in which the server is started."""
    _flow: Flow | None = PrivateAttr(None)

    @property
    def loaded_flow(self) -> Flow | None:
        """Returns the content of `flow`; None without one."""
        return self._flow


def read_flow(file: Path) -> Flow:
    """Raises ValueError with all errors, each with the file and its line, if it cannot be read or
    is no flow."""
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_FLOW_BYTES + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: is not UTF-8") from error
    if len(data) > MAX_FLOW_BYTES:
        raise ValueError(f"{file}: is over {MAX_FLOW_BYTES} bytes")
    read = read_toml(text)
    places: dict[KeyPath, str] = {at: f"{file}:{line}" for at, line in read.lines.items()}
    faults = [f"{file}:{line}: {words}" for line, words in read.faults]
    faults += mistaken_types(read.table, Flow, places)
    misread = misread_names(read.table, Flow)
    faults += [placed(one.at, one.words, places) for one in misread]
    try:
        flow = Flow.model_validate(read.table)
    except ValidationError as error:
        told = [key for one in misread for key in one.explains]
        faults += faults_of(error, Flow, places, told=told)
    if faults:
        raise ValueError("\n".join(_in_file(file, fault) for fault in dict.fromkeys(faults)))
    flow._places = places
    return flow


def _in_file(file: Path, fault: str) -> str:
    return fault if fault.startswith(f"{file}:") else f"{file}: {fault}"


def faults_of_flow(
    flow: Flow,
    functions: Mapping[str, bool],
    variables: Mapping[str, str],
    details: Mapping[str, Any],
    *,
    has_others: bool,
    greets: bool,
) -> Iterator[str]:
    """Yields what is wrong with a flow for an agent. `functions` are those that it has, and whether
    each may lead to a node; with `has_others` there are more, of servers. `details` are those that
    it is to find out. `greets`: whether the agent has first words of its own."""
    if flow.initial not in flow.nodes:
        yield flow.placed(("initial",), _no_node(flow.initial, flow))
    for path, function in flow.functions():
        for target in function.targets:
            if target not in flow.nodes:
                yield flow.placed((*path, "next"), _no_node(target, flow))
        yield from _faults_of_function(flow, path, function, functions, has_others)
    for name in flow.nodes:
        path, names = ("nodes", name), [one.name for one in flow.functions_of(name)]
        if twice := next((one for one in names if names.count(one) > 1), ""):
            yield flow.placed(path, f"two functions are called {twice}")
        yield from _faults_of_ends(flow, name)
        for one in flow.nodes[name].collect:
            if one not in details:
                yield flow.placed((*path, "collect"), _missing("detail", one, details))
    if details and not any(node.collect for node in flow.nodes.values()):
        yield flow.placed(("nodes",), "the agent has details to find out: no node has collect")
    texts = [(("nodes", name, "task"), node.task) for name, node in flow.nodes.items()]
    texts += [((*path, "say"), action.say) for path, action in flow.actions()]  # type: ignore[misc]
    for path, text in texts:
        if unknown := unknown_names(text, variables):
            found = ", ".join(f"{{{{{one}}}}}" for one in unknown)
            yield flow.placed(path, f"has {found}, which is none of {known_names(variables)}")
    first = flow.nodes.get(flow.initial)
    if first is not None and first.pre_actions:
        path = ("nodes", flow.initial, "pre_actions")
        if first.is_silent:
            yield flow.placed(path, "the call would end before it has begun")
        elif greets:
            yield flow.placed(path, "the agent has a greeting, and the call one beginning")


def _faults_of_function(
    flow: Flow,
    path: KeyPath,
    function: FlowFunction,
    functions: Mapping[str, bool],
    has_others: bool,
) -> Iterator[str]:
    name = function.name
    if function.is_of_the_flow:
        if name in functions:
            words = f"{name} is a function that the agent has: it takes its name alone, and next"
            yield flow.placed(path, words)
    elif name not in functions:
        if not has_others:
            words = _missing("function", name, functions)
            yield flow.placed(path, f"{words}; one of the flow needs description and next")
    elif function.next and not functions[name]:
        yield flow.placed((*path, "next"), f"{name} cannot lead to a node")


def _faults_of_ends(flow: Flow, name: str) -> Iterator[str]:
    node = flow.nodes[name]
    if flow.initial in flow.nodes and name not in _reached(flow):
        yield flow.placed(("nodes", name), "no function leads to this node")
    ends = any(action.ends for action in (*node.pre_actions, *node.post_actions))
    if not ends and not any(flow.functions_of(name)):
        words = "nothing leads on from here: it needs functions, or an action that ends the call"
        yield flow.placed(("nodes", name), words)


def _reached(flow: Flow) -> set[str]:
    """Returns the nodes to which a conversation may come."""
    reached, new = set(), [flow.initial]
    while new:
        name = new.pop()
        if name in flow.nodes and name not in reached:
            reached.add(name)
            new += [target for one in flow.functions_of(name) for target in one.targets]
    return reached


def _no_node(name: str, flow: Flow) -> str:
    return _missing("node", name, flow.nodes)


def _missing(what: str, name: str, there: Mapping[str, Any]) -> str:
    near, those = nearest(name, list(there)), ", ".join(there) or "none"
    hint = f"; did you mean {near!r}?" if near is not None else f" (there: {those})"
    return f"no {what} is called {name!r}{hint}"
