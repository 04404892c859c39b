"""Carriers at the front door: their webhooks, the streams they open, the calls we place with them.

POST /carriers/NAME/voice           a call is there: what shall be done with it? → our stream
POST /carriers/NAME/voice/CALL      the same of a call that we placed
POST /carriers/NAME/resume/TOKEN    the same of a call that another server has released
POST /carriers/NAME/status/CALL     how a call that we placed goes
POST /carriers/NAME/transfer/CALL   how a transfer of a call has ended; see transfers_io
GET  /carriers/NAME/stream          the stream of a carrier that signs it, or has a password
GET  /carriers/NAME/stream/TICKET   the stream that a webhook's answer named
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Protocol

import aiohttp
from aiohttp import web
from loguru import logger

from offhook.media.codecs.opus import OpusSettings
from offhook.media.end_reason import End
from offhook.media.leg import CallInfo, Claim, Leg, LegError
from offhook.media.silence_io import SilenceWatch
from offhook.media.tasks_io import TaskSet
from offhook.telephony.call_progress_io import Decision, DialError
from offhook.telephony.call_record import CallRecord
from offhook.telephony.carriers.auth.signatures import Rejected, SignedRequest, url_token
from offhook.telephony.carriers.auth.tickets import TICKET_LIFETIME_S
from offhook.telephony.carriers.call_io import CarrierCall
from offhook.telephony.carriers.leg_io import CarrierLeg
from offhook.telephony.carriers.rest.client_io import CarrierRestClient
from offhook.telephony.carriers.rest.markup import (
    CONTINUING,
    REPORTING,
    WebhookCall,
    answer,
    hang_up,
    refusal,
    retry,
)
from offhook.telephony.carriers.rest.providers import APIS
from offhook.telephony.carriers.settings import CarrierSettings
from offhook.telephony.carriers.streams.audiosocket_io import AudioSocketServer
from offhook.telephony.carriers.streams.chan_websocket import ChanWebSocketStream
from offhook.telephony.carriers.streams.connections_io import Connections
from offhook.telephony.carriers.streams.exotel import ExotelStream
from offhook.telephony.carriers.streams.genesys import GenesysStream
from offhook.telephony.carriers.streams.plivo import PlivoStream
from offhook.telephony.carriers.streams.stream import CarrierError, CarrierStream, Message, Started
from offhook.telephony.carriers.streams.telnyx import TelnyxStream
from offhook.telephony.carriers.streams.twilio import TwilioStream
from offhook.telephony.carriers.streams.vonage import VonageStream
from offhook.telephony.carriers.streams.websocket_io import StreamSocket
from offhook.web.edge.carriers.requests_io import (
    TRIES_PARAMETER,
    Answer,
    Carrier,
    CarrierRequests,
    base_url,
    parsed,
    without_tries,
)
from offhook.web.edge.carriers.transfers_io import CarrierTransfers
from offhook.web.edge.refusals import Busy
from offhook.web.edge.resume.resumption_io import Resumption
from offhook.web.edge.resume.saved_call import SavedCall, key_of
from offhook.web.http.shares import NOBODY, Holders
from offhook.web.process.metrics import Metrics

START_S = 10.0
"""Time limit in s for a stream to start once its socket is open; then the call ends."""
NEWS_S = 30.0
"""Time in s, beyond ringing, without any status of a call we placed after which it has failed."""
MAX_RETRIES = 10
"""Times that a call that comes back asks for a free line before it ends."""
ENDED_CALLS = 500
"""Ended calls remembered for programs that ask later; the oldest are dropped."""
BY_TICKET = ("twilio", "telnyx", "plivo", "vonage", "exotel")
"""Providers that ask by webhook and open the stream named in the response."""
BY_SIGNATURE = ("twilio", "genesys", "chan_websocket")
"""Providers whose WebSocket upgrade is verified by itself."""
BY_ADDRESS = ("audiosocket", "chan_websocket")
"""Providers who may be known by their address alone; of their calls only some may wait for their
first sound."""


class Host(Protocol):
    """What the edge provides to the carriers."""

    metrics: Metrics
    resumption: Resumption | None

    def admit(
        self, holders: Holders | None = None, coming: Sequence[Claim | None] = ()
    ) -> Claim | None:
        """Raises Busy if another call would harm those in progress and the `coming` ones, or if too
        many wait of those that are counted for holders. Returns `Leg.claim`."""

    prefix: str
    """With which the ids of calls and tickets of this process begin."""

    @property
    def opus(self) -> OpusSettings: ...

    def new_id(self) -> str:
        """Returns an id for a call."""

    async def run_call(self, leg: Leg, agent: str, *, returned: SavedCall | None = None) -> None:
        """Runs the conversation to its end. `returned` is the one before a transfer that failed."""

    def saved(self, call_id: str, agent: str) -> SavedCall | None:
        """Returns a conversation as it is now; None if it cannot be continued."""

    def record(self, record: CallRecord) -> None:
        """Records a call that has ended."""


class Carriers:
    """All carriers of one edge, and their calls."""

    def __init__(self, settings: tuple[CarrierSettings, ...], address: str, host: Host) -> None:
        """`address` is the address for AudioSocket listeners."""
        self.calls: dict[str, CarrierCall] = {}
        """Calls in progress and recently ended ones, by our ids."""
        self.by_name: dict[str, Carrier] = {}
        self.bound: dict[str, tuple[str, int]] = {}
        """Bound AudioSocket addresses, by carrier name."""
        self.decision: Callable[[CarrierCall], Decision | None] = lambda call: None
        """Called with each call before it is placed: returns what decides whether it is; None to
        place it at once."""
        self.connections = Connections()
        """Of all streams, for the packet clock."""
        self._address = address
        self._host = host
        self._settings = settings
        self._tasks = TaskSet()
        self._requests = CarrierRequests(self.by_name, self._tasks, host.metrics)
        self.transfers = CarrierTransfers(self, self._requests, host.saved)
        self._http: aiohttp.ClientSession

    # --- life ---

    async def start(self) -> None:
        """Raises OSError, RestError."""
        self._http = aiohttp.ClientSession()
        rests = self.rests(self._settings)
        for settings in self._settings:
            carrier = Carrier(settings, rests[settings.name])
            self.by_name[settings.name] = carrier
            if settings.provider == "audiosocket":
                await self._listen(carrier)
            else:
                logger.info(
                    "{} reaches me at {}/carriers/{}/{}",
                    settings.name,
                    settings.public_url or "…",
                    settings.name,
                    "voice" if settings.provider in BY_TICKET else "stream",
                )

    async def close(self) -> None:
        await self._tasks.close()
        for carrier in self.by_name.values():
            if carrier.server is not None:
                await carrier.server.close()
        await self._http.close()

    def rests(self, settings: tuple[CarrierSettings, ...]) -> dict[str, CarrierRestClient | None]:
        """Returns the REST clients by carrier name; None for carriers without one. Raises
        RestError."""
        return {
            s.name: CarrierRestClient(s, self._http) if s.provider in APIS else None
            for s in settings
        }

    def use(
        self, settings: tuple[CarrierSettings, ...], rests: Mapping[str, CarrierRestClient | None]
    ) -> None:
        """Applies new settings and `rests` of the same carriers to new calls."""
        for new in settings:
            carrier = self.by_name[new.name]
            carrier.settings, carrier.rest = new, rests[new.name]
            if carrier.server is not None:
                carrier.server.set_allowed_addresses(new.addresses)

    async def _listen(self, carrier: Carrier) -> None:
        def open_leg(
            stream: CarrierStream, send: Callable[[Message], None], peer: str
        ) -> CarrierLeg:
            settings = carrier.settings
            try:
                claim, busy = self._admit(settings), ""
            except Busy as fault:
                claim, busy = None, End.REFUSED + f": 503 ({fault})"
            info = CallInfo(settings.provider, trunk=settings.name)
            call = self._new_call(carrier, info, claim=claim)
            leg = self._leg(call, stream, send)
            if busy:
                leg.close(busy)
                call.set_state("ended", 503, busy)
            else:
                self._tasks.spawn(self._run(call, leg), f"call {call.call_id}")
            return leg

        settings = carrier.settings
        server = AudioSocketServer(self._address, settings.port, settings.addresses, open_leg)
        carrier.server = server
        self.bound[settings.name] = await server.start()
        logger.info(
            "{} reaches me by AudioSocket at {}:{}", settings.name, *self.bound[settings.name]
        )

    # --- calls ---

    def in_progress(self) -> list[CarrierCall]:
        return [call for call in self.calls.values() if call.state != "ended"]

    def _calls_of(self, carrier: Carrier) -> list[CarrierCall]:
        """Returns the carrier's calls in progress."""
        return [c for c in self.in_progress() if c.carrier.name == carrier.settings.name]

    def call_of(self, carrier: Carrier, call_id: str) -> CarrierCall | None:
        """Returns a current or ended call of this carrier, or None."""
        call = self.calls.get(call_id)
        there = call is not None and call.carrier.name == carrier.settings.name
        return call if there else None

    def _admit(self, settings: CarrierSettings) -> Claim | None:
        """Returns `Leg.claim` of the new call. Raises Busy."""
        calls = self.in_progress()
        coming = [call.claim for call in calls if call.leg is None]
        claim = self._host.admit(_holders(settings), coming)
        own = sum(call.carrier.name == settings.name for call in calls)
        if settings.max_calls and own >= settings.max_calls:
            self._host.metrics.refused.labels("full").inc()
            raise Busy("full")
        return claim

    def _new_call(
        self, carrier: Carrier, info: CallInfo, agent: str = "", claim: Claim | None = None
    ) -> CarrierCall:
        call_id = self._host.new_id()
        settings, rest = carrier.settings, carrier.rest
        agent = agent or settings.agent
        call = CarrierCall(call_id, settings, rest, info, agent, self._host.record)
        call.claim = claim
        self.calls[call.call_id] = call
        if len(self.calls) > ENDED_CALLS:
            ended = (c.call_id for c in self.calls.values() if c.state == "ended")
            if (oldest := next(ended, None)) is not None:
                del self.calls[oldest]
        return call

    def _leg(
        self,
        call: CarrierCall,
        stream: CarrierStream,
        send: Callable[[Message], None],
        variables: Mapping[str, Any] | None = None,
    ) -> CarrierLeg:
        control = _Control(call, variables or {}, self.transfers)
        leg = CarrierLeg(call.call_id, stream, send, control, self._host.opus)
        leg.claim = call.claim
        leg.listen_for_tones(call.carrier.dtmf_tones)
        return leg

    async def _run(
        self, call: CarrierCall, leg: CarrierLeg, returned: SavedCall | None = None
    ) -> None:
        """Runs the call on a connected leg to its end; see `Host.run_call`."""
        try:
            async with asyncio.timeout(START_S):
                await leg.until_connected()
        except TimeoutError:
            leg.close(
                End.NO_STREAM + f" within {START_S:g} s",
                "timeout",
            )

        def end_silent(words: str) -> None:
            ending = leg.hang_up(End.NO_SOUND + f": {words}")
            self._tasks.spawn(ending, f"hang up {call.call_id}")

        watch = SilenceWatch(lambda: leg.activity, end_silent)
        try:
            if leg.connected:
                await self._host.run_call(leg, call.agent, returned=returned)
        finally:
            watch.stop()
            if isinstance(leg.stream, TelnyxStream) and leg.stream.last_error:
                logger.warning("{}: Telnyx says: {}", call.call_id, leg.stream.last_error)
            call.set_state("ended", 0, leg.closed or End.SERVER_STOPS, leg.ended_by)

    # --- webhooks and streams ---

    async def voice(self, request: web.Request) -> web.Response:
        """Responds to a carrier's webhook with what to do with a call."""
        carrier = self._requests.carrier(request, BY_TICKET)
        placed = request.match_info.get("call")
        call = self.call_of(carrier, placed) if placed is not None else None
        settings = call.carrier if call is not None else carrier.settings

        async def respond(signed: SignedRequest) -> Answer:
            incoming = parsed(settings, request, signed)
            if isinstance(incoming, Answer):
                return incoming
            base = base_url(settings, signed, request)
            if placed is None:
                return self._answer_new(carrier, incoming, base)
            if call is None or call.state == "ended":
                return Answer(*refusal(settings, "rejected"))
            return self._connect(carrier, call, incoming, base)

        calls = (call,) if call is not None else ()
        return await self._requests.once(carrier, request, calls, respond)

    def _answer_new(self, carrier: Carrier, incoming: WebhookCall, base: str) -> Answer:
        """Takes a new call, if there is a free line."""
        settings = carrier.settings
        try:
            self._admit(settings)
        except Busy as fault:
            logger.warning("{}: {} is refused: {}", settings.name, incoming.caller, fault)
            return Answer(*refusal(settings, "busy"))
        info = CallInfo(
            settings.provider,
            caller=incoming.caller,
            called=incoming.called,
            trunk=settings.name,
            variables=incoming.parameters,
        )
        call = self._new_call(carrier, info)
        self._tasks.spawn(self._await_stream(call), f"stream of {call.call_id}")
        return self._connect(carrier, call, incoming, base)

    async def resume(self, request: web.Request) -> web.Response:
        """Responds to the webhook of a call whose stream another server has closed: it continues
        here."""
        carrier = self._requests.carrier(request, CONTINUING)

        async def respond(signed: SignedRequest) -> Answer:
            settings, (signed, tries) = carrier.settings, without_tries(signed)
            incoming = parsed(settings, request, signed)
            if isinstance(incoming, Answer):
                return incoming
            base, token = base_url(settings, signed, request), request.match_info["token"]
            where = f"{base}/carriers/{settings.name}/resume/{token}"
            if (busy := self.later(carrier, incoming, where, tries)) is not None:
                return busy
            return await self._continue(carrier, incoming, base, token)

        return await self._requests.once(carrier, request, (), respond)

    def later(
        self, carrier: Carrier, incoming: WebhookCall, where: str, tries: int
    ) -> Answer | None:
        """Returns None if there is a free line for a call that comes back; else the answer that has
        the provider ask `where` again a moment later, or at last end the call."""
        settings = carrier.settings
        try:
            self._admit(settings)
        except Busy as fault:
            if tries < MAX_RETRIES and settings.provider in CONTINUING:
                return Answer(*retry(settings, f"{where}?{TRIES_PARAMETER}={tries + 1}"))
            logger.warning("{}: {} is refused: {}", settings.name, incoming.caller, fault)
            return Answer(*(hang_up() if settings.provider in CONTINUING else refusal(settings)))
        return None

    async def _continue(
        self, carrier: Carrier, incoming: WebhookCall, base: str, token: str
    ) -> Answer:
        """Goes on with the call that another server has saved under the token."""
        settings, resumption = carrier.settings, self._host.resumption
        saved = None
        if resumption is not None:
            outcome, saved = await resumption.claim(key_of(_owner(settings, incoming), token))
            if outcome == "ended":  # and the carrier was not told, or not heard
                return Answer(*hang_up())
        info = CallInfo(
            settings.provider, caller=incoming.caller, called=incoming.called, trunk=settings.name
        )
        return self.continue_call(carrier, incoming, base, info, "", saved, transferred=False)

    def continue_call(
        self,
        carrier: Carrier,
        incoming: WebhookCall,
        base: str,
        info: CallInfo,
        agent: str,
        saved: SavedCall | None,
        *,
        transferred: bool,
    ) -> Answer:
        """Answers a call that was here or at another server before: it goes on with what is `saved`
        of it, or begins anew with `info` and `agent`. `transferred`: it was, in vain."""
        if saved is not None:
            info, agent = saved.info, saved.agent
        call = self._new_call(carrier, info, agent)
        logger.info(
            "{}: {} comes back, {}",
            call.call_id,
            info.caller or "somebody",
            "and goes on" if saved is not None else "of whose call nothing is saved",
        )
        self._tasks.spawn(self._await_stream(call), f"stream of {call.call_id}")
        return self._connect(carrier, call, incoming, base, saved, transferred=transferred)

    def _connect(
        self,
        carrier: Carrier,
        call: CarrierCall,
        incoming: WebhookCall,
        base: str,
        saved: SavedCall | None = None,
        *,
        transferred: bool = False,
    ) -> Answer:
        """Responds to a webhook with the stream of a call, which continues `saved`. `base` is our
        URL as seen by the provider."""
        settings = call.carrier
        call.provider_call_id = incoming.call_id
        if settings.provider in REPORTING:
            call.outcome_url = f"{base}/carriers/{settings.name}/transfer/{call.call_id}"
        try:
            ticket = self._ticket(carrier, call, incoming, returned=saved if transferred else None)
        except Rejected as fault:
            call.set_state("ended", 503, str(fault))
            return Answer(*refusal(settings, "busy"))
        base = f"{base}/carriers/{settings.name}"
        url = f"{base.replace('http', 'ws', 1)}/stream/{ticket}"
        then = ""
        if self._host.resumption is not None and settings.provider in CONTINUING:
            owner = _owner(settings, incoming)
            token = self._host.resumption.expect(call.call_id, owner, call.agent)
            if saved is not None:
                self._host.resumption.continue_with(call.call_id, saved)
            then = f"{base}/resume/{token}"
        return Answer(*answer(settings, url, {}, incoming, then))

    def _ticket(
        self,
        carrier: Carrier,
        call: CarrierCall,
        incoming: WebhookCall,
        ring_seconds: float = 0.0,
        returned: SavedCall | None = None,
    ) -> str:
        """Issues a ticket for the call's stream. Raises Rejected if too many are pending."""
        good_for = ring_seconds + TICKET_LIFETIME_S
        admitted = call, incoming, returned
        return self._host.prefix + carrier.tickets.issue(monotonic(), admitted, good_for)

    async def _await_stream(self, call: CarrierCall) -> None:
        try:
            async with asyncio.timeout(2 * START_S):
                await call.until_begun()
        except TimeoutError:
            call.set_state("ended", 408, "its stream did not come", "timeout")

    async def status(self, request: web.Request) -> web.Response:
        """Receives the status of a call that we placed."""
        carrier = self._requests.carrier(request, BY_TICKET)
        call = self.call_of(carrier, request.match_info["call"])

        async def respond(signed: SignedRequest) -> Answer:
            if call is None:
                return Answer(text="unknown call", status=404)
            incoming = parsed(call.carrier, request, signed)
            if isinstance(incoming, Answer):
                return incoming
            call.receive_status(incoming.event)
            return Answer()

        calls = (call,) if call is not None else ()
        return await self._requests.once(carrier, request, calls, respond)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Serves the media stream of a call."""
        carrier = self._requests.carrier(request, (*BY_TICKET, *BY_SIGNATURE))
        settings = carrier.settings
        ticket = request.match_info.get("ticket", "").removeprefix(self._host.prefix)
        call, variables, returned = None, {}, None
        if settings.provider in BY_SIGNATURE:
            # A stream with a ticket belongs to a call that already exists.
            begun = self._calls_of(carrier) if settings.provider in BY_TICKET else ()
            await self._requests.verified(carrier, request, begun)
        if settings.provider in BY_TICKET:
            try:
                call, incoming, returned = carrier.tickets.redeem(ticket, monotonic())
            except Rejected as fault:
                raise self._requests.refused(settings, request, fault) from fault
            settings, variables = call.carrier, dict(incoming.parameters)
            if call.state == "ended":
                raise web.HTTPGone(text="the call has ended")
        else:
            claim = self._admit(settings)  # Busy: 503
            info = CallInfo(settings.provider, trunk=settings.name)
            call = self._new_call(carrier, info, claim=claim)
        asterisk = settings.provider == "chan_websocket"
        socket = StreamSocket(("media",) if asterisk else (), self.connections)
        leg = self._leg(call, _stream(settings, request), socket.send, variables)
        await socket.accept(request)
        async with socket.line(leg):
            await self._run(call, leg, returned)
        return socket.response

    # --- placing calls ---

    async def dial(
        self,
        name: str,
        to: str,
        caller: str = "",
        agent: str = "",
        ring_seconds: float = 60.0,
        variables: Mapping[str, Any] | None = None,
    ) -> CarrierCall:
        """Places a call. Raises DialError and Busy."""
        carrier = self.by_name.get(name)
        if carrier is None:
            there = ", ".join(self.by_name) or "none"
            raise DialError(0, f"no carrier is called {name!r} (there: {there})")
        settings = carrier.settings
        if carrier.rest is None:
            raise DialError(0, f"{settings.provider} calls us; it cannot be asked to call others")
        if not settings.public_url:
            raise DialError(0, f"carrier {name!r} needs its public_url to place calls")
        self._admit(settings)
        info = CallInfo(
            settings.provider,
            "outbound",
            caller=caller or settings.number,
            called=to,
            trunk=name,
            variables=variables or {},
        )
        call = self._new_call(carrier, info, agent)
        decision = self.decision(call)
        if decision is None:
            await self._place(carrier, call, caller, ring_seconds)
        else:
            placing = self._place_after(decision, carrier, call, caller, ring_seconds)
            self._tasks.spawn(placing, f"call {call.call_id}")
        return call

    async def _place_after(
        self,
        decision: Decision,
        carrier: Carrier,
        call: CarrierCall,
        caller: str,
        ring_seconds: float,
    ) -> None:
        status = await call.decided(decision)
        if status:
            call.set_state("ended", status, End.DECLINED)
        elif status == 0:
            with suppress(DialError):  # the call has ended by it
                await self._place(carrier, call, caller, ring_seconds)

    async def _place(
        self, carrier: Carrier, call: CarrierCall, caller: str, ring_seconds: float
    ) -> None:
        """Raises DialError."""
        settings, rest = call.carrier, call.rest
        assert rest is not None
        base = f"{settings.public_url.rstrip('/')}/carriers/{settings.name}"
        stream = token = ""
        try:
            if settings.provider == "exotel":  # has no status callbacks, and does not sign
                token = f"?token={url_token(settings)}"
                ticket = self._ticket(carrier, call, WebhookCall(""), ring_seconds)
                stream = f"{base}/stream/{ticket}".replace("http", "ws", 1)
            call.provider_call_id = await rest.dial(
                call.info.called,
                caller,
                f"{base}/voice/{call.call_id}",
                f"{base}/status/{call.call_id}{token}",
                ring_seconds,
                stream,
            )
        except (LegError, Rejected) as fault:
            call.set_state("ended", 0, str(fault))
            raise DialError(0, str(fault)) from fault
        self._tasks.spawn(self._await_news(call, ring_seconds), f"news of {call.call_id}")

    async def _await_news(self, call: CarrierCall, ring_seconds: float) -> None:
        try:
            async with asyncio.timeout(ring_seconds + NEWS_S):
                await call.until_begun()
        except TimeoutError:
            call.set_state("ended", 480, "nobody answered", "timeout")

    async def hang_up(self, call: CarrierCall, reason: str) -> None:
        """Hangs up; does nothing if the call has ended. Raises LegError if the carrier fails."""
        if call.state == "ended":
            return
        if call.leg is not None:
            call.leg.close(reason)
            return
        if call.rest is not None and call.provider_call_id:
            await call.rest.hang_up(call.provider_call_id)
        call.set_state("ended", 487, reason)


class _Control:
    """The carrier's control of a call for its leg, once the call has an id there."""

    def __init__(
        self, call: CarrierCall, variables: Mapping[str, Any], transfers: CarrierTransfers
    ) -> None:
        self._call = call
        self._variables = variables
        self._transfers = transfers

    def started(self, leg: CarrierLeg, started: Started) -> None:
        call, known = self._call, self._call.provider_call_id
        # Telnyx names calls differently in TeXML and in streams.
        if known and started.call_id != known and call.carrier.provider != "telnyx":
            raise CarrierError(f"the stream is of another call: {started.call_id[:80]!r}")
        call.start(leg, started, self._variables)

    async def hang_up(self) -> None:
        rest = self._call.rest
        if rest is not None:
            await rest.control(self._call.provider_call_id).hang_up()

    async def transfer(self, target: str) -> None:
        await self._transfers.transfer(self._call, target)


def _stream(settings: CarrierSettings, request: web.Request) -> CarrierStream:
    match settings.provider:
        case "twilio":
            return TwilioStream()
        case "telnyx":
            return TelnyxStream(settings.format)
        case "plivo":
            return PlivoStream()
        case "vonage":
            return VonageStream()
        case "exotel":
            return ExotelStream()
        case "genesys":
            return GenesysStream()
        case _:
            return ChanWebSocketStream({n: v for n, v in request.query.items() if n != "token"})


def _holders(settings: CarrierSettings) -> Holders | None:
    """Returns for whom a carrier's lines are counted: nobody, since an Asterisk has all its calls
    from one address, which the operator named; or None for a carrier that proves each call."""
    return NOBODY if settings.provider in BY_ADDRESS else None


def _owner(settings: CarrierSettings, call: WebhookCall) -> str:
    """Returns what the token of a call is bound to."""
    return f"{settings.name}\n{call.call_id}"
