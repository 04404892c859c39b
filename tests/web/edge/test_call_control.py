"""Calls accepted, rejected, transferred and hung up by a program with the openai package: a webhook
asks, and a phone at the other end hears what happens."""

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import numpy as np
import openai
import pytest
from aiohttp import web
from openai import AsyncOpenAI
from openai.types.webhooks import RealtimeCallIncomingWebhookEvent
from websockets.exceptions import ConnectionClosedOK, InvalidStatus
from yarl import URL

from benchmarks.carriers.far_ends.far_end_asterisk import ChanWebSocket
from benchmarks.carriers.far_ends.far_end_io import FarEndCall
from offhook.media.pcm import RATE_IN, RATE_OUT
from offhook.telephony.sip.outgoing_calls_io import Dial
from offhook.web.config.config import Agent, Config
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S
from tests.telephony.carriers.rest.fake_rest import FakeRest
from tests.telephony.sip.phones import (
    LOOPBACK,
    Baresip,
    endpoint,
    is_tone,
    level,
    needs_baresip,
    port_of,
)
from tests.telephony.sip.phones import OUR_TONE as THEIR_TONE
from tests.web.edge.phones import configured, served
from tests.web.edge.test_carriers import carriers, tone

pytestmark = pytest.mark.asyncio

SECRET = "whsec_c2l4dGVlbiBieXRlcyBhdCBsZWFzdA=="
KEY = "sesame and more"
SESSION = {"type": "realtime", "model": "gpt-realtime", "instructions": "Be brief."}
OUR_TONE = 660


class Program:
    """A program that answers webhooks with the statuses given, the last one for ever."""

    def __init__(self, *statuses, decide=None):
        self.events, self.ids, self.url = [], [], ""
        self._statuses = list(statuses or (200,))
        self._decide = decide
        """Called with the event before the webhook is answered."""
        self._came = asyncio.Condition()

    @asynccontextmanager
    async def running(self, port=0):
        app = web.Application()
        app.router.add_post("/hook", self._receive)
        app.router.add_post("/elsewhere", self._redirected)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", port).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
            yield self
        finally:
            await runner.cleanup()

    async def _receive(self, request):
        body = await request.read()
        client = openai.OpenAI(api_key="x", webhook_secret=SECRET)
        event = client.webhooks.unwrap(body, dict(request.headers))  # verified, or it raises
        assert isinstance(event, RealtimeCallIncomingWebhookEvent)
        async with self._came:
            self.events.append(event)
            self.ids.append(request.headers["webhook-id"])
            self._came.notify_all()
        if self._decide is not None:
            await self._decide(event)
        status = self._statuses.pop(0) if len(self._statuses) > 1 else self._statuses[0]
        return web.Response(status=status, headers={"Location": "/elsewhere"})

    async def _redirected(self, request):
        raise AssertionError("the event was sent elsewhere")

    async def event(self, number=0):
        async with asyncio.timeout(HANGS_S), self._came:
            await self._came.wait_for(lambda: len(self.events) > number)
        return self.events[number]


def phone_of(port):
    """The trunk of a phone that calls a server at this port."""
    return replace(LOOPBACK, server=f"127.0.0.1:{port}", options_seconds=0)


def programmed(where, port, **agent):
    """Calls are those of the program."""
    table = {"kind": "webhook", "secrets": [SECRET], **agent}
    config = configured(where, udp=port, tcp=port)
    changed = {
        "server": config.server.model_copy(update={"api_key": KEY}),
        "agent": Agent.model_validate(table),
        "agents": {"desk": Agent()},
    }
    return Config.model_validate({**dict(config), **changed})


async def says_a_tone(arguments):
    leg = arguments.webrtc_connection
    while leg.closed is None:
        if leg.playout.queued < RATE_OUT // 5:
            leg.playout.write(tone(OUR_TONE, RATE_OUT, 0.5))
        await asyncio.sleep(0.1)


@asynccontextmanager
async def phoned(monkeypatch, *statuses, decide=None, bot=says_a_tone, **agent):
    """A program, a server whose bot says a tone, the openai client, and a phone."""
    monkeypatch.setattr("tests.web.edge.phones.bot", bot)
    program = Program(*statuses, decide=decide)
    port = free_port()
    async with endpoint(trunks=(phone_of(port),)) as (phone, host), program.running():
        terms = {"url": program.url, **agent}
        config = programmed(f"127.0.0.1:{port_of(phone, 'UDP')}", port, **terms)
        async with served(config) as server:
            client = AsyncOpenAI(api_key=KEY, base_url=f"{server.url}/v1", max_retries=0)
            async with client:
                yield program, server, client, phone, host


