"""A web client that places a caller's one call by WebRTC."""

import asyncio
import json
from contextlib import suppress
from typing import Any
from urllib.parse import urljoin, urlsplit

import aiohttp

from offhook.signaling.peer_io import PeerLeg, use_addresses
from offhook.web.app.callers.caller_leg import ScriptedCallerLeg
from offhook.web.app.callers.impaired_leg_io import ImpairedLeg

HTTP_TIMEOUT = aiohttp.ClientTimeout(total=15)
"""Time limit for the answer to our offer."""
CANCEL_TIMEOUT = aiohttp.ClientTimeout(total=2)
"""Time limit for taking the offer back."""
CONNECT_S = 15
"""Time limit in s from the answer to a connected peer."""
PING_S = 1


class CallError(RuntimeError):
    """Raised when the call cannot be made; the message says why and what to do."""


class CallerLeg(ScriptedCallerLeg, ImpairedLeg, PeerLeg):
    """A WebRTC leg that records what it hears."""

    def __init__(self, call_id: str) -> None:
        super().__init__(call_id)

    def ping(self, now_ms: int) -> None:
        if self.messages.channel is not None and self.messages.channel.readyState == "open":
            self.messages.channel.send(f"ping: {now_ms}")


class WebRtcCaller:
    """A client for one call to a server of ours."""

    def __init__(self, url: str, api_key: str = "", leg: CallerLeg | None = None) -> None:
        self.leg = leg if leg is not None else CallerLeg("caller")
        self._url = urljoin(url, "/api/offer")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._ping: asyncio.Task[None] | None = None
        if urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1"):
            use_addresses(["127.0.0.1"])

    async def call(self) -> None:
        """Returns once the call is answered and connected. Raises CallError."""
        self._ping = asyncio.create_task(self._keep_pinging(), name="ping")
        pc_id = await self._offer()
        try:
            async with asyncio.timeout(CONNECT_S):
                if not await self.leg.until_connected():
                    raise TimeoutError
        except BaseException as error:
            await self._cancel(pc_id)
            if isinstance(error, TimeoutError):
                words = f"no media connection within {CONNECT_S} s"
                raise CallError(words) from error
            raise
        ready = {"version": "2.1.0", "about": {"library": "offhook call"}}
        self._send("client-ready", ready)

    async def _offer(self) -> Any:
        """Returns the server's name of the call."""
        sdp = await self.leg.offer()
        offer = {"sdp": sdp, "type": "offer", "pc_id": None, "restart_pc": False}
        try:
            async with (
                aiohttp.ClientSession(headers=self._headers, timeout=HTTP_TIMEOUT) as http,
                http.post(self._url, json=offer) as response,
            ):
                answer = await response.json(content_type=None)
                if not isinstance(answer, dict):
                    raise ValueError("its answer is not a JSON object")
                if response.status != 200:
                    retry = response.headers.get("Retry-After")
                    hint = f"; try again in {retry} s" if retry else ""
                    raise CallError(f"{response.status}: {answer.get('error')}{hint}")
            await self.leg.accept(answer.get("sdp", ""))
        except (aiohttp.ClientError, TimeoutError) as error:
            raise CallError(f"no offhook server at {self._url}: {error}") from error
        except (ValueError, RecursionError) as error:
            words = f"no offhook server at {self._url}: something else answers there"
            raise CallError(words) from error
        return answer.get("pc_id")

    async def _cancel(self, pc_id: Any) -> None:
        """Releases the server's line; an unconnected peer cannot signal that it has left."""
        with suppress(aiohttp.ClientError, TimeoutError):
            async with (
                aiohttp.ClientSession(headers=self._headers, timeout=CANCEL_TIMEOUT) as http,
                http.delete(f"{self._url}/{pc_id}"),
            ):
                pass

    async def _keep_pinging(self) -> None:
        while True:
            self.leg.ping(int(asyncio.get_running_loop().time() * 1000))
            await asyncio.sleep(PING_S)

    def _send(self, kind: str, data: dict[str, Any]) -> None:
        message = {"label": "rtvi-ai", "type": kind, "id": kind, "data": data}
        self.leg.send_message(json.dumps(message))

    async def close(self) -> None:
        """Ends what belongs to the call beside its leg."""
        if self._ping is not None:
            self._ping.cancel()
            await asyncio.gather(self._ping, return_exceptions=True)
