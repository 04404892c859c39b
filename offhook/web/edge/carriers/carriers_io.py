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
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
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
from offhook.telephony.carriers.auth.signatures import Rejected, SignedRequest
from offhook.telephony.carriers.auth.tickets import TICKET_LIFETIME_S
from offhook.telephony.carriers.call_io import CarrierCall
from offhook.telephony.carriers.leg_io import CarrierLeg
from offhook.telephony.carriers.provider import Provider
from offhook.telephony.carriers.providers import provider_of
from offhook.telephony.carriers.rest.client_io import CarrierRestClient
from offhook.telephony.carriers.settings import CarrierSettings
from offhook.telephony.carriers.streams.connections_io import Connections
from offhook.telephony.carriers.streams.stream import CarrierError, CarrierStream, Message, Started
from offhook.telephony.carriers.streams.websocket_io import StreamSocket
from offhook.telephony.carriers.webhook import Reply, WebhookCall
from offhook.web.edge.carriers.requests_io import (
    TRIES_PARAMETER,
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
OUTCOME_S = 120.0
"""Time in s for a provider to say that a transfer has failed. Then the call has ended, and one that
comes back later is another."""
NEWS_S = 30.0
"""Time in s, beyond ringing, without any status of a call we placed after which it has failed."""
MAX_RETRIES = 10
"""Times that a call that comes back asks for a free line before it ends."""
ENDED_CALLS = 500
"""Ended calls remembered for programs that ask later; the oldest are dropped."""


class Host(Protocol):
    """What the edge provides to the carriers."""

    opus: OpusSettings
    metrics: Metrics
    resumption: Resumption | None

    def admit(
        self, holders: Holders | None = None, coming: Sequence[Claim | None] = ()
    ) -> Claim | None:
        """Raises Busy if another call would harm those in progress and the `coming` ones, or if too
        many wait of those that are counted for holders. Returns `Leg.claim`."""

    def name_of(self, call_id: str) -> str:
        """Returns the public id of a call of this process."""

    async def run_call(self, leg: Leg, agent: str, *, returned: SavedCall | None = None) -> None:
        """Runs the conversation to its end. `returned` is the one before a transfer that failed."""

    def saved(self, call_id: str, agent: str) -> SavedCall | None:
        """Returns a conversation as it is now; None if it cannot be continued."""

    def record(self, record: CallRecord) -> None:
        """Records a call that has ended."""


class Carriers:
    """All carriers of one edge, and their calls."""

    def __init__(self, settings: tuple[CarrierSettings, ...], address: str, host: Host) -> None:
        """`address` is that of providers' listeners."""
        self.calls: dict[str, CarrierCall] = {}
        """Calls in progress and recently ended ones, by our ids."""
        self.by_name: dict[str, Carrier] = {}
        self.bound: dict[str, tuple[str, int]] = {}
        """Addresses of providers' listeners, by carrier name."""
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
        for settings in self._settings:
            provider = provider_of(settings)
            carrier = Carrier(provider, self._rest(provider))
            self.by_name[settings.name] = carrier
            carrier.listener = provider.listener(self._address, partial(self._open_leg, carrier))
            if carrier.listener is not None:
                self.bound[settings.name] = await carrier.listener.start()
                where = self.bound[settings.name]
                logger.info("{} reaches me by {} at {}:{}", settings.name, provider.listens, *where)
            else:
                logger.info(
                    "{} reaches me at {}/carriers/{}/{}",
                    settings.name,
                    settings.public_url or "…",
                    settings.name,
                    "voice" if provider.asks else "stream",
                )

    async def close(self) -> None:
        await self._tasks.close()
        for carrier in self.by_name.values():
            if carrier.listener is not None:
                await carrier.listener.close()
        await self._http.close()

    def prepare(self, settings: tuple[CarrierSettings, ...]) -> Callable[[], None]:
        """Returns what applies new settings of the same carriers to new calls. Raises RestError."""
        new = [(p, self._rest(p)) for p in map(provider_of, settings)]

        def use() -> None:
            for provider, rest in new:
                carrier = self.by_name[provider.settings.name]
                carrier.provider, carrier.rest = provider, rest
                if carrier.listener is not None:
                    carrier.listener.use(provider.settings)

        return use

    def _rest(self, provider: Provider) -> CarrierRestClient | None:
        """Returns the client of its REST API, None if it has none. Raises RestError."""
        api = provider.rest()
        return CarrierRestClient(api, self._http) if api is not None else None

    def _open_leg(
        self, carrier: Carrier, stream: CarrierStream, send: Callable[[Message], None], peer: str
    ) -> CarrierLeg:
        """Begins a call whose provider has connected to a listener."""
        try:
            claim, busy = self._admit(carrier.provider), ""
        except Busy as fault:
            claim, busy = None, End.REFUSED + f": 503 ({fault})"
        settings = carrier.settings
        info = CallInfo(settings.provider, trunk=settings.name)
        call = self._new_call(carrier, info, claim=claim)
        leg = self._leg(call, stream, send)
        if busy:
            leg.close(busy)
            call.set_state("ended", 503, busy)
        else:
            self._tasks.spawn(self._run(call, leg), f"call {call.call_id}")
        return leg

    # --- calls ---

    def in_progress(self) -> list[CarrierCall]:
        return [call for call in self.calls.values() if call.state != "ended"]

    def _calls_of(self, carrier: Carrier) -> list[CarrierCall]:
        """Returns the carrier's calls in progress."""
        return [c for c in self.in_progress() if c.carrier == carrier.settings.name]

    def call_of(self, carrier: Carrier, call_id: str) -> CarrierCall | None:
        """Returns a current or ended call of this carrier, or None."""
        call = self.calls.get(call_id)
        there = call is not None and call.carrier == carrier.settings.name
        return call if there else None

    def _admit(self, provider: Provider) -> Claim | None:
        """Returns `Leg.claim` of the new call. Raises Busy."""
        settings = provider.settings
        calls = [call for call in self.in_progress() if not call.is_away]
        coming = [call.claim for call in calls if call.leg is None]
        # Nobody's where one machine has all its calls from an address that the operator named.
        claim = self._host.admit(None if provider.proves_calls else NOBODY, coming)
        own = sum(call.carrier == settings.name for call in calls)
        if settings.max_calls and own >= settings.max_calls:
            self._host.metrics.refused.labels("full").inc()
            raise Busy("full")
        return claim

    def _new_call(
        self, carrier: Carrier, info: CallInfo, agent: str = "", claim: Claim | None = None
    ) -> CarrierCall:
        call_id = self._host.name_of(uuid.uuid4().hex[:12])
        agent = agent or carrier.settings.agent
        call = CarrierCall(call_id, carrier.provider, carrier.rest, info, agent, self._host.record)
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
        leg.claim, leg.part = call.claim, call.part
        leg.listen_for_tones(call.provider.settings.dtmf_tones)
        return leg

    async def _run(
        self, call: CarrierCall, leg: CarrierLeg, returned: SavedCall | None = None
    ) -> None:
        """Runs the call on a connected leg to its end; see `Host.run_call`."""
        try:
            async with asyncio.timeout(START_S):
                await leg.until_connected()
        except TimeoutError:
            leg.close(End.NO_STREAM + f" within {START_S:g} s", "timeout")

        def end_silent(words: str) -> None:
            ending = leg.hang_up(End.NO_SOUND + f": {words}")
            self._tasks.spawn(ending, f"hang up {call.call_id}")

        watch = SilenceWatch(lambda: leg.activity, end_silent)
        try:
            if leg.connected:
                await self._host.run_call(leg, call.agent, returned=returned)
        finally:
            watch.stop()
            if error := leg.stream.last_error:
                logger.warning("{}: {} says: {}", call.call_id, leg.stream.title, error)
            if call.leg is leg and call.transferred_to and call.outcome_url:
                call.leave(leg)
                self._tasks.spawn(self._await_outcome(call), f"transfer of {call.call_id}")
            else:
                call.set_state("ended", 0, leg.closed or End.SERVER_STOPS, leg.ended_by)

    async def _await_outcome(self, call: CarrierCall) -> None:
        """Ends a call that has been transferred, unless it comes back."""
        try:
            async with asyncio.timeout(OUTCOME_S):
                await call.until_settled()
        except TimeoutError:
            pass
        finally:
            call.end_away()

    # --- webhooks and streams ---

    async def voice(self, request: web.Request) -> web.Response:
        """Responds to a carrier's webhook with what to do with a call."""
        carrier = self._requests.carrier(request, lambda provider: provider.asks)
        placed = request.match_info.get("call")
        call = self.call_of(carrier, placed) if placed is not None else None
        provider = call.provider if call is not None else carrier.provider

        async def respond(signed: SignedRequest) -> Reply:
            incoming = parsed(provider, request, signed)
            if isinstance(incoming, Reply):
                return incoming
            base = base_url(provider.settings, signed, request)
            if placed is None:
                return self._answer_new(carrier, incoming, base)
            if call is None or call.state == "ended":
                return provider.refusal("rejected")
            return self._connect(carrier, call, incoming, base)

        calls = (call,) if call is not None else ()
        return await self._requests.once(carrier, request, calls, respond)

    def _answer_new(self, carrier: Carrier, incoming: WebhookCall, base: str) -> Reply:
        """Takes a new call, if there is a free line."""
        settings = carrier.settings
        try:
            self._admit(carrier.provider)
        except Busy as fault:
            logger.warning("{}: {} is refused: {}", settings.name, incoming.caller, fault)
            return carrier.provider.refusal()
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
        carrier = self._requests.carrier(request, lambda provider: provider.continues)

        async def respond(signed: SignedRequest) -> Reply:
            settings, (signed, tries) = carrier.settings, without_tries(signed)
            incoming = parsed(carrier.provider, request, signed)
            if isinstance(incoming, Reply):
                return incoming
            base, token = base_url(settings, signed, request), request.match_info["token"]
            where = f"{base}/carriers/{settings.name}/resume/{token}"
            if (busy := self.later(carrier, incoming, where, tries)) is not None:
                return busy
            return await self._continue(carrier, incoming, base, token)

        return await self._requests.once(carrier, request, (), respond)

    def later(
        self, carrier: Carrier, incoming: WebhookCall, where: str, tries: int
    ) -> Reply | None:
        """Returns None if there is a free line for a call that comes back; else the answer that has
        the provider ask `where` again a moment later, or at last end the call."""
        provider = carrier.provider
        try:
            self._admit(provider)
        except Busy as fault:
            if tries < MAX_RETRIES and provider.continues:
                return provider.retry(f"{where}?{TRIES_PARAMETER}={tries + 1}")
            name = provider.settings.name
            logger.warning("{}: {} is refused: {}", name, incoming.caller, fault)
            return provider.hang_up()
        return None

    async def _continue(
        self, carrier: Carrier, incoming: WebhookCall, base: str, token: str
    ) -> Reply:
        """Goes on with the call that another server has saved under the token."""
        settings, resumption = carrier.settings, self._host.resumption
        saved = None
        if resumption is not None:
            outcome, saved = await resumption.claim(key_of(_owner(settings, incoming), token))
            if outcome == "ended":  # and the carrier was not told, or not heard
                return carrier.provider.hang_up()
        info = CallInfo(
            settings.provider, caller=incoming.caller, called=incoming.called, trunk=settings.name
        )
        call = self.call_again(carrier, info, "", saved)
        self._tasks.spawn(self._await_stream(call), f"stream of {call.call_id}")
        return self._connect(carrier, call, incoming, base, saved)

    def call_again(
        self, carrier: Carrier, info: CallInfo, agent: str, saved: SavedCall | None
    ) -> CarrierCall:
        """Returns the call of somebody who was here before a restart, or at another server: it goes
        on with what is `saved`, or begins anew with `info` and `agent`."""
        if saved is not None:
            info, agent = saved.info, saved.agent
        call = self._new_call(carrier, info, agent)
        logger.info(
            "{}: {} comes back, {}",
            call.call_id,
            info.caller or "somebody",
            "and goes on" if saved is not None else "of whose call nothing is saved",
        )
        return call

    async def reconnect(
        self,
        carrier: Carrier,
        call: CarrierCall,
        report: WebhookCall,
        base: str,
        saved: SavedCall | None,
    ) -> Reply:
        """Connects a call whose transfer has failed, by the answer to the webhook that says so, or
        by the provider's REST API."""
        self._tasks.spawn(self._await_stream(call), f"stream of {call.call_id}")
        if call.rest is None or not call.rest.api.connects:
            return self._connect(carrier, call, report, base, saved, transferred=True)
        try:
            url, _ = self._expect_stream(carrier, call, report, base, saved, transferred=True)
            await call.rest.connect(report.call_id, url, call.provider.format)
        except (LegError, Rejected) as fault:
            logger.warning("{}: it does not come back: {}", call.call_id, fault)
            call.set_state("ended", 0, str(fault))
        return Reply()

    def _connect(
        self,
        carrier: Carrier,
        call: CarrierCall,
        incoming: WebhookCall,
        base: str,
        saved: SavedCall | None = None,
        *,
        transferred: bool = False,
    ) -> Reply:
        """Responds to a webhook with the stream of a call, which continues `saved`. `base` is our
        URL as seen by the provider; `transferred`: it was, in vain."""
        try:
            url, then = self._expect_stream(
                carrier, call, incoming, base, saved, transferred=transferred
            )
        except Rejected as fault:
            call.set_state("ended", 503, str(fault))
            return call.provider.refusal()
        return call.provider.answer(url, incoming, then)

    def _expect_stream(
        self,
        carrier: Carrier,
        call: CarrierCall,
        incoming: WebhookCall,
        base: str,
        saved: SavedCall | None,
        *,
        transferred: bool,
    ) -> tuple[str, str]:
        """Returns the URL of a call's stream, and the one where the provider asks what to do when
        another server has to go on with it. Raises Rejected."""
        base = f"{base}/carriers/{call.carrier}"
        call.provider_call_id = incoming.call_id
        if call.provider.reports:
            call.outcome_url = f"{base}/transfer/{call.call_id}"
        ticket = self._ticket(carrier, call, incoming, returned=saved if transferred else None)
        then = ""
        if self._host.resumption is not None and call.provider.continues:
            owner = _owner(call.provider.settings, incoming)
            token = self._host.resumption.expect(call.call_id, owner, call.agent)
            if saved is not None:
                self._host.resumption.continue_with(call.call_id, saved)
            then = f"{base}/resume/{token}"
        return f"{base.replace('http', 'ws', 1)}/stream/{ticket}", then

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
        return self._host.name_of(carrier.tickets.issue(monotonic(), admitted, good_for))

    async def _await_stream(self, call: CarrierCall) -> None:
        try:
            async with asyncio.timeout(2 * START_S):
                await call.until_begun()
        except TimeoutError:
            call.set_state("ended", 408, "its stream did not come", "timeout")

    async def status(self, request: web.Request) -> web.Response:
        """Receives the status of a call that we placed."""
        carrier = self._requests.carrier(request, lambda provider: provider.asks)
        call = self.call_of(carrier, request.match_info["call"])

        async def respond(signed: SignedRequest) -> Reply:
            if call is None:
                return Reply(text="unknown call", status=404)
            incoming = parsed(call.provider, request, signed)
            if isinstance(incoming, Reply):
                return incoming
            call.receive_status(incoming.event)
            return Reply()

        calls = (call,) if call is not None else ()
        return await self._requests.once(carrier, request, calls, respond)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Serves the media stream of a call."""
        carrier = self._requests.carrier(request, lambda provider: not provider.listens)
        provider = carrier.provider
        ticket = request.match_info.get("ticket", "").removeprefix(self._host.name_of(""))
        call, variables, returned = None, {}, None
        if provider.proves_stream:
            # A stream with a ticket belongs to a call that already exists.
            begun = self._calls_of(carrier) if provider.asks else ()
            await self._requests.verified(carrier, request, begun)
        if provider.asks:
            try:
                call, incoming, returned = carrier.tickets.redeem(ticket, monotonic())
            except Rejected as fault:
                raise self._requests.refused(provider.settings, request, fault) from fault
            provider, variables = call.provider, dict(incoming.parameters)
            if call.state == "ended":
                raise web.HTTPGone(text="the call has ended")
        else:
            claim = self._admit(provider)  # Busy: 503
            info = CallInfo(provider.name, trunk=provider.settings.name)
            call = self._new_call(carrier, info, claim=claim)
        socket = StreamSocket(provider.protocols, self.connections)
        leg = self._leg(call, provider.stream(request.query), socket.send, variables)
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
        self._admit(carrier.provider)
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
        provider, rest = call.provider, call.rest
        assert rest is not None
        settings, query = provider.settings, provider.urls_query
        base = f"{settings.public_url.rstrip('/')}/carriers/{settings.name}"
        stream = ""
        try:
            if provider.dials_to_stream:
                ticket = self._ticket(carrier, call, WebhookCall(""), ring_seconds)
                stream = f"{base}/stream/{ticket}".replace("http", "ws", 1)
            call.provider_call_id = await rest.dial(
                call.info.called,
                caller,
                f"{base}/voice/{call.call_id}",
                f"{base}/status/{call.call_id}{query}",
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
        if known and started.call_id != known and not call.provider.renames_calls:
            raise CarrierError(f"the stream is of another call: {started.call_id[:80]!r}")
        call.start(leg, started, self._variables)

    async def hang_up(self) -> None:
        rest = self._call.rest
        if rest is not None and rest.api.ends_calls:
            await rest.hang_up(self._call.provider_call_id)

    async def transfer(self, target: str) -> None:
        await self._transfers.transfer(self._call, target)


def _owner(settings: CarrierSettings, call: WebhookCall) -> str:
    """Returns what the token of a call is bound to."""
    return f"{settings.name}\n{call.call_id}"