def call_from(phone):
    return phone.dial(Dial("100", headers={"X-Order": "17"}))


async def ended(call):
    """The last state."""
    async with asyncio.timeout(HANGS_S):
        async for progress in call.events():
            last = progress
    return last


async def hears(talk, hz):
    async with asyncio.timeout(HANGS_S):
        while not talk.hears(hz):
            await asyncio.sleep(0.05)


def states(call):
    return [progress.state for progress in call.progress]


async def not_found(request):
    with pytest.raises(openai.NotFoundError) as error:
        await request
    assert error.value.code == "call_id_not_found"


# --- accepted ---


async def test_a_call_rings_until_the_program_accepts_it_and_ends_when_it_hangs_up(monkeypatch):
    async with phoned(monkeypatch) as (program, server, client, phone, host):
        call = call_from(phone)
        event = await program.event()
        call_id = event.data.call_id
        assert call_id.startswith("rtc_")
        headers = [(h.name, h.value) for h in event.data.sip_headers]
        assert ("X-Order", "17") in headers
        assert any(name == "From" for name, _ in headers)
        async with asyncio.timeout(HANGS_S):
            while call.state != "ringing":
                await asyncio.sleep(0.02)
        await client.realtime.calls.accept(call_id, **SESSION)
        talk = await host.talk()
        await hears(talk, OUR_TONE)
        assert states(call)[:3] == ["dialing", "ringing", "answered"]
        await client.realtime.calls.hangup(call_id)
        assert (await ended(call)).state == "ended"
        await not_found(client.realtime.calls.hangup(call_id))
        await not_found(client.realtime.calls.accept(call_id, **SESSION))
        async with asyncio.timeout(HANGS_S):
            while server.edge.programs.incoming.state(call_id.removeprefix("rtc_")) is not None:
                await asyncio.sleep(0.02)


async def test_a_webhook_delivered_twice_starts_one_call(monkeypatch):
    """The answer to the first is lost, so it comes again; the program accepts each time."""
    async with phoned(monkeypatch, 500, 200) as (program, server, client, phone, host):
        call = call_from(phone)
        events = [await program.event(0), await program.event(1)]
        assert events[0] == events[1]
        assert len(set(program.ids)) == 1
        for event in events:
            await client.realtime.calls.accept(event.data.call_id, **SESSION)
        talk = await host.talk()
        await hears(talk, OUR_TONE)
        assert len(host.talks) == len(server.edge.legs) == 1
        await call.hang_up("enough")


async def test_a_program_may_accept_before_it_answers_the_webhook(monkeypatch):
    clients, finished = [], asyncio.Event()

    async def accept(event):
        await clients[0].realtime.calls.accept(event.data.call_id, **SESSION)
        await asyncio.sleep(0.3)  # would be cancelled with its connection
        finished.set()

    async with phoned(monkeypatch, decide=accept) as (program, _server, client, phone, host):
        clients.append(client)
        call = call_from(phone)
        await hears(await host.talk(), OUR_TONE)
        async with asyncio.timeout(HANGS_S):
            await finished.wait()
        await call.hang_up("enough")
        assert len(program.events) == 1


# --- not accepted ---


async def test_a_program_rejects_a_call_with_a_status(monkeypatch):
    async with phoned(monkeypatch) as (program, _server, client, phone, _):
        call = call_from(phone)
        call_id = (await program.event()).data.call_id
        await client.realtime.calls.reject(call_id, status_code=486)
        assert (await ended(call)).status == 486
        await not_found(client.realtime.calls.reject(call_id))


async def test_without_a_status_a_call_is_declined(monkeypatch):
    async with phoned(monkeypatch) as (program, _server, client, phone, _):
        call = call_from(phone)
        await client.realtime.calls.reject((await program.event()).data.call_id)
        assert (await ended(call)).status == 603


async def test_a_ringing_call_that_is_hung_up_is_declined(monkeypatch):
    async with phoned(monkeypatch) as (program, _server, client, phone, _):
        call = call_from(phone)
        await client.realtime.calls.hangup((await program.event()).data.call_id)
        assert (await ended(call)).status == 603


