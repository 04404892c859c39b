"""Client secrets and call control at a server with two processes, whichever of them is asked."""

import asyncio
import json
from collections.abc import Iterator

import aiohttp
import pytest
from openai import AsyncOpenAI, NotFoundError

from offhook.telephony.sip.outgoing_calls_io import Dial
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S
from tests.telephony.sip.phones import endpoint
from tests.web.edge.test_call_control import SECRET, Program, ended, phone_of
from tests.web.edge.test_phone_processes import ended as stopped
from tests.web.edge.test_processes import TwoProcesses

pytestmark = pytest.mark.asyncio

TRIES = 12
"""Requests of which each may reach either process."""
KEY = "sesame and more"
HOOK_PORT = free_port()
SIP_PORT = free_port()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoProcesses]:
    trunks = [{"name": "far", "addresses": ["127.0.0.1"]}]
    running = TwoProcesses(
        tmp_path_factory.mktemp("control"),
        SERVER_API_KEY=KEY,
        SIP_UDP=str(SIP_PORT),
        SIP_TCP="false",
        SIP_TRUNKS=json.dumps(trunks),
        AGENT_KIND="webhook",
        AGENT_URL=f"http://127.0.0.1:{HOOK_PORT}/hook",
        AGENT_SECRETS=json.dumps([SECRET]),
    )
    yield running
    stopped(running)


def clients(server: TwoProcesses, key: str = KEY) -> list[AsyncOpenAI]:
    """Each has a connection of its own."""
    url = f"{server.url}/v1"
    return [AsyncOpenAI(api_key=key, base_url=url, max_retries=0) for _ in range(TRIES)]


async def test_a_secret_is_valid_at_every_process(server: TwoProcesses) -> None:
    await server.ready()
    values = [
        (await client.realtime.client_secrets.create(session={"type": "transcription"})).value
        for client in clients(server)[:3]
    ]
    query = "/v1/realtime?intent=transcription"
    for value in values:
        for _ in range(TRIES):
            headers = {"Authorization": f"Bearer {value}"}
            async with (
                aiohttp.ClientSession(server.url, headers=headers) as http,
                http.ws_connect(query) as socket,
            ):
                assert (await socket.receive_json())["type"] == "session.created"


async def test_a_phones_call_is_controlled_at_every_process(server: TwoProcesses) -> None:
    await server.ready()
    program = Program()
    async with program.running(HOOK_PORT), endpoint(trunks=(phone_of(SIP_PORT),)) as (phone, host):
        for number, client in enumerate(clients(server)[:4]):
            call = phone.dial(Dial("100"))
            call_id = (await program.event(number)).data.call_id
            await client.realtime.calls.reject(call_id, status_code=486)
            assert (await ended(call)).status == 486
            with pytest.raises(NotFoundError, match="has ended"):
                await client.realtime.calls.reject(call_id)
        for number, client in enumerate(clients(server)[:4], 4):
            call = phone.dial(Dial("100"))
            call_id = (await program.event(number)).data.call_id
            await client.realtime.calls.accept(call_id, type="realtime")
            talk = await host.talk(number - 4)
            for beside in clients(server)[:4]:
                async with beside.realtime.connect(call_id=call_id) as connection:
                    await connection.session.update(session={"type": "realtime"})
                    assert (await connection.recv()).type == "session.updated"
            await client.realtime.calls.hangup(call_id)
            await asyncio.wait_for(talk.over.wait(), HANGS_S)
            assert (await ended(call)).state == "ended"
