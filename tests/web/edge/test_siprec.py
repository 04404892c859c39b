"""Calls that another system sends to be recorded (SIPREC), from its INVITE to the store."""

import asyncio
import os
import wave
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import pytest_asyncio

from benchmarks.answers.voices import trimmed, voices_of
from offhook.media.end_reason import End
from offhook.media.pcm import RATE_IN, Pcm
from offhook.media.sealing.names import timeline_path
from offhook.pipeline.speech.errors import EngineOverloaded
from offhook.pipeline.speech.recognizer import (
    DEFAULT_OPTIONS,
    Recognizer,
    RecognizerStream,
    StreamOptions,
)
from offhook.telephony.sip.messages.sdp import parse
from offhook.web.config.config import Config
from offhook.web.edge.edge_io import Edge
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S, until
from tests.telephony.sip.phones import needs_sipp, port_of, sipp
from tests.telephony.sip.siprec.recording_client import (
    CALLED,
    CALLER,
    SIPREC,
    RecordingClient,
    described,
    metadata,
    multipart,
    recording_client,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

SPEECH = Path(os.environ.get("OFFHOOK_SPEECH", Path(__file__).parents[4] / "shared" / "speech"))
PAUSE_S = 1.5
"""Silence after which a turn is over, whatever its words."""
CAROL = ("carol", "+4930333", "Carol")
RS_METADATA = "application/rs-metadata+xml"


@cache
def said(text: str) -> Pcm:
    """The text as Flite reads it, 16 kHz."""
    return trimmed(voices_of("en")[0][1](text)).astype(np.int16)


def spoken(name: str, text: str) -> Pcm:
    """A recording of somebody if there are any here, else the text as Flite reads it; a pause
    follows."""
    path = SPEECH / f"{name}.wav"
    if path.is_file():
        with wave.open(str(path)) as file:
            sound = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    else:
        sound = said(text)
    return np.concatenate([sound, np.zeros(round(PAUSE_S * RATE_IN), np.int16)])


class Recorder:
    """A server that records calls."""

    def __init__(self, edge: Edge) -> None:
        self.edge = edge

    @property
    def store(self) -> Any:
        assert self.edge.records.kept is not None
        return self.edge.records.kept.store

    async def _until(self, found: Callable[[], Any]) -> Any:
        async with asyncio.timeout(HANGS_S):
            while not (result := await asyncio.to_thread(found)):
                await asyncio.sleep(0.05)
        return result

    async def live(self) -> dict[str, Any]:
        """The call in progress, as the console lists it; others may still be ending there."""
        assert self.edge.sip is not None
        (call,) = self.edge.sip.calls

        def listed() -> list[dict[str, Any]]:
            return [c for c in self.store.live.look({}).calls if c["call_id"] == call]

        return (await self._until(listed))[0]

    async def until(self, call: str, kind: str, count: int = 1) -> list[dict[str, Any]]:
        """The events of a kind, once there are so many."""

        def found() -> list[dict[str, Any]]:
            events = [e for e in self.store.timeline(call) if e["event"] == kind]
            return events if len(events) >= count else []

        return await self._until(found)

    async def ended(self, call: str) -> dict[str, Any]:
        """All that is kept of a call, once it is over and recorded."""

        def found() -> dict[str, Any] | None:
            kept = self.store.show(call)
            if not kept or kept["state"] != "ended" or "record" not in kept:
                return None
            timeline = timeline_path(Path(kept["recording"]))
            return kept if '"kind":"end"' in timeline.read_text() else None

        return await self._until(found)

    @asynccontextmanager
    async def client(self, streams: int = 2) -> AsyncIterator[RecordingClient]:
        assert self.edge.sip is not None
        async with recording_client(self.edge.sip, streams) as client:
            yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def recorder(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Recorder]:
    folder, port = tmp_path_factory.mktemp("recorder"), free_port()
    trunk = {"name": "sbc", "addresses": ["127.0.0.1"], "siprec": True}
    config = Config.model_validate(
        {
            "server": {"port": 0, "drain_seconds": 0, "max_calls": 3},
            "records": {"url": f"sqlite:///{folder}/calls.db", "spool": folder / "spool"},
            "recording": {"enabled": "never", "directory": folder / "recordings"},
            "sip": {"udp": port, "tcp": port, "trunks": [trunk]},
        }
    )
    edge = Edge(config)
    edge.records.open_store(config)
    await edge.start()
    yield Recorder(edge)
    await edge.close()


def tracks(path: str) -> tuple[Pcm, Pcm]:
    """The two sides of a recording."""
    with av.open(path) as file:
        resampler = av.AudioResampler("s16p")
        frames = [f for frame in file.decode(audio=0) for f in resampler.resample(frame)]
    left, right = np.concatenate([frame.to_ndarray() for frame in frames], axis=1)
    return left, right


async def test_both_sides_of_a_call_are_recorded_and_their_words_kept(recorder: Recorder) -> None:
    async with recorder.client() as client:
        answer = await client.begins()
        assert answer.count("a=recvonly") == 2
        labels = [line for line in answer.splitlines() if "label" in line]
        assert labels == ["a=label:1", "a=label:2"]
        assert client.contact.endswith(">;+sip.srs")
        live = await recorder.live()
        parties = live["direction"], live["caller"], live["called"]
        assert parties == ("recorded", "+4930111", "+4930222")
        call = live["call_id"]
        await client.say(0, spoken("goforward", "please call me back in the morning"))
        await recorder.until(call, "caller_turn")
        await client.say(1, spoken("something", "can you tell me the way to the station"))
        await recorder.until(call, "agent_turn")
        await client.peer.hang_up()
        kept = await recorder.ended(call)
    assert kept["ended_by"] == "remote"
    assert kept["record"]["codec"] == "g722"
    assert kept["variables"]["siprec"]["participants"] == [
        {"number": "+4930111", "name": "Ann"},
        {"number": "+4930222", "name": "Bob Müller"},
    ]
    words = {e["event"]: e["text"] for e in recorder.store.timeline(call) if e.get("text")}
    assert {"go", "ten", "please", "morning"} & set(words["caller_turn"].split())
    assert {"somewhere", "something", "tell", "me"} & set(words["agent_turn"].split())
    caller, called = tracks(kept["recording"])
    loud_at = [np.flatnonzero(np.abs(side) > 1000) for side in (caller, called)]
    assert loud_at[0][-1] < loud_at[1][0]


async def test_metadata_of_an_update_change_who_takes_part(recorder: Recorder) -> None:
    async with recorder.client() as client:
        await client.begins()
        call = (await recorder.live())["call_id"]
        await recorder.until(call, "participants_known")
        xml = metadata(CAROL, labels=("2",), mode="partial")
        request = client.ask("UPDATE", (RS_METADATA, xml.encode()))
        response = await client.peer.accepted(request)
        assert not response.body
        assert (response.headers.get("Contact") or "").endswith(">;+sip.srs")
        changes = await recorder.until(call, "participants_known", 2)
        await client.peer.hang_up()
        kept = await recorder.ended(call)
    names = [[one["name"] for one in change["participants"]] for change in changes]
    assert names == [["Ann", "Bob Müller"], ["Ann", "Carol", "Bob Müller"]]
    assert (kept["caller"], kept["called"]) == ("+4930111", "+4930333")


async def test_a_call_is_held_and_streams_come_and_go(recorder: Recorder) -> None:
    async with recorder.client(3) as client:
        await client.begins()
        call = (await recorder.live())["call_id"]
        held = await client.changes(client.offer("inactive", "inactive"))
        assert held.count("a=inactive") == 2
        await recorder.until(call, "call_held")
        three = await client.changes(
            client.offer("sendonly", "sendonly", "sendonly"), CALLER, CALLED, mode="partial"
        )
        assert three.count("a=recvonly") == 3
        await recorder.until(call, "call_resumed")
        client.aim(three)
        await client.say(2, said("please call me back in the morning")[: RATE_IN // 2])
        one = await client.changes(client.offer("sendonly", "ended", "ended"))
        assert [line.split()[1] != "0" for line in one.splitlines() if line[:2] == "m="] == [
            *(True, False, False)
        ]
        again = await client.changes(client.offer("sendonly", "sendonly", "ended"))
        assert again.count("a=recvonly") == 2
        none = await client.changes(client.offer("ended", "ended", "ended"))
        assert none.count("m=audio 0 ") == 3
        await client.peer.hang_up()
        kept = await recorder.ended(call)
    kinds = [e["event"] for e in recorder.store.timeline(call)]
    assert kinds.index("call_held") < kinds.index("call_resumed") < kinds.index("call_ended")
    _, called = tracks(kept["recording"])
    assert np.abs(called).max() > 1000  # the third party's words


async def test_a_re_invite_without_streams_gets_ours(recorder: Recorder) -> None:
    async with recorder.client() as client:
        first = await client.begins()
        request = client.peer.ask("INVITE", SIPREC)
        response = await client.peer.accepted(request)
        ours = response.body.decode()
        ports = [[media.port for media in parse(sdp).media] for sdp in (first, ours)]
        assert ports[0] == ports[1]
        assert ours.count("a=recvonly") == 2
        client.peer.ack(response, client.offer("sendonly", "sendonly"))
        call = (await recorder.live())["call_id"]
        await client.say(1, said("please call me back in the morning")[: RATE_IN // 2])
        await client.peer.hang_up()
        kept = await recorder.ended(call)
    assert np.abs(tracks(kept["recording"])[1]).max() > 1000


async def test_one_stream_with_both_voices_is_recorded(recorder: Recorder) -> None:
    async with recorder.client(1) as client:
        answer = await client.begins(offer=client.offer("sendonly"))
        assert answer.count("m=audio") == 1
        live = await recorder.live()
        assert (live["caller"], live["called"]) == ("+4930111", "+4930222")
        await client.peer.hang_up()
        await recorder.ended(live["call_id"])


async def test_a_session_without_metadata_is_recorded(recorder: Recorder) -> None:
    async with recorder.client() as client:
        client.peer.invite(client.offer("sendonly", "sendonly"), SIPREC)
        client.peer.ack(await client.peer.response(200))
        live = await recorder.live()
        assert (live["direction"], live["caller"]) == ("recorded", "far")
        await client.peer.hang_up()
        kept = await recorder.ended(live["call_id"])
    assert kept["recording"]


async def test_nothing_is_sent_but_reports(recorder: Recorder) -> None:
    async with recorder.client() as client:
        await client.begins()
        call = (await recorder.live())["call_id"]
        await client.say_both(*[said("please call me back")[:RATE_IN]] * 2)
        await client.peer.hang_up()
        kept = await recorder.ended(call)
    assert [len(line.received) for line in client.lines] == [0, 0]
    assert kept["record"]["packets_sent"] == 0
    assert kept["record"]["packets_received"] > 50


async def test_the_operator_ends_a_recording(recorder: Recorder) -> None:
    async with recorder.client() as client:
        await client.begins()
        call = (await recorder.live())["call_id"]
        assert recorder.edge.sip is not None
        await recorder.edge.sip.calls[call].hang_up("enough")
        await client.peer.is_hung_up()
        assert (await recorder.ended(call))["ended_by"] == "local"


async def test_a_protected_stream_is_received(recorder: Recorder) -> None:
    key = "inline:WVNfX19zZW1jdGwgKCkgewkyMjA7fQp9CnVubGVz"
    lines = (f"a=crypto:1 AES_CM_128_HMAC_SHA1_80 {key}",)
    async with recorder.client() as client:
        streams = [(line.port, f"{n}", "sendonly") for n, line in enumerate(client.lines)]
        offer = described(*streams, lines=lines).replace("RTP/AVP", "RTP/SAVP")
        answer = await client.begins(offer=offer)
        assert answer.count("RTP/SAVP") == answer.count("a=crypto:1 ") == 2
        call = (await recorder.live())["call_id"]
        await client.peer.hang_up()
        assert (await recorder.ended(call))["record"]["srtp"] == "SDES AES_CM_128_HMAC_SHA1_80"


LAUGHS = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]><x>&b;</x>'
SDP = "application/sdp"
TWO = described((4000, "1", "sendonly"), (4002, "2", "sendonly"))
SAME = described((4000, "1", "sendonly"), (4002, "1", "sendonly"))
UNKNOWN = described((4000, "1", "sendonly"), (4002, "2", "sendonly"), formats="18")
VIDEO = described((4000, "1", "sendonly"), kind="video")
XML = metadata(CALLER, CALLED)
HOSTILE: dict[str, tuple[int, tuple[tuple[str, str | bytes], ...]]] = {
    "entities": (400, ((SDP, TWO), (RS_METADATA, LAUGHS))),
    "no XML": (400, ((SDP, TWO), (RS_METADATA, "{}"))),
    "another encoding": (400, ((SDP, TWO), (RS_METADATA, XML.encode("latin-1")))),
    "two streams with one label": (400, ((SDP, SAME), (RS_METADATA, XML))),
    "a broken description": (400, ((SDP, "v=1"), (RS_METADATA, XML))),
    "no codec of ours": (488, ((SDP, UNKNOWN), (RS_METADATA, XML))),
    "video alone": (488, ((SDP, VIDEO), (RS_METADATA, XML))),
    "no description": (415, ((RS_METADATA, XML),)),
}


@pytest.mark.parametrize("what", HOSTILE)
async def test_what_cannot_be_recorded_is_refused(recorder: Recorder, what: str) -> None:
    status, parts = HOSTILE[what]
    async with recorder.client() as client:
        client.ask("INVITE", multipart(*parts), SIPREC)
        response = await client.peer.response(status)
        client.peer.ack_refusal(response)
    assert recorder.edge.sip is not None
    assert not recorder.edge.sip.calls


async def test_bad_metadata_within_a_call_change_nothing(recorder: Recorder) -> None:
    async with recorder.client() as client:
        await client.begins()
        call = (await recorder.live())["call_id"]
        client.ask("UPDATE", (RS_METADATA, LAUGHS.encode()))
        assert "document type" in str((await client.peer.response(400)).headers.get("Warning"))
        client.ask("INVITE", multipart((SDP, SAME), (RS_METADATA, XML)), SIPREC)
        client.peer.ack_refusal(await client.peer.response(400, "INVITE"))
        await client.say(0, said("please call me back in the morning")[: RATE_IN // 2])
        await client.peer.hang_up()
        kept = await recorder.ended(call)
    assert (kept["caller"], kept["called"]) == ("+4930111", "+4930222")
    assert np.abs(tracks(kept["recording"])[0]).max() > 1000


async def test_ten_megabytes_of_metadata_close_the_connection(recorder: Recorder) -> None:
    assert recorder.edge.sip is not None
    async with recorder.client() as client:
        large = client.peer.request("INVITE", SIPREC, body=(RS_METADATA, "x" * 10_000_000))
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(recorder.edge.sip, "TCP"))
    writer.write(large.serialize())
    try:
        assert not await asyncio.wait_for(reader.read(), HANGS_S)
    except ConnectionError:
        pass
    finally:
        writer.close()
    assert not recorder.edge.sip.calls


async def test_lines_are_bounded(recorder: Recorder) -> None:
    sip = recorder.edge.sip
    assert sip is not None
    async with recorder.client() as one, recorder.client() as two, recorder.client() as three:
        for client in (one, two, three):
            await client.begins()
        async with recorder.client() as fourth:
            fourth.ask("INVITE", multipart((SDP, TWO), (RS_METADATA, XML)), SIPREC)
            fourth.peer.ack_refusal(await fourth.peer.response(503))
        for client in (one, two, three):
            await client.peer.hang_up()
        await until(lambda: not sip.calls)


async def test_a_trunk_without_siprec_may_not_be_recorded(recorder: Recorder) -> None:
    sip = recorder.edge.sip
    assert sip is not None
    settings = sip.stack.settings
    plain = replace(settings, trunks=(replace(settings.trunks[0], siprec=False),))
    sip.reload(plain)
    try:
        async with recorder.client() as client:
            client.ask("INVITE", multipart((SDP, TWO), (RS_METADATA, XML)), SIPREC)
            response = await client.peer.response(420)
            assert response.headers.get("Unsupported") == "siprec"
            client.peer.ack_refusal(response)
    finally:
        sip.reload(settings)


class Deaf(Recognizer):
    """One that has no stream for anybody."""

    name = "deaf"

    async def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> RecognizerStream:
        raise EngineOverloaded("all streams are in use")


async def test_a_call_is_recorded_while_no_words_are_recognized(recorder: Recorder) -> None:
    engines = recorder.edge.engines
    before = engines.configured
    engines.configured = replace(before, recognizer=Deaf())
    try:
        async with recorder.client() as client:
            await client.begins()
            call = (await recorder.live())["call_id"]
            missing = await recorder.until(call, "words_missing", 2)
            await client.say(0, said("please call me back in the morning")[: RATE_IN // 2])
            await client.peer.hang_up()
            kept = await recorder.ended(call)
    finally:
        engines.configured = before
    assert [one["side"] for one in missing] == ["caller", "called"]
    assert {one["cause"] for one in missing} == {"all streams are in use"}
    assert kept["failures"] == 2
    assert np.abs(tracks(kept["recording"])[0]).max() > 1000


async def test_a_session_that_goes_silent_ends(recorder: Recorder) -> None:
    sip = recorder.edge.sip
    assert sip is not None
    settings = sip.stack.settings
    sip.reload(replace(settings, initial_media_timeout_seconds=0.5))
    try:
        async with recorder.client() as client:
            await client.begins()
            (call,) = sip.calls
            await client.peer.is_hung_up()
            assert (await recorder.ended(call))["end_reason"] == End.NO_SOUND
    finally:
        sip.reload(settings)


SESSION = """<?xml version="1.0" encoding="UTF-8" ?>
<scenario name="a recording client">
  <send retrans="500"><![CDATA[
INVITE sip:recorder@[remote_ip]:[remote_port] SIP/2.0
Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]
From: <sip:src@[local_ip]>;tag=[call_number]
To: <sip:recorder@[remote_ip]>
Call-ID: [call_id]
CSeq: 1 INVITE
Contact: <sip:src@[local_ip]:[local_port]>;+sip.src
Max-Forwards: 70
Require: siprec
Content-Type: multipart/mixed;boundary=b
Content-Length: [len]

--b
Content-Type: application/sdp

v=0
o=- 1 1 IN IP4 [local_ip]
s=-
c=IN IP4 [media_ip]
t=0 0
m=audio [media_port] RTP/AVP 0
a=label:1
a=sendonly
m=audio [media_port+2] RTP/AVP 0
a=label:2
a=sendonly

--b
Content-Type: application/rs-metadata+xml
Content-Disposition: recording-session

{metadata}
--b--
]]></send>
  <recv response="100" optional="true"/>
  <recv response="200" rrs="true"/>
  <send><![CDATA[
ACK [next_url] SIP/2.0
Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]
From: <sip:src@[local_ip]>;tag=[call_number]
To: <sip:recorder@[remote_ip]>[peer_tag_param]
Call-ID: [call_id]
CSeq: 1 ACK
Max-Forwards: 70
Content-Length: 0

]]></send>
  <pause milliseconds="300"/>
  <send retrans="500"><![CDATA[
BYE [next_url] SIP/2.0
Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]
From: <sip:src@[local_ip]>;tag=[call_number]
To: <sip:recorder@[remote_ip]>[peer_tag_param]
Call-ID: [call_id]
CSeq: 2 BYE
Max-Forwards: 70
Content-Length: 0

]]></send>
  <recv response="200"/>
</scenario>
"""


@needs_sipp
async def test_sessions_of_sipp_are_recorded(recorder: Recorder, tmp_path: Path) -> None:
    assert recorder.edge.sip is not None
    scenario = tmp_path / "src.xml"
    scenario.write_text(SESSION.replace("{metadata}", XML.replace("ü", "u")))
    where = f"127.0.0.1:{port_of(recorder.edge.sip, 'UDP')}"
    code, output = await sipp(
        tmp_path,
        *("-sf", str(scenario), where, "-p", str(free_port()), "-m", "2", "-l", "1"),
    )
    assert code == 0, output
