"""Transfers, as the caller hears them: four ways x what may come of each, and no silence in any."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from aiohttp.test_utils import TestClient, TestServer

from benchmarks.carriers.far_ends.far_end import CallFacts
from benchmarks.carriers.far_ends.far_end_io import FarEndCall
from benchmarks.carriers.far_ends.far_end_json import Twilio
from benchmarks.servers import scripted
from offhook.media.leg import Leg, LegError
from offhook.pipeline.conversation.call.history import Message
from offhook.telephony.sip.endpoint_io import SipEndpoint
from offhook.telephony.sip.messages.message import Request, sdp_of
from offhook.telephony.sip.sessions import refer
from offhook.web.config.config import Config, ConfigError
from offhook.web.edge.carriers import calls_io
from offhook.web.edge.server_io import application
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S, until
from tests.telephony.carriers.rest.fake_rest import FakeRest
from tests.telephony.sip.ends import tone
from tests.telephony.sip.phones import LOOPBACK, ToneHost, endpoint, write_tone
from tests.telephony.sip.scripted_peer import Peer, udp_peer
from tests.telephony.sip.scripted_sound import Sound, sound
from tests.web.edge.scripted_edge import ScriptedEdge
from tests.web.edge.test_carriers import FAR_ENDS, stream_url
from tests.web.edge.transfer_sounds import BLOCK, RATE, Heard, sound_of, table

AGENT_HZ, MUSIC_HZ, TARGET_HZ, EARLY_HZ, CALLER_HZ, CARRIER_HZ = 880, 1200, 620, 1600, 440, 425
PITCHES = {AGENT_HZ: "agent", MUSIC_HZ: "music", TARGET_HZ: "target", EARLY_HZ: "early media"}
AT_TWILIO = {CARRIER_HZ: "carrier's tone", TARGET_HZ: "target"}
RINGS_S = 2.0
"""How long it rings, of the time of sound."""
MAX_SILENCE = 2 * RATE // BLOCK
"""Blocks of sound: 2 s."""
BACK = ["agent", "music", "agent"]
TARGET = "+14155551212"
Row = tuple[str, str, Heard | None, str]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A word of the agents at carriers takes 80 ms."""
    word = scripted.word_sound()[: 24 * 80]
    monkeypatch.setattr(scripted, "word_sound", lambda: word)


class TransferringHost(ToneHost):
    """An edge whose agent says something, transfers the caller, and is back if that fails."""

    def __init__(self, target: str) -> None:
        super().__init__()
        self._target = target
        self.failed = ""

    async def run_call(self, leg: Leg, agent: str) -> None:
        self.clock.add(leg)
        try:
            await self._say(leg)
            try:
                await leg.transfer(self._target)
            except LegError as error:
                self.failed = str(error)
                await self._say(leg)
                await leg.hang_up("goodbye")
            await leg.until_closed()
        finally:
            self.clock.remove(leg)

    async def _say(self, leg: Leg) -> None:
        leg.playout.write(tone(AGENT_HZ, 1.0))
        while leg.playout.queued and leg.closed is None:
            await asyncio.sleep(0.02)


class Ends:
    """A caller, whose phone system may transfer them itself, and a target."""

    def __init__(
        self, sip: SipEndpoint, host: TransferringHost, far: Peer, target: Peer, line: Sound
    ) -> None:
        self.sip, self.host, self.far, self.target, self.line = sip, host, far, target, line
        self.other: Sound
        self.talking: asyncio.Task[None]

    # --- the caller's phone system ---

    async def refer(self) -> Request:
        """It accepts a transfer."""
        refer = await self.far.asked("REFER")
        self.far.reply(refer, 202)
        return refer

    def notify(self, fragment: str) -> None:
        state = "active;expires=60" if fragment[0] == "1" else "terminated;reason=noresource"
        headers = ("Event", "refer"), ("Subscription-State", state)
        self.far.ask("NOTIFY", *headers, body=("message/sipfrag", f"SIP/2.0 {fragment}"))

    # --- the target ---

    async def rings(self, *, early: bool = False) -> Request:
        invite = await self.target.asked("INVITE")
        self.target.learn(invite)
        if early:
            self.target.reply(invite, 180)
            await self.passes(RINGS_S / 2)
            self.target.reply(invite, 183, sdp=self.other.sdp())
            self.other.aim(sdp_of(invite) or "")
            await self.other.says(RINGS_S, EARLY_HZ)
        else:
            self.target.reply(invite, 180)
            await self.passes(RINGS_S)
        return invite

    async def answers(self, invite: Request) -> None:
        self.other.aim(sdp_of(invite) or "")
        self.target.reply(invite, 200, sdp=self.other.sdp())
        await self.target.asked("ACK")

    async def passes(self, seconds: float) -> None:
        """The time of sound, at the caller's."""
        before = len(self.line.received)
        await until(lambda: len(self.line.received) >= before + seconds * 50)


