"""Two servers with one Redis: callers go from one to the other in the midst of a conversation."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from aiohttp.test_utils import TestClient, TestServer
from redis import Redis

from benchmarks.carriers.far_ends.far_end import CallFacts
from benchmarks.carriers.far_ends.far_end_io import FarEndCall
from benchmarks.carriers.far_ends.far_end_json import Twilio
from offhook.media.clock_io import PacketClock
from offhook.media.end_reason import End
from offhook.media.pcm import RATE_IN
from offhook.pipeline.conversation.call.history import Message
from offhook.pipeline.conversation.sentences import SENTENCES, Occasion
from offhook.signaling.peer_io import PeerLeg
from offhook.web.config.config import Config
from offhook.web.edge.resume import saved_call, store_io
from offhook.web.edge.resume.saved_call import SEPARATOR, WEBRTC, key_of
from offhook.web.edge.server_io import application
from offhook.web.records.search import Search
from tests.pipeline.conversation.phone import COUNT, calls, model, says
from tests.support.listening import Listening
from tests.support.waiting import HANGS_S, until
from tests.telephony.carriers.rest.fake_rest import FakeRest
from tests.web.edge.agents.test_agent import said_by_flite
from tests.web.edge.scripted_edge import ScriptedEdge

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("loopback", "quick")]

RESUMED = SENTENCES["en"][Occasion.RESUMED]
FOR_LONG = " ".join([COUNT] * 100)
"""A reply that has more than a minute to go when the caller comes to the other server."""
READY = {"label": "rtvi-ai", "type": "client-ready", "id": "1", "data": {"version": "1.0.0"}}


class ResumableEdge(ScriptedEdge):
    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.saw: list[Message] = []


class Client:
    """A browser, as far as a server sees one."""

    def __init__(self, clock: PacketClock) -> None:
        self.leg = PeerLeg("caller")
        self.messages: list[dict[str, Any]] = []
        self.answer: dict[str, Any] = {}
        self._clock = clock

    async def call(self, http: TestClient[Any, Any], pc_id: str | None = None) -> str:
        connected = asyncio.Event()
        self.leg.listener = Listening(
            on_connected=connected.set,
            on_message=lambda text: self.messages.append(json.loads(text)),
        )
        offer = {"sdp": await self.leg.offer(), "type": "offer", "pc_id": pc_id}
        response = await http.post("/api/offer", json={**offer, "restart_pc": pc_id is not None})
        assert response.status == 200, await response.text()
        self.answer = await response.json()
        await self.leg.accept(self.answer["sdp"])
        await asyncio.wait_for(connected.wait(), HANGS_S)
        self._clock.add(self.leg)
        self.leg.send_message(json.dumps(READY))
        return str(self.answer["pc_id"])

    def type(self, words: str) -> None:
        options = {"run_immediately": True, "audio_response": True}
        data = {"content": words, "options": options}
        self.leg.send_message(
            json.dumps({"label": "rtvi-ai", "type": "send-text", "id": "2", "data": data})
        )

    def told(self, kind: str) -> list[Any]:
        return [m["data"] for m in self.messages if m.get("data", {}).get("type") == kind]

    async def leave(self) -> None:
        self._clock.remove(self.leg)
        await self.leg.hang_up("goodbye")


class Pair:
    """Two servers."""

    def __init__(self) -> None:
        self.edges: list[ResumableEdge] = []
        self.http: list[TestClient[Any, Any]] = []
        self.clock = PacketClock()
        self.clients: list[Client] = []

    def client(self) -> Client:
        self.clients.append(Client(self.clock))
        return self.clients[-1]


@asynccontextmanager
async def pair(url: str, **tables: Any) -> AsyncIterator[Pair]:
    server = {"port": 0, "drain_seconds": 0.1, "redis": url, **tables.pop("server", {})}
    table = {"server": server, "webrtc": {"addresses": ["127.0.0.1"]}, **tables}
    two = Pair()
    async with AsyncExitStack() as stack:
        for _ in range(2):
            edge = ResumableEdge(Config.model_validate(table))
            await edge.start()
            stack.push_async_callback(edge.close)
            two.edges.append(edge)
            server_of = TestServer(application(edge))
            two.http.append(await stack.enter_async_context(TestClient(server_of)))
        try:
            yield two
        finally:
            for client in two.clients:
                await client.leave()


async def asked_for_a_name(two: Pair, client: Client) -> str:
    """A call at the first server that is in the midst of a message; returns its pc_id."""
    pc_id = await client.call(two.http[0])
    first = two.edges[0]
    await until(first.turns)
    client.type("Can I leave a message?")
    await until(lambda: len(first.turns()) == 2)
    assert first.call.dialog()["step"] == "name"
    assert first.resumption is not None
    assert await first.resumption._store.flush(HANGS_S)
    return pc_id


async def goes_on(two: Pair, client: Client) -> None:
    """The second server asks for the number of the caller whose name it is told."""
    second = two.edges[1]
    await until(lambda: second.turns() == [RESUMED])
    assert second.call.transcript()[:3] == two.edges[0].saw[:3]
    client.type("Ada Lovelace")
    await until(lambda: len(second.turns()) == 2)
    dialog = second.call.dialog()
    assert (dialog["step"], dialog["given"]["name"]) == ("number", "Ada Lovelace")


async def test_a_caller_whose_server_falls_silent_goes_on_at_another(redis_url: str) -> None:
    async with pair(redis_url) as two:
        client, again, thief = two.client(), two.client(), two.client()
        first, second = two.edges
        pc_id = await asked_for_a_name(two, client)
        assert client.answer["resumable"] is True
        first.saw = first.call.transcript()
        new = await again.call(two.http[1], pc_id)  # the first server lives, and is not told
        assert new.partition(SEPARATOR)[2] not in ("", pc_id.partition(SEPARATOR)[2])
        await goes_on(two, again)

        # The first server learns of it when it saves the call again.
        client.type("Hello?")
        await until(first.ends)
        assert first.ends() == [str(End.CONTINUED_ELSEWHERE)]

        # Nobody ends a call by its id, which is in the log.
        call_id, _, token = new.partition(SEPARATOR)
        for stranger in (call_id, f"{call_id}.{token[:-1]}x"):
            assert (await two.http[1].delete(f"/api/offer/{stranger}")).status == 404
        assert not second.ends()

        # The token that was used is of no use any more.
        await thief.call(two.http[0], pc_id)
        await until(lambda: first.turns().count(first.turns()[0]) == 2)  # greeted as everybody
        assert len(first.call.transcript()) == 1
        assert not second.ends()


async def test_callers_go_to_another_server_when_theirs_drains(redis_url: str) -> None:
    async with pair(redis_url) as two:
        client, again = two.client(), two.client()
        first = two.edges[0]
        pc_id = await asked_for_a_name(two, client)
        first.saw = first.call.transcript()
        draining = asyncio.create_task(first.drain())
        await until(lambda: client.told("reconnect"))
        await client.leave()
        await again.call(two.http[1], pc_id)
        await asyncio.wait_for(draining, HANGS_S)
        await goes_on(two, again)
        assert first.ends() == [str(End.CALLER_HUNG_UP)]
        text = await (await two.http[1].get("/metrics")).text()
        assert 'offhook_calls_resumed_total{outcome="resumed"} 1.0' in text
        assert "offhook_calls_saved 1.0" in text


FORGERIES = ("forged", "another kind", "ended", "another version", "garbage")


async def test_what_is_no_call_of_ours_begins_anew(redis_url: str) -> None:
    redis = Redis.from_url(redis_url)
    async with pair(redis_url) as two:
        first, second = two.edges
        assert first.resumption is not None
        for count, how in enumerate(FORGERIES, 1):
            client, again = two.client(), two.client()
            pc_id = await client.call(two.http[0])
            await until(lambda n=count: len(first.turns()) == n)
            assert await first.resumption._store.flush(HANGS_S)
            call_id, _, token = pc_id.partition(SEPARATOR)
            key = store_io.PREFIX + key_of(WEBRTC, token)
            state = redis.get(key)
            assert isinstance(state, bytes)
            assert len(state) <= saved_call.MAX_BYTES
            match how:
                case "forged":
                    pc_id = f"{call_id}.{token[:-1]}"
                case "another kind":
                    redis.rename(key, store_io.PREFIX + key_of("twilio\nCA1", token))
                case "ended":
                    await first.call.hang_up()
                    await until(lambda n=count: len(first.ends()) == n)
                    assert await first.resumption._store.flush(HANGS_S)
                case "another version":
                    redis.set(key, state.replace(b'"v":1', b'"v":2'))
                case "garbage":
                    redis.set(key, b"\xff" * 9000)
            await again.call(two.http[1], pc_id)
            await until(lambda n=count: len(second.turns()) == n)
            assert len(second.call.transcript()) == 1, how
            for caller in (client, again):
                await caller.leave()
            await until(lambda: not first.conversations and not second.conversations)
        greeting = first.turns()[0]
        assert second.turns() == [greeting] * len(FORGERIES)  # as everybody is greeted
    redis.close()


async def test_a_token_of_one_agent_does_not_open_the_calls_of_another(redis_url: str) -> None:
    keys = {"api_key": "all", "admin_key": "operator"}
    agents = {"sales": {"kind": "frontdesk"}, "desk": {"kind": "frontdesk"}}
    async with pair(redis_url, server=keys, agents=agents) as two:
        of = {}
        for agent in agents:
            headers = {"Authorization": "Bearer operator"}
            made = await two.http[0].post("/tokens", json={"agent": agent}, headers=headers)
            of[agent] = {"Authorization": f"Bearer {(await made.json())['token']}"}
        for agent, outcome in (("desk", "refused"), ("sales", "ended")):  # and it is used then
            client = two.client()
            if agent == "desk":
                two.http[0].session.headers.update(of["sales"])
                pc_id = await client.call(two.http[0])
                await until(two.edges[0].turns)
                assert two.edges[0].resumption is not None
                assert await two.edges[0].resumption._store.flush(HANGS_S)
            two.http[1].session.headers.update(of[agent])
            again = two.client()
            await again.call(two.http[1], pc_id)
            await until(lambda: two.edges[1].conversations)
            text = two.edges[1].metrics.registry.get_sample_value(
                "offhook_calls_resumed_total", {"outcome": outcome}
            )
            assert text == 1
            await again.leave()
            await until(lambda: not two.edges[1].conversations)


async def test_without_redis_calls_go_on_and_end_with_their_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with pair("redis://127.0.0.1:1/0") as two:
        client, again = two.client(), two.client()
        first, second = two.edges
        pc_id = await client.call(two.http[0])
        await until(first.turns)
        client.type("What are your opening hours?")
        await until(lambda: len(first.turns()) == 2)
        await again.call(two.http[1], pc_id)
        await until(second.turns)
        assert len(second.call.transcript()) == 1
        assert "offhook_calls_saved 0.0" in await (await two.http[0].get("/metrics")).text()
        await asyncio.wait_for(first.drain(), HANGS_S)
        assert not client.told("reconnect")
        closing = SENTENCES["en"][Occasion.CLOSING]
        assert closing in [*first.turns(), *(text for _, text in first.call.transcript())]
    said = [text for text in caplog.messages if "cannot continue at another server" in text]
    assert len(said) == 2  # once by each server


async def test_a_call_of_twilio_goes_on_when_its_server_drains(redis_url: str) -> None:
    async with FakeRest() as rest:
        table = {"provider": "twilio", "insecure": True, "account": "AC1", "rest_url": rest.url}
        async with pair(redis_url, carriers=[table]) as two:
            first, second = two.edges
            form = {"CallSid": "CA17", "From": "+491701", "To": "+493099", "CallStatus": "ringing"}
            one = await answered(two.http[0], "/carriers/twilio/voice", form)
            far_end = FarEndCall(Twilio(CallFacts(call_id="CA17")))
            await far_end.start(one["stream"])
            await until(first.turns)
            before = first.call.transcript()
            await asyncio.wait_for(first.drain(), HANGS_S)
            await asyncio.wait_for(far_end.ended.wait(), HANGS_S)
            assert first.ends() == [str(End.CONTINUED_ELSEWHERE)]
            assert not rest.asked  # it has not ended the call

            path = "/" + one["then"].split("/", 3)[3]
            foreign = await answered(two.http[1], path, {**form, "CallSid": "CA18"})
            refused = await two.http[0].post(path, data=form)  # it drains
            tree = ElementTree.fromstring(await refused.text())
            assert [e.tag for e in tree] == ["Pause", "Redirect"]
            assert (tree[1].text or "").endswith("?tries=1")
            last = await two.http[0].post(f"{path}?tries=10", data=form)
            assert ElementTree.fromstring(await last.text())[0].tag == "Hangup"

            other = await answered(two.http[1], f"{path}?tries=1", form)
            assert other["then"] not in (one["then"], foreign["then"])
            used = await two.http[1].post(path, data=form)
            assert ElementTree.fromstring(await used.text())[0].tag == "Hangup"
            again = FarEndCall(Twilio(CallFacts(call_id="CA17")))
            await again.start(other["stream"])
            await until(lambda: RESUMED in second.turns())
            assert second.call.transcript()[: len(before)] == before
            assert second.call.leg.info.caller == "+491701"
            await again.close()


async def answered(http: TestClient[Any, Any], path: str, form: dict[str, str]) -> dict[str, str]:
    """The URLs of a response to Twilio: of the stream, and of what follows it."""
    response = await http.post(path, data=form)
    assert response.status == 200, await response.text()
    tree = ElementTree.fromstring(await response.text())
    assert [e.tag for e in tree] == ["Connect", "Redirect"]
    return {"stream": tree[0][0].attrib["url"], "then": tree[1].text or ""}


async def test_a_call_that_was_handed_over_goes_on_with_the_agent_on_the_line(
    redis_url: str,
) -> None:
    over = [says("I put you through."), calls("hand_over_to_billing", reason="a bill of May")]
    async with (
        model([says("Hello.")], over) as front,
        model([says("Billing here.")], [says("It is paid.")]) as billing,
    ):
        of_both = {"kind": "openai", "model": "scripted"}
        tables = {
            "agent": {**of_both, "base_url": front.url, "handoffs": ["billing"]},
            "agents": {
                "billing": {**of_both, "base_url": billing.url, "instructions": "You know bills."}
            },
        }
        async with pair(redis_url, **tables) as two:
            client, again = two.client(), two.client()
            first, second = two.edges
            pc_id = await client.call(two.http[0])
            await until(first.turns)
            client.type("My bill is too high.")
            await until(lambda: first.turns()[1:] == ["I put you through.", "Billing here."])
            assert client.told("agent-changed") == [{"type": "agent-changed", "agent": "billing"}]
            assert first.resumption is not None
            assert await first.resumption._store.flush(HANGS_S)
            await again.call(two.http[1], pc_id)
            await until(lambda: second.turns() == [RESUMED])
            again.type("Is it paid?")
            await until(lambda: second.turns() == [RESUMED, "It is paid."])
    prompt = billing.requests[-1]["messages"][0]["content"]
    assert prompt.startswith("You know bills.")
    assert "a bill of May" in prompt


async def test_a_carriers_call_that_was_handed_over_does_too(redis_url: str) -> None:
    over = [says("I put you through."), calls("hand_over_to_billing", reason="a bill of May")]
    question = said_by_flite("When are you open?")
    async with (
        FakeRest() as rest,
        model(over) as front,
        model([says("Billing here.")], [says("It is paid.")]) as billing,
    ):
        carrier = {"provider": "twilio", "insecure": True, "account": "AC1", "rest_url": rest.url}
        of_both = {"kind": "openai", "model": "scripted", "think_ahead": False}
        first_agent = {"base_url": front.url, "handoffs": ["billing"], "greeting": "Hello."}
        tables = {
            "carriers": [{**carrier, "agent": "front"}],
            "agents": {
                "front": {**of_both, **first_agent},
                "billing": {**of_both, "base_url": billing.url},
            },
        }
        async with pair(redis_url, **tables) as two:
            first, second = two.edges
            form = {"CallSid": "CA17", "From": "+491701", "To": "+493099", "CallStatus": "ringing"}
            one = await answered(two.http[0], "/carriers/twilio/voice", form)
            far_end = FarEndCall(Twilio(CallFacts(call_id="CA17")))
            await far_end.start(one["stream"])
            await until(lambda: first.turns() == ["Hello."])
            far_end.say(question, RATE_IN)
            await until(lambda: first.turns()[1:] == ["I put you through.", "Billing here."])
            await asyncio.wait_for(first.drain(), HANGS_S)
            path = "/" + one["then"].split("/", 3)[3]
            other = await answered(two.http[1], f"{path}?tries=1", form)
            again = FarEndCall(Twilio(CallFacts(call_id="CA17")))
            await again.start(other["stream"])
            await until(lambda: second.turns() == [RESUMED])
            again.say(question, RATE_IN)
            await until(lambda: second.turns() == [RESUMED, "It is paid."])
            await again.close()
            await far_end.close()


async def test_a_call_goes_on_in_its_node(redis_url: str, tmp_path: Path) -> None:
    flow = tmp_path / "flow.toml"
    flow.write_text(
        """
        initial = "name"
        [nodes.name]
        task = "Ask for a name."
        functions = [{name = "named", description = "d", next = "bye"}]
        [nodes.bye]
        task = "Say goodbye."
        post_actions = [{hang_up = true}]
        """
    )
    answers = [says("Hello.")], [calls("named")], [says(FOR_LONG)], [says("Goodbye.")]
    async with model(*answers) as endpoint:
        of_model = {"kind": "openai", "model": "scripted", "base_url": endpoint.url}
        table = {**of_model, "flow": str(flow), "think_ahead": False}
        async with pair(redis_url, agent=table) as two:
            client, again = two.client(), two.client()
            first, second = two.edges
            pc_id = await client.call(two.http[0])
            await until(first.turns)
            client.type("I am Ada.")
            await until(lambda: len(endpoint.requests) == 3)
            assert first.resumption is not None
            assert len(await first.resumption.movable()) == 1
            await again.call(two.http[1], pc_id)
            await until(lambda: second.turns() == ["Goodbye."])
            await until(lambda: again.leg.closed)
    request = endpoint.requests[-1]
    assert "Say goodbye." in request["messages"][0]["content"]
    assert "tools" not in request


async def test_details_and_tokens_of_both_servers_are_in_the_record(
    redis_url: str, tmp_path: Path
) -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 3}
    noted = calls("note_details", city="Berlin")
    answers = [[says("Hello.")], [noted], [says("Berlin, fine.")], [says("Done.")]]
    async with model(*answers) as scripted:
        scripted.usage = usage
        agent = {"kind": "openai", "model": "m", "base_url": scripted.url}
        tables = {
            "agent": {**agent, "collect": {"city": {"ask": "where"}}},
            "prices": {"m": {"input": 1_000_000, "output": 0}},
        }
        async with pair(redis_url, **tables) as two:
            client, again = two.client(), two.client()
            first, second = two.edges
            second.records.open_store(_kept(tmp_path))
            pc_id = await client.call(two.http[0])
            await until(first.turns)
            client.type("I am in Berlin.")
            await until(lambda: first.turns()[-1:] == ["Berlin, fine."])
            assert first.resumption is not None
            assert await first.resumption._store.flush(HANGS_S)
            before = len(scripted.requests)
            await again.call(two.http[1], pc_id)
            await until(lambda: second.turns() == [RESUMED])
            again.type("Is that all?")
            await until(lambda: second.turns()[-1:] == ["Done."])
            await again.leave()
            kept = second.records.kept
            assert kept is not None
            await until(lambda: kept.store.find(Search.of({"state": "ended"}))[0])
            [call] = kept.store.find(Search())[0]
            shown = kept.store.show(call["call_id"])
    assert shown is not None
    assert shown["collected"] == {"city": "Berlin"}
    asked = before + 1
    assert (shown["input_tokens"], shown["output_tokens"]) == (10 * asked, 3 * asked)
    assert shown["cost"] == 10.0 * asked
    assert "city: known already, Berlin" in scripted.requests[-1]["messages"][0]["content"]


def _kept(folder: Path) -> Config:
    table = {"url": f"sqlite:///{folder}/calls.db", "spool": str(folder / "spool")}
    return Config.model_validate({"records": table})
