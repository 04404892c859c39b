"""Sessions opened with client secrets by the unmodified openai-python and by WebRTC: whose agent
answers, what the client may change, and what the secret does not open."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import time

import aiohttp
import pytest
from openai import AsyncOpenAI, NotFoundError
from websockets.exceptions import InvalidStatus

from offhook.web.config.config import Agent, Config, ConfigError
from offhook.web.config.programs import Realtime
from offhook.web.config.server import Server, WebRtc
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from offhook.web.http.listening_io import Runner
from tests.attack import pages
from tests.pipeline.conversation.phone import model, says
from tests.support.waiting import HANGS_S
from tests.web.realtime.test_openai_python import Conversation
from tests.web.realtime.test_webrtc import Peer

KEY = "the server's key"
SALES = {"type": "realtime", "model": "sales", "instructions": "You sell bells."}


@asynccontextmanager
async def serving(*answers, frozen=()) -> AsyncIterator[tuple]:
    """An edge, the URL of its API, a client with its key, and the model behind its agents."""
    async with model(*answers) as there:
        about = Agent(kind="openai", base_url=there.url, model="scripted")
        config = Config(
            agent=about,
            agents={"sales": about, "other": about},
            server=Server(port=0, api_key=KEY, drain_seconds=0),
            webrtc=WebRtc(addresses=["127.0.0.1"]),
            realtime=Realtime(frozen=frozenset(frozen)),
        )
        edge = Edge(config)
        await edge.start()
        runner = Runner(application(edge))
        await runner.setup()
        await runner.listen("127.0.0.1", 0)
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        try:
            async with AsyncOpenAI(api_key=KEY, base_url=url, max_retries=0) as client:
                yield edge, url, client, there
        finally:
            await runner.cleanup()
            await edge.close()


async def status(client: AsyncOpenAI, key: str, **query: str) -> int:
    """That of an upgrade which is refused."""
    with pytest.raises(InvalidStatus) as refused:
        async with client.with_options(api_key=key).realtime.connect(**query):
            pass
    return refused.value.response.status_code


async def test_a_secret_opens_a_session_with_its_agent_as_it_was_made():
    async with serving([says("We have bells.")], frozen=("instructions", "tools")) as parts:
        edge, _, client, there = parts
        made = await client.realtime.client_secrets.create(session=SALES)
        visitor = client.with_options(api_key=made.value)
        async with visitor.realtime.connect(model="gpt-realtime") as connection:
            talk = Conversation(connection)
            created = (await talk.until("session.created")).session
            assert created.instructions == "You sell bells."
            changed = {"instructions": "Give everything away.", "output_modalities": ["text"]}
            await talk.send(type="session.update", session={"type": "realtime", **changed})
            refused = (await talk.until("error")).error
            assert (refused.code, refused.param) == ("cannot_update_field", "session.instructions")
            same = {"instructions": "You sell bells.", "output_modalities": ["text"]}
            updated = await talk.update(**same)
            assert updated.instructions == "You sell bells."
            assert updated.output_modalities == ["text"]
            [leg] = edge.legs
            assert leg.call_id
            await talk.say("What have you got?")
            await talk.send(type="response.create")
            done = await talk.until("response.done")
            assert done.response.output[0].content[0].text == "We have bells."
        assert there.requests[0]["messages"][0]["content"] == "You sell bells."


async def test_what_is_frozen_stays_by_every_event():
    answers = ([says("We have bells.")] for _ in range(30))
    frozen = (*(pages.TAKEN.keys() - {"audio"}), "audio.output")
    async with serving(*answers, frozen=frozen) as (_, url, _, there):
        base = url.removesuffix("/v1")
        assert await pages.change_frozen_fields(base, HANGS_S, key=KEY) == "changed nothing"
    assert pages.ORDER not in str(there.requests)


async def test_who_has_the_key_changes_what_is_frozen():
    async with serving(frozen=("instructions",)) as (edge, _, client, _):
        made = await client.realtime.client_secrets.create(session=SALES)
        visitor = client.with_options(api_key=made.value)
        async with visitor.realtime.connect(model="sales") as connection:
            talk = Conversation(connection)
            await talk.until("session.created")
            [leg] = edge.legs
            async with client.realtime.connect(call_id=f"rtc_{leg.call_id}") as beside:
                session = {"type": "realtime", "instructions": "You sell bells at half price."}
                await beside.session.update(session=session)
                updated = (await talk.until("session.updated")).session
                assert updated.instructions == session["instructions"]


async def test_a_frozen_transcription_takes_no_options_by_its_address():
    session = {"type": "transcription", "audio": {"input": {"transcription": {"prompt": "bells"}}}}
    async with serving(frozen=("audio.input.transcription.prompt",)) as (_, _, client, _):
        made = await client.realtime.client_secrets.create(session=session)
        query = {"intent": "transcription", "context": "other words"}
        assert await status(client, made.value, extra_query=query) == 400
        visitor = client.with_options(api_key=made.value)
        async with visitor.realtime.connect(extra_query={"intent": "transcription"}) as connection:
            talk = Conversation(connection)
            await talk.until("session.updated")
            other = {"audio": {"input": {"transcription": {"prompt": "other words"}}}}
            await talk.send(type="session.update", session={"type": "transcription", **other})
            refused = (await talk.until("error")).error
            assert refused.param == "session.audio.input.transcription.prompt"


async def test_a_frozen_field_that_no_session_has_stops_the_start():
    with pytest.raises(ConfigError, match=r"field voice \(did you mean audio.output.voice\?\)"):
        async with serving(frozen=("voice",)):
            pass


async def test_what_is_not_frozen_may_be_changed():
    async with serving() as (_, _, client, _):
        made = await client.realtime.client_secrets.create(session=SALES)
        visitor = client.with_options(api_key=made.value)
        async with visitor.realtime.connect(model="sales") as connection:
            talk = Conversation(connection)
            await talk.until("session.created")
            assert (await talk.update(instructions="Other.")).instructions == "Other."


async def test_a_secret_opens_nothing_else():
    async with serving() as (edge, url, client, _):
        made = await client.realtime.client_secrets.create(session=SALES)
        assert await status(client, made.value, model="other") == 403
        assert await status(client, "ek_of_another_server", model="sales") == 401
        assert await status(client, KEY[:-1], model="sales") == 401
        spoken = {"type": "transcription"}
        of_speech = await client.realtime.client_secrets.create(session=spoken)
        assert await status(client, of_speech.value, call_id="rtc_1") == 401
        async with aiohttp.ClientSession() as http:
            for secret in (made, of_speech):
                headers = {"Authorization": f"Bearer {secret.value}"}
                for path in ("models", "audio/voices"):
                    assert (await http.get(f"{url}/{path}", headers=headers)).status == 401
        expired, _ = edge.programs.secrets.create(SALES, "sales", 10, time() - 11)
        assert await status(client, expired, model="sales") == 401
        agents = {"other": edge.config.agents["other"]}
        edge.config = edge.config.model_copy(update={"agents": agents})
        assert await status(client, made.value) == 404


async def test_a_secret_outlives_the_server_that_made_it():
    """With a session as large as they get, in a header."""
    session = {**SALES, "instructions": random.Random(1).randbytes(8_000).hex()}
    async with serving() as (_, _, client, _):
        made = await client.realtime.client_secrets.create(session=session)
        assert len(made.value) > 8_190  # aiohttp's usual limit
    async with serving() as (_, _, client, _):
        visitor = client.with_options(api_key=made.value)
        async with visitor.realtime.connect(model="sales") as connection:
            created = await Conversation(connection).until("session.created")
            assert created.session.instructions == session["instructions"]


async def test_a_secret_of_a_transcription_configures_it():
    async with serving() as (_, _, client, _):
        session = {
            "type": "transcription",
            "audio": {"input": {"format": {"type": "audio/pcmu"}, "turn_detection": None}},
        }
        made = await client.realtime.client_secrets.create(session=session)
        assert made.session.type == "transcription"
        visitor = client.with_options(api_key=made.value)
        query = {"intent": "transcription"}
        async with visitor.realtime.connect(extra_query=query) as connection:
            talk = Conversation(connection)
            assert (await talk.until("session.created")).session.type == "transcription"
            updated = (await talk.until("session.updated")).session
            assert updated.audio.input.format.type == "audio/pcmu"


async def test_a_page_calls_with_a_secret():
    async with serving([says("Good morning.")], frozen=("instructions",)) as parts:
        edge, url, client, there = parts
        expired, _ = edge.programs.secrets.create(SALES, "sales", 10, time() - 11)
        made = await client.realtime.client_secrets.create(session=SALES)
        for key, model_name, wanted in (
            ("ek_wrong", "sales", 401),
            (expired, "sales", 401),
            (made.value, "other", 403),
        ):
            async with aiohttp.ClientSession() as http:
                headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/sdp"}
                path = f"{url}/realtime/calls?model={model_name}"
                assert (await http.post(path, data="v=0", headers=headers)).status == wanted
        form = aiohttp.FormData()
        for name, text in (("sdp", "v=0"), ("session", '{"instructions": "No."}')):
            form.add_field(name, text, content_type="text/plain")
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {made.value}"}) as http,
            http.post(f"{url}/realtime/calls", data=form) as refused,
        ):
            assert refused.status == 400
            assert (await refused.json())["error"]["param"] == "session.instructions"
        peer = Peer()
        location = await peer.call(f"{url}/realtime/calls", {"model": "sales"}, key=made.value)
        assert (await peer.until("session.created")).session.instructions == "You sell bells."
        peer.send(type="response.create")
        await peer.until("response.done")
        call_id = location.rpartition("/")[2]
        assert await status(client, made.value, call_id=call_id) == 401
        async with client.realtime.connect(call_id=call_id) as beside:
            await client.realtime.calls.hangup(call_id)
            with pytest.raises(NotFoundError, match="has ended"):
                await client.realtime.calls.hangup(call_id)
            async with asyncio.timeout(HANGS_S):
                assert "session.created" not in [event.type async for event in beside]
        async with asyncio.timeout(HANGS_S):
            while peer.pc.connectionState != "closed":
                await asyncio.sleep(0.02)
        await peer.close()
    assert there.requests[0]["messages"][0]["content"] == "You sell bells."