async def test_a_call_that_nobody_accepts_is_declined(monkeypatch):
    async with phoned(monkeypatch, accept_seconds=0.5) as (program, _server, client, phone, _):
        call = call_from(phone)
        call_id = (await program.event()).data.call_id
        assert (await ended(call)).status == 603
        await not_found(client.realtime.calls.accept(call_id, **SESSION))


async def test_a_call_that_nobody_accepts_is_answered_by_the_fallback(monkeypatch):
    terms = {"accept_seconds": 0.5, "fallback": "desk"}
    async with phoned(monkeypatch, **terms) as (program, _server, _, phone, host):
        call = call_from(phone)
        await hears(await host.talk(), OUR_TONE)
        assert len(program.events) == 1
        await call.hang_up("enough")


@pytest.mark.parametrize("status", [404, 307])
async def test_a_program_that_is_not_there_is_not_waited_for(monkeypatch, status):
    terms = {"accept_seconds": 60, "fallback": "desk"}
    async with phoned(monkeypatch, status, **terms) as (program, _server, _, phone, host):
        call = call_from(phone)
        await hears(await host.talk(), OUR_TONE)
        assert len(program.events) == 1
        await call.hang_up("enough")


async def test_a_program_that_fails_is_asked_again_until_it_is_too_late(monkeypatch):
    async with phoned(monkeypatch, 503, accept_seconds=2) as (program, _server, _, phone, _):
        call = call_from(phone)
        assert (await ended(call)).status == 603
        assert len(program.events) > 1
        assert len(set(program.ids)) == 1


async def test_a_program_that_is_down_is_asked_until_it_is_too_late(monkeypatch):
    url = f"http://127.0.0.1:{free_port()}/hook"
    terms = {"url": url, "accept_seconds": 1.5, "fallback": "desk"}
    async with phoned(monkeypatch, **terms) as (program, _, _, phone, host):
        call = call_from(phone)
        await hears(await host.talk(), OUR_TONE)
        assert program.events == []
        assert states(call) == ["dialing", "ringing", "answered"]
        await call.hang_up("enough")


async def test_a_program_that_comes_up_in_time_is_reached(monkeypatch):
    port = free_port()
    late = Program()
    terms = {"url": f"http://127.0.0.1:{port}/hook", "accept_seconds": 30}
    async with phoned(monkeypatch, **terms) as (_, _, client, phone, host):
        call = call_from(phone)
        async with asyncio.timeout(HANGS_S):
            while call.state != "ringing":
                await asyncio.sleep(0.02)
        async with late.running(port):
            call_id = (await late.event()).data.call_id
            await client.realtime.calls.accept(call_id, **SESSION)
            await hears(await host.talk(), OUR_TONE)
            await call.hang_up("enough")


async def test_a_server_that_stops_ends_calls_that_ring(monkeypatch):
    async with phoned(monkeypatch) as (program, _, _, phone, _):
        call = call_from(phone)
        await program.event()
        leaving = asyncio.create_task(ended(call))
    assert (await leaving).status in (487, 503)  # the phone, or the server, is closed first


async def test_a_program_that_is_slow_is_given_up(monkeypatch):
    async def wait(event):
        await asyncio.sleep(HANGS_S)

    terms = {"accept_seconds": 1, "decide": wait}
    async with phoned(monkeypatch, **terms) as (_, _server, _, phone, _):
        assert (await ended(call_from(phone))).status == 603


async def test_a_caller_who_gives_up_cannot_be_accepted(monkeypatch):
    async with phoned(monkeypatch) as (program, server, client, phone, _):
        call = call_from(phone)
        call_id = (await program.event()).data.call_id
        await call.hang_up("enough")
        async with asyncio.timeout(HANGS_S):
            while server.sip.calls:
                await asyncio.sleep(0.02)
        await not_found(client.realtime.calls.accept(call_id, **SESSION))


async def test_the_fallback_speaks_when_nobody_accepts(monkeypatch):
    """With the front desk, its voice and its ears."""
    terms = {"accept_seconds": 0.5, "fallback": "desk"}
    async with phoned(monkeypatch, bot=None, **terms) as (program, _, _, phone, host):
        call = call_from(phone)
        talk = await host.talk()
        async with asyncio.timeout(HANGS_S):
            while level(talk.sound[-RATE_IN:]) < 300:
                await asyncio.sleep(0.1)
        assert len(program.events) == 1
        await call.hang_up("enough")


