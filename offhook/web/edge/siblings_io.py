"""Routes requests between the edge processes that share a port.

caller -- TCP --> any process -- Unix socket --> the process that has, or will have, the call

A pc_id starts with the number of its process; phone calls are all in the first one. Requests for
another process are forwarded once to its Unix socket. A carrier's stream is not proxied: its
connection is handed over.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import aiohttp
from aiohttp import web
from loguru import logger
from prometheus_client import CONTENT_TYPE_LATEST

from offhook.pipeline.conversation.bot_io import Bot
from offhook.signaling.smallwebrtc import parse_candidates, parse_offer
from offhook.telephony.carriers.auth.answers import content_key
from offhook.telephony.carriers.providers import provider_called
from offhook.web.config.config import Config
from offhook.web.edge import calls_io, server_io, whip_io
from offhook.web.edge.calls.browser_calls_io import UnknownPeer
from offhook.web.edge.calls.whip_calls_io import WhipRefusal
from offhook.web.edge.carriers import routes_io as carrier_routes
from offhook.web.edge.console import states_io
from offhook.web.edge.desk import desk_io
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.hand_over_io import hand_over
from offhook.web.edge.http_io import Handler
from offhook.web.edge.refusals import RETRY_AFTER_S
from offhook.web.edge.rooms import relay_leg_io, relays_io
from offhook.web.edge.rooms import routes_io as room_routes
from offhook.web.edge.rooms.requests import MemberRequest
from offhook.web.http import health_io
from offhook.web.http.access_io import (
    FORWARDED_FOR,
    OPERATOR_HEADER,
    PEER_HEADER,
    TENANT_HEADER,
    forwarded,
    head_of,
    peer_of,
)
from offhook.web.realtime import call_control_io
from offhook.web.realtime.http_io import call_not_found
from offhook.web.realtime.incoming_io import CALL_PREFIX
from offhook.web.realtime.transcription.server_io import realtime
from offhook.web.workers.engines.choice import AutoWorker

ASK_S = 0.5
"""Time in s within which a sibling must report its state; one that does not is given no call, and
the server counts as not ready."""
PASS_ON_S = 30
"""Time limit in s of a forwarded request, since an answer may wait for ICE candidates of slow STUN
servers; then a new call stays with this process, and any other request fails with 404 or 502."""
CONTROL_S = 90
"""The same for the control of a call: a transfer takes as long as it rings."""
SLACK_CALLS = 1
"""Maximum calls more than a sibling with which a process keeps a new call; with more the sibling
gets it."""

HOP_BY_HOP = frozenset(
    (
        *("connection", "content-length", "keep-alive", "te", "trailer", "transfer-encoding"),
        *("upgrade", "sec-websocket-key", "sec-websocket-version", "sec-websocket-extensions"),
    )
)
PASSED_BACK = frozenset(
    (
        *("content-type", "retry-after", "location"),
        *("etag", "link", "accept-patch", "accept-post"),
    )
)
"""Headers of a sibling's response that its client gets."""
OURS = frozenset((OPERATOR_HEADER.lower(), TENANT_HEADER.lower()))
"""Headers that only we add to what is forwarded."""
SILENCE_S = 3 * calls_io.KEEP_ALIVE_S
"""Time in s without data after which a forwarded event stream counts as broken and is closed."""
WITH_PHONES = 1
"""Number of the process with the phones."""


class NumberedEdge(Edge):
    """An edge the ids of whose calls start with its process number, as in `2-7f3a`."""

    def __init__(
        self,
        config: Config,
        bot: Bot | None,
        number: int,
        secret_key: str = "",
        auto: Sequence[AutoWorker] = (),
    ) -> None:
        # All messages of a SIP dialog must reach one process, so phones are in the first one.
        if number != WITH_PHONES:
            others = tuple(c for c in config.carriers if not provider_called(c.provider).listens)
            config = config.model_copy(update={"sip": None, "carriers": others})
            if config.webrtc.port:  # only one process can tell whose a datagram is
                port = config.webrtc.port + number - WITH_PHONES
                webrtc = config.webrtc.model_copy(update={"port": port})
                config = config.model_copy(update={"webrtc": webrtc})
        super().__init__(config, bot, secret_key, auto, f"{number}-")
        self.number = number


def socket_path(directory: Path, number: int) -> str:
    """Returns the Unix socket, in a private directory, where a process listens to its siblings."""
    return str(directory / f"{number}.sock")


def stream_path(directory: Path, number: int) -> str:
    """Returns the Unix socket where a process accepts carriers' connections from its siblings."""
    return str(directory / f"{number}.streams")


