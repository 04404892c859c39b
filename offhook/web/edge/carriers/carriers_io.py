"""Carriers at the front door: their webhooks, and the streams they open.

POST /carriers/NAME/voice           a call is there: what shall be done with it? → our stream
POST /carriers/NAME/voice/CALL      the same of a call that we placed
POST /carriers/NAME/resume/TOKEN    the same of a call that another server has released
POST /carriers/NAME/status/CALL     how a call that we placed goes
POST /carriers/NAME/transfer/CALL   how a transfer of a call has ended; see transfers_io
GET  /carriers/NAME/stream          the stream of a carrier that signs it, or has a password
GET  /carriers/NAME/stream/TICKET   the stream that a webhook's answer named
"""

from collections.abc import Callable
from functools import partial
from time import monotonic

import aiohttp
from aiohttp import web
from loguru import logger

from offhook.media.leg import CallInfo
from offhook.media.tasks_io import TaskSet
from offhook.telephony.carriers.auth.signatures import Rejected, SignedRequest
from offhook.telephony.carriers.provider import Provider
from offhook.telephony.carriers.providers import provider_of
from offhook.telephony.carriers.rest.client_io import CarrierRestClient
from offhook.telephony.carriers.settings import CarrierSettings
from offhook.telephony.carriers.streams.connections_io import Connections
from offhook.telephony.carriers.streams.websocket_io import StreamSocket
from offhook.telephony.carriers.webhook import Reply, WebhookCall
from offhook.web.edge.carriers.calls_io import CarrierCalls, Host, owner_of
from offhook.web.edge.carriers.requests_io import (
    Carrier,
    CarrierRequests,
    base_url,
    parsed,
    without_tries,
)
from offhook.web.edge.carriers.transfers_io import CarrierTransfers
from offhook.web.edge.refusals import Busy
from offhook.web.edge.resume.saved_call import key_of


class Carriers:
    """All carriers of one edge: what they are asked by, and what they open."""

    def __init__(self, settings: tuple[CarrierSettings, ...], address: str, host: Host) -> None:
        """`address` is that of providers' listeners."""
        self.by_name: dict[str, Carrier] = {}
        self.bound: dict[str, tuple[str, int]] = {}
        """Addresses of providers' listeners, by carrier name."""
        self.connections = Connections()
        """Of all streams, for the packet clock."""
        self._address = address
        self._host = host
        self._settings = settings
        self._tasks = TaskSet()
        self.calls = CarrierCalls(self.by_name, self._tasks, host)
        self._requests = CarrierRequests(self.by_name, self._tasks, host.metrics)
        self.transfers = CarrierTransfers(self.calls, self._requests)
        self._http: aiohttp.ClientSession

    # --- life ---

    async def start(self) -> None:
        """Raises OSError, RestError."""
        self._http = aiohttp.ClientSession()
        for settings in self._settings:
            provider = provider_of(settings)
            carrier = Carrier(provider, self._rest(provider))
            self.by_name[settings.name] = carrier
            carrier.listener = provider.listener(self._address, partial(self.calls.accept, carrier))
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

    # --- webhooks and streams ---

    async def voice(self, request: web.Request) -> web.Response:
        """Responds to a carrier's webhook with what to do with a call."""
        carrier = self._requests.carrier(request, lambda provider: provider.asks)
        placed = request.match_info.get("call")
        call = self.calls.call_of(carrier, placed) if placed is not None else None
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
            call.answer_status.report(provider.answered_by(incoming))
            return self.calls.connect(carrier, call, incoming, base)

        calls = (call,) if call is not None else ()
        return await self._requests.once(carrier, request, calls, respond)

    def _answer_new(self, carrier: Carrier, incoming: WebhookCall, base: str) -> Reply:
        """Takes a new call, if there is a free line."""
        settings = carrier.settings
        info = CallInfo(
            settings.provider,
            caller=incoming.caller,
            called=incoming.called,
            trunk=settings.name,
            variables=incoming.parameters,
        )
        try:
            self.calls.admit(carrier.provider, info)
        except Busy as fault:
            logger.warning("{}: {} is refused: {}", settings.name, incoming.caller, fault)
            return carrier.provider.refusal()
        call = self.calls.new_call(carrier, info)
        self._tasks.spawn(self.calls.await_stream(call), f"stream of {call.call_id}")
        return self.calls.connect(carrier, call, incoming, base)

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
            if (busy := self.calls.later(carrier, incoming, where, tries)) is not None:
                return busy
            return await self._continue(carrier, incoming, base, token)

        return await self._requests.once(carrier, request, (), respond)

    async def _continue(
        self, carrier: Carrier, incoming: WebhookCall, base: str, token: str
    ) -> Reply:
        """Goes on with the call that another server has saved under the token."""
        settings, resumption = carrier.settings, self._host.resumption
        saved = None
        if resumption is not None:
            outcome, saved = await resumption.claim(key_of(owner_of(settings, incoming), token))
            if outcome == "ended":  # and the carrier was not told, or not heard
                return carrier.provider.hang_up()
        info = CallInfo(
            settings.provider, caller=incoming.caller, called=incoming.called, trunk=settings.name
        )
        call = self.calls.call_again(carrier, info, "", saved)
        self._tasks.spawn(self.calls.await_stream(call), f"stream of {call.call_id}")
        return self.calls.connect(carrier, call, incoming, base, saved)

    async def status(self, request: web.Request) -> web.Response:
        """Receives the status of a call that we placed."""
        carrier = self._requests.carrier(request, lambda provider: provider.asks)
        call = self.calls.call_of(carrier, request.match_info["call"])

        async def respond(signed: SignedRequest) -> Reply:
            if call is None:
                return Reply(text="unknown call", status=404)
            incoming = parsed(call.provider, request, signed)
            if isinstance(incoming, Reply):
                return incoming
            call.receive_status(incoming.event)
            call.answer_status.report(call.provider.answered_by(incoming))
            return Reply()

        calls = (call,) if call is not None else ()
        return await self._requests.once(carrier, request, calls, respond)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Serves the media stream of a call."""
        carrier = self._requests.carrier(request, lambda provider: not provider.listens)
        provider = carrier.provider
        ticket = request.match_info.get("ticket", "").removeprefix(self._host.prefix)
        call, variables, returned = None, {}, None
        if provider.proves_stream:
            # A stream with a ticket belongs to a call that already exists.
            begun = self.calls.calls_of(carrier) if provider.asks else ()
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
            info = CallInfo(provider.name, trunk=provider.settings.name)
            claim = self.calls.admit(provider, info)  # Busy: 503
            call = self.calls.new_call(carrier, info, claim=claim)
        socket = StreamSocket(provider.protocols, self.connections)
        leg = self.calls.open_leg(call, provider.stream(request.query), socket.send, variables)
        await socket.accept(request)
        async with socket.line(leg):
            await self.calls.run(call, leg, returned)
        return socket.response
