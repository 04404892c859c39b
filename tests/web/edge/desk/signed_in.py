"""Somebody at a desk, by hand: signs in over HTTP, and speaks SIP over the desk's WebSocket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import aiohttp

from offhook.telephony.sip.messages.message import Request, Response, parse_message
from tests.support.waiting import HANGS_S

numbers = count(1)


async def sign_in(url: str, number: str, password: str, **headers: str) -> aiohttp.ClientResponse:
    """The response to a request to sign in, on a connection of its own."""
    body = {"number": number, "password": password}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{url}/desk/session", json=body, headers=headers) as response,
    ):
        await response.read()
        return response


async def cookie_of(url: str, number: str) -> str:
    response = await sign_in(url, number, f"pass-{number}", Origin=url)
    assert response.status == 200
    cookie = response.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    return cookie.partition(";")[0]


class SipSocket:
    """The WebSocket of a desk."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, number: str) -> None:
        self.socket, self.number = socket, number

    async def ask(self, method: str, to: str, *more: str, tag: str = "") -> Any:
        """The final response to a request, or the request that comes in place of it."""
        await self.send(method, to, *more, tag=tag)
        while True:
            message = await self.next()
            if not isinstance(message, Response) or message.status >= 200:
                return message

    async def send(self, method: str, to: str, *more: str, tag: str = "") -> None:
        number = next(numbers)
        tagged = f";tag={tag}" if tag else ""
        call_id = next((line for line in more if line.startswith("Call-ID")), "")
        lines = [
            f"{method} sip:{to}@offhook.invalid SIP/2.0",
            f"Via: SIP/2.0/WS desk.invalid;branch=z9hG4bK{number}",
            f"From: <sip:{self.number}@offhook.invalid>;tag=same",
            f"To: <sip:{to}@offhook.invalid>{tagged}",
            call_id or f"Call-ID: desk-{number}",
            f"CSeq: {number} {method}",
            f"Contact: <sip:{self.number}@desk.invalid;transport=ws>",
            *(line for line in more if line != call_id),
        ]
        await self.socket.send_str("\r\n".join([*lines, "", ""]))

    async def register(self, number: str = "", expires: int = 120) -> Response:
        found = await self.ask("REGISTER", number or self.number, f"Expires: {expires}")
        assert isinstance(found, Response)
        return found

    async def next(self) -> Request | Response:
        async with asyncio.timeout(HANGS_S):
            message = await self.socket.receive()
            assert message.type is aiohttp.WSMsgType.TEXT, message
            return parse_message(message.data.encode())

    async def closed(self) -> None:
        async with asyncio.timeout(HANGS_S):
            while not self.socket.closed:
                await self.socket.receive()


@asynccontextmanager
async def sip_socket(url: str, number: str, cookie: str = "") -> AsyncIterator[SipSocket]:
    """The WebSocket of somebody who has signed in."""
    headers = {"Cookie": cookie or await cookie_of(url, number), "Origin": url}
    async with (
        aiohttp.ClientSession() as http,
        http.ws_connect(f"{url}/desk/sip", protocols=["sip"], headers=headers) as socket,
    ):
        yield SipSocket(socket, number)
