"""Realtime conversations by WebRTC: aiortc calls as OpenAI's WebRTC clients do."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ssl import SSLContext
from typing import Any

import aiohttp
import numpy as np
import pytest
from aiohttp.test_utils import TestServer
from aiortc import RTCPeerConnection, RTCSessionDescription
from openai import AsyncOpenAI, BadRequestError
from websockets.exceptions import ConnectionClosed

from offhook.web.config.config import Agent, Config
from offhook.web.config.server import Server, WebRtc
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from offhook.web.realtime.call_io import RealtimeCall
from tests.pipeline.conversation.phone import Model, model, says
from tests.support.waiting import HANGS_S
from tests.web.realtime.test_openai_python import STRICT


class Peer:
    """A caller by WebRTC with the data channel "oai-events"."""

    def __init__(self) -> None:
        self.pc = RTCPeerConnection()
        self.pc.addTransceiver("audio", direction="sendrecv")
        self.channel = self.pc.createDataChannel("oai-events")
        self.inbox: asyncio.Queue[str] = asyncio.Queue()
        self.channel.on("message", self.inbox.put_nowait)
        self.events: list[Any] = []
        self.loudest = 0
        self.listening: asyncio.Task[None] | None = None
        self.pc.on("track", self._listen)

    def _listen(self, track: Any) -> None:
        async def listen() -> None:
            while True:
                frame = await track.recv()
                self.loudest = max(self.loudest, int(np.abs(frame.to_ndarray()).max()))

        self.listening = asyncio.create_task(listen())

    async def call(self, url: str, session: dict[str, Any] | None = None, key: str = "") -> str:
        await self.pc.setLocalDescription(await self.pc.createOffer())
        sdp = self.pc.localDescription.sdp
        own = {"Authorization": f"Bearer {key}"} if key else {}
        async with aiohttp.ClientSession(headers=own) as http:
            if session is None:
                headers = {"Content-Type": "application/sdp"}
                response = await http.post(url, data=sdp, headers=headers)
            else:
                form = aiohttp.FormData()
                form.add_field("sdp", sdp, content_type="application/sdp")
                form.add_field("session", json.dumps(session), content_type="application/json")
                response = await http.post(url, data=form)
            text = await response.text()
        assert response.status == 201, text
        assert response.content_type == "application/sdp"
        await self.pc.setRemoteDescription(RTCSessionDescription(text, "answer"))
        return response.headers["Location"]

    async def until(self, kind: str) -> Any:
        async with asyncio.timeout(HANGS_S):
            while True:
                event = STRICT.validate_json(await self.inbox.get(), strict=True)
                self.events.append(event)
                if event.type == kind:
                    return event

    def send(self, **event: Any) -> None:
        self.channel.send(json.dumps(event))

    async def close(self) -> None:
        await self.pc.close()
        if self.listening is not None:
            self.listening.cancel()
            await asyncio.gather(self.listening, return_exceptions=True)


@asynccontextmanager
async def edge_for(
    there: Model, server: Server | None = None, tls: SSLContext | None = None
) -> AsyncIterator[tuple[Edge, str]]:
    about = Agent(kind="openai", base_url=there.url, model="scripted")
    here = server or Server(port=0)
    edge = Edge(Config(agent=about, server=here, webrtc=WebRtc(addresses=["127.0.0.1"])))
    await edge.start()
    serving = TestServer(application(edge))
    await serving.start_server(ssl=tls)
    try:
        yield edge, str(serving.make_url("/v1/realtime"))
    finally:
        await serving.close()
        await edge.close()


async def test_a_call_is_answered_spoken_to_and_hung_up() -> None:
    async with model([says("Good morning.")]) as there, edge_for(there) as (edge, url):
        peer = Peer()
        session = {"type": "realtime", "model": "gpt-realtime", "instructions": "Greet."}
        location = await peer.call(f"{url}/calls", session)
        assert location.startswith("/v1/realtime/calls/rtc_")
        created = await peer.until("session.created")
        assert created.session.instructions == "Greet."
        peer.send(type="response.create", event_id="mine")
        done = await peer.until("response.done")
        assert done.response.output[0].content[0].transcript == "Good morning."
        await peer.until("output_audio_buffer.stopped")
        kinds = [event.type for event in peer.events]
        assert kinds.index("output_audio_buffer.started") < kinds.index(
            "output_audio_buffer.stopped"
        )
        assert "response.output_audio.delta" not in kinds
        assert peer.loudest > 1000
        await peer.close()
        async with asyncio.timeout(HANGS_S):
            while edge.legs:
                await asyncio.sleep(0.05)
    assert there.requests[0]["messages"][0]["content"] == "Greet."


async def test_a_client_beside_the_call_controls_it_and_may_leave() -> None:
    answers = [says("First.")], [says("Second.")]
    async with model(*answers) as there, edge_for(there) as (_, url):
        peer = Peer()
        location = await peer.call(f"{url}/calls")
        await peer.until("session.created")
        call_id = location.rpartition("/")[2]
        async with aiohttp.ClientSession() as http:
            async with http.ws_connect(f"{url}?call_id={call_id}") as beside:
                update = {"type": "realtime", "instructions": "From beside."}
                await beside.send_json({"type": "session.update", "session": update})
                assert (await beside.receive_json())["type"] == "session.updated"
                await beside.send_json({"type": "response.create"})
                kinds = []
                while (event := await beside.receive_json())["type"] != "response.done":
                    kinds.append(event["type"])
                assert "response.output_audio.delta" not in kinds
            done = await peer.until("response.done")
            assert done.response.output[0].content[0].transcript == "First."
            peer.send(type="response.create")
            done = await peer.until("response.done")
            assert done.response.output[0].content[0].transcript == "Second."
            async with http.get(
                f"{url}?call_id=rtc_gone",
                headers={
                    "Connection": "Upgrade",
                    "Upgrade": "websocket",
                    "Sec-WebSocket-Version": "13",
                    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
                },
            ) as response:
                assert response.status == 404
                assert (await response.json())["error"]["code"] == "call_id_not_found"
        await peer.close()
    assert there.requests[0]["messages"][0]["content"] == "From beside."


async def test_an_offer_that_is_none_is_refused_in_words() -> None:
    async with model() as there, edge_for(there) as (edge, url):
        async with aiohttp.ClientSession() as http:
            headers = {"Content-Type": "application/sdp"}
            async with http.post(f"{url}/calls", data="v=0\r\n", headers=headers) as response:
                assert response.status == 400
                assert (await response.json())["error"]["code"] == "invalid_offer"
            async with http.post(f"{url}/calls", json={"sdp": ""}) as response:
                assert response.status == 400
        assert not edge.legs
        assert not edge.realtime._calls


async def test_a_call_has_one_channel_for_events() -> None:
    async with model([says("Good morning.")]) as there, edge_for(there) as (_, url):
        peer = Peer()
        second = peer.pc.createDataChannel("oai-events")
        more: list[str] = []
        second.on("message", more.append)
        await peer.call(f"{url}/calls")
        await peer.until("session.created")
        peer.send(type="response.create")
        await peer.until("output_audio_buffer.stopped")
        await peer.close()
    assert more == []


async def test_a_call_that_never_connects_closes_its_conversation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With what runs beside it, such as connections to MCP servers."""
    closed: list[RealtimeCall] = []
    close = RealtimeCall.close

    async def noted(call: RealtimeCall) -> None:
        closed.append(call)
        await close(call)

    monkeypatch.setattr(RealtimeCall, "close", noted)
    async with model() as there, edge_for(there) as (edge, url):
        peer = Peer()
        await peer.call(f"{url}/calls", {"type": "realtime", "model": "gpt-realtime"})
        [live] = edge.calls.values()
        waiting = edge.realtime.find(live.id)
        live.leg.close("never connected")
        assert live.running is not None
        await asyncio.wait_for(live.running, HANGS_S)
        await peer.close()
    assert closed == [waiting]


