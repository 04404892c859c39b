"""The agents of an edge's calls, made as the configuration says."""

from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from loguru import logger

from offhook.media.leg import CallInfo
from offhook.pipeline.conversation.agents.kinds.agent_kind import AgentContext, Fallback, Shared
from offhook.pipeline.conversation.agents.kinds.guide import NO_GUIDE, Guide
from offhook.pipeline.conversation.agents.mailbox.mailbox import Mailbox
from offhook.pipeline.conversation.call.silences import SilenceStep
from offhook.pipeline.conversation.call_io import Agent, Call, Engines
from offhook.pipeline.conversation.call_variables import filled
from offhook.pipeline.conversation.sentences import Occasion
from offhook.telephony.call_progress_io import DialError
from offhook.telephony.sip.trunks.extension import PREFIX
from offhook.web.config.agents import DEFAULT, NOTE
from offhook.web.config.agents import Agent as AgentSettings
from offhook.web.config.config import Config
from offhook.web.config.hours import on_duty
from offhook.web.config.plugins import check_agents
from offhook.web.edge.agent_probe_io import AgentProbes
from offhook.web.edge.calls.records_io import CallRecords
from offhook.web.http.logs import WORDS, brief, for_log
from offhook.web.http.logs import kind as kind_of_event
from offhook.web.tools.agent_tools_io import AgentTools, StandIns
from offhook.web.tools.collected import instructions
from offhook.web.tools.function_io import Fill