Script = Callable[[Ends], Any]


async def blind(ends: Ends, *said: str) -> None:
    await ends.refer()
    ends.notify("100 Trying")
    await ends.passes(RINGS_S)
    for fragment in said:
        ends.notify(fragment)


async def blind_answered(ends: Ends) -> None:
    await blind(ends, "200 OK")


async def blind_busy(ends: Ends) -> None:
    await blind(ends, "486 Busy Here")


async def blind_no_answer(ends: Ends) -> None:
    await blind(ends, "180 Ringing", "480 Temporarily Unavailable")


async def blind_unreported(ends: Ends) -> None:
    await ends.refer()


async def blind_gone(ends: Ends) -> None:
    await blind(ends)
    ends.talking.cancel()
    await ends.far.hang_up()


async def connected(ends: Ends) -> None:
    await ends.answers(await ends.rings())


async def attended_answered(ends: Ends) -> None:
    await connected(ends)
    await blind(ends, "200 OK")
    await ends.target.is_hung_up()


async def busy(ends: Ends) -> None:
    invite = await ends.rings()
    ends.target.reply(invite, 486)
    await ends.target.asked("ACK")


async def no_answer(ends: Ends) -> None:
    invite = await ends.rings()
    ends.target.reply(await ends.target.asked("CANCEL"), 200)
    ends.target.reply(invite, 487)
    await ends.target.asked("ACK")


async def attended_unreported(ends: Ends) -> None:
    await connected(ends)
    await ends.refer()
    await ends.target.is_hung_up()


async def attended_gone(ends: Ends) -> None:
    await connected(ends)
    await ends.refer()
    ends.notify("100 Trying")
    await ends.target.hang_up()
    await ends.passes(0.2)
    ends.notify("481 Call Does Not Exist")


async def bridged_answered(ends: Ends) -> None:
    await connected(ends)
    await ends.other.says(RINGS_S, TARGET_HZ)
    ends.talking.cancel()
    await ends.far.hang_up()
    await ends.target.is_hung_up()


async def bridged_early(ends: Ends) -> None:
    await ends.answers(await ends.rings(early=True))
    await ends.other.says(RINGS_S, TARGET_HZ)
    await ends.target.hang_up()


async def bridged_gone(ends: Ends) -> None:
    await connected(ends)
    await ends.other.says(RINGS_S, TARGET_HZ)
    await ends.target.hang_up()


UNREPORTED, GONE = "202 without NOTIFY", "far end gone"
RINGING = ["agent", "music"]
BY_SIP: list[tuple[str, str, Script | None, list[str], str]] = [
    ("blind", "answered", blind_answered, RINGING, "we hang up: the target has the caller"),
    ("blind", "busy", blind_busy, BACK, "486"),
    ("blind", "no answer", blind_no_answer, BACK, "480"),
    ("blind", UNREPORTED, blind_unreported, RINGING, "we hang up: the target has the caller"),
    ("blind", GONE, blind_gone, RINGING, "the caller's side hangs up"),
    ("attended", "answered", attended_answered, RINGING, "we hang up: the target has the caller"),
    ("attended", "busy", busy, BACK, "busy"),
    ("attended", "no answer", no_answer, BACK, "no answer"),
    ("attended", UNREPORTED, attended_unreported, RINGING, "we hang up: the target has the caller"),
    ("attended", GONE, attended_gone, BACK, "the other end hung up"),
    ("bridge", "answered", bridged_answered, [*RINGING, "target"], "the caller's side hangs up"),
    (
        *("bridge", "answered after early media", bridged_early),
        *([*RINGING, "early media", "target"], "we hang up: the other end hung up"),
    ),
    ("bridge", "busy", busy, BACK, "busy"),
    ("bridge", "no answer", no_answer, BACK, "no answer"),
    ("bridge", UNREPORTED, None, [], "no REFER is sent"),
    ("bridge", GONE, bridged_gone, [*RINGING, "target"], "we hang up: the other end hung up"),
]


