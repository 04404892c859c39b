"""A team without a PBX: its phones register at a server, call each other, and find what was left
for them. The phones are by hand; the lines, the calls, the store and the mail server are real."""

import asyncio
import email
import email.policy
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from email.message import EmailMessage
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import ClientSession, web

from benchmarks.answers.voices import trimmed, voices_of
from offhook.media.codecs.resample import Resampler
from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm
from offhook.web.app.cli.dial_io import extension_lines
from offhook.web.config.config import Config, ConfigError, load
from offhook.web.edge.calls.own_mailbox_io import OwnMailbox
from offhook.web.edge.server_io import application
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S, until
from tests.telephony.sip.extensions.desks import Desk
from tests.telephony.sip.scripted_peer import HOST, udp_peer
from tests.telephony.sip.scripted_sound import Sound, sound
from tests.web.edge.phones import Served
from tests.web.edge.scripted_edge import ScriptedEdge

pytestmark = pytest.mark.asyncio
ASKED = "Please call me back tomorrow."


@cache
def said(text: str) -> Pcm:
    """The text as Flite reads it, at 24 kHz."""
    spoken = trimmed(voices_of("en")[0][1](text)).astype(np.int16)
    return Resampler(RATE_IN, RATE_OUT).process(spoken[: len(spoken) // 2 * 2])


async def says(line: Sound, text: str) -> None:
    """Speak on a line of 8 kHz, packet by packet."""
    pcm, count = said(text), RATE_OUT * 20 // 1000
    blocks = [pcm[at : at + count] for at in range(0, len(pcm) - count, count)]
    packets = []
    for block in blocks:
        packet = line.packet()
        packet.payload = line._encoder.encode(block)
        packets.append(packet)
    await line.sends(packets)


class MailServer(asyncio.Protocol):
    """Takes mail as RFC 5321 says, and keeps it."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.to: list[str] = []
        self.refuses = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 here\r\n")
        while line := (await reader.readline()).strip():
            word = line.upper()
            if word == b"DATA":
                writer.write(b"354 go on\r\n")
                data = await reader.readuntil(b"\r\n.\r\n")
                found = email.message_from_bytes(data[:-3], policy=email.policy.default)
                assert isinstance(found, EmailMessage)
                self.mails.append(found)
            if word.startswith(b"RCPT"):
                self.to.append(line.decode())
            refused = self.refuses and word.startswith(b"MAIL")
            writer.write(b"451 later\r\n" if refused else b"250 well\r\n")
            if word == b"QUIT":
                break
        writer.close()


def table(folder: Path, mail_port: int = 0, **extensions: Any) -> dict[str, Any]:
    port = free_port()
    people = {
        number: {"password": f"pass-{number}", **extensions.get(f"x{number}", {})}
        for number in ("101", "102")
    }
    return {
        "server": {"port": 0, "drain_seconds": 0},
        "records": {"url": f"sqlite:///{folder}/calls.db", "spool": folder / "spool"},
        "recording": {"directory": folder / "sounds"},
        "smtp": {
            "host": "127.0.0.1" if mail_port else "",
            "port": mail_port or 25,
            "security": "off",
            "sender": "voicemail@offhook.example",
        },
        "agent": {"kind": "silent"},
        "agents": {"mailbox": {"kind": "voicemail", "greeting": "Leave a message."}},
        "sip": {"udp": port, "tcp": port, "extensions": people},
    }


@asynccontextmanager
async def office(config: Config) -> AsyncIterator[Served]:
    edge = ScriptedEdge(config)
    edge.records.open_store(config)
    await edge.start()
    runner = web.AppRunner(application(edge), access_log=None, handle_signals=False)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with ClientSession(url) as client:
            yield Served(edge, client, url)
    finally:
        await edge.close()
        await runner.cleanup()


@asynccontextmanager
async def desk(server: Served, number: str) -> AsyncIterator[Desk]:
    async with udp_peer(server.sip) as far:
        with sound() as line:
            found = Desk(server.sip, far, line, number)
            await found.register()
            yield found


async def voice_message(notified: Desk) -> str:
    notify = await notified.far.asked("NOTIFY")
    notified.far.reply(notify, 200)
    return notify.body.decode().split("Voice-Message: ")[1].strip()


async def leave_message(ann: Desk) -> None:
    """After the tone."""
    await ann.is_answered()
    async with asyncio.timeout(HANGS_S):
        while not ann.line.hears(1000):
            await ann.line.sends([ann.line.packet(0.0)])
    await asyncio.sleep(0.7)
    await says(ann.line, ASKED)
    await ann.far.hang_up()


async def messages(server: Served, path: str = "/voicemails") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await server.get(path))["voicemails"]
    return found


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offhook.web.config.config.MAIL_DELAY_S", 1.0)


async def test_what_is_left_for_who_is_busy_lights_the_lamp_and_is_mailed(
    tmp_path: Path, quick: None
) -> None:
    post = MailServer()
    async with post.running() as port:
        bob_has = {"voicemail": "mailbox", "mail": "bob@example.org"}
        config = Config.model_validate(table(tmp_path, port, x102=bob_has))
        async with (
            office(config) as server,
            desk(server, "101") as ann,
            desk(server, "102") as bob,
        ):
            await ann.begins_to_call("102")
            bob.far.reply(await bob.rings(), 486)
            await leave_message(ann)
            assert await voice_message(bob) == "1/0"
            [message] = await messages(server, "/voicemails?mailbox=102&heard=false")
            assert (message["caller"], message["mailbox"]) == ("101", "102")
            assert not message["heard"]
            await until(lambda: post.mails)
            recorded = await server.client.get(message["recording"])
            assert (await recorded.read())[:4] == b"OggS"
            assert await voice_message(bob) == "0/1"
            assert await messages(server, "/voicemails?heard=false") == []
            gone = await server.client.delete(f"/voicemails/{message['call_id']}")
            assert gone.status == 204
            assert await voice_message(bob) == "0/0"
            again = await server.client.delete(f"/voicemails/{message['call_id']}")
            assert again.status == 404
    [mail] = post.mails
    assert mail["To"] == "bob@example.org"
    assert "101" in mail["Subject"]
    [attached] = list(mail.iter_attachments())
    assert attached.get_content()[:4] == b"OggS"


async def test_who_calls_one_without_phones_reaches_the_voicemail(
    tmp_path: Path, quick: None
) -> None:
    config = Config.model_validate(table(tmp_path, x102={"voicemail": "mailbox"}))
    async with office(config) as server, desk(server, "101") as ann:
        await ann.begins_to_call("102")
        await leave_message(ann)
        await until(lambda: not server.sip.calls)
        async with asyncio.timeout(HANGS_S):
            while not await messages(server):
                await asyncio.sleep(0.05)
        [call] = (await server.get("/calls?agent=mailbox"))["calls"]
        record = await server.get(f"/calls/{call['call_id']}/record")
        assert record["diverted_from"] == "102"


async def test_mail_that_is_refused_waits(tmp_path: Path, quick: None) -> None:
    post = MailServer()
    post.refuses = True
    async with post.running() as port:
        has = {"voicemail": "mailbox", "mail": "bob@example.org"}
        config = Config.model_validate(table(tmp_path, port, x102=has))
        async with office(config) as server, desk(server, "101") as ann:
            await ann.begins_to_call("102")
            await leave_message(ann)
            kept = server.edge.records.kept
            assert kept is not None
            outbox = kept.store.outbox
            await until(lambda: any(one["attempts"] for one in outbox.waiting()))
            [waiting] = outbox.waiting()
            assert "451" in waiting["fault"]
    assert post.mails == []


async def test_a_call_between_extensions_is_found_in_the_store(tmp_path: Path) -> None:
    config = Config.model_validate(table(tmp_path))
    async with office(config) as server:
        async with desk(server, "101") as ann, desk(server, "102") as bob:
            await ann.begins_to_call("102")
            await bob.answers()
            await ann.is_answered()
            await ann.talks_with(bob)
            await ann.far.hang_up()
            await bob.far.is_hung_up()
            await until(lambda: not server.sip.calls)
        async with asyncio.timeout(HANGS_S):
            while len(found := (await server.get("/calls?number=101"))["calls"]) < 2:
                await asyncio.sleep(0.05)
    assert {call["trunk"] for call in found} == {"ext:101", "ext:102"}


async def test_who_is_there_and_what_waits_for_them(tmp_path: Path) -> None:
    config = Config.model_validate(table(tmp_path, x102={"name": "Bob", "voicemail": "mailbox"}))
    async with office(config) as server, desk(server, "101") as ann:

        async def extensions() -> dict[str, Any]:
            answer = await server.client.get("/extensions")
            text = await answer.text()
            assert "pass-10" not in text
            return {each["number"]: each for each in (await answer.json())["extensions"]}

        found = await extensions()
        assert [found[number]["state"] for number in ("101", "102")] == ["idle", "away"]
        assert (found["102"]["name"], found["102"]["phones"]) == ("Bob", [])
        [phone] = found["101"]["phones"]
        assert (phone["address"], phone["transport"]) == (f"{HOST}:{ann.far.port}", "udp")
        assert phone["since"] < phone["expires"]
        async with desk(server, "102") as bob:
            await ann.begins_to_call("102")
            invite = await bob.rings()
            found = await extensions()
            assert [found[number]["state"] for number in ("101", "102")] == ["in_call", "ringing"]
            bob.far.reply(invite, 486)
            await leave_message(ann)
            await voice_message(bob)
        found = await extensions()
        assert found["102"]["messages"] == {"new": 1, "heard": 0}
        lines = list(extension_lines(found["102"]))
        assert lines[0] == "102 Bob: idle, messages: 1 new, 0 heard"
        assert f"at {HOST}:{bob.far.port} by udp" in lines[1]


async def test_bob_hears_his_message_by_phone_and_deletes_it(tmp_path: Path, quick: None) -> None:
    settings = table(tmp_path, x102={"voicemail": "mailbox"})
    settings["sip"]["messages"] = "*97"
    async with (
        office(Config.model_validate(settings)) as server,
        desk(server, "101") as ann,
        desk(server, "102") as bob,
    ):
        await ann.begins_to_call("102")
        bob.far.reply(await bob.rings(), 486)
        await leave_message(ann)
        assert await voice_message(bob) == "1/0"
        await bob.begins_to_call("*97")
        await bob.is_answered()
        assert await voice_message(bob) == "0/1"  # it is played
        own = OwnMailbox("102", server.edge.records, lambda: server.edge.config)
        [message] = await own.messages()
        assert (message.caller, message.heard) == ("101", True)
        sound = await own.listen(message.id)
        assert sound is not None
        assert len(sound) > len(said(ASKED)) / 2
        assert np.abs(sound).max() > 1000
        bob.presses(2)
        assert await voice_message(bob) == "0/0"
        await bob.far.is_hung_up()
        assert await messages(server) == []
        await ann.begins_to_call("*97")  # who has no voicemail
        ann.far.ack_refusal(await ann.far.response(404))


async def test_a_phone_rings_at_once_after_a_restart(tmp_path: Path) -> None:
    config = Config.model_validate(table(tmp_path))
    async with AsyncExitStack() as stays:
        async with office(config) as server:
            bob = await stays.enter_async_context(desk(server, "102"))
            await until(lambda: "102" in saved_phones(server))
            [before] = (await phones_of(server, "102"))[1]
        async with office(config) as server:
            async with asyncio.timeout(HANGS_S):
                while not (after := (await phones_of(server, "102"))[1]):
                    await asyncio.sleep(0.05)
            assert after[0]["address"] == before["address"]
            call_id = await server.place("102", agent="")
            await bob.answers()
            await server.state(call_id, "answered")
            await bob.far.hang_up()
            await server.state(call_id, "ended")
            assert await bob.register(expires=0)
            await until(lambda: saved_phones(server) == {})


def saved_phones(server: Served) -> dict[str, str]:
    kept = server.edge.records.kept
    assert kept is not None
    return kept.store.registrations.of(kept.writer.server, 0) if kept.ready else {}


async def phones_of(server: Served, number: str) -> tuple[str, list[dict[str, Any]]]:
    found = (await server.get("/extensions"))["extensions"]
    [extension] = [each for each in found if each["number"] == number]
    return extension["state"], extension["phones"]


async def test_an_operator_calls_an_extension(tmp_path: Path) -> None:
    config = Config.model_validate(table(tmp_path))
    async with office(config) as server, desk(server, "102") as bob:
        call_id = await server.place("102", agent="")
        await bob.answers()
        await server.state(call_id, "answered")
        await bob.far.hang_up()
        assert (await server.state(call_id, "ended"))["trunk"] == "ext:102"
        assert "no extension" in await server.refused(400, to="ext:555")


@pytest.mark.parametrize("path", ["/voicemails?heard=true", "/voicemails?box=1"])
async def test_a_list_that_nobody_can_give_is_refused(tmp_path: Path, path: str) -> None:
    async with office(Config.model_validate(table(tmp_path))) as server:
        answer = await server.client.get(path)
        assert answer.status == 400


FILE = """
[agents.mailbox]
kind = "voicemail"
greeting = "Leave a message."

[agents.other]
kind = "silent"

[sip]
udp = 5060

[sip.extensions.101]
password = "x"
"""


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('voicemail = "nobody"', "no agent is called 'nobody'"),
        ('voicemail = "other"', "takes no messages"),
        ('voicemail = "mailbox"\nmail = "a@example.org"', "needs host of \\[smtp\\]"),
        ('outside = "nobody"', "no trunk with a server"),
        ('passwort = "y"', "passwort"),
    ],
)
async def test_what_does_not_fit_is_named_by_its_line(
    tmp_path: Path, line: str, fault: str
) -> None:
    path = tmp_path / "offhook.toml"
    path.write_text(FILE)
    assert load(path, {}).sip is not None
    path.write_text(FILE + line + "\n")
    with pytest.raises(ConfigError, match=fault):
        load(path, {})
