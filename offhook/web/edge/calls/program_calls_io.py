"""Calls on which programs decide: asked by webhook, accepted, rejected, transferred and hung up by
HTTP (see web/realtime/call_control_io.py)."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from loguru import logger

from offhook.media.end_reason import End
from offhook.media.leg import Leg, LegError
from offhook.media.tasks_io import first_of
from offhook.media.telephone_tones.tones import EU, play
from offhook.pipeline.conversation.bot_io import BotCall
from offhook.pipeline.conversation.call_io import Call
from offhook.telephony.call_progress_io import Decision
from offhook.telephony.carriers.call_io import CarrierCall
from offhook.telephony.sip.call_io import SipCall
from offhook.telephony.sip.endpoint_io import SipEndpoint
from offhook.web.config.config import Agent as AgentSettings
from offhook.web.config.config import Config
from offhook.web.edge.agents_io import CallAgents
from offhook.web.edge.carriers.carriers_io import Carriers
from offhook.web.edge.queues.queues_io import Queues
from offhook.web.edge.rooms.rooms_io import Rooms
from offhook.web.http.access import AccessPolicy
from offhook.web.realtime.call_control_io import NotRinging
from offhook.web.realtime.calls_io import RealtimeCalls
from offhook.web.realtime.incoming import DECLINED, IncomingState
from offhook.web.realtime.incoming_io import IncomingCalls, headers_of
from offhook.web.realtime.protocol.conversation_session import full_session
from offhook.web.realtime.secrets import ClientSecrets, secrets_with
from offhook.web.realtime.webhooks import Webhook

BUSY_TONE_S = 3.0
"""Time in s that the busy tone sounds when a connected caller is rejected."""


class Browsers(Protocol):
    """The calls of browsers."""

    def find(self, call_id: str) -> Leg | None: ...


class Calls(Protocol):
    """The calls of an edge."""

    config: Config
    sip: SipEndpoint | None
    carriers: Carriers | None
    realtime: RealtimeCalls
    rooms: Rooms
    agents: CallAgents
    queues: Queues

    @property
    def browsers(self) -> Browsers: ...

    @property
    def conversations(self) -> dict[str, Call | BotCall]: ...


class ProgramCalls:
    """The decisions of programs on the calls of an edge, and the client secrets they make."""

    def __init__(self, edge: Calls, secret_key: str) -> None:
        """`secret_key`: of client secrets where the configuration has no key."""
        self.incoming = IncomingCalls()
        self._edge, self._secret_key = edge, secret_key
        self._access: tuple[Config, AccessPolicy] | None = None

    @property
    def secrets(self) -> ClientSecrets:
        """The client secrets with the current key."""
        return self.secrets_of(self._edge.config)

    def secrets_of(self, config: Config) -> ClientSecrets:
        """Returns the client secrets of a configuration. Their key is derived from the API key, so
        that another server with it takes them too."""
        server = config.server
        return secrets_with(server.api_key or server.admin_key or self._secret_key)

    @property
    def access(self) -> AccessPolicy:
        """Returns the access policy of the current configuration."""
        config = self._edge.config
        if self._access is None or self._access[0] is not config:
            policy = replace(config.access(), secret_called=self.secrets_of(config).find)
            self._access = config, policy
        return self._access[1]

    def agent_names(self) -> Collection[str]:
        """Returns the names of the agents that a session can be with."""
        return [name for name, agent in self._edge.config.agents.items() if agent.of_kind.answers]

    def decision(
        self, call: SipCall | CarrierCall, headers: Sequence[tuple[str, str]] = ()
    ) -> Decision | None:
        """Returns the decision on a call that rings here, or is about to be placed; None if it is
        answered or placed at once."""
        people = self._edge.queues.transfers.people
        if self._edge.rooms.expects(call.call_id) or people.find(call.call_id) is not None:
            return None
        agents = self._edge.agents
        agent = agents.called(agents.on_duty(call.agent, call.info))
        if agent.of_kind.answers:
            return None
        return self._decide(call.call_id, agent, headers or headers_of(call.info))

    async def _decide(
        self, call_id: str, agent: AgentSettings, headers: Sequence[tuple[str, str]]
    ) -> int:
        """Asks the agent's program. Returns 0 if the call is for the program or the fallback, or
        the status with which it is refused."""
        webhook = Webhook(agent.url, agent.secrets)
        call = await self.incoming.decide(call_id, webhook, headers, agent.accept_seconds)
        if call.state is IncomingState.ACCEPTED:
            return 0
        if call.state is IncomingState.EXPIRED and agent.fallback:
            logger.warning("{}: nobody accepts the call: {} answers", call_id, agent.fallback)
            return 0
        return call.status

    async def decide_connected(self, leg: Leg, agent: AgentSettings) -> bool:
        """Decides on a call that is connected already, by a carrier or a browser, which hears it
        ring meanwhile. Returns whether it is answered; otherwise it has been told by a tone."""
        deciding = self._decide(leg.call_id, agent, headers_of(leg.info))
        with leg.playing(play(EU.ringback)):
            status, _ = await first_of(deciding, leg.until_closed())
        if leg.closed is not None or status == 0:
            return leg.closed is None
        with leg.playing(play(EU.busy)):
            await first_of(asyncio.sleep(BUSY_TONE_S), leg.until_closed())
        await leg.hang_up(End.DECLINED)
        return False

    def answering(self, call_id: str, agent: AgentSettings) -> AgentSettings:
        """Returns the agent that answers after a decision."""
        config = self._edge.config
        usual = config.agent if config.agent.of_kind.answers else AgentSettings()
        session = self.incoming.session(call_id) or {}
        answering = config.agents.get(agent.fallback, usual)
        return config.agents.get(str(session.get("model")), answering)

    async def accept(self, call_id: str, session: Mapping[str, Any]) -> None:
        """Accepts a ringing call with a validated session object and starts the conversation; does
        nothing for a call that was accepted before. Raises KeyError for one that is not ringing or
        has ended."""
        if self.incoming.accept(call_id, session):
            self._edge.realtime.open(call_id, full_session(dict(session)), owned=False)
        elif self.incoming.state(call_id) is IncomingState.ACCEPTED:
            self._call_called(call_id)
        else:
            raise KeyError(call_id)

    async def reject(self, call_id: str, status: int) -> None:
        """Rejects a ringing call with a SIP status. Raises NotRinging if it is answered, KeyError
        if it is unknown or has ended."""
        if not self.incoming.reject(call_id, status):
            self._call_called(call_id)
            raise NotRinging(call_id)

    async def refer(self, call_id: str, target: str) -> None:
        """Transfers an answered call to a tel: or sip: URI; returns once that is done. Raises
        KeyError, and LegError if it fails; the conversation then continues."""
        if self.incoming.state(call_id) is IncomingState.RINGING:
            raise LegError("it is ringing: accept it before")
        call = self._call_called(call_id)
        leg = call if isinstance(call, Leg) else call.leg
        if leg is None or leg.closed is not None:
            raise LegError("it has no line yet")
        conversation = self._edge.conversations.get(leg.call_id)
        await (conversation or leg).transfer(target)

    async def hang_up(self, call_id: str) -> None:
        """Ends a call. Raises KeyError if it is unknown or has ended."""
        if self.incoming.reject(call_id, DECLINED):
            return
        match self._call_called(call_id):
            case SipCall() as call:
                await call.hang_up(End.HUNG_UP + " by request")
            case CarrierCall() as call:
                assert self._edge.carriers is not None
                await self._edge.carriers.calls.hang_up(call, End.HUNG_UP + " by request")
            case leg:
                leg.close(End.HUNG_UP + " by request")

    async def leave(self, call_id: str) -> None:
        """Ends a browser's call, as its caller. Raises KeyError if it is unknown or has ended."""
        await self._peer(call_id).hang_up(End.CALLER_HUNG_UP)

    def _call_called(self, call_id: str) -> SipCall | CarrierCall | Leg:
        """Returns a call in progress. Raises KeyError."""
        sip, carriers = self._edge.sip, self._edge.carriers
        if sip is not None and (call := sip.calls.get(call_id)) is not None:
            if call.state != "ended" and call.ended is None:
                return call
        elif carriers is not None and (carried := carriers.calls.by_id.get(call_id)):
            if carried.state != "ended" and (carried.leg is None or carried.leg.closed is None):
                return carried
        else:
            return self._peer(call_id)
        raise KeyError(call_id)

    def _peer(self, call_id: str) -> Leg:
        """Returns the leg of a browser's call in progress. Raises KeyError."""
        leg = self._edge.browsers.find(call_id)
        if leg is None or leg.closed is not None:
            raise KeyError(call_id)
        return leg
