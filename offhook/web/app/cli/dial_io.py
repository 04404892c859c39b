"""`offhook dial`, `queues`, `extensions` and `sip-trace`: HTTP client of a server's phones."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Any
from urllib.parse import quote

import aiohttp

from offhook.media.untrusted_json import read_json
from offhook.pipeline.speech.remote.worker_list_io import UNIX
from offhook.telephony.sip.capture.pcap import HEADER_BYTES, PCAP

ANSWER_S = 15.0
"""Time limit in s for a response."""
SILENCE_S = 30.0
"""Time in s without data after which the server is considered lost: three keep-alive intervals."""


class PhoneError(RuntimeError):
    """Raised when the server does not do what was asked; the message says why."""


@dataclass(frozen=True)
class DialProgress:
    """A state of the call, with the time in s since the request."""

    call_id: str
    state: str
    status: int
    reason: str
    at: float

    def as_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "at": round(self.at, 3)}


Show = Callable[[DialProgress], None]


def in_words(happened: DialProgress, answered_at: float | None) -> str:
    """Returns a line for people; `answered_at` is when the call was answered, if it was."""
    match happened.state:
        case "dialing":
            return f"dialing (call {happened.call_id})"
        case "ringing":
            return "ringing"
        case "early_media":
            return "there is sound before the answer"
        case "answered":
            return f"answered after {happened.at:.1f} s"
        case _ if answered_at is None:
            return happened.reason
        case _:
            return f"ended after {happened.at - answered_at:.1f} s: {happened.reason}"


ENDS = (signal.SIGINT, signal.SIGTERM)


class Phones:
    """The phones of the server at `url`, http://host:port or unix:PATH."""

    def __init__(self, url: str, admin_key: str) -> None:
        self._socket = url.removeprefix(UNIX) if url.startswith(UNIX) else ""
        self._url = "http://localhost" if self._socket else url.rstrip("/").removesuffix("/v1")
        self._headers = {"Authorization": f"Bearer {admin_key}"} if admin_key else {}

    async def dial(self, asked: dict[str, Any], show: Show) -> bool:
        """Places a call, shows its progress to the end and returns whether it was answered. SIGINT
        and SIGTERM hang up. Raises PhoneError."""
        began, answered = monotonic(), False
        async with self._session() as http:
            placed = await self._ask(http, "POST", "/calls", json=asked)
            call_id = placed["call_id"]
            leaving: set[asyncio.Task[Any]] = set()
            loop = asyncio.get_running_loop()

            def hang_up() -> None:
                for end in ENDS:  # a second one ends the command at once
                    loop.remove_signal_handler(end)
                leaving.add(asyncio.create_task(self._ask(http, "DELETE", f"/calls/{call_id}")))

            for end in ENDS:
                loop.add_signal_handler(end, hang_up)
            try:
                async for event in self._events(http, call_id):
                    at = monotonic() - began
                    show(
                        DialProgress(call_id, event["state"], event["status"], event["reason"], at)
                    )
                    answered |= event["state"] == "answered"
            finally:
                for end in ENDS:
                    loop.remove_signal_handler(end)
                await asyncio.gather(*leaving, return_exceptions=True)
        return answered

    async def trace(self, call_id: str, as_json: bool) -> str:
        """Returns the recorded SIP messages. Raises PhoneError."""
        headers = {"Accept": "application/json" if as_json else "text/plain"}
        async with self._session() as http:
            path = f"/sip/trace?call={quote(call_id)}"
            found = await self._ask(http, "GET", path, headers=headers)
        return json.dumps(found, indent=1) if as_json else found

    async def capture(self, call_id: str) -> bytes:
        """Returns the recorded SIP messages as a pcap file. Raises PhoneError."""
        async with self._session() as http:
            path = f"/sip/trace?call={quote(call_id)}"
            found = await self._ask(http, "GET", path, headers={"Accept": PCAP})
        if not isinstance(found, bytes):
            raise PhoneError(f"the server at {self._url} writes no pcap: it is an older one")
        if len(found) <= HEADER_BYTES:
            raise PhoneError("the server has no messages" + (f" of {call_id}" if call_id else ""))
        return found

    async def ask(self, method: str, path: str, **options: Any) -> Any:
        """Returns the answer of one of the operator's routes. Raises PhoneError."""
        async with self._session() as http:
            return await self._ask(http, method, path, **options)

    async def queues(self, name: str = "") -> Any:
        """Returns all queues, or the one of that name. Raises PhoneError."""
        async with self._session() as http:
            if name:
                return await self._ask(http, "GET", f"/queues/{quote(name, safe='')}")
            return (await self._ask(http, "GET", "/queues"))["queues"]

    async def pause(self, queue: str, member: str, paused: bool) -> Any:
        """Has a member of a queue rung no more, or again; returns the queue. Raises PhoneError."""
        async with self._session() as http:
            path, body = f"/queues/{quote(queue, safe='')}/members", {"member": member}
            return await self._ask(http, "POST", path, json={**body, "paused": paused})

    def _session(self) -> aiohttp.ClientSession:
        timeout = aiohttp.ClientTimeout(ANSWER_S)
        connector = aiohttp.UnixConnector(self._socket) if self._socket else None
        return aiohttp.ClientSession(headers=self._headers, timeout=timeout, connector=connector)

    async def _ask(
        self, http: aiohttp.ClientSession, method: str, path: str, **options: Any
    ) -> Any:
        try:
            async with http.request(method, self._url + path, **options) as answer:
                await _check(answer)
                if answer.content_type == "application/json":
                    return await answer.json()
                if answer.content_type == PCAP:
                    return await answer.read()
                return await answer.text()
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise PhoneError(f"no offhook server answers at {self._url}: {error}") from error

    async def _events(
        self, http: aiohttp.ClientSession, call_id: str
    ) -> AsyncIterator[dict[str, Any]]:
        """Yields the events of a call until it ends."""
        timeout = aiohttp.ClientTimeout(None, sock_read=SILENCE_S)
        try:
            path = f"{self._url}/calls/{call_id}/events"
            async with http.get(path, timeout=timeout) as answer:
                await _check(answer)
                async for line in answer.content:
                    if line.startswith(b"data:"):
                        event = read_json(line.removeprefix(b"data:"))
                        yield event
                        if event["state"] == "ended":
                            return
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise PhoneError(f"the server at {self._url} is gone: {error}") from error
        raise PhoneError(f"the server at {self._url} ended what it was telling of the call")