class CallAgents:
    """Makes the agents of calls. They share the connections to models and tools."""

    def __init__(self, config: Callable[[], Config], records: CallRecords) -> None:
        """`config` returns the current configuration, which may be reloaded."""
        self._config, self._records = config, records
        self._shared = Shared()
        self._tools = AgentTools()
        self.probes = AgentProbes(config())

    async def start(self) -> None:
        """Reads documents and connects to MCP servers, and waits for them for a while."""
        self._tools.use(self._config())
        await self._tools.started()

    def faults(self) -> list[str]:
        """Returns what agents lack now of what they should have, a line each."""
        return self._tools.faults()

    def tools(self, a: AgentSettings) -> list[str]:
        """Returns the names of the functions that the model of an agent has now, beside those of
        every call."""
        return self._tools.names(a)

    def use(self, config: Config) -> None:
        """Applies a new configuration of documents and MCP servers."""
        self._tools.use(config)

    def load(self, config: Config) -> None:
        """Imports what is of other packages, and the Python functions that are tools. Raises
        ConfigError."""
        check_agents(config)
        self._tools.load(config)

    def stand_in(self, stand_ins: StandIns) -> None:
        """Has the tools of calls answered by others: their conversations are tried."""
        self._tools.stand_ins = stand_ins

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

    def on_duty(self, name: str, info: CallInfo) -> str:
        """Returns who answers a call to the named agent now: another one outside of its hours.
        Calls that are placed are for whom they name."""
        if info.direction == "outbound":
            return name
        agent = on_duty(self._config().hours, name or DEFAULT)
        return name if agent == (name or DEFAULT) else agent

    def engines(self, a: AgentSettings, engines: Engines) -> Engines:
        """Returns the engines of a call as its agent wants to hear and speak."""
        hearing, speaking = engines.hearing, engines.speaking
        if a.language:
            hearing = replace(hearing, language=a.language)
            speaking = replace(speaking, language=a.language.partition("-")[0].lower())
        if a.context:
            hearing = replace(hearing, context=a.context)
        if not a.of_kind.own_voice:
            speed = speaking.speed if a.speed is None else a.speed
            speaking = replace(speaking, voice=a.voice or speaking.voice, speed=speed)
        languages = {
            code: replace(speaking, language=code, voice=a.voices.get(code, speaking.voice))
            for code in a.languages
        }
        if languages:
            hearing = replace(hearing, language=None)
            speaking = languages[a.languages[0]]
        turns = engines.turn_detection
        turns = replace(turns, settings=replace(turns.settings, **a.turn))
        if a.noise_suppression is not None:
            noise = replace(turns.enhancement, noise_suppression=a.noise_suppression)
            turns = replace(turns, enhancement=noise)
        lexicon = a.pronunciations | self._config().tts.pronunciations
        return replace(
            engines,
            turn_detection=turns,
            hearing=hearing,
            speaking=speaking,
            lexicon=lexicon,
            languages=languages,
        )

    def find(self, name: str) -> AgentSettings | None:
        """Returns the named agent; None if it was removed since the call began."""
        return self._config().agent_called(name)

    def fill(self, a: AgentSettings, info: CallInfo) -> Fill:
        """Returns what puts the variables of a call into an agent's texts."""
        now = datetime.now(ZoneInfo(a.time_zone) if a.time_zone else None)
        return lambda text: filled(text, info, a.variables, now)

    def sentences(self, a: AgentSettings, info: CallInfo) -> dict[Occasion, str]:
        """Returns the sentences of an agent for a call."""
        fill = self.fill(a, info)
        return {occasion: fill(text) for occasion, text in a.sentences.items()}

    def make(
        self, a: AgentSettings, call: Call, briefing: str = "", guide: Guide = NO_GUIDE
    ) -> Agent:
        """Makes the agent of a call. `briefing` follows its instructions; `guide` leads its
        model."""
        fill = self.fill(a, call.leg.info)
        kind, context = a.of_kind, replace(self._context(a, call, fill, briefing), guide=guide)
        made = kind.make(context)
        if a.tools or a.knowledge or a.collect or a.recording_tools:
            tools = self._tools.functions(a, call, fill)
            made = replace(made, tools=[*made.tools, *tools])
        if kind.own_voice:
            return made
        return replace(
            made,
            greeting=context.greeting,
            greeting_interruptible=made.greeting_interruptible and a.greeting_interruptible,
            silences=[SilenceStep(step.after, fill(step.say), step.hang_up) for step in a.silence],
            goodbye=fill(a.goodbye),
        )

    def _context(self, a: AgentSettings, call: Call, fill: Fill, briefing: str) -> AgentContext:
        """Returns what an agent is made of."""
        kind, fallback = a.of_kind, None
        mailbox = self._mailbox(call.leg.info)
        details = {name: detail.filled(fill) for name, detail in a.collect.items()}
        collects = instructions(details, call.leg.collected, NOTE) if details else ""
        if a.fallback:
            other = self._config().agents[a.fallback]
            alone = other.model_copy(update={"fallback": ""})
            fallback = Fallback(other.of_kind, other, lambda: self.make(alone, call))
        return AgentContext(
            call,
            getattr(self._config(), kind.section) if kind.section else a.own_settings,
            table=a,
            instructions="\n\n".join(filter(None, (fill(a.instructions), collects, briefing))),
            greeting="" if mailbox is not None else fill(a.greeting),
            shared=self._shared,
            log=partial(_log, call.leg.call_id, self._config().log.has_words),
            fallback=fallback,
            passages=self._tools.finder(a),
            mailbox=mailbox,
        )

    def _mailbox(self, info: CallInfo) -> Mailbox | None:
        """Returns the messages of an extension that calls to hear them; None for other calls."""
        sip, number = self._config().sip, info.trunk.removeprefix(PREFIX)
        asks = sip is not None and sip.messages and info.called == sip.messages
        if not asks or number == info.trunk or info.direction != "inbound":
            return None
        from offhook.web.edge.calls.own_mailbox_io import OwnMailbox

        return OwnMailbox(number, self._records, self._config)

    async def close(self) -> None:
        """Closes the connections to models and tools."""
        await self.probes.close()
        await self._tools.close()
        await self._shared.close()


def _log(call_id: str, has_words: bool, action: Any) -> None:
    """Logs what an agent does, a dataclass."""
    done = for_log(asdict(action), has_words, (*WORDS, "name", "number"))
    logger.bind(call=call_id, action=done).info(
        "{}: agent: {} {}", call_id, kind_of_event(action), brief(done)
    )
