"""The flow of an agent in one call: leads the agent's model from node to node."""

from collections.abc import Awaitable, Collection, Sequence
from dataclasses import replace
from typing import Any, Protocol

from loguru import logger
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.frames.frames import FunctionCallResultProperties
from pipecat.services.llm_service import FunctionCallParams

from offhook.media.leg import LegError
from offhook.media.tasks_io import Task, TaskSet
from offhook.pipeline.conversation.agents.kinds.guide import Guide
from offhook.pipeline.conversation.agents.prompt import GOES_ON
from offhook.pipeline.conversation.call.history import last_turn, since_last_turn
from offhook.pipeline.conversation.call_io import Agent, Call
from offhook.pipeline.conversation.directed_io import FunctionTool, Infer
from offhook.pipeline.conversation.events import NodeEntered
from offhook.pipeline.conversation.sentences import Occasion
from offhook.pipeline.conversation.summary_io import summary_of
from offhook.web.config.flows import Flow, FlowAction, FlowFunction
from offhook.web.tools.flow_position import FlowTable, Position
from offhook.web.tools.function_io import Fill
from offhook.web.tools.tool_use import has_succeeded

_NOT_AGAIN = FunctionCallResultProperties(run_llm=False)


class HandOver(Protocol):
    """Hands a call over to a named agent, for a reason. Returns why it is not; "" if it is."""

    def __call__(
        self, name: str, call: Call, infer: Infer | None, reason: str
    ) -> Awaitable[str]: ...