class Siblings:
    """Queries the other processes and forwards requests to them."""

    def __init__(self, edge: NumberedEdge, directory: Path) -> None:
        self._edge = edge
        self._number = edge.number
        self._directory = directory
        self._http = {
            number: aiohttp.ClientSession(
                "http://localhost",
                connector=aiohttp.UnixConnector(socket_path(directory, number), force_close=True),
            )
            for number in range(1, edge.config.server.processes + 1)
        }
        """HTTP sessions to all processes, including this one."""
        edge.rooms.elsewhere = self
        self._passing: Counter[int] = Counter()
        """New calls being forwarded to a sibling, which may not count them yet."""

    async def close(self) -> None:
        for http in self._http.values():
            await http.close()

    def process_with(self, asked: MemberRequest) -> int | None:
        """Returns the number of the process with the line of a room's member; None: this one, or
        it is a browser that comes here."""
        number = None
        if asked.call:
            number = next((n for n in self._http if asked.call.startswith(f"{n}-")), WITH_PHONES)
        elif asked.dial is not None:
            carriers = {carrier.name for carrier in self._edge.config.carriers}
            number = self._number if asked.dial.carrier in carriers else WITH_PHONES
        return None if number == self._number else number

    async def relay(self, number: int, tenant: str) -> aiohttp.ClientWebSocketResponse:
        """Connects to the lines of another process, for a tenant or "" the operator. Raises
        ClientError, TimeoutError."""
        async with asyncio.timeout(ASK_S):
            return await self._http[number].ws_connect(
                relays_io.PATH,
                max_msg_size=relay_leg_io.MAX_MESSAGE_BYTES,
                headers={TENANT_HEADER: tenant},
            )

    @web.middleware
    async def share(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Middleware that forwards requests about another process, or about all."""
        wanted = request.match_info.handler
        if wanted is health_io.metrics:
            return await self._metrics()
        if wanted is health_io.readyz:
            return await self._readyz()
        if wanted in states_io.MERGED:
            return await self._states(wanted, request)
        if wanted is server_io.candidates:
            trickled = parse_candidates(await request.read())
            return await self._to_holder(trickled.pc_id, request, handler)
        if wanted is server_io.cancelled:
            return await self._to_holder(request.match_info["pc_id"], request, handler)
        if wanted is server_io.accepted:
            return await self._to_all(request, handler)
        if wanted in calls_io.OF_CALLS or wanted in room_routes.HANDLERS:
            return await self._about_calls(request, handler)
        if wanted in carrier_routes.OF_CARRIERS:
            return await self._of_carrier(request, handler)
        if wanted in call_control_io.OF_CALLS or (
            wanted is realtime and "call_id" in request.query
        ):
            return await self._of_realtime_call(request, handler)
        if wanted in whip_io.OF_ROOMS:
            return await self._of_room(request, handler)
        if wanted is server_io.offer:
            offer = parse_offer(await request.read())
            if offer.pc_id is not None:
                try:
                    return await self._to_holder(offer.pc_id, request, handler)
                except UnknownPeer:
                    if not offer.restart_pc:
                        raise
                    # Its process is gone, and the caller comes back: as a new call.
        if wanted in (server_io.offer, server_io.start):
            return await self._to_roomiest(request, handler)
        return await handler(request)

    @web.middleware
    async def to_phones(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Middleware that hands over what desks ask for to the process with the phones, which
        decides whether they may."""
        if self._number == WITH_PHONES or not desk_io.is_of_desk(request):
            return await handler(request)
        try:
            return await hand_over(request, stream_path(self._directory, WITH_PHONES))
        except (OSError, TimeoutError) as error:
            raise web.HTTPBadGateway(text="the process with the phones does not answer") from error

    async def _to_all(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Handles the request here and in every process that answers."""
        response = await handler(request)
        others = (n for n in self._http if n != self._number)
        passed = (self._pass_on(request, number) for number in others)
        await asyncio.gather(*passed, return_exceptions=True)
        return response

    async def _to_holder(
        self, pc_id: str, request: web.Request, handler: Handler
    ) -> web.StreamResponse:
        number = next((n for n in self._http if pc_id.startswith(f"{n}-")), self._number)
        if number == self._number:
            return await handler(request)
        try:
            return await self._pass_on(request, number)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UnknownPeer(pc_id) from error

    async def _about_calls(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        wanted = request.match_info.handler
        if wanted is calls_io.listed and not request.query:
            return await self._calls(request)
        call_id = request.match_info.get("call", "")
        number = next((n for n in self._http if call_id.startswith(f"{n}-")), WITH_PHONES)
        if number == self._number or wanted is calls_io.listed:
            return await handler(request)
        try:
            if wanted is calls_io.followed:
                return await self._stream_on(request, number)
            return await self._pass_on(request, number)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise calls_io.UnknownCall(call_id) from error

    async def _of_carrier(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Forwards a carrier's request. A ticket and the id of a call that we placed start with
        their process number; a call without one is new. The receiving process verifies the
        request."""
        wanted = request.match_info.get("ticket") or request.match_info.get("call") or ""
        number = next((n for n in self._http if wanted.startswith(f"{n}-")), self._number)
        new = not wanted and request.match_info.handler in carrier_routes.NEW_CALLS
        if new:
            number = await self._roomiest(await self._home(request))
        if number == self._number:
            return await handler(request)
        self._passing[number] += 1
        try:
            if request.match_info.handler is carrier_routes.stream:
                return await hand_over(request, stream_path(self._directory, number))
            return await self._pass_on(request, number, _end_to_end(request))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            if new:
                logger.warning("process {} does not answer: the call stays here", number)
                return await handler(request)
            raise web.HTTPBadGateway(text="the process of that call does not answer") from error
        finally:
            self._passing[number] -= 1

    async def _of_realtime_call(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Forwards the control of a call, and connections beside it, to the call's process."""
        beside = request.match_info.handler is realtime
        given = request.query["call_id"] if beside else request.match_info.get("call", "")
        call_id = given.removeprefix(CALL_PREFIX)
        number = next((n for n in self._http if call_id.startswith(f"{n}-")), WITH_PHONES)
        if number == self._number:
            return await handler(request)
        try:
            if beside:
                return await hand_over(request, stream_path(self._directory, number))
            return await self._pass_on(request, number, limit_s=CONTROL_S)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise call_not_found(given) from error

    async def _of_room(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Forwards a request of WHIP or WHEP: a publisher and its players are all in the process
        that the room's name determines."""
        number = 1 + crc32(request.match_info["room"].encode()) % len(self._http)
        if number == self._number:
            return await handler(request)
        try:
            return await self._pass_on(request, number, _end_to_end(request))
        except (aiohttp.ClientError, TimeoutError) as error:
            raise WhipRefusal(
                503, "the process of this room does not answer", RETRY_AFTER_S
            ) from error

    async def _calls(self, request: web.Request) -> web.Response:
        headers = _some(request.headers, "Authorization") | forwarded(request)
        answers = await self._ask_all("/calls", headers)
        return web.json_response({"calls": [c for a in answers.values() for c in a["calls"]]})

    async def _to_roomiest(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        number = await self._roomiest()
        if number != self._number:
            self._passing[number] += 1
            try:
                answer = await self._pass_on(request, number)
                if answer.status != 503:  # another call was faster; there may be room here
                    return answer
            except (aiohttp.ClientError, TimeoutError):
                logger.warning("process {} does not answer: the call stays here", number)
            finally:
                self._passing[number] -= 1
        return await handler(request)

    async def _home(self, request: web.Request) -> int:
        """Returns the process of a carrier's request for a new call. All repetitions of a webhook
        have to come to the same one, which knows what the first was answered."""
        if request.match_info.handler is carrier_routes.stream:
            return self._number
        return 1 + crc32(content_key(request.raw_path, await request.read())) % len(self._http)

    async def _roomiest(self, home: int | None = None) -> int:
        """Returns the process for a new call: `home`, by default this one, unless it is much fuller
        than another."""
        home = self._number if home is None else home
        if home == self._number:
            calls, most = len(self._edge.lines), self._edge.config.server.max_calls
            if calls <= SLACK_CALLS and calls < most and not self._edge.overloaded:
                return home
        states = await self._ask_all("/readyz")
        loads = {
            number: state["calls"] + self._passing[number]
            for number, state in states.items()
            if state["ready"] and not state["overloaded"] and state["calls"] < state["max_calls"]
        }
        least = min(loads, key=lambda number: loads[number], default=home)
        if home not in loads or loads[home] > loads[least] + SLACK_CALLS:
            return least
        return home

    async def _pass_on(
        self,
        request: web.Request,
        number: int,
        headers: Mapping[str, str] | None = None,
        limit_s: float = PASS_ON_S,
    ) -> web.Response:
        """Forwards a request. Raises ClientError or TimeoutError if the sibling does not answer."""
        if headers is None:
            headers = _some(request.headers, "Content-Type", "Authorization", "Accept")
            headers[PEER_HEADER] = peer_of(request)
            if forwarded_for := request.headers.getall(FORWARDED_FOR, ()):
                headers[FORWARDED_FOR] = ", ".join(forwarded_for)
        headers = {n: v for n, v in headers.items() if n.lower() not in OURS} | forwarded(request)
        timeout = aiohttp.ClientTimeout(limit_s)
        async with self._http[number].request(
            request.method,
            request.rel_url,
            data=await request.read(),
            headers=headers,
            timeout=timeout,
        ) as answer:
            response = web.Response(status=answer.status, body=await answer.read())
            for name, value in answer.headers.items():
                if name.lower() in PASSED_BACK:
                    response.headers.add(name, value)
            return response

    async def _stream_on(self, request: web.Request, number: int) -> web.StreamResponse:
        """Forwards a request whose response streams until either end closes."""
        headers = _some(request.headers, "Authorization") | forwarded(request)
        timeout = aiohttp.ClientTimeout(None, sock_connect=ASK_S, sock_read=SILENCE_S)
        async with self._http[number].get(
            request.rel_url, headers=headers, timeout=timeout
        ) as answer:
            kind = _some(answer.headers, "Content-Type")
            response = web.StreamResponse(
                status=answer.status, headers={**calls_io.EVENT_STREAM, **kind}
            )
            await response.prepare(request)
            try:
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
            except (aiohttp.ClientError, TimeoutError, ConnectionError):
                pass  # one side has closed: the reader sees where it ends
        return response

    async def _ask_all(self, path: str, headers: Mapping[str, str] | None = None) -> dict[int, Any]:
        """Returns the responses, JSON or text, of all processes that answer."""
        asked = (self._ask(number, path, headers) for number in self._http)
        answers = await asyncio.gather(*asked)
        return {n: a for n, a in zip(self._http, answers, strict=True) if a is not None}

    async def _ask(self, number: int, path: str, headers: Mapping[str, str] | None) -> Any:
        timeout = aiohttp.ClientTimeout(ASK_S)
        try:
            async with self._http[number].get(path, headers=headers, timeout=timeout) as answer:
                as_json = answer.content_type == "application/json"
                return await answer.json() if as_json else await answer.text()
        except (aiohttp.ClientError, TimeoutError):
            return None

    async def _states(self, wanted: Any, request: web.Request) -> web.Response:
        """Returns the trunks or engines of all processes as one."""
        name, merge = states_io.MERGED[wanted]
        answers = await self._ask_all(request.path_qs, forwarded(request))
        states = [answer[name] for answer in answers.values() if name in answer]
        return web.json_response({name: merge(states)})

    async def _readyz(self) -> web.Response:
        """Ready if all processes are."""
        states = await self._ask_all("/readyz")
        ready = len(states) == len(self._http) and all(s["ready"] for s in states.values())
        totals = {key: sum(s[key] for s in states.values()) for key in ("calls", "max_calls")}
        overloaded = bool(states) and all(s["overloaded"] for s in states.values())
        body = {"ready": ready, **totals, "overloaded": overloaded}
        return web.json_response(body, status=200 if ready else 503)

    async def _metrics(self) -> web.Response:
        body = merged(await self._ask_all("/metrics")).encode()
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _end_to_end(request: web.Request) -> dict[str, str]:
    """Returns the end-to-end headers (RFC 9110 §7.6.1) without those of a WebSocket, and the actual
    peer address. What the first line says of a proxy becomes a Via (§7.6.3)."""
    left_out = HOP_BY_HOP | {PEER_HEADER.lower()}
    headers = {n: v for n, v in request.headers.items() if n.lower() not in left_out}
    if head_of(request).for_proxy:
        headers.setdefault("Via", f"{request.version.major}.{request.version.minor} proxy")
    return {**headers, PEER_HEADER: peer_of(request)}


def _some(headers: Mapping[str, str], *names: str) -> dict[str, str]:
    return {name: headers[name] for name in names if name in headers}


def merged(texts: Mapping[int, str]) -> str:
    """Merges the metrics of all processes into one scrape with a label `process` per series.

    Values are not summed: Prometheus can sum what is summable, and lateness or line quality is not.
    It works line by line, because parsing would delay our calls' packets by milliseconds per
    process.
    """
    families: dict[str, list[str]] = {}
    family: list[str] = []
    for number, text in texts.items():
        for line in text.rstrip("\n").split("\n"):
            if line.startswith("# HELP"):
                family = families.setdefault(line, [])
            elif line.startswith("#"):
                family[:1] = [line]
            else:
                family.append(_labelled(line, f'process="{number}"'))
    return "\n".join(line for head, lines in families.items() for line in (head, *lines)) + "\n"


def _labelled(line: str, label: str) -> str:
    name, value = line.split(" ", 1)
    if "{" in name:
        return line.replace("{", f"{{{label},", 1)
    return f"{name}{{{label}}} {value}"
