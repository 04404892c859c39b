"""The agents of an edge's calls, made as the configuration says."""

from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from loguru import logger

from offhook.pipeline.conversation.agents.agents_io import FrontDeskAgent, SilentAgent
from offhook.pipeline.conversation.agents.frontdesk import Action, Hangup, Transfer
from offhook.pipeline.conversation.call_io import Agent, Call, Engines
from offhook.pipeline.conversation.call_variables import filled
from offhook.pipeline.conversation.silences import SilenceStep
from offhook.telephony.call_progress_io import DialError
from offhook.web.config.agents import Agent as AgentSettings
from offhook.web.config.config import Config
from offhook.web.http.logs import brief, for_log, kind
from offhook.web.tools.agent_tools_io import AgentTools

if TYPE_CHECKING:  # with an agent that asks a language model: it is large
    from openai import DefaultAsyncHttpxClient


class CallAgents:
    """Makes the agents of calls. They share the connections to language models."""

    def __init__(self, config: Callable[[], Config]) -> None:
        """`config` returns the current configuration, which may be reloaded."""
        self._config = config
        self._models: DefaultAsyncHttpxClient | None = None
        """Connections to language models; created with the first call that needs one."""
        self._tools = AgentTools()

    async def start(self) -> None:
        """Connects to the MCP servers, and waits for them for a while."""
        self._tools.use(self._config())
        await self._tools.started()

    def use(self, config: Config) -> None:
        """Applies a new configuration of MCP servers."""
        self._tools.use(config)

    def load_tools(self, config: Config) -> None:
        """Imports the Python functions that are tools. Raises ConfigError."""
        for agent in (config.agent, *config.agents.values()):
            self._tools.load(agent.tools)

    def check(self, name: str) -> None:
        """Raises DialError for an unknown agent."""
        config = self._config()
        if name and name not in config.agents:
            there = ", ".join(config.agents) or "none"
            raise DialError(0, f"no agent is called {name!r} (there: {there})")

    def called(self, name: str) -> AgentSettings:
        """Returns the named agent; the default for "" and for an agent removed since the call
        began."""
        config = self._config()
        if (agent := config.agent_called(name)) is not None:
            return agent
        if name:
            logger.warning("no agent is called {} any more: the usual one answers", name)
        return config.agent

    def engines(self, a: AgentSettings, engines: Engines) -> Engines:
        """Returns the engines of a call as its agent wants to hear and speak."""
        hearing, speaking = engines.hearing, engines.speaking
        if a.language:
            hearing = replace(hearing, language=a.language)
            speaking = replace(speaking, language=a.language.partition("-")[0].lower())
        if a.context:
            hearing = replace(hearing, context=a.context)
        if a.kind != "realtime":
            speed = speaking.speed if a.speed is None else a.speed
            speaking = replace(speaking, voice=a.voice or speaking.voice, speed=speed)
        return replace(engines, hearing=hearing, speaking=speaking)

    def find(self, name: str) -> AgentSettings | None:
        """Returns the named agent; None if it was removed since the call began."""
        return self._config().agent_called(name)

    def make(self, a: AgentSettings, call: Call, briefing: str = "") -> Agent:
        """Makes the agent of a call. `briefing` follows its instructions."""
        now = datetime.now(ZoneInfo(a.time_zone) if a.time_zone else None)

        def fill(text: str) -> str:
            return filled(text, call.leg.info, a.variables, now)

        instructions = "\n\n".join(text for text in (fill(a.instructions), briefing) if text)
        a = a.model_copy(update={"instructions": instructions})
        greeting = fill(a.greeting)
        made = self._realtime(a, call, greeting) if a.kind == "realtime" else self._make(a, call)
        if a.tools:
            tools = self._tools.functions(a, call, fill)
            made = replace(made, tools=[*made.tools, *tools])
        if a.kind == "realtime":
            return made
        return replace(
            made,
            greeting=greeting,
            greeting_interruptible=a.greeting_interruptible,
            silences=[SilenceStep(step.after, fill(step.say), step.hang_up) for step in a.silence],
            goodbye=fill(a.goodbye),
        )

    def _make(self, a: AgentSettings, call: Call) -> Agent:
        if a.kind == "openai":
            return replace(self._openai(a, call), takes_images=a.images)

        async def act(action: Action) -> None:
            done = for_log(asdict(action), has_words=True)  # a message is left to be read
            logger.bind(call=call.leg.call_id, action=done).info(
                "{}: front desk: {} {}", call.leg.call_id, kind(action), brief(done)
            )
            if isinstance(action, Hangup):
                await call.hang_up()
            elif isinstance(action, Transfer):
                await call.transfer(action.to)

        if a.kind == "silent":
            return Agent("silent", SilentAgent())
        desk = FrontDeskAgent(self._config().frontdesk, act, call.leg.info.caller)
        return Agent(
            *("frontdesk", desk),
            on_cut=desk.cut,
            on_idle=desk.prompt,
            on_returned=desk.returned,
            dialog=desk.dialog,
            restore=desk.restore,
        )

    def _openai(self, a: AgentSettings, call: Call) -> Agent:
        from offhook.pipeline.conversation.agents.openai_agent_io import (
            OpenAIAgentSettings,
            model_connections,
            openai_agent,
        )
        from offhook.pipeline.conversation.agents.openai_model_io import OpenAIModel

        if self._models is None:
            self._models = model_connections()

        fallback, standby = None, None
        if a.fallback:
            other = self._config().agents[a.fallback]
            if other.kind == "openai":
                fallback = OpenAIModel(
                    other.model, other.base_url, other.api_key, options=other.options
                )
            else:
                standby = self.make(other, call)
        settings = OpenAIAgentSettings(
            *(a.model, a.base_url, a.api_key, a.instructions, a.transfers),
            options=a.options,
            limits=a.limits,
            fallback=fallback,
            gives_up_to=a.gives_up_to,
            think_ahead=a.think_ahead,
            speak_ahead=a.speak_ahead,
            judges_turns=a.judges_turns,
        )
        return openai_agent(settings, call, self._models, standby)

    def _realtime(self, a: AgentSettings, call: Call, greeting: str) -> Agent:
        from offhook.pipeline.conversation.agents.realtime_agent_io import (
            RealtimeAgentSettings,
            realtime_agent,
        )

        standby = None
        if a.fallback:
            other = self._config().agents[a.fallback]
            standby = self.make(other.model_copy(update={"fallback": ""}), call)
        begins = f"\n\nBegin the call with exactly these words: {greeting}" if greeting else ""
        settings = RealtimeAgentSettings(
            *(a.model, a.base_url, a.api_key, a.instructions + begins, a.voice, a.transfers),
            options=a.options,
            limits=a.limits,
            gives_up_to=a.gives_up_to,
        )
        return realtime_agent(settings, call, standby)

    async def close(self) -> None:
        """Closes the connections to language models and tools."""
        await self._tools.close()
        if self._models is not None:
            await self._models.aclose()