@asynccontextmanager
async def transferring(way: str, outcome: str, music: Path) -> AsyncIterator[Ends]:
    async with udp_peer() as target:
        server = f"127.0.0.1:{target.port}"
        trunk = replace(
            LOOPBACK,
            server=server,
            transfer=way,  # type: ignore[arg-type]
            ringback=music,
            options_seconds=0,
            reliable=False,
        )
        host = TransferringHost(f"sip:desk@{server}")
        # What rings until we give up is the only one of which the answer may not be waited for.
        rings_s = 2 * RINGS_S if outcome == "no answer" else HANGS_S
        settings = {"trunks": (trunk,), "ring_seconds": rings_s}
        async with endpoint(host, **settings) as (sip, _), udp_peer(sip) as far:
            with sound() as line, sound() as other:
                ends = Ends(sip, host, far, target, line)
                ends.other = other
                line.aim(await far.call(line.sdp()))
                ends.talking = asyncio.create_task(line.says(3600, CALLER_HZ))
                try:
                    yield ends
                finally:
                    ends.talking.cancel()


async def by_sip(way: str, outcome: str, script: Script | None, end: str, music: Path) -> Row:
    if script is None:
        return way, outcome, None, end
    async with transferring(way, outcome, music) as ends:
        await script(ends)
        if end.startswith("the caller's"):
            assert "BYE" not in ends.far.came
        else:
            await ends.far.is_hung_up()
        await until(lambda: ends.host.records)
        if not end.startswith(("we", "the caller's")):
            assert end in ends.host.failed, (way, outcome)
        ends.line.read_all()
        return way, outcome, Heard(sound_of(ends.line.packets()), PITCHES), end


# --- carriers ---


class CarriersCaller:
    """A caller at Twilio: all that reached their phone, of streams of ours and of Twilio itself."""

    def __init__(self, http: "TestClient[Any, Any]", call_id: str) -> None:
        self._http, self.call_id = http, call_id
        self.before: list[Message] = []
        """What was said before the transfer."""
        self._sounds: list[np.ndarray] = []
        self._stream: FarEndCall | None = None
        self._clock: asyncio.Task[None]

    async def asks(self, url: str, **form: str) -> ElementTree.Element:
        """Twilio's webhook; what it is to do."""
        fields = {"CallSid": self.call_id, "From": "+491701", "To": "+493099", **form}
        path = "/" + url.split("/", 3)[3]
        answer = await self._http.post(path, data={"CallStatus": "in-progress", **fields})
        assert answer.status == 200, await answer.text()
        return ElementTree.fromstring(await answer.text())

    async def connects(self, twiml: ElementTree.Element) -> None:
        stream = next(twiml.iter("Stream"))
        path = "/" + stream.attrib["url"].split("/", 3)[3]
        self._stream = FarEndCall(Twilio(CallFacts(call_id=self.call_id)), clocked=False)
        await self._stream.start(str(self._http.make_url(path)).replace("http", "ws", 1))
        self._clock = asyncio.create_task(self._tick(self._stream))

    async def _tick(self, stream: FarEndCall) -> None:
        """Twilio's clock, which stands still while this process does."""
        while not stream.ended.is_set():
            stream.far_end.tick(monotonic())
            stream.flush()
            await asyncio.sleep(0.02)

    async def is_quiet(self) -> None:
        """All has been played."""
        assert self._stream is not None
        player = self._stream.far_end.player
        await until(lambda: player.played and not player.queued)

    async def leaves(self) -> None:
        """Twilio ends the stream."""
        assert self._stream is not None
        await self._stream.close()
        self._clock.cancel()
        played = self._stream.far_end.player.sound()
        loud = np.flatnonzero(np.abs(played) > 500)
        self._sounds.append(played[loud[0] if not self._sounds else 0 : loud[-1] + 1])

    def hears(self, hz: float, seconds: float) -> None:
        """Something that is not ours."""
        at = np.arange(round(seconds * RATE))
        self._sounds.append((8000 * np.sin(2 * np.pi * hz * at / RATE)).astype(np.int16))

    @property
    def heard(self) -> Heard:
        return Heard(np.concatenate(self._sounds), AT_TWILIO, "agent")