async def _check(answer: aiohttp.ClientResponse) -> None:
    """Raises PhoneError with the server's message if the request failed."""
    if answer.status < 400:
        return
    try:
        said = (await answer.json())["error"]
    except (aiohttp.ClientError, ValueError, KeyError, TypeError):
        said = f"the answer is {answer.status} {answer.reason}: is that an offhook server?"
    again = answer.headers.get("Retry-After")
    raise PhoneError(f"{said}; try again in {again} s" if again else said)


def extension_lines(extension: dict[str, Any]) -> Iterator[str]:
    """Yields an extension as people read it."""
    messages, name = extension["messages"], extension["name"]
    state = extension["state"].replace("_", " ")
    waiting = (
        "" if messages is None else f", messages: {messages['new']} new, {messages['heard']} heard"
    )
    yield f"{extension['number']}{f' {name}' if name else ''}: {state}{waiting}"
    for phone in extension["phones"]:
        what = phone["user_agent"] or "phone"
        since, expires = phone["since"][:16], phone["expires"][11:19]
        yield (
            f"  {what} at {phone['address']} by {phone['transport']},"
            f" since {since}, until {expires} UTC"
        )


def queue_lines(queue: dict[str, Any]) -> Iterator[str]:
    """Yields a queue as people read it."""
    wait, waiting = queue["wait_seconds"], queue["waiting"]
    expected = "" if wait is None else f", about {max(1, round(wait / 60))} min for the next caller"
    yield f"{queue['name']}: {len(waiting)} waiting{expected}"
    for one in waiting:
        about = "called back" if one["called_back"] else f"call {one['call_id']}"
        offered = f", rings {', '.join(one['offered'])}" if one["offered"] else ""
        waited = f"{one['waited_seconds']:.0f} s"
        yield f"  {one['position']}. {one['caller'] or 'unknown'}, {waited}, {about}{offered}"
    for member in queue["members"]:
        yield f"  {member['member']}: {member['state'].replace('_', ' ')}"
