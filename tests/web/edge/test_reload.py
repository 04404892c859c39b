"""Another configuration for a server that runs: what new calls get, what calls in progress keep,
what takes a restart, and what is refused."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loguru import logger

from benchmarks.carriers.far_ends.far_end import CallFacts
from benchmarks.carriers.far_ends.far_end_io import FarEndCall
from benchmarks.carriers.far_ends.far_end_json import Twilio
from offhook.pipeline.conversation.agents.frontdesk_business import DEMO
from offhook.web.config.config import Agent, Config, ConfigError
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.reload_io import Reload, left_for_restart, reloaded, use
from tests.pipeline.conversation.phone import PhoneLeg, model, says
from tests.support.waiting import HANGS_S, until
from tests.telephony.carriers.rest.fake_rest import FakeRest
from tests.web.conftest import CONFIG
from tests.web.edge.phones import TABLE, Served, served
from tests.web.edge.test_carriers import signature, stream_url

pytestmark = pytest.mark.asyncio(loop_scope="module")

NEW_SECRET = "f" * 32
TO = "+491701234567"


@pytest.fixture
def written() -> Iterator[list[str]]:
    """What is logged."""
    lines: list[str] = []
    sink = logger.add(lambda message: lines.append(message.record["message"]), level="INFO")
    yield lines
    logger.remove(sink)


def with_twilio(rest: FakeRest, secret: str, **more: Any) -> Config:
    known = rest.settings("twilio")
    twilio = {
        "provider": "twilio",
        "account": known.account,
        "secret": secret,
        "rest_url": rest.url,
        "number": known.number,
        "public_url": "http://127.0.0.1:1",
        **more,
    }
    return Config.model_validate({**TABLE, "carriers": [twilio]})


async def asked(server: Served, path: str, secret: str, call_id: str) -> tuple[int, str]:
    """What Twilio is answered, with that secret."""
    url = f"/carriers/twilio/{path}"
    fields = {"CallSid": call_id, "From": "+491701", "To": "+493099", "CallStatus": "ringing"}
    headers = {"X-Twilio-Signature": signature(f"http://127.0.0.1:1{url}", fields, secret)}
    answer = await server.client.post(url, data=fields, headers=headers)
    return answer.status, await answer.text()


async def test_new_calls_have_a_carriers_new_secret_and_others_their_own() -> None:
    async with FakeRest() as rest:
        old_secret = rest.settings("twilio").secret
        config = with_twilio(rest, old_secret)
        async with served(config) as server:
            call_id = await server.place(TO, carrier="twilio")
            [placed] = rest.calls.values()

            use(server.edge, with_twilio(rest, NEW_SECRET))

            # A new call: the provider signs with the new secret, and is asked with it.
            assert (await asked(server, "voice", old_secret, "CA17"))[0] == 403
            assert (await asked(server, "voice", NEW_SECRET, "CA17"))[0] == 200
            words = await server.refused(400, to=TO, carrier="twilio")
            assert "credentials" in words  # this provider knows the old one

            # The call in progress: told and answered with either, and hung up with its own.
            for secret in (old_secret, NEW_SECRET):
                assert (await asked(server, f"status/{call_id}", secret, placed.id))[0] == 200
            status, text = await asked(server, f"voice/{call_id}", old_secret, placed.id)
            assert status == 200
            url, parameters = stream_url("twilio", text)
            far_end = FarEndCall(Twilio(CallFacts(call_id=placed.id, parameters=parameters)))
            headers = {"X-Twilio-Signature": signature(url, (), old_secret)}
            await far_end.start(server.url.replace("http", "ws") + url.partition(":1")[2], headers)
            await server.state(call_id, "answered")
            answer = await server.client.delete(f"/calls/{call_id}")
            assert answer.status < 300, await answer.text()
            await until(lambda: placed.state == "completed")
            await far_end.close()
            assert (await asked(server, f"status/{call_id}", "x" * 32, placed.id))[0] == 403


async def test_new_calls_have_the_new_agent_and_others_theirs(edge: Edge) -> None:
    async with model([says("Hello.")], [says("Yes.")]) as old, model([says("Ahoy.")]) as new:

        def answering(url: str) -> Config:
            return CONFIG.model_copy(
                update={"agent": Agent(kind="openai", base_url=url, model="m")}
            )

        use(edge, answering(old.url))
        first, second = PhoneLeg(), PhoneLeg()
        second.call_id = "second"
        calls = [asyncio.create_task(edge.run_call(first, ""))]
        first.connect()
        await until(lambda: len(old.requests) == 1 and first.said)

        use(edge, answering(new.url))
        calls.append(asyncio.create_task(edge.run_call(second, "")))
        second.connect()
        await until(lambda: len(new.requests) == 1 and second.said)
        first.listener.on_dtmf("1")
        await until(lambda: len(old.requests) == 2)
        for leg in (first, second):
            leg.close("the test is over")
        await asyncio.gather(*calls)
        assert len(new.requests) == 1
    use(edge, CONFIG)


async def test_new_calls_and_requests_say_words_as_the_new_lexicon_has_them(
    edge: Edge, tmp_path: Path
) -> None:
    of_all, of_agent = tmp_path / "all.toml", tmp_path / "agent.toml"
    of_all.write_text('Kia = "kee-ah"\nNice = "neess"\n')
    of_agent.write_text('Nice = "nice"\n')
    running = edge.config
    new: dict[str, Any] = {
        **dict(running),
        "tts": {**running.tts.model_dump(), "lexicon": str(of_all)},
    }
    agent = {"kind": "frontdesk", "lexicon": str(of_agent)}
    read = Config.model_validate({**new, "agents": {"a": agent}})
    use(edge, read)
    assert left_for_restart(running, read) == []
    engines = edge.agents.engines(edge.agents.called("a"), edge.engines.of_new_calls())
    assert [entry.say for entry in engines.lexicon.entries] == ["nice", "kee-ah", "neess"]
    assert edge.speech is not None
    assert [entry.say for entry in edge.speech.lexicon.entries] == ["kee-ah", "neess"]
    use(edge, CONFIG)
    assert not edge.speech.lexicon.entries


def test_hours_and_prices_change_while_the_server_runs() -> None:
    night = {"kind": "announcement", "greeting": "We are closed."}
    office = {"agents": ["agent"], "open": ["daily 09:00-18:00"], "otherwise": "night"}
    table: dict[str, Any] = {"agents": {"night": night}, "hours": {"office": office}}
    old = Config.model_validate(table)
    office["holidays"] = ["12-25"]
    new = Config.model_validate({**table, "prices": {"m": {"input": 1, "output": 2}}})
    assert left_for_restart(old, new) == []
    now = reloaded(old, new)
    assert now.hours["office"].holidays == ("12-25",)
    assert now.prices["m"].output == 2


async def test_an_agent_that_has_gone_is_stood_in_for(edge: Edge, written: list[str]) -> None:
    leg = PhoneLeg()
    call = asyncio.create_task(edge.run_call(leg, "gone"))
    leg.connect()
    await until(lambda: leg.said)
    leg.close("the test is over")
    await call
    assert any("no agent is called gone" in line for line in written)


async def test_probes_are_of_the_agents_of_now(edge: Edge) -> None:
    nowhere = Agent(kind="openai", base_url="http://127.0.0.1:9/v1", model="m", ready_probe=True)
    use(edge, CONFIG.model_copy(update={"agents": {"sales": nowhere}}))
    [before] = edge.agents.probes._probes
    before.why = "it is gone"
    use(edge, CONFIG.model_copy(update={"agents": {"sales": nowhere, "desk": nowhere}}))
    assert edge.agents.probes.gone == ["sales"]  # still, while the new one is not known to be
    use(edge, CONFIG)
    assert edge.agents.probes.gone == []
    await until(lambda: not edge.agents.probes._tasks)


CALLS_OUT = {"carriers": [{"provider": "twilio", "secret": "s", "public_url": "https://v.ex"}]}
AWAY = {"port": 0, "host": "0.0.0.0", "admin_key": "operator"}


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        # Whoever reaches the server could call others: nobody has to have the operator's key.
        (
            {"server": AWAY, **CALLS_OUT},
            {"server": {**AWAY, "admin_key": ""}, **CALLS_OUT},
            "server.admin_key: this server can call others",
        ),
        # For this machine alone the file would do, but the server that runs is not.
        (
            {"server": AWAY, **CALLS_OUT},
            {"server": {"port": 0}, "carriers": [{"provider": "twilio", "insecure": True}]},
            "is insecure",
        ),
        ({}, {"server": {"admin_key": "k", "api_key": "k"}}, "callers have this key"),
        # Whoever restarts the server with it finds out at the reload, not when it is down.
        ({}, {"asr": {"language": "it"}}, "asr.language: pocketsphinx hears en, not 'it'"),
    ],
)
async def test_a_configuration_with_which_the_server_would_not_start_is_not_used(
    before: dict[str, Any], after: dict[str, Any], why: str, written: list[str]
) -> None:
    config = Config.model_validate({**TABLE, **before})

    def read() -> Config:
        try:
            return Config.model_validate({**TABLE, **after})
        except ValueError as error:
            raise ConfigError(str(error)) from error

    async with served(config) as server:
        then: list[Config] = []
        Reload(server.edge, config, read, then.append)()
        assert server.edge.config is config
        assert not then
        if config.server.admin_key:
            assert (await server.client.get("/calls")).status == 401
            headers = {"Authorization": f"Bearer {config.server.admin_key}"}
            assert (await server.client.get("/calls", headers=headers)).status == 200
    said = next(line for line in written if "is unchanged" in line)
    assert why in said


async def test_what_takes_a_restart_is_named_until_it_is_there(written: list[str]) -> None:
    audiosocket = {"provider": "audiosocket", "port": 0}
    config = Config.model_validate({**TABLE, "carriers": [audiosocket]})
    changed = {
        **TABLE,
        "server": {**TABLE["server"], "max_calls": 5},
        "agent": {"kind": "silent"},
        "frontdesk": DEMO.model_copy(update={"name": "The Harbour"}),
        "carriers": [
            {**audiosocket, "port": 9, "addresses": ["10.0.0.0/8"]},
            {"provider": "plivo", "secret": "s"},
        ],
        "sip": {"udp": 0},
    }
    new = Config.model_validate(changed)
    left = "[server] max_calls, [sip], [[carriers]] audiosocket port, [[carriers]] plivo"
    async with served(config) as server:
        reload = Reload(server.edge, config, lambda: new)
        for _ in range(2):
            reload()
            assert written.pop() == f"what else has changed takes a restart: {left}"
        now = server.edge.config
        assert (now.server.max_calls, now.agent.kind) == (3, "silent")
        assert now.frontdesk.name == "The Harbour"
        assert now.sip is None
        [carrier] = now.carriers
        assert (carrier.port, carrier.addresses) == (0, ("10.0.0.0/8",))
        assert server.edge.carriers is not None
        with pytest.raises(ConnectionError):  # the address that may call is another now
            await audiosocket_call(server)
    assert left_for_restart(config, config) == []
    assert reloaded(config, config) == config


async def audiosocket_call(server: Served) -> None:
    assert server.edge.carriers is not None
    host, port = server.edge.carriers.bound["audiosocket"]
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"\x01\x00\x10" + bytes(16))
    try:
        async with asyncio.timeout(HANGS_S):
            if not await reader.read(1):
                raise ConnectionError("closed")
    finally:
        writer.close()