class At:
    """An edge at a carrier."""

    def __init__(
        self, provider: str, edge: ScriptedEdge, http: "TestClient[Any, Any]", rest: FakeRest
    ) -> None:
        self.provider, self.edge, self.http, self.rest = provider, edge, http, rest


@asynccontextmanager
async def at(provider: str, **more: Any) -> AsyncIterator[At]:
    """`more` are further tables of the configuration."""
    async with FakeRest() as rest:
        known = rest.settings(provider)
        carrier = {
            "provider": provider,
            "insecure": True,
            "account": known.account,
            "secret": known.secret,
            "api_key": known.api_key,
            "rest_url": rest.url,
            "public_url": "http://127.0.0.1:1",
        }
        table = {
            "server": {"port": 0, "drain_seconds": 0},
            "webrtc": {"addresses": ["127.0.0.1"]},
            "carriers": [carrier],
            **more,
        }
        edge = ScriptedEdge(Config.model_validate(table))
        await edge.start()
        try:
            async with TestClient(TestServer(application(edge))) as http:
                yield At(provider, edge, http, rest)
        finally:
            await edge.close()


async def transferred(one: At) -> tuple[CarriersCaller, str]:
    """A caller whom the agent has transferred; where Twilio says how that ends."""
    edge, placed = one.edge, one.rest.call("twilio")
    caller = CarriersCaller(one.http, placed.id)
    turns = len(edge.turns())
    await caller.connects(await caller.asks("http://x/carriers/twilio/voice"))
    await until(lambda: len(edge.turns()) > turns)
    await caller.is_quiet()
    caller.before = edge.call.transcript()
    await edge.call.transfer(TARGET)
    dial = ElementTree.fromstring(placed.transferred)[0]
    await caller.leaves()
    caller.hears(CARRIER_HZ, RINGS_S)
    await until(lambda: not edge.conversations)
    return caller, dial.attrib["action"]


AGAIN = ["agent", "carrier's tone", "agent"]
BY_CARRIER = [
    ("answered", "completed", ["agent", "carrier's tone", "target"], "the call ends"),
    ("busy", "busy", AGAIN, "the agent goes on"),
    ("no answer", "no-answer", AGAIN, "the agent goes on"),
    (UNREPORTED, "", ["agent", "carrier's tone", "target"], "Twilio reports nothing"),
    (GONE, "failed", AGAIN, "the agent goes on"),
]


async def by_carrier(outcome: str, status: str, end: str) -> Row:
    async with at("twilio") as one:
        caller, action = await transferred(one)
        if status in ("", "completed"):
            caller.hears(TARGET_HZ, RINGS_S)
        if status == "completed":
            twiml = await caller.asks(action, DialCallStatus=status)
            assert [element.tag for element in twiml] == ["Hangup"]
        elif status:
            await goes_on(one, caller, await caller.asks(action, DialCallStatus=status))
            await caller.leaves()
        return "carrier", outcome, caller.heard, end


async def goes_on(one: At, caller: CarriersCaller, twiml: ElementTree.Element) -> None:
    """The agent says that nobody is there, and knows what was said before."""
    turns = len(one.edge.turns())
    await caller.connects(twiml)
    await until(lambda: len(one.edge.turns()) > turns)
    before = caller.before
    assert one.edge.call.transcript()[: len(before)] == before
    assert "cannot be reached" in one.edge.turns()[-1]
    await caller.is_quiet()


# --- all of them ---


async def test_no_caller_is_left_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(refer, "FIRST_NOTIFY_S", 2 * RINGS_S)
    music = tmp_path / "music.wav"
    write_tone(music, MUSIC_HZ, RATE, seconds=1)
    rows = await asyncio.gather(
        *(by_sip(way, outcome, script, end, music) for way, outcome, script, _, end in BY_SIP),
        *(by_carrier(outcome, status, end) for outcome, status, _, end in BY_CARRIER),
    )
    wanted = [order for *_, order, _ in (*BY_SIP, *BY_CARRIER)]
    with capsys.disabled():
        sys.stdout.write(f"\n{table(rows)}\n")
    for (way, outcome, heard, _), order in zip(rows, wanted, strict=True):
        if heard is not None:
            # Holes that a busy machine leaves in early media are filled with music.
            early = order.index("early media") if "early media" in order else len(heard.order)
            later = [one for one in heard.order[early + 1 :] if one not in ("music", "early media")]
            assert [*heard.order[: early + 1], *later] == order, (way, outcome)
            assert heard.longest_silence <= MAX_SILENCE, (way, outcome)


