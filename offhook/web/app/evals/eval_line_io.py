"""The line by which a scenario's caller calls an agent: a real call on this machine, by WebRTC, by
SIP, or as a carrier passes it on."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from random import Random
from secrets import token_hex
from typing import Any, Protocol

from offhook.media.bridge_io import Bridge
from offhook.media.clock_io import PacketClock
from offhook.media.end_reason import End, EndReason
from offhook.media.leg import Leg, LegError, LegListener
from offhook.telephony.call_progress_io import DialError
from offhook.telephony.carriers.settings import CarrierSettings
from offhook.telephony.sip.trunks.routes import Route
from offhook.telephony.sip.trunks.trunks import CODECS, SipSettings, Trunk
from offhook.web.app.callers.caller_sip_io import SipCaller
from offhook.web.app.callers.caller_webrtc_io import CallError, WebRtcCaller
from offhook.web.app.callers.twilio.caller_io import TwilioCaller
from offhook.web.app.callers.twilio.webhook_io import CallFacts, Refused
from offhook.web.app.callers.way import Way
from offhook.web.app.evals.eval_leg_io import EvalLeg
from offhook.web.app.evals.line_settings import LineSettings
from offhook.web.app.evals.microphone import Microphone
from offhook.web.config.config import Config
from offhook.web.config.server import WebRtc
from offhook.web.edge.calls.live_call_io import LiveCall
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from offhook.web.edge.text.text_edge_io import without_doors
from offhook.web.http.listening_io import Runner

HOST = "127.0.0.1"
NAME = "eval"
"""Of the trunk and of the carrier by which the caller calls."""
NO_REST = "http://127.0.0.1:9"
"""In place of the carrier's REST API, which knows nothing of these calls: nobody is there."""
PER_SECOND = 1000.0
"""Limit of SIP requests a second: all callers are here."""
DIAL_S = 30
"""Time limit in s from dialing to a call."""
ENDS_S = 10
"""Time limit in s for a call to end after the caller has hung up."""
MAX_COMING = 256
"""Calls of the edge that nobody has asked for yet; there is one at a time."""
MAX_UNHEARD = 64
"""Messages kept of a call that nobody listens to yet; the oldest are dropped."""


class LineError(RuntimeError):
    """Raised when the agent cannot be called; the message says why."""


class Caller(Protocol):
    """One call from the caller's side."""

    @property
    def leg(self) -> Any: ...

    async def call(self) -> None:
        """Returns once the call is answered."""

    async def close(self) -> None:
        """Ends what belongs to the call beside its leg."""


def with_line(config: Config, over: str, agent: str) -> Config:
    """Returns a configuration that callers on this machine reach by one kind of line, and whose
    calls are for the named agent, "" for the default."""
    server = {"host": HOST, "port": 0, "api_key": "", "admin_key": "", "max_lateness_ms": 0}
    closed = without_doors(config)
    changed: dict[str, Any] = {
        "server": closed.server.model_copy(update=server),
        "webrtc": WebRtc(addresses=[HOST]),
        "log": config.log.model_copy(update={"calls": None}),  # that is of callers
    }
    if agent and not config.agent.of_kind.answers:  # a program would be asked about each call
        changed["agent"] = config.agents[agent]
    if over == "sip":
        codecs = config.sip.trunks[0].codecs if config.sip and config.sip.trunks else CODECS
        changed["sip"] = SipSettings(
            host=HOST,
            udp=0,
            tcp=None,
            trunks=(Trunk(NAME, addresses=(HOST,), codecs=codecs),),
            routes=(Route(agent=agent),),
            requests_per_second=PER_SECOND,
            invites_per_second=PER_SECOND,
        )
    elif over == "twilio":
        of_config = (one for one in config.carriers if one.provider == "twilio")
        settings = next(of_config, CarrierSettings("twilio"))
        ours = replace(
            settings,
            name=NAME,
            account=CallFacts().account,
            secret=token_hex(16),
            rest_url=NO_REST,
            agent=agent,
            public_url="",
            max_calls=0,
        )
        changed["carriers"] = (ours,)
    return closed.model_copy(update=changed)


