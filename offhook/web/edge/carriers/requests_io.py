"""Requests of carriers: whether they are authentic, and that each webhook is acted on once."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field, replace
from time import monotonic, time
from typing import Any

from aiohttp import web
from loguru import logger

from offhook.media.tasks_io import TaskSet
from offhook.telephony.carriers.auth.answers import Answers, content_key
from offhook.telephony.carriers.auth.signatures import (
    Nonces,
    Rejected,
    Replayed,
    SignedRequest,
)
from offhook.telephony.carriers.auth.tickets import Tickets
from offhook.telephony.carriers.call_io import CarrierCall
from offhook.telephony.carriers.provider import Listener, Provider
from offhook.telephony.carriers.rest.client_io import CarrierRestClient
from offhook.telephony.carriers.settings import CarrierSettings
from offhook.telephony.carriers.webhook import Reply, WebhookCall
from offhook.web.edge.resume.saved_call import SavedCall
from offhook.web.http.access import Refusal
from offhook.web.http.access_io import ACCESS, head_of, peer_of
from offhook.web.http.metrics import Metrics

TRIES_PARAMETER = "tries"
"""Query parameter that says how often a call that comes back has asked for a free line."""


@dataclass
class Carrier:
    """A configured carrier; new calls use these settings, calls in progress keep theirs."""

    provider: Provider
    rest: CarrierRestClient | None
    listener: Listener | None = None
    seen: Nonces = field(default_factory=Nonces)
    answers: Answers[asyncio.Task[Reply]] = field(default_factory=Answers)
    tickets: Tickets[tuple[CarrierCall, WebhookCall, SavedCall | None]] = field(
        default_factory=Tickets
    )

    @property
    def settings(self) -> CarrierSettings:
        return self.provider.settings


def base_url(settings: CarrierSettings, signed: SignedRequest, request: web.Request) -> str:
    """Returns our base URL as seen by the provider."""
    if settings.public_url:
        return settings.public_url.rstrip("/")
    return signed.url_candidates[0].removesuffix(request.raw_path)


def without_tries(signed: SignedRequest) -> tuple[SignedRequest, int]:
    """Returns a request without TRIES_PARAMETER, and its value, 0 if there is none."""
    query = dict(signed.query)
    tries = query.pop(TRIES_PARAMETER, "")
    rest = replace(signed, query=tuple(query.items()))
    return rest, int(tries) if tries.isdecimal() and len(tries) < 3 else 0


def parsed(provider: Provider, request: web.Request, signed: SignedRequest) -> WebhookCall | Reply:
    """Returns what a webhook says of a call, or the answer to one that says nothing."""
    try:
        return provider.parse_webhook(request.content_type, signed.body, dict(signed.query))
    except ValueError as fault:
        logger.warning("{}: webhook: {}", provider.settings.name, fault)
        return Reply(text=str(fault), status=400)


class CarrierRequests:
    """Verifies the requests to one edge's carriers."""

    def __init__(self, by_name: dict[str, Carrier], tasks: TaskSet, metrics: Metrics) -> None:
        """`tasks` owns what acts on webhooks."""
        self._by_name = by_name
        self._tasks = tasks
        self._metrics = metrics

    def carrier(self, request: web.Request, serves: Callable[[Provider], bool]) -> Carrier:
        """Returns the carrier of the request's path. Raises HTTPNotFound if its provider has no
        such requests, and HTTPForbidden for a web page."""
        carrier = self._by_name.get(request.match_info["name"])
        if carrier is None or not serves(carrier.provider):
            raise web.HTTPNotFound(text="unknown carrier")
        try:
            request.app[ACCESS]().check_carrier(head_of(request))
        except Refusal as fault:
            raise self.refused(carrier.settings, request, fault) from fault
        return carrier

    async def verified(
        self, carrier: Carrier, request: web.Request, calls: Iterable[CarrierCall] = ()
    ) -> None:
        """Verifies an upgrade. `calls` are those it may concern, whose original secrets are
        accepted too. Raises HTTPForbidden."""
        try:
            await self._check(carrier, request, calls, upgrade=True)
        except Rejected as fault:
            raise self.refused(carrier.settings, request, fault) from fault

    async def once(
        self,
        carrier: Carrier,
        request: web.Request,
        calls: Iterable[CarrierCall],
        act: Callable[[SignedRequest], Coroutine[Any, Any, Reply]],
    ) -> web.Response:
        """Verifies a webhook and acts on it, unless it is a repetition, which gets the same answer.
        `calls` as above. Raises HTTPForbidden."""
        key = content_key(request.raw_path, await request.read())
        acting: asyncio.Task[Reply] | None
        try:
            signed = await self._check(carrier, request, calls)
        except Replayed as fault:
            # Where the stream named in an answer is not signed, whoever replays a webhook could
            # take the call.
            signed_stream = carrier.provider.proves_stream
            acting = carrier.answers.get(key, monotonic()) if signed_stream else None
            if acting is None:
                raise self.refused(carrier.settings, request, fault) from fault
        except Rejected as fault:
            raise self.refused(carrier.settings, request, fault) from fault
        else:
            acting = carrier.answers.get(key, monotonic())
            if acting is None:
                acting = self._tasks.spawn(act(signed), f"webhook of {carrier.settings.name}")
                carrier.answers.add(key, monotonic(), acting)
        reply = await asyncio.shield(acting)
        return web.Response(text=reply.text, content_type=reply.content_type, status=reply.status)

    async def _check(
        self,
        carrier: Carrier,
        request: web.Request,
        calls: Iterable[CarrierCall],
        upgrade: bool = False,
    ) -> SignedRequest:
        """Returns the verified request. Raises Rejected."""
        body = await request.read()
        head, policy = head_of(request), request.app[ACCESS]()
        proxied = head.sign_of_proxy(carrier.provider.headers)
        peer = "" if proxied else peer_of(request)  # a proxy's is not its client's
        faults = []
        for provider in dict.fromkeys((carrier.provider, *(call.provider for call in calls))):
            try:
                signed = SignedRequest.read(
                    provider.settings,
                    request.method,
                    request.scheme,
                    request.host,
                    request.raw_path,
                    request.headers.items(),
                    body,
                    peer,
                    upgrade,
                )
                if not policy.is_own(head.host):
                    # requests to a page's URL come from any address
                    signed = replace(signed, peer="")
                provider.verify(signed, time(), carrier.seen)
            except Replayed:
                raise
            except Rejected as fault:
                faults.append(fault)
            else:
                return signed
        raise faults[0]

    def refused(
        self, settings: CarrierSettings, request: web.Request, fault: Rejected | Refusal
    ) -> web.HTTPForbidden:
        """Counts and logs a refusal, and returns what to raise."""
        self._metrics.refused.labels("unsigned").inc()
        asked = f"{request.method} from {request.remote} for {request.host[:80]}"
        line = logger.bind(a_minute=settings.name)
        line.warning("{}: {} is refused: {}", settings.name, asked, fault)
        return web.HTTPForbidden(text="not verified")