async def test_music_that_is_not_there_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    def configured(name: str) -> Config:
        trunk = {"name": "pbx", "addresses": ["127.0.0.1"], "ringback": name}
        sip = {"udp": free_port(), "trunks": [trunk]}
        return Config.model_validate({"webrtc": {"addresses": ["127.0.0.1"]}, "sip": sip})

    edge = ScriptedEdge(configured(str(tmp_path / "music.ogg")))
    with pytest.raises(ConfigError, match=r"sip: trunk 'pbx': ringback: .*music.ogg: no such file"):
        await edge.start()
    await edge.engines.close()
    assert configured("us").sip.trunks[0].ringback == "us"  # type: ignore[union-attr]


# --- what carriers say of a transfer ---


async def test_a_caller_who_hangs_up_while_it_rings_does_not_come_back() -> None:
    async with at("twilio") as one:
        caller, action = await transferred(one)
        gone = await caller.asks(action, DialCallStatus="no-answer", CallStatus="completed")
        assert [element.tag for element in gone] == ["Hangup"]
        assert not one.edge.carriers.calls.in_progress()


async def test_a_failure_is_acted_on_once() -> None:
    async with at("twilio") as one:
        caller, action = await transferred(one)
        twiml = await caller.asks(action, DialCallStatus="busy")
        assert ElementTree.tostring(twiml) == ElementTree.tostring(
            await caller.asks(action, DialCallStatus="busy")
        )
        form = {"CallSid": caller.call_id, "DialCallStatus": "failed"}
        again = await one.http.post("/" + action.split("/", 3)[3], data=form)
        assert await again.text() == ""
        assert len(one.edge.carriers.calls.in_progress()) == 1
        await goes_on(one, caller, twiml)
        await caller.leaves()


async def test_who_comes_back_when_all_lines_are_busy_waits_for_one() -> None:
    async with at("twilio") as one:
        caller, action = await transferred(one)
        one.edge.draining = True
        later = await caller.asks(action, DialCallStatus="busy")
        assert [element.tag for element in later] == ["Pause", "Redirect"]
        where = later[1].text or ""
        assert where == f"{action}?tries=1"
        last = await caller.asks(f"{action}?tries=10")
        assert [element.tag for element in last] == ["Hangup"]
        one.edge.draining = False
        await goes_on(one, caller, await caller.asks(where))
        await caller.leaves()


async def test_who_was_transferred_before_a_restart_is_greeted() -> None:
    async with at("twilio") as one:
        caller = CarriersCaller(one.http, one.rest.call("twilio").id)
        url = "http://x/carriers/twilio/transfer/of-before"
        await caller.connects(await caller.asks(url, DialCallStatus="busy"))
        await until(one.edge.turns)
        assert len(one.edge.call.transcript()) == 1
        assert one.edge.call.leg.info.variables == {}
        await caller.leaves()