@asynccontextmanager
async def ringing(monkeypatch, directory):
    """The call of a baresip rings; gives the server, the openai client, the phone and the call."""
    async with (
        phoned(monkeypatch) as (program, server, client, _, _),
        Baresip(directory).running() as phone,
    ):
        await phone.command("dial", f"sip:100@127.0.0.1:{server.port}")
        call_id = (await program.event()).data.call_id
        await phone.event("CALL_RINGING")
        yield server, client, phone, call_id


@needs_baresip
async def test_a_phone_rings_until_its_call_is_accepted(monkeypatch, tmp_path):
    async with ringing(monkeypatch, tmp_path) as (_, client, phone, call_id):
        await client.realtime.calls.accept(call_id, **SESSION)
        await phone.event("CALL_ESTABLISHED")
        await client.realtime.calls.hangup(call_id)
        await phone.event("CALL_CLOSED")


@needs_baresip
async def test_a_phone_that_gives_up_cancels(monkeypatch, tmp_path):
    async with ringing(monkeypatch, tmp_path) as (server, client, phone, call_id):
        await phone.command("hangup")
        async with asyncio.timeout(HANGS_S):
            while server.sip.calls:
                await asyncio.sleep(0.02)
        await not_found(client.realtime.calls.accept(call_id, **SESSION))


# --- calls that the server places ---


async def test_a_call_is_placed_when_the_program_accepts_it(monkeypatch):
    async with phoned(monkeypatch) as (program, server, client, _, host):
        call_id = await server.place("100")
        event = await program.event()
        assert event.data.call_id == f"rtc_{call_id}"
        headers = {h.name: h.value for h in event.data.sip_headers}
        assert (headers["From"], headers["To"]) == ("<tel:4711>", "<tel:100>")
        await asyncio.sleep(0.3)
        assert "INVITE" not in server.sip.stack.trace.render(None)
        await client.realtime.calls.accept(event.data.call_id, **SESSION)
        await hears(await host.talk(), OUR_TONE)  # the whole time: no ring tone before it
        assert is_tone((await host.talk()).sound, RATE_IN, OUR_TONE)
        await client.realtime.calls.hangup(event.data.call_id)
        await server.state(call_id, "ended")


async def test_a_call_that_the_program_declines_is_not_placed(monkeypatch):
    async with phoned(monkeypatch) as (program, server, client, _, host):
        call_id = await server.place("100")
        await client.realtime.calls.reject((await program.event()).data.call_id, status_code=486)
        shown = await server.state(call_id, "ended")
        assert (shown["status"], shown["reason"]) == (486, "declined")
        other = await server.place("100")
        await program.event(1)
        await server.client.delete(f"/calls/{other}")
        await server.state(other, "ended")
        await not_found(client.realtime.calls.accept(f"rtc_{other}", **SESSION))
        assert "INVITE" not in server.sip.stack.trace.render(None)
        assert host.talks == []


# --- what may be asked ---


async def test_an_answered_call_is_transferred(monkeypatch):
    """The phone does not follow a REFER, so the server calls the target, which is at the trunk's
    server as the phone is, and connects the two."""
    async with phoned(monkeypatch) as (program, server, client, phone, host):
        call = call_from(phone)
        call_id = (await program.event()).data.call_id
        with pytest.raises(openai.BadRequestError, match="accept it before"):
            await client.realtime.calls.refer(call_id, target_uri="tel:+4930123")
        await client.realtime.calls.accept(call_id, **SESSION)
        await hears(await host.talk(), OUR_TONE)
        for wrong in ("4930123", "https://example.org", "sip:a b@c", "tel:"):
            with pytest.raises(openai.BadRequestError, match="target_uri"):
                await client.realtime.calls.refer(call_id, target_uri=wrong)
        host.full = True
        with pytest.raises(openai.BadRequestError) as error:
            await client.realtime.calls.refer(call_id, target_uri="tel:+4930123")
        assert error.value.code == "refer_failed"
        host.full = False
        await hears(await host.talk(), OUR_TONE)
        await client.realtime.calls.refer(call_id, target_uri="tel:+4930123")
        assert "REFER" in server.sip.stack.trace.render(None)
        target = await host.talk(1)
        await hears(target, THEIR_TONE)
        await hears(await host.talk(), THEIR_TONE)
        talk = await host.talk()
        before = len(talk.heard)  # a second: the bot says no more
        async with asyncio.timeout(HANGS_S):
            while len(talk.heard) < before + 50:
                await asyncio.sleep(0.02)
        assert talk.hears(THEIR_TONE)
        await client.realtime.calls.hangup(call_id)
        await ended(call)
        await not_found(client.realtime.calls.refer(call_id, target_uri="tel:+4930123"))


