"""A server that two customers share, for tests: real sockets, real calls, a real store."""

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import ClientSession

from offhook.signaling.peer_io import PeerLeg
from offhook.telephony.sip.endpoint_io import SipEndpoint
from offhook.web.config.config import Config
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from offhook.web.http.listening_io import Runner
from offhook.web.records.store import CallStore
from tests.support.ports import free_port
from tests.support.waiting import until
from tests.telephony.sip.extensions.desks import Desk
from tests.telephony.sip.scripted_peer import Peer, udp_peer
from tests.telephony.sip.scripted_sound import sound

HOSTS = {"acme": "127.0.0.2", "beta": "127.0.0.3", "": "127.0.0.4"}
"""From where the trunks of each call; that of nobody is shared."""
KEYS = {"operator": "", "reader": "", "acme": "acme", "acme-reader": "acme", "beta": "beta"}
"""Keys, and whose each is."""
SILENT = {"kind": "silent"}
numbers = itertools.count(1)


def table(folder: Path) -> dict[str, Any]:
    def trunk(tenant: str) -> dict[str, Any]:
        name = f"{tenant or 'shared'}-line"
        place = {"name": name, "addresses": [HOSTS[tenant]], "options_seconds": 0}
        return {**place, "server": f"{HOSTS[tenant]}:9"}

    return {
        "server": {
            "port": 0,
            "drain_seconds": 0,
            "max_calls": 12,
            "admin_key": "operator",
            "reader_key": "reader",
        },
        "webrtc": {"addresses": ["127.0.0.1"]},
        "tts": {"engine": "espeak"},
        "records": {"url": f"sqlite:///{folder}/calls.db", "spool": str(folder / "spool")},
        "agent": SILENT,
        "agents": {"shop": SILENT, "night": SILENT, "desk": SILENT},
        "sip": {
            "udp": free_port(),
            "tcp": None,
            "trunks": [trunk("acme"), trunk("beta"), trunk("")],
            "extensions": {
                number: {"password": f"pass-{number}"} for number in ("101", "102", "103")
            },
            "routes": [
                {"trunk": "acme-line", "agent": "shop"},
                {"called": "+4930111*", "agent": "shop"},
                {"called": "+4930222*", "agent": "desk"},
                {"called": "+49999", "agent": "night"},
                {},
            ],
        },
        "carriers": [
            {"provider": "twilio", "account": "AC1", "secret": "secret", "agent": "night"}
        ],
        "queues": {
            "sales": {"members": ["+4930111900"], "trunk": "acme-line"},
            "support": {"members": ["+4930222900"], "trunk": "beta-line"},
        },
        "tenants": {
            "acme": {
                "key": "acme",
                "reader_key": "acme-reader",
                "max_calls": 2,
                "agents": ["shop"],
                "trunks": ["acme-line"],
                "numbers": ["+4930111*", "101"],
                "queues": ["sales"],
            },
            "beta": {
                "key": "beta",
                "agents": ["night"],
                "trunks": ["beta-line"],
                "carriers": ["twilio"],
                "numbers": ["+4930222*", "102"],
                "queues": ["support"],
            },
        },
    }


class SharedServer:
    """An edge, and its application at a port."""

    def __init__(self, edge: Edge, url: str) -> None:
        self.edge, self.url = edge, url

    @property
    def store(self) -> CallStore:
        assert self.edge.records.kept is not None
        return self.edge.records.kept.store

    async def ask(
        self, key: str, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, Any]:
        """Status and body of the answer; of a stream, which goes on, its first event."""
        given = {"Authorization": f"Bearer {key}", **headers} if key else headers
        async with (
            ClientSession(headers=given) as http,
            http.request(method, self.url + path, json=body) as answer,
        ):
            if answer.content_type == "text/event-stream":
                return answer.status, await anext(aiter(answer.content.iter_any()))
            if answer.content_type == "application/json":
                return answer.status, await answer.json()
            return answer.status, await answer.text()

    async def live(self, key: str) -> list[dict[str, Any]]:
        status, body = await self.ask(key, "GET", "/calls")
        assert status == 200
        calls: list[dict[str, Any]] = body["calls"]
        return calls

    async def written(self) -> None:
        kept = self.edge.records.kept
        assert kept is not None
        await until(lambda: kept.behind == 0)

    @asynccontextmanager
    async def phoned(self, tenant: str = "", called: str = "100") -> AsyncIterator[Peer]:
        """A call by phone over the trunk of a tenant, that goes on meanwhile, if it is taken."""
        async with udp_peer(self.edge.sip, HOSTS[tenant]) as far:
            far.target = f"sip:{called}@127.0.0.1"
            far.call_id = f"phoned-{next(numbers)}"
            with sound() as line:
                far.invite(line.sdp())
                await until(lambda: any(isinstance(c, int) and c >= 200 for c in far.came))
                if 200 not in far.came:
                    yield far
                    return
                far.ack(await far.response(200))
                yield far
                await far.hang_up()

    @property
    def sip(self) -> SipEndpoint:
        assert self.edge.sip is not None
        return self.edge.sip

    @asynccontextmanager
    async def desk(self, number: str) -> AsyncIterator[Desk]:
        """A phone that is registered as an extension."""
        async with udp_peer(self.sip) as far:
            with sound() as line:
                found = Desk(self.sip, far, line, number)
                await found.register()
                yield found

    async def browser(self, agent: str) -> tuple[int, Any]:
        """Whether somebody with a token for an agent is taken, in a browser."""
        asked = {"agent": agent}
        _, given = await self.ask("operator", "POST", "/tokens", asked)
        leg = PeerLeg("browser")
        offer = {"sdp": await leg.offer(), "type": "offer"}
        try:
            return await self.ask(given["token"], "POST", "/api/offer", offer)
        finally:
            await leg.hang_up("test over")


@asynccontextmanager
async def shared_server(folder: Path, **sections: Any) -> AsyncIterator[SharedServer]:
    import aioice.ice

    host_addresses = aioice.ice.get_host_addresses
    config = Config.model_validate({**table(folder), **sections})
    edge = Edge(config)
    edge.records.open_store(config)
    await edge.start()
    runner = Runner(application(edge))
    await runner.setup()
    try:
        kept = edge.records.kept
        assert kept is not None
        await until(lambda: edge.ready and kept.ready)
        await runner.listen("127.0.0.1", 0)
        yield SharedServer(edge, f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        await edge.close()
        await runner.cleanup()
        aioice.ice.get_host_addresses = host_addresses