@pytest.mark.parametrize("provider", ["plivo", "vonage", "telnyx"])
async def test_the_agent_comes_back_at_others_too(provider: str, tmp_path: Path) -> None:
    calls = tmp_path / "calls.jsonl"
    async with at(provider, log={"calls": calls}) as one:
        edge, placed = one.edge, one.rest.call(provider)
        known = {
            "plivo": {"CallUUID": placed.id, "From": "491701", "To": "493099"},
            "vonage": {"uuid": placed.id, "from": "491701", "to": "493099"},
            "telnyx": {"CallSid": placed.id, "From": "491701", "To": "493099"},
        }[provider]

        async def asked(path: str, **more: str) -> str:
            how = {"json" if provider == "vonage" else "data": {**known, **more}}
            answer = await one.http.post(path, **how)
            assert answer.status == 200, await answer.text()
            return await answer.text()

        async def connected(url: str, parameters: dict[str, str]) -> FarEndCall:
            facts = CallFacts(call_id=placed.id, parameters=parameters)
            stream = FarEndCall(FAR_ENDS[provider](facts))
            where = one.http.make_url("/" + url.split("/", 3)[3])
            await stream.start(str(where).replace("http", "ws", 1))
            return stream

        first = await connected(*stream_url(provider, await asked(f"/carriers/{provider}/voice")))
        await until(edge.turns)
        before = edge.call.transcript()
        await edge.call.transfer(TARGET)
        await first.close()
        await until(lambda: not edge.conversations)
        assert not calls.exists()
        parameters: dict[str, str] = {}
        if provider == "plivo":
            dial = ElementTree.fromstring(await asked("/" + placed.transferred.split("/", 3)[3]))[0]
            assert dial[0].text == TARGET.removeprefix("+")
            path = "/" + dial.attrib["action"].split("/", 3)[3]
            url, parameters = stream_url(provider, await asked(path, DialStatus="no-answer"))
        elif provider == "vonage":
            path = "/" + placed.transferred[0]["eventUrl"][0].split("/", 3)[3]
            known["uuid"] = "another"  # its reports are of the target's call
            for status in ("started", "ringing", "answered", "completed"):
                assert await asked(path, status=status) == ""
            url, parameters = stream_url(provider, await asked(path, status="timeout"))
        else:
            path = "/" + placed.transferred["webhook_url"].split("/", 3)[3]
            state = {"client_state": placed.transferred["target_leg_client_state"]}
            for kind, more in (
                ("call.initiated", state),
                ("call.ringing", state),
                ("call.hangup", {**state, "hangup_cause": "timeout"}),
            ):
                assert not placed.streams
                payload = {"call_control_id": "v3:target", "from": "493099", "to": TARGET, **more}
                event = {"data": {"event_type": kind, "payload": payload}}
                assert await (await one.http.post(path, json=event)).text() == ""
            [url] = placed.streams
        second = await connected(url, parameters)
        await until(lambda: len(edge.turns()) == 2)
        assert edge.call.transcript()[: len(before)] == before
        assert "cannot be reached" in edge.turns()[-1]
        assert edge.call.leg.info.caller == "491701"
        await second.close()
        await until(lambda: not edge.conversations)
    [record] = map(json.loads, calls.read_text().splitlines())
    assert (record["transferred_to"], record["remote_call_id"]) == ("", placed.id)


def telnyx_hang_up(cause: str, **more: str) -> dict[str, Any]:
    payload = {"call_control_id": "v3:leg", "from": "493099", "to": TARGET, "hangup_cause": cause}
    return {"data": {"event_type": "call.hangup", "payload": {**payload, **more}}}


@pytest.mark.parametrize("while_it_rang", [True, False])
async def test_a_caller_who_is_gone_does_not_come_back_from_telnyx(
    while_it_rang: bool, tmp_path: Path
) -> None:
    calls = tmp_path / "calls.jsonl"
    async with at("telnyx", log={"calls": calls}) as one:
        edge, placed = one.edge, one.rest.call("telnyx")
        form = {"CallSid": placed.id, "From": "491701", "To": "493099"}
        answer = await one.http.post("/carriers/telnyx/voice", data=form)
        url, parameters = stream_url("telnyx", await answer.text())
        stream = FarEndCall(FAR_ENDS["telnyx"](CallFacts(call_id=placed.id, parameters=parameters)))
        where = one.http.make_url("/" + url.split("/", 3)[3])
        await stream.start(str(where).replace("http", "ws", 1))
        await until(edge.turns)
        await edge.call.transfer(TARGET)
        await stream.close()
        await until(lambda: not edge.conversations)
        placed.state = "completed"
        if while_it_rang:
            event = telnyx_hang_up("normal_clearing", call_control_id=placed.id)
        else:  # it hung up just as the failure was told
            state = placed.transferred["target_leg_client_state"]
            event = telnyx_hang_up("user_busy", client_state=state)
        path = "/" + placed.transferred["webhook_url"].split("/", 3)[3]
        assert (await one.http.post(path, json=event)).status == 200
        assert not placed.streams
        assert not edge.carriers.calls.in_progress()
    [record] = map(json.loads, calls.read_text().splitlines())
    assert record["transferred_to"] == (TARGET if while_it_rang else "")


# --- one call, one record ---