async def test_a_slash_at_the_end_of_the_path_is_no_other_place() -> None:
    async with (
        model() as there,
        edge_for(there) as (_, url),
        aiohttp.ClientSession() as http,
        http.ws_connect(f"{url}/?model=gpt-realtime") as socket,
    ):
        assert (await socket.receive_json())["type"] == "session.created"


@pytest.mark.parametrize(
    "asked",
    [
        {"headers": {"OpenAI-Beta": "realtime=v1"}},
        {"protocols": ["realtime", "openai-insecure-api-key.none", "openai-beta.realtime-v1"]},
    ],
    ids=["header", "protocol"],
)
async def test_a_client_of_the_beta_is_refused_once_and_clearly(asked: dict[str, Any]) -> None:
    async with (
        model() as there,
        edge_for(there) as (_, url),
        aiohttp.ClientSession() as http,
        http.ws_connect(f"{url}?model=gpt-realtime", **asked) as socket,
    ):
        event = await socket.receive_json()
        assert (event["type"], event["error"]["code"]) == ("error", "beta_api_shape_disabled")
        assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
        assert socket.close_code == 4000


async def test_clients_of_the_beta_are_refused_in_words() -> None:
    """openai-python's, and pages that call as OpenAI's console did in 2025."""
    code = "beta_api_shape_disabled"
    async with model() as there, edge_for(there) as (_, url), aiohttp.ClientSession() as http:
        base = url.removesuffix("/realtime")
        socket = base.replace("http", "ws")
        async with AsyncOpenAI(base_url=base, websocket_base_url=socket, api_key="none") as client:
            async with client.beta.realtime.connect(model="gpt-realtime") as connection:
                assert (await connection.recv()).error.code == code
                with pytest.raises(ConnectionClosed) as closed:
                    await connection.recv()
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == 4000
            for sessions in (
                client.beta.realtime.sessions,
                client.beta.realtime.transcription_sessions,
            ):
                with pytest.raises(BadRequestError) as refused:
                    await sessions.create()
                assert refused.value.code == code
        headers = {"Content-Type": "application/sdp"}
        async with http.post(f"{url}?model=gpt-realtime", data="v=0", headers=headers) as answer:
            assert answer.status == 400
            assert (await answer.json())["error"]["code"] == code
