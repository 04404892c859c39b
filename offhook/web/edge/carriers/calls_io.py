"""Calls of an edge's carriers: admitted, connected to their streams, run, transferred, placed."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Protocol

from loguru import logger

from offhook.media.answer_status import AnswerStatus
from offhook.media.codecs.opus import OpusSettings
from offhook.media.end_reason import End
from offhook.media.leg import CallInfo, Claim, Leg, LegError
from offhook.media.silence_io import SilenceWatch
from offhook.media.tasks_io import TaskSet
from offhook.telephony.call_progress_io import Decision, DialError
from offhook.telephony.call_record import CallRecord
from offhook.telephony.carriers.auth.signatures import Rejected
from offhook.telephony.carriers.auth.tickets import TICKET_LIFETIME_S
from offhook.telephony.carriers.call_io import CarrierCall
from offhook.telephony.carriers.leg_io import CarrierLeg
from offhook.telephony.carriers.provider import Provider
from offhook.telephony.carriers.settings import CarrierSettings
from offhook.telephony.carriers.streams.stream import CarrierError, CarrierStream, Message, Started
from offhook.telephony.carriers.webhook import Reply, WebhookCall
from offhook.telephony.tenants import NoTenants, Tenants
from offhook.web.edge.carriers.requests_io import TRIES_PARAMETER, Carrier
from offhook.web.edge.refusals import Busy
from offhook.web.edge.resume.resumption_io import Resumption
from offhook.web.edge.resume.saved_call import SavedCall
from offhook.web.http.metrics import Metrics
from offhook.web.http.shares import NOBODY, Holders

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
MAX_AWAY = 500
"""Maximum conversations kept of callers who are being transferred; of the oldest beyond that the
caller would begin anew if the transfer failed."""


class Host(Protocol):
    """What the edge provides to the carriers."""

    prefix: str
    """With which the ids of calls and tickets of this process begin."""
    metrics: Metrics
    resumption: Resumption | None

    def admit(
        self, holders: Holders | None = None, coming: Sequence[Claim | None] = ()
    ) -> Claim | None:
        """Raises Busy if another call would harm those in progress and the `coming` ones, or if too
        many wait of those that are counted for holders. Returns `Leg.claim`."""

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


class CarrierCalls:
    """The calls of all carriers of one edge, with ENDED_CALLS that have ended."""

    def __init__(self, by_name: dict[str, Carrier], tasks: TaskSet, host: Host) -> None:
        """`by_name` are the carriers, `tasks` owns what goes on in calls."""
        self.by_id: dict[str, CarrierCall] = {}
        """Calls in progress and recently ended ones, by our ids."""
        self.decision: Callable[[CarrierCall], Decision | None] = lambda call: None
        """Called with each call before it is placed: returns what decides whether it is; None to
        place it at once."""
        self.away: dict[str, SavedCall] = {}
        """The conversations of callers who were transferred, by the ids of their calls."""
        self.tenants: Tenants = NoTenants()
        self._by_name, self._tasks, self._host = by_name, tasks, host

    def in_progress(self) -> list[CarrierCall]:
        return [call for call in self.by_id.values() if call.state != "ended"]

    def calls_of(self, carrier: Carrier) -> list[CarrierCall]:
        """Returns the carrier's calls in progress."""
        return [c for c in self.in_progress() if c.carrier == carrier.settings.name]

    def call_of(self, carrier: Carrier, call_id: str) -> CarrierCall | None:
        """Returns a current or ended call of this carrier, or None."""
        call = self.by_id.get(call_id)
        there = call is not None and call.carrier == carrier.settings.name
        return call if there else None

    def admit(self, provider: Provider, info: CallInfo, agent: str = "") -> Claim | None:
        """Returns `Leg.claim` of the new call. Raises Busy."""
        settings = provider.settings
        agent = agent or settings.agent
        self.tenants.check(self.tenants.named(info, agent), agent)
        calls = [call for call in self.in_progress() if not call.is_away]
        coming = [call.claim for call in calls if call.leg is None]
        # Nobody's where one machine has all its calls from an address that the operator named.
        claim = self._host.admit(None if provider.proves_calls else NOBODY, coming)
        own = sum(call.carrier == settings.name for call in calls)
        if settings.max_calls and own >= settings.max_calls:
            self._host.metrics.refused.labels("full").inc()
            raise Busy("full")
        return claim

    def new_call(
        self,
        carrier: Carrier,
        info: CallInfo,
        agent: str = "",
        claim: Claim | None = None,
        call_id: str = "",
    ) -> CarrierCall:
        call_id = call_id or self._host.new_id()
        agent = agent or carrier.settings.agent
        info = self.tenants.named(info, agent)
        call = CarrierCall(call_id, carrier.provider, carrier.rest, info, agent, self._host.record)
        call.claim = claim
        self.by_id[call.call_id] = call
        if len(self.by_id) > ENDED_CALLS:
            ended = (c.call_id for c in self.by_id.values() if c.state == "ended")
            if (oldest := next(ended, None)) is not None:
                del self.by_id[oldest]
        return call

    def open_leg(
        self,
        call: CarrierCall,
        stream: CarrierStream,
        send: Callable[[Message], None],
        variables: Mapping[str, Any] | None = None,
    ) -> CarrierLeg:
        control = _Control(call, variables or {}, self)
        leg = CarrierLeg(call.call_id, stream, send, control, self._host.opus)
        leg.claim, leg.part = call.claim, call.part
        leg.listen_for_tones(call.provider.settings.dtmf_tones)
        return leg

    async def run(
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

    def accept(
        self, carrier: Carrier, stream: CarrierStream, send: Callable[[Message], None], peer: str
    ) -> CarrierLeg:
        """Begins a call whose provider has connected to a listener."""
        settings = carrier.settings
        info = CallInfo(settings.provider, trunk=settings.name)
        try:
            claim, busy = self.admit(carrier.provider, info), ""
        except Busy as fault:
            claim, busy = None, End.REFUSED + f": 503 ({fault})"
        call = self.new_call(carrier, info, claim=claim)
        leg = self.open_leg(call, stream, send)
        if busy:
            leg.close(busy)
            call.set_state("ended", 503, busy)
        else:
            self._tasks.spawn(self.run(call, leg), f"call {call.call_id}")
        return leg

    # --- streams that are expected ---

    def later(
        self, carrier: Carrier, incoming: WebhookCall, where: str, tries: int
    ) -> Reply | None:
        """Returns None if there is a free line for a call that comes back; else the answer that has
        the provider ask `where` again a moment later, or at last end the call."""
        provider = carrier.provider
        name = provider.settings.name
        try:
            self.admit(provider, CallInfo(provider.name, called=incoming.called, trunk=name))
        except Busy as fault:
            if tries < MAX_RETRIES and provider.continues:
                return provider.retry(f"{where}?{TRIES_PARAMETER}={tries + 1}")
            logger.warning("{}: {} is refused: {}", name, incoming.caller, fault)
            return provider.hang_up()
        return None

    def connect(
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
            owner = owner_of(call.provider.settings, incoming)
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
        return self._host.prefix + carrier.tickets.issue(monotonic(), admitted, good_for)

    async def await_stream(self, call: CarrierCall) -> None:
        try:
            async with asyncio.timeout(2 * START_S):
                await call.until_begun()
        except TimeoutError:
            call.set_state("ended", 408, "its stream did not come", "timeout")

    # --- transfers ---

    async def transfer(self, call: CarrierCall, target: str) -> None:
        """Has the provider transfer a call. Raises LegError."""
        if call.rest is None:
            raise LegError(f"{call.provider.name} cannot be asked to transfer a call")
        # Before the request: how it ends may be told before the request is answered.
        call.transferred_to = target
        saved = self._host.saved(call.call_id, call.agent) if call.outcome_url else None
        if saved is not None:
            self.away[call.call_id] = saved
            if len(self.away) > MAX_AWAY:
                del self.away[next(iter(self.away))]
        try:
            await call.rest.transfer(call.provider_call_id, target, call.outcome_url)
        except LegError:
            self.away.pop(call.call_id, None)
            call.transferred_to = ""
            raise

    async def _await_outcome(self, call: CarrierCall) -> None:
        """Ends a call that has been transferred, unless it comes back."""
        try:
            async with asyncio.timeout(OUTCOME_S):
                await call.until_settled()
        except TimeoutError:
            pass
        finally:
            call.end_away()

    def call_again(
        self, carrier: Carrier, info: CallInfo, agent: str, saved: SavedCall | None
    ) -> CarrierCall:
        """Returns the call of somebody who was here before a restart, or at another server: it goes
        on with what is `saved`, or begins anew with `info` and `agent`."""
        if saved is not None:
            info, agent = saved.info, saved.agent
        call = self.new_call(carrier, info, agent)
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
        self._tasks.spawn(self.await_stream(call), f"stream of {call.call_id}")
        if call.rest is None or not call.rest.api.connects:
            return self.connect(carrier, call, report, base, saved, transferred=True)
        try:
            url, _ = self._expect_stream(carrier, call, report, base, saved, transferred=True)
            await call.rest.connect(report.call_id, url, call.provider.format)
        except (LegError, Rejected) as fault:
            logger.warning("{}: it does not come back: {}", call.call_id, fault)
            call.set_state("ended", 0, str(fault))
        return Reply()

    # --- placing calls ---

    async def dial(
        self,
        name: str,
        to: str,
        caller: str = "",
        agent: str = "",
        ring_seconds: float = 60.0,
        variables: Mapping[str, Any] | None = None,
        status: AnswerStatus | None = None,
        call_id: str = "",
    ) -> CarrierCall:
        """Places a call, with this id if there is one; `status` has what is asked of who answers.
        Raises DialError and Busy."""
        carrier = self._by_name.get(name)
        if carrier is None:
            there = ", ".join(self._by_name) or "none"
            raise DialError(0, f"no carrier is called {name!r} (there: {there})")
        settings = carrier.settings
        if carrier.rest is None:
            raise DialError(0, f"{settings.provider} calls us; it cannot be asked to call others")
        if not settings.public_url:
            raise DialError(0, f"carrier {name!r} needs its public_url to place calls")
        info = CallInfo(
            settings.provider,
            "outbound",
            caller=caller or settings.number,
            called=to,
            trunk=name,
            variables=variables or {},
        )
        self.admit(carrier.provider, info, agent)
        call = self.new_call(carrier, info, agent, call_id=call_id)
        call.answer_status = status or AnswerStatus()
        call.answer_status.mode = call.answer_status.mode or settings.machine_detection
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
                call.answer_status.mode if settings.asks_who_answers else None,
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
        self, call: CarrierCall, variables: Mapping[str, Any], calls: CarrierCalls
    ) -> None:
        self._call = call
        self._variables = variables
        self._calls = calls

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
        await self._calls.transfer(self._call, target)


def owner_of(settings: CarrierSettings, call: WebhookCall) -> str:
    """Returns what the token of a call is bound to."""
    return f"{settings.name}\n{call.call_id}"
