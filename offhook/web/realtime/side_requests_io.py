"""What runs beside a session's call: responses that no line plays, requests to MCP servers, and the
agent's own tools."""

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from loguru import logger
from pipecat.frames.frames import FunctionCallResultProperties
from pipecat.services.llm_service import FunctionCallParams

from offhook.media.tasks_io import TaskSet
from offhook.media.untrusted_json import read_json
from offhook.pipeline.conversation.call_io import Agent, Call
from offhook.pipeline.conversation.directed_io import FunctionTool, Inference
from offhook.pipeline.speech.script.script_io import open_speech
from offhook.pipeline.speech.synthesizer import VoiceOptions
from offhook.web.realtime.chat import context_of, usage_of
from offhook.web.realtime.conversation.actions import Action, Generate, ListMcpTools, McpCall
from offhook.web.realtime.conversation.conversation import RealtimeConversation
from offhook.web.realtime.conversation.mcp import OF_AGENT
from offhook.web.realtime.leg_io import SocketLeg
from offhook.web.realtime.protocol.items import McpToolError
from offhook.web.speech_api.http.synthesis_io import spoken

if TYPE_CHECKING:  # its package is an extra
    from offhook.web.realtime.mcp_io import McpConnections

NO_MCP = McpToolError(
    type="tool_execution_error",
    message="this server calls no MCP servers: its operator has not named any in its settings",
)
RESPONSE_TIMEOUT_S = 60.0
"""Time limit in s for the text of a response beside the conversation; then the response fails with
`server_error`."""


class SideRequests:
    """The tasks of one session. Each reports to the conversation what has become of it."""

    def __init__(
        self,
        conversation: RealtimeConversation,
        perform: Callable[[Iterable[Action]], None],
        mcp: "McpConnections | None",
    ) -> None:
        """`perform` does what the conversation asks for after a report. `mcp`: the MCP servers
        that the session's tools may be of."""
        self._conversation, self._perform, self._mcp = conversation, perform, mcp
        self._tasks = TaskSet()
        self._responses: dict[str, asyncio.Task[None]] = {}
        self._functions: dict[str, FunctionTool] = {}
        """The agent's own tools, by name."""
        self._own: dict[str, set[asyncio.Task[None]]] = {}
        """Those that run, by the responses that call them."""

    async def close(self) -> None:
        """Cancels all tasks and closes the connections to MCP servers."""
        await self._tasks.close()
        if self._mcp is not None:
            await self._mcp.close()

    def list_tools(self, action: ListMcpTools) -> None:
        self._tasks.spawn(self._list_tools(action), f"MCP list {action.item_id}")

    def offer(self, functions: Sequence[FunctionTool]) -> None:
        """Runs these when the model calls tools of the agent's own."""
        self._functions = {function.name: function for function in functions}

    def call_tool(self, action: McpCall) -> None:
        if action.tool is not OF_AGENT:
            self._tasks.spawn(self._call_tool(action), f"MCP call {action.item_id}")
            return
        task = self._tasks.spawn(self._call_own(action), f"tool {action.name}")
        running = self._own.setdefault(action.response_id, set())
        running.add(task)
        task.add_done_callback(lambda task: self._forget(action.response_id, task))

    def _forget(self, response_id: str, task: asyncio.Task[None]) -> None:
        running = self._own[response_id]
        running.discard(task)
        if not running:
            del self._own[response_id]

    async def _call_own(self, action: McpCall) -> None:
        """Runs a tool of the agent's own, which tells the call's events itself."""
        outcome: tuple[Any, bool] = None, True

        async def keep(
            result: Any, *, properties: FunctionCallResultProperties | None = None
        ) -> None:
            nonlocal outcome
            outcome = result, properties is None or properties.run_llm is not False

        arguments = read_json(action.arguments or "{}")
        of_pipeline: Any = None  # which our tools do not ask for
        handler = self._functions[action.name].handler
        assert handler is not None
        await handler(
            FunctionCallParams(
                *(action.name, action.item_id, arguments),
                *(of_pipeline, of_pipeline, of_pipeline),
                result_callback=keep,
            )
        )
        result, follows = outcome
        output = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
        self._perform(self._conversation.mcp_called(action.item_id, output, follows=follows))

    async def _list_tools(self, action: ListMcpTools) -> None:
        listed = NO_MCP if self._mcp is None else await self._mcp.list_tools(action.tool)
        if isinstance(listed, McpToolError):
            self._perform(self._conversation.mcp_tools_failed(action.item_id, listed.message))
        else:
            self._perform(self._conversation.mcp_tools(action.item_id, listed))

    async def _call_tool(self, action: McpCall) -> None:
        called: str | McpToolError = NO_MCP
        if self._mcp is not None:
            called = await self._mcp.call(action.tool, action.name, action.arguments)
        self._perform(self._conversation.mcp_called(action.item_id, called))

    def respond(self, action: Generate, call: Call, agent: Agent, voice: VoiceOptions) -> None:
        """Generates a response that is not part of the conversation; where `call` has a WebSocket
        leg and the response is to be audio, `voice` speaks it."""
        respond = self._respond(action, call, agent, voice)
        task = self._tasks.spawn(respond, f"response {action.response_id}")
        self._responses[action.response_id] = task

    def cancel(self, response_id: str) -> bool:
        """Cancels a response, and the agent's tools that the response with this id calls; returns
        whether it is one of these here."""
        for call in self._own.get(response_id, ()):
            call.cancel()
        task = self._responses.pop(response_id, None)
        if task is not None:
            task.cancel()
        return task is not None

    async def _respond(
        self, action: Generate, call: Call, agent: Agent, voice: VoiceOptions
    ) -> None:
        conversation, response_id = self._conversation, action.response_id
        try:
            async with asyncio.timeout(RESPONSE_TIMEOUT_S):
                answer = await _infer(action, agent)
            self._perform(conversation.response_text(response_id, answer.text))
            if action.modalities == ("audio",) and isinstance(call.leg, SocketLeg):
                await self._speak(response_id, answer.text, call, voice)
            for function_call in answer.calls:
                self._perform(conversation.response_function_call(response_id, *function_call))
            usage = usage_of(answer.usage)
            self._perform(conversation.response_done(response_id, usage, answer.incomplete))
        except Exception as error:
            logger.warning(
                "{}: response beside: {}", call.leg.call_id, str(error) or type(error).__name__
            )
            words = "the response could not be generated"
            if agent.infer is None:
                words = "the agent of this conversation is no language model"
            self._perform(conversation.response_failed(response_id, "server_error", words))
        finally:
            self._responses.pop(response_id, None)

    async def _speak(self, response_id: str, text: str, call: Call, voice: VoiceOptions) -> None:
        """Synthesizes a response that no line plays. Raises EngineError."""
        options = replace(voice, live=False, whole_text=True)
        engines = call.engines
        stream = open_speech(engines.synthesizer, options, engines.lexicon)
        try:
            async for speech in spoken(stream, text):
                self._perform(self._conversation.response_audio(response_id, speech.pcm))
        finally:
            stream.cancel()


async def _infer(action: Generate, agent: Agent) -> Inference:
    if agent.infer is None:
        raise RuntimeError("the agent is no language model")
    limit = action.max_output_tokens
    max_tokens = None if limit == "inf" else limit
    return await agent.infer(context_of(action), action.instructions, max_tokens)