class EvalLine:
    """Calls an edge."""

    def __init__(self, edge: Edge, url: str, settings: LineSettings, agent: str) -> None:
        """`url` is where the edge's HTTP server listens, `agent` who answers: see `with_line`."""
        self._edge, self._url, self._settings = edge, url, settings
        self._clock = PacketClock()
        self._dialing = asyncio.Lock()
        """One is dialed at a time, so that the edge's next call is known to be that one."""
        self._coming: asyncio.Queue[LiveCall] = asyncio.Queue(MAX_COMING)
        self._on_call: Callable[[str], object] = lambda call_id: None
        """Called with the id of the next call."""
        edge.call_class = _watched(self._note, agent)

    def _note(self, call: LiveCall) -> None:
        self._on_call(call.leg.call_id)
        self._coming.put_nowait(call)

    @asynccontextmanager
    async def calling(
        self, leg: EvalLeg, on_call: Callable[[str], object]
    ) -> AsyncIterator[LiveCall]:
        """Calls the agent, and has the harness's leg talk with it while inside. `on_call` is called
        with the id of the call before it begins. Raises LineError."""
        caller = self._caller()
        try:
            live = await self._dial(caller, on_call)
            with self._joined(leg, caller.leg, live):
                yield live
        finally:
            await caller.leg.hang_up(End.CALLER_HUNG_UP)
            await caller.close()
        if live.running is not None:
            await asyncio.wait((live.running,), timeout=ENDS_S)

    def _caller(self) -> Caller:
        settings = self._settings
        way = Way(settings.loss / 100, settings.jitter, Random(1))
        caller: WebRtcCaller | SipCaller
        match settings.over:
            case "twilio":
                carrier = self._edge.config.carriers[0]
                webhook = f"{self._url}/carriers/{carrier.name}/voice"
                return TwilioCaller(webhook, carrier.secret, way)
            case "sip":
                assert self._edge.sip is not None
                port = next(port for _, _, port in self._edge.sip.bound)
                caller = SipCaller(f"sip:{NAME}@{HOST}:{port}", self._clock)
            case _:
                caller = WebRtcCaller(self._url)
        caller.leg.way = way
        return caller

    async def _dial(self, caller: Caller, on_call: Callable[[str], object]) -> LiveCall:
        """Returns the edge's call. Raises LineError."""
        async with self._dialing:
            self._on_call = on_call
            while not self._coming.empty():  # one that failed
                self._coming.get_nowait()
            try:
                async with asyncio.timeout(DIAL_S):
                    await caller.call()
                    return await self._coming.get()
            except TimeoutError as error:
                raise LineError(f"no call within {DIAL_S} s by {self._settings.over}") from error
            except (CallError, DialError, Refused, OSError) as error:
                raise LineError(f"no call by {self._settings.over}: {error}") from error

    @contextmanager
    def _joined(self, leg: EvalLeg, line: Leg, live: LiveCall) -> Iterator[None]:
        """Joins the harness's leg with the caller's while inside."""
        leg.microphone = Microphone(self._settings).process
        bridge = Bridge(leg, line)
        leg.listener = _ToAgent(line, live.leg)
        line.attach(_ToHarness(leg))
        if isinstance(told := live.leg.overheard_by, _Unheard):
            for text in told:
                leg.send_message(text)
            live.leg.overheard_by = leg.send_message
        leg.connect()
        for one in (leg, line):
            self._clock.add(one)
        try:
            yield
        finally:
            for one in (leg, line):
                self._clock.remove(one)
            bridge.close()


class _ToAgent(LegListener):
    """Passes on by the line what the harness sends beside sound."""

    def __init__(self, line: Leg, agents: Leg) -> None:
        """`agents` is the leg at the line's other end."""
        self._line, self._agents = line, agents

    def on_message(self, text: str) -> None:
        if self._agents.overheard_by is None:
            self._line.send_message(text)
        else:  # a phone has no messages
            self._agents.listener.on_message(text)

    def on_dtmf(self, digit: str) -> None:
        with suppress(LegError):  # the line is gone
            self._line.send_dtmf(digit)


class _ToHarness(LegListener):
    """Passes on to the harness what comes by the line beside sound."""

    def __init__(self, leg: EvalLeg) -> None:
        self._leg = leg

    def on_message(self, text: str) -> None:
        self._leg.send_message(text)

    def on_closed(self, reason: EndReason) -> None:
        self._leg.close(reason)


class _Unheard(deque[str]):
    """Keeps what a call tells before the harness listens."""

    def __call__(self, text: str) -> None:
        self.append(text)


def _watched(note: Callable[[LiveCall], object], agent: str) -> type[LiveCall]:
    """Returns what calls of an agent are that report themselves to `note`, and what they tell on a
    line without messages."""

    class WatchedCall(LiveCall):
        def __init__(self, host: Any, leg: Leg, called: str = "", **named: Any) -> None:
            super().__init__(host, leg, agent or called, **named)
            if not self.leg.carries_messages:
                self.leg.overheard_by = _Unheard(maxlen=MAX_UNHEARD)
            note(self)

    return WatchedCall


@asynccontextmanager
async def eval_line(edge: Edge, settings: LineSettings, agent: str) -> AsyncIterator[EvalLine]:
    """Has an edge listen on this machine while inside, for calls of an agent by one kind of
    line."""
    runner = Runner(application(edge), shutdown_timeout=1)
    await runner.setup()
    try:
        await runner.listen(HOST, 0)
        yield EvalLine(edge, f"http://{HOST}:{runner.addresses[0][1]}", settings, agent)
    finally:
        await runner.cleanup()
