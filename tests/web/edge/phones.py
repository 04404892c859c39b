"""A server with phones, for the tests of its HTTP side: real sockets, real calls, no speech."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from offhook.telephony.sip.endpoint_io import SipEndpoint
from offhook.telephony.sip.messages.message import Request, parse_message, respond
from offhook.web.config.config import Config
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S

TABLE: dict[str, Any] = {
    "server": {"port": 0, "max_calls": 3, "drain_seconds": 0},
    "webrtc": {"addresses": ["127.0.0.1"]},
    "agents": {"desk": {"kind": "silent"}},
}


async def bot(arguments: Any) -> None:
    """Says nothing until the caller leaves; so no engine has to be loaded."""
    await arguments.webrtc_connection.until_closed()


def configured(server: str, calls: Path | None = None, **sip: Any) -> Config:
    """Phones on free ports, with a trunk "pbx" at `server`, host:port, whose calls are taken and
    recorded in the file `calls`."""
    port = free_port()
    trunk = {"name": "pbx", "server": server, "headers": ["X-Order"], "caller_id": "4711"}
    phones = {"udp": port, "tcp": port, "trunks": [trunk], **sip}
    return Config.model_validate({**TABLE, "log": {"calls": calls}, "sip": phones})


class Served:
    """An edge and a client of its application."""

    def __init__(self, edge: Edge, client: aiohttp.ClientSession, url: str) -> None:
        self.edge, self.client, self.url = edge, client, url

    @property
    def sip(self) -> SipEndpoint:
        assert self.edge.sip is not None
        return self.edge.sip

    @property
    def port(self) -> int:
        return next(port for name, _, port in self.sip.bound if name == "UDP")

    async def get(self, path: str, **headers: str) -> Any:
        answer = await self.client.get(path, headers=headers)
        assert answer.status == 200, await answer.text()
        return await answer.json()

    async def place(self, to: str, **fields: Any) -> str:
        answer = await self.client.post("/calls", json={"to": to, **fields})
        assert answer.status == 201, await answer.text()
        return (await answer.json())["call_id"]

    async def refused(self, status: int, **fields: Any) -> str:
        answer = await self.client.post("/calls", json=fields)
        assert answer.status == status, await answer.text()
        return (await answer.json())["error"]

    async def state(self, call_id: str, wanted: str) -> dict[str, Any]:
        """The call, once it has that state."""
        async with asyncio.timeout(HANGS_S):
            while (call := await self.get(f"/calls/{call_id}"))["state"] != wanted:
                await asyncio.sleep(0.02)
        return call

    async def events(self, call_id: str) -> list[dict[str, Any]]:
        """All there are, to the end."""
        async with asyncio.timeout(HANGS_S):
            answer = await self.client.get(f"/calls/{call_id}/events")
            assert answer.content_type == "text/event-stream"
            lines = (await answer.text()).split("\n\n")
        return [json.loads(line.removeprefix("data: ")) for line in lines if line[:5] == "data:"]

    async def metrics(self) -> str:
        return await (await self.client.get("/metrics")).text()


@asynccontextmanager
async def served(config: Config, *, keeps: bool = False) -> AsyncIterator[Served]:
    """An edge with these settings; it `keeps` calls if the test has a place for them."""
    import aioice.ice

    host_addresses = aioice.ice.get_host_addresses
    edge = Edge(config, bot)
    if keeps:
        edge.records.open_store(config)
    await edge.start()
    runner = web.AppRunner(application(edge), access_log=None, handle_signals=False)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with aiohttp.ClientSession(url) as client:
            yield Served(edge, client, url)
    finally:
        await edge.close()
        await runner.cleanup()
        aioice.ice.get_host_addresses = host_addresses


class ScriptedPhone(asyncio.DatagramProtocol):
    """Takes what is sent over UDP and answers INVITEs with the statuses given, in their order.
    Everything else is answered 200, and nothing ever rings out."""

    def __init__(self, *statuses: int, register: int = 200) -> None:
        self.requests: list[Request] = []
        self._statuses = statuses
        self._register = register
        self._invites: dict[str, Request] = {}
        self._transport: asyncio.DatagramTransport

    @asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator[str]:
        """Gives its host:port."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(
            lambda: self, local_addr=("127.0.0.1", port)
        )
        try:
            yield f"127.0.0.1:{self._transport.get_extra_info('sockname')[1]}"
        finally:
            self._transport.close()

    def datagram_received(self, data: bytes, source: tuple[str, int]) -> None:
        request = parse_message(data)
        if not isinstance(request, Request) or request.method == "ACK":
            return
        again = request.method == "INVITE" and request.call_id in self._invites
        self.requests.append(request)
        if again:
            return
        statuses: Sequence[int] = (200,)
        if request.method == "INVITE":
            statuses = self._statuses
            self._invites[request.call_id] = request
        elif request.method == "REGISTER":
            statuses = (self._register,)
        for status in statuses:
            self._answer(request, status, source)
        if request.method == "CANCEL":
            self._answer(self._invites[request.call_id], 487, source)

    def _answer(self, request: Request, status: int, source: tuple[str, int]) -> None:
        contact = [("Contact", f"<sip:far@127.0.0.1:{source[1]}>")] if status < 200 else []
        response = respond(request, status, to_tag="far", headers=contact)
        self._transport.sendto(response.serialize(), source)

    async def asked(self, method: str) -> Request:
        """The first request of that method, waited for."""
        async with asyncio.timeout(HANGS_S):
            while not (found := [r for r in self.requests if r.method == method]):
                await asyncio.sleep(0.02)
        return found[0]