async def test_a_call_that_came_back_is_one_call(tmp_path: Path) -> None:
    calls, recordings = tmp_path / "calls.jsonl", tmp_path / "recordings"
    more = {"log": {"calls": calls}, "recording": {"enabled": True, "directory": recordings}}
    async with at("twilio", **more) as one:
        caller, action = await transferred(one)
        [call] = one.edge.carriers.calls.in_progress()
        assert call.is_away
        await goes_on(one, caller, await caller.asks(action, DialCallStatus="busy"))
        assert one.edge.carriers.calls.in_progress() == [call]
        assert one.edge.call.leg.call_id == call.call_id
        await caller.leaves()
        await until(lambda: not one.edge.carriers.calls.in_progress())
    [record] = map(json.loads, calls.read_text().splitlines())
    assert (record["call_id"], record["transferred_to"]) == (call.call_id, "")
    assert record["codec"] == "pcmu"
    assert record["duration_seconds"] > 0
    names = {f"{call.call_id}{part}.{kind}" for part in ("", "-2") for kind in ("ogg", "jsonl")}
    assert {path.name for path in recordings.iterdir()} == names


async def test_a_failure_may_be_told_before_the_stream_has_ended(tmp_path: Path) -> None:
    calls = tmp_path / "calls.jsonl"
    async with at("twilio", log={"calls": calls}) as one:
        placed = one.rest.call("twilio")
        caller = CarriersCaller(one.http, placed.id)
        await caller.connects(await caller.asks("http://x/carriers/twilio/voice"))
        await until(one.edge.turns)
        await caller.is_quiet()
        caller.before = one.edge.call.transcript()
        await one.edge.call.transfer(TARGET)
        action = ElementTree.fromstring(placed.transferred)[0].attrib["action"]
        twiml = await caller.asks(action, DialCallStatus="failed")
        await caller.leaves()
        await goes_on(one, caller, twiml)
        await caller.leaves()
    [record] = map(json.loads, calls.read_text().splitlines())
    assert record["transferred_to"] == ""


async def test_a_transfer_that_was_answered_is_recorded_when_it_is_told(tmp_path: Path) -> None:
    calls = tmp_path / "calls.jsonl"
    async with at("twilio", log={"calls": calls}) as one:
        caller, action = await transferred(one)
        assert not calls.exists()
        await caller.asks(action, DialCallStatus="completed")
        assert not one.edge.carriers.calls.in_progress()
    [record] = map(json.loads, calls.read_text().splitlines())
    assert record["transferred_to"] == TARGET


async def test_a_call_that_has_ended_elsewhere_is_over(tmp_path: Path) -> None:
    calls = tmp_path / "calls.jsonl"
    async with at("twilio", log={"calls": calls}) as one:
        caller, action = await transferred(one)
        [call] = one.edge.carriers.calls.in_progress()
        path = "/" + action.split("/", 3)[3].replace("/transfer/", "/status/")
        for status, gone in (("in-progress", False), ("completed", True)):
            form = {"CallSid": caller.call_id, "CallStatus": status}
            assert (await one.http.post(path, data=form)).status == 200
            assert (call.state == "ended") is gone
    [record] = map(json.loads, calls.read_text().splitlines())
    assert record["transferred_to"] == TARGET
    assert record["end_reason"] != "completed"


async def test_a_transfer_of_which_nothing_is_told_is_recorded_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for outcome_s in (0.01, 3600):  # after a time, and when the server stops
        calls = tmp_path / f"{outcome_s}.jsonl"
        monkeypatch.setattr(calls_io, "OUTCOME_S", outcome_s)
        async with at("twilio", log={"calls": calls}) as one:
            await transferred(one)
            if outcome_s < 1:
                await until(lambda one=one: not one.edge.carriers.calls.in_progress())
        [record] = map(json.loads, calls.read_text().splitlines())
        assert record["transferred_to"] == TARGET


async def test_who_comes_back_late_has_another_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls_io, "OUTCOME_S", 0.01)
    calls = tmp_path / "calls.jsonl"
    async with at("twilio", log={"calls": calls}) as one:
        caller, action = await transferred(one)
        await until(lambda: not one.edge.carriers.calls.in_progress())
        await goes_on(one, caller, await caller.asks(action, DialCallStatus="no-answer"))
        await caller.leaves()
    kept = [json.loads(line) for line in calls.read_text().splitlines()]
    assert [record["transferred_to"] for record in kept] == [TARGET, ""]