class CallFlow(Guide):
    """The flow of one call's agent. `tasks` are those of the call's agents, whose owner closes
    them."""

    def __init__(
        self,
        flow: Flow,
        call: Call,
        fill: Fill,
        tasks: TaskSet,
        hand_over: HandOver,
        secrets: Collection[str] = (),
    ) -> None:
        """`secrets` are the names of the agent's secret details."""
        self._flow, self._call, self._fill = flow, call, fill
        self._tasks, self._hand_over = tasks, hand_over
        self._secrets = secrets
        self._table = FlowTable(flow)
        self._at = self._table.start
        self._turn: Any = None
        """The caller's last message when the node was entered."""
        self._due: list[FlowAction] = list(self._node.post_actions)
        """What is done once the caller has heard an answer to its end."""
        self._doing: Task | None = None
        self._interrupted = False
        """Whether the caller has interrupted what an action says."""
        self._infer: Infer | None = None
        self._tools: dict[str, list[Any]] = {}
        """The functions of each node."""
        self._offered: list[Any] = []
        """Those of the node that the conversation is in; the agent has this list."""

    def led(self, agent: Agent) -> Agent:
        """Returns the agent of the call as the flow leads it; it has all functions yet."""
        self._infer = agent.infer
        there = {_name_of(tool): tool for tool in agent.tools}
        for node in self._flow.nodes:
            tools = (self._tool(node, one, there) for one in self._flow.functions_of(node))
            self._tools[node] = [tool for tool in tools if tool is not None]
        self._offer()
        self._pause_for_secrets()
        before = agent.on_cut

        def on_cut(heard: str) -> None:
            before(heard)
            self._interrupted = True
            self._stop()

        return replace(
            agent,
            tools=self._offered,
            on_cut=on_cut,
            dialog=lambda: {"node": self._at.node},
            restore=self._restore,
            greeting=agent.greeting or self._fill(self._flow.first_words),
        )

    def instructions(self, own: str) -> str:
        task = self._fill(self._node.task)
        missing = self._table.missing(self._at.node, self._call.leg.collected)
        needed = f"Before you go on, note: {', '.join(missing)}." if missing else ""
        return "\n\n".join(filter(None, (own, task, needed)))

    def answered(self, calls: bool) -> None:
        self._stop()
        if self._due and not calls:
            work = self._after_the_answer()
            self._doing = self._tasks.spawn(work, f"flow {self._call.leg.call_id}")

    @property
    def _node(self) -> Any:
        return self._flow.nodes[self._at.node]

    def _offer(self) -> None:
        self._offered[:] = self._tools[self._at.node]

    def _restore(self, dialog: dict[str, Any]) -> None:
        """Raises ValueError if the flow has no such node any more."""
        node = dialog.get("node", self._flow.initial)
        if node not in self._flow.nodes:
            raise ValueError(f"its flow has no node {node!r} any more")
        self._at = Position(node)
        self._due = list(self._node.post_actions)
        self._offer()
        self._pause_for_secrets()

    # --- functions ---

    def _tool(self, node: str, function: FlowFunction, there: dict[str, Any]) -> Any:
        """Returns what the model is offered as a function of a node; None if the agent does not
        have it, as a tool that its server has no more."""
        if function.is_of_the_flow:
            return self._leads(node, function)
        tool = there.get(function.name)
        if tool is None:
            call_id, name = self._call.leg.call_id, function.name
            logger.warning("{}: the flow's node {} lacks the function {}", call_id, node, name)
        elif function.next and isinstance(tool, FunctionSchema):
            return self._leads_after(node, function, tool)
        return tool

    def _leads(self, node: str, function: FlowFunction) -> FunctionTool:
        async def lead(params: FunctionCallParams) -> None:
            if why := self._move(node, function.name, params.arguments):
                return await params.result_callback({"error": why})
            told, asks = await self._enter()
            result = {"status": "done", **told}
            await params.result_callback(result, properties=None if asks else _NOT_AGAIN)

        schema = function.schema_of_arguments
        return FunctionTool(function.name, function.description, schema, lead)

    def _leads_after(self, node: str, function: FlowFunction, tool: FunctionSchema) -> FunctionTool:
        """Returns a tool of the agent that leads to another node once it has succeeded."""
        run = tool.handler
        assert run is not None

        async def lead(params: FunctionCallParams) -> None:
            async def report(
                result: Any, *, properties: FunctionCallResultProperties | None = None
            ) -> None:
                if has_succeeded(result) and not self._move(node, function.name, {}):
                    told, asks = await self._enter()
                    if told:
                        result = {"result": result, **told}
                    properties = properties if asks else _NOT_AGAIN
                await params.result_callback(result, properties=properties)

            following = self._following(node, function.name, {})
            if isinstance(following, str):
                return await params.result_callback({"error": following})
            await run(replace(params, result_callback=report))

        schema = tool.to_default_dict()["parameters"]
        return FunctionTool(tool.name, tool.description, schema, lead)

    def _move(self, node: str, function: str, arguments: Any) -> str:
        """Goes on where a function leads to; returns why it does not."""
        following = self._following(node, function, arguments)
        if isinstance(following, str):
            return following
        self._stop()
        before, self._at = self._at.node, following
        self._turn = last_turn(self._call.context.messages)
        ends = [action for action in self._node.pre_actions if action.ends]
        self._due = [*ends, *self._node.post_actions]
        self._offer()
        self._call.context.set_tools(self._offered)
        self._call.emit(NodeEntered(self._call.leg.heard_ms, self._at.node, before, function))
        self._pause_for_secrets()
        return ""

    def _pause_for_secrets(self) -> None:
        """Pauses the recording while a node asks for a secret detail."""
        noted, recording = self._call.leg.collected, self._call.leg.recording
        if any(name in self._secrets and name not in noted for name in self._node.collect):
            recording.pause("detail")
        else:
            recording.resume_if_paused_by("detail")

    def _following(self, node: str, function: str, arguments: Any) -> Position | str:
        """Returns where a function leads to, or why it does not."""
        spoken = last_turn(self._call.context.messages) is not self._turn
        at = Position(self._at.node) if spoken else self._at
        noted = self._call.leg.collected
        return self._table.next(at, node, function, arguments, noted)

    async def _enter(self) -> tuple[dict[str, Any], bool]:
        """Does what comes first in a node. Returns what the model is told beside the function's
        result, and whether it is asked to speak."""
        node, call = self._node, self._call
        told: dict[str, Any] = {}
        if node.context == "summary" and self._infer is not None:
            told = {"summary": text} if (text := await summary_of(call, self._infer)) else {}
        if node.context == "reset" or told:
            call.context.set_messages(since_last_turn(call.context.messages))
        if node.pre_actions:
            call.cue = GOES_ON
        over = await self._do(node.pre_actions)
        return told, node.respond_immediately and not over

    # --- actions ---

    async def _after_the_answer(self) -> None:
        await self._call.wait_until_heard()  # forever, if the caller interrupts: until `_stop`
        await self._do(tuple(self._due))

    def _stop(self) -> None:
        """What waits for the end of an answer waits for that of the next one."""
        if self._doing is not None:
            self._doing.cancel()
            self._doing = None

    async def _do(self, actions: Sequence[FlowAction]) -> bool:
        """Returns whether the model is not to be asked then: the flow has ended with them, or the
        caller has interrupted them and comes first."""
        call = self._call
        self._interrupted = False
        for action in actions:
            if action.say:
                if action in self._due:
                    self._due.remove(action)
                await call.say(self._fill(action.say))
                if self._interrupted:
                    return True
                continue
            why = await self._end(action)
            self._due = []
            if why:  # the call goes on here after all
                logger.warning("{}: the flow does not end: {}", call.leg.call_id, why)
                await call.say(call.sentence(Occasion.NOT_TRANSFERRED))
            return True
        return False

    async def _end(self, action: FlowAction) -> str:
        """Ends the flow as an action says; returns why it does not."""
        if action.hang_up:
            await self._call.hang_up()
        elif action.transfer:
            try:
                await self._call.transfer(action.transfer)
            except LegError as error:
                return f"not transferred: {error}"
        elif why := await self._hand_over(action.hand_over, self._call, self._infer, ""):
            return f"not handed over: {why}"
        return ""


def _name_of(tool: Any) -> str:
    name: str = tool.name if isinstance(tool, FunctionSchema) else tool.__name__
    return name