async def test_a_conversation_ends_with_the_transfer(monkeypatch):
    """In mid sentence; then nothing of it is heard, and the program is told."""
    terms = {"bot": None, "fallback": "desk"}
    async with phoned(monkeypatch, **terms) as (program, _, client, phone, host):
        call = call_from(phone)
        call_id = (await program.event()).data.call_id
        await client.realtime.calls.accept(call_id, **SESSION)
        async with client.realtime.connect(call_id=call_id) as beside:
            await beside.response.create()
            talk, kinds = await host.talk(), []
            async with asyncio.timeout(HANGS_S):
                while level(talk.sound[-RATE_IN // 5 :]) < 300:
                    await asyncio.sleep(0.05)
                await client.realtime.calls.refer(call_id, target_uri="tel:+4930123")
                with suppress(ConnectionClosedOK):
                    while True:
                        kinds.append((await beside.recv()).type)
        assert kinds.count("response.created") == kinds.count("response.done") == 1
        assert kinds[-1] == "output_audio_buffer.cleared"
        await hears(talk, THEIR_TONE)
        with pytest.raises(InvalidStatus, match="404"):
            async with client.realtime.connect(call_id=call_id):
                pass
        await client.realtime.calls.hangup(call_id)
        await ended(call)


async def test_bodies_may_be_empty_and_wrong_ones_are_refused(monkeypatch):
    async with phoned(monkeypatch) as (program, server, _client, phone, _):
        call = call_from(phone)
        call_id = (await program.event()).data.call_id
        path = f"/v1/realtime/calls/{call_id.replace('_', '%5F')}"
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}

        async def post(action, body=b""):
            url = server.url + f"{path}/{action}"
            answer = await server.client.post(URL(url, encoded=True), data=body, headers=headers)
            return answer.status, (await answer.json())["error"] if answer.status >= 400 else None

        for action, body, param in (
            ("accept", b"[]", None),
            ("accept", b"{", None),
            ("accept", b"[" * 5_000, None),
            ("accept", b'{"type": "transcription"}', "session.type"),
            ("accept", b'{"type": "realtime", "instruction": 1}', "session.instruction"),
            ("reject", b'{"status_code": 200}', "status_code"),
            ("reject", b'{"status_code": true}', "status_code"),
            ("refer", b"", "target_uri"),
        ):
            status, error = await post(action, body)
            assert (status, error["param"], error["type"]) == (400, param, "invalid_request_error")
        assert (await post("hangup"))[0] == 200
        assert (await ended(call)).status == 603
        assert (await post("hangup"))[0] == 404


async def test_only_the_api_key_controls_calls(monkeypatch):
    async with phoned(monkeypatch) as (program, server, client, phone, _):
        secret = await client.realtime.client_secrets.create(session={"type": "realtime"})
        call = call_from(phone)
        call_id = (await program.event()).data.call_id
        for key in ("wrong", secret.value):
            other = client.with_options(api_key=key)
            with pytest.raises(openai.AuthenticationError):
                await other.realtime.calls.accept(call_id, **SESSION)
            with pytest.raises(openai.AuthenticationError):
                await other.realtime.client_secrets.create()
        assert server.edge.programs.incoming.state(call_id.removeprefix("rtc_")).value == "ringing"
        await client.realtime.calls.reject(call_id)
        await ended(call)


# --- client secrets ---


async def test_a_client_secret_has_its_session_and_its_time(monkeypatch):
    async with phoned(monkeypatch) as (_, server, client, _, _):
        session = {"type": "realtime", "model": "desk", "instructions": "Be brief."}
        made = await client.realtime.client_secrets.create(
            session=session, expires_after={"anchor": "created_at", "seconds": 60}
        )
        assert made.value.startswith("ek_")
        assert made.session.type == "realtime"
        assert made.session.instructions == "Be brief."
        token = server.edge.programs.secrets.find(made.value, made.expires_at - 1)
        assert (token.agent, token.session["instructions"]) == ("desk", "Be brief.")
        assert server.edge.programs.secrets.find(made.value, made.expires_at) is None
        with pytest.raises(openai.NotFoundError, match="no agent is called"):
            await client.realtime.client_secrets.create(session={**session, "model": "other"})
        with pytest.raises(openai.BadRequestError) as error:
            await client.realtime.client_secrets.create(
                expires_after={"anchor": "created_at", "seconds": 1}
            )
        assert error.value.param == "expires_after.seconds"


async def test_a_page_of_another_site_makes_no_client_secret(monkeypatch):
    async with phoned(monkeypatch) as (_, server, *_):
        asked = {"Origin": "https://app.example", "Authorization": f"Bearer {KEY}"}
        path = "/v1/realtime/client_secrets"
        assert (await server.client.post(path, headers=asked)).status == 403
        answer = await server.client.options(path, headers=asked)
        assert answer.status >= 400
        assert "Access-Control-Allow-Origin" not in answer.headers


# --- carriers ---


@asynccontextmanager
async def carried(monkeypatch, **agent):
    """The same with the far end of a carrier, whose stream has started."""
    monkeypatch.setattr("tests.web.edge.phones.bot", says_a_tone)
    program, call = Program(), FarEndCall(ChanWebSocket())
    async with program.running():
        table = {"kind": "webhook", "url": program.url, "secrets": [SECRET], **agent}
        config = carriers({"provider": "chan_websocket", "agent": "p"}, agents={"p": table})
        async with served(config) as server:
            await call.start(f"{server.url.replace('http', 'ws')}/carriers/chan_websocket/stream")
            async with AsyncOpenAI(api_key="any", base_url=f"{server.url}/v1") as client:
                yield program, server, client, call
            await call.close()


async def played(call, hz):
    """Waits until the far end has played that tone."""
    rate = call.far_end.rate
    async with asyncio.timeout(HANGS_S):
        while True:
            sound = np.concatenate([np.zeros(1, np.int16), *call.far_end.player.played])
            loud = np.flatnonzero(np.abs(sound) > 1000)
            if len(loud) and is_tone(sound[: loud[-1]][-rate // 2 :], rate, hz):
                return
            await asyncio.sleep(0.05)


RINGBACK, BUSY = 425, 425


async def test_a_carriers_call_hears_it_ring_until_it_is_accepted(monkeypatch):
    async with carried(monkeypatch) as (program, server, client, call):
        event = await program.event()
        assert [h.name for h in event.data.sip_headers][:2] == ["From", "To"]
        await played(call, RINGBACK)
        await client.realtime.calls.accept(event.data.call_id, **SESSION)
        await played(call, OUR_TONE)
        await client.realtime.calls.hangup(event.data.call_id)
        await asyncio.wait_for(call.ended.wait(), HANGS_S)
        await not_found(client.realtime.calls.hangup(event.data.call_id))
        assert server.edge.carriers.calls.in_progress() == []


async def test_a_carriers_call_that_is_rejected_hears_the_busy_tone(monkeypatch):
    async with carried(monkeypatch) as (program, _server, client, call):
        event = await program.event()
        await client.realtime.calls.reject(event.data.call_id)
        await played(call, BUSY)
        await asyncio.wait_for(call.ended.wait(), HANGS_S)
        await not_found(client.realtime.calls.accept(event.data.call_id, **SESSION))


async def test_a_carriers_call_that_nobody_accepts_hears_the_busy_tone(monkeypatch):
    async with carried(monkeypatch, accept_seconds=0.5) as (_, _, _, call):
        await played(call, BUSY)
        await asyncio.wait_for(call.ended.wait(), HANGS_S)


async def test_a_carrier_is_asked_to_call_when_the_program_accepts(monkeypatch):
    program = Program()
    async with FakeRest() as rest, program.running():
        known = rest.settings("twilio")
        names = ("account", "secret", "rest_url", "number")
        twilio = {"provider": "twilio", **{name: getattr(known, name) for name in names}}
        twilio["public_url"] = "http://127.0.0.1:1"
        table = {"kind": "webhook", "url": program.url, "secrets": [SECRET]}
        config = carriers({**twilio, "agent": "p"}, agents={"p": table})
        async with served(config) as server:
            client = AsyncOpenAI(api_key="any", base_url=f"{server.url}/v1", max_retries=0)
            async with client:
                for number, accepts in enumerate((False, True)):
                    call_id = await server.place("+491701234567", carrier="twilio")
                    asked = (await program.event(number)).data.call_id
                    assert asked == f"rtc_{call_id}"
                    assert not rest.calls
                    if not accepts:
                        await client.realtime.calls.reject(asked)
                        assert (await server.state(call_id, "ended"))["status"] == 603
                await client.realtime.calls.accept(asked, **SESSION)
                async with asyncio.timeout(HANGS_S):
                    while not rest.calls:
                        await asyncio.sleep(0.02)
