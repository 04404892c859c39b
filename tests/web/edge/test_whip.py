"""WHIP and WHEP: the HTTP matrix, and calls with stock clients."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from fractions import Fraction
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import soxr
from aiohttp import ClientResponse, web
from aiohttp.test_utils import TestClient, TestServer
from aiortc import MediaStreamTrack, RTCPeerConnection, RTCSessionDescription
from av import AudioFrame
from loguru import logger

from offhook.media.pcm import RATE_OUT, Pcm
from offhook.signaling.ice.port_io import IcePort
from offhook.signaling.whip.fragment import parse_fragment
from offhook.signaling.whip.leg_io import MAX_PLAYERS, PublisherLeg
from offhook.web.app.cli.caller_io import spoken
from offhook.web.config.config import Config
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from offhook.web.workers.engines.engines_io import open_synthesizer
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S, until
from tests.web.conftest import CONFIG

pytestmark = pytest.mark.asyncio(loop_scope="module")

Http = TestClient[web.Request, web.Application]
SDP = {"Content-Type": "application/sdp"}
FRAGMENT = {"Content-Type": "application/trickle-ice-sdpfrag"}
RATE = 48_000
FRAME = RATE // 50
CLOSE_S = 30
ORIGIN = "https://studio.example"


@pytest_asyncio.fixture(loop_scope="module", name="http")
async def _http(edge: Edge) -> AsyncIterator[Http]:
    edge.config = CONFIG
    edge.draining = False
    async with TestClient(TestServer(application(edge))) as http:
        yield http
    for leg in edge.legs:
        leg.close("test over")
    async with asyncio.timeout(HANGS_S):
        while edge.legs or list(edge.whip.sessions):
            await asyncio.sleep(0.01)


class Voice(MediaStreamTrack):
    """A microphone: silence, and what it is given to say."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self._samples = 0
        self._started = monotonic()
        self.left: Pcm = np.zeros(0, np.int16)

    async def recv(self) -> AudioFrame:
        await asyncio.sleep(self._started + self._samples / RATE - monotonic())
        now, self.left = self.left[:FRAME], self.left[FRAME:]
        pcm = np.zeros(FRAME, np.int16)
        pcm[: len(now)] = now
        frame = AudioFrame.from_ndarray(pcm[None, :], format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = RATE, self._samples, Fraction(1, RATE)
        self._samples += FRAME
        return frame


class Client:
    """A stock WebRTC peer (aiortc's) behind a WHIP or WHEP client."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.pc = RTCPeerConnection()
        self.voice = Voice()
        self.heard: list[Pcm] = []
        self.location = self.etag = ""
        self._reader: asyncio.Task[None] | None = None
        if kind == "whip":
            self.pc.addTransceiver(self.voice, direction="sendonly")
        else:
            self.pc.addTransceiver("audio", direction="recvonly")
            self.pc.on("track", self._play)

    def _play(self, track: MediaStreamTrack) -> None:
        async def read() -> None:
            while True:
                frame: Any = await track.recv()
                self.heard.append(frame.to_ndarray().reshape(-1))

        self._reader = asyncio.create_task(read())

    async def offer(self) -> str:
        await self.pc.setLocalDescription(await self.pc.createOffer())
        return self.pc.localDescription.sdp

    async def connect(self, http: Http, room: str) -> str:
        """POST, apply the answer and wait for media to flow. Returns the answer."""
        response = await http.post(f"/{self.kind}/{room}", data=await self.offer(), headers=SDP)
        answer = await response.text()
        assert response.status == 201, answer
        assert response.headers["Content-Type"] == "application/sdp"
        self.location, self.etag = response.headers["Location"], response.headers["ETag"]
        await self.pc.setRemoteDescription(RTCSessionDescription(answer, "answer"))
        await until(lambda: self.pc.connectionState == "connected")
        return answer

    def loudest(self) -> int:
        return max((int(np.abs(pcm).max()) for pcm in self.heard), default=0)

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        # aiortc may wait for ever for sockets that were cut.
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self.pc.close()


@asynccontextmanager
async def client(kind: str) -> AsyncIterator[Client]:
    one = Client(kind)
    try:
        yield one
    finally:
        await one.close()


async def offered(kind: str = "whip") -> str:
    """The offer of a client that never connects."""
    async with client(kind) as one:
        return await one.offer()


async def opened(http: Http, kind: str = "whip", room: str = "r") -> ClientResponse:
    response = await http.post(f"/{kind}/{room}", data=await offered(kind), headers=SDP)
    assert response.status == 201, await response.text()
    return response


def publisher(edge: Edge) -> PublisherLeg:
    [leg] = edge.legs
    assert isinstance(leg, PublisherLeg)
    return leg


# --- calls ---


async def test_a_publisher_speaks_and_a_player_hears_the_agent(http: Http, edge: Edge) -> None:
    """The greeting waits for the player; then a question by one, the answer at the other."""
    events: list[dict[str, Any]] = []
    edge.config = CONFIG.model_copy(update={"log": CONFIG.log.model_copy(update={"words": True})})
    sink = logger.add(lambda m: events.append(m.record["extra"]), level="DEBUG")
    synthesizer = open_synthesizer()
    await synthesizer.start()
    question = await spoken(synthesizer, "What are your opening hours?")
    await synthesizer.close()

    def happened(kind: str) -> list[dict[str, Any]]:
        return [event for event in events if event.get("event") == kind]

    try:
        async with client("whip") as speaker, client("whep") as player:
            answer = await speaker.connect(http, "studio")
            assert "a=recvonly" in answer
            assert "a=sendonly" in await player.connect(http, "studio")
            assert len(edge.legs) == 1
            await until(lambda: happened("agent_turn"))
            assert player.loudest() > 1000
            # Asked again where a busy machine sends it with holes.
            while not any("hours" in turn["text"] for turn in happened("caller_turn")):
                before = len(happened("caller_turn"))
                speaker.voice.left = soxr.resample(question, RATE_OUT, RATE)
                await until(lambda: not len(speaker.voice.left))
                await until(lambda turns=before: len(happened("caller_turn")) > turns)
            player.heard.clear()
            await until(lambda: player.loudest() > 1000)
            leg = publisher(edge)
            assert leg.statistics().packets_sent == 0
            assert leg.players[0].statistics().packets_sent > 50

            assert (await http.delete(speaker.location)).status == 200
            await until(lambda: not edge.legs)
            await until(lambda: player.pc.connectionState == "closed")
            assert (await http.delete(player.location)).status == 200
    finally:
        logger.remove(sink)


async def test_the_first_words_wait_for_a_player_but_not_for_ever(
    http: Http, edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offhook.signaling.whip.leg_io.FIRST_PLAYER_MS", 400)
    async with client("whip") as speaker:
        await speaker.connect(http, "r")
        leg = publisher(edge)
        await until(lambda: leg.playout.queued or leg.playout.speaking)
        said: list[int] = []
        leg.listen(lambda heard, pcm, now: said.append(leg.ticks) if pcm is not None else None)
        await until(lambda: said)
        assert said[0] >= 400 // 20


async def test_players_come_and_go_and_there_is_a_limit(http: Http, edge: Edge) -> None:
    async with client("whip") as speaker, client("whep") as player:
        await speaker.connect(http, "r")
        await player.connect(http, "r")
        for _ in range(MAX_PLAYERS - 1):
            await opened(http, "whep")
        response = await http.post("/whep/r", data=await offered("whep"), headers=SDP)
        assert response.status == 503
        assert int(response.headers["Retry-After"]) > 0
        assert (await http.delete(player.location)).status == 200
        await until(lambda: len(publisher(edge).players) == MAX_PLAYERS - 1)
        await opened(http, "whep")
        assert len(edge.legs) == 1


async def test_a_player_is_there_as_long_as_it_answers_ice(
    http: Http, edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It needs to send nothing; killed without a word, it is gone when its consent expires."""
    monkeypatch.setattr("aioice.ice.CONSENT_INTERVAL", 0.2)
    monkeypatch.setattr("aioice.ice.CONSENT_FAILURES", 6)
    edge.config = CONFIG.model_copy(
        update={"webrtc": CONFIG.webrtc.model_copy(update={"ping_timeout_seconds": 0.5})}
    )
    async with client("whip") as speaker, client("whep") as player:
        await speaker.connect(http, "r")
        await player.connect(http, "r")
        [leg] = publisher(edge).players
        leg.receive_rtcp = lambda data, now: None  # type: ignore[method-assign]
        await asyncio.sleep(1.5)
        assert leg.closed is None
        [transport] = player.pc._RTCPeerConnection__iceTransports  # type: ignore[attr-defined]
        for protocol in transport._connection._protocols:
            protocol.transport.abort()  # as kill -9 does
        await until(lambda: leg.closed is not None)
        await until(lambda: publisher(edge).players == [])
        assert publisher(edge).closed is None


async def test_a_publisher_need_not_answer_ice(
    http: Http, edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FFmpeg does not, once it is connected."""
    monkeypatch.setattr("aioice.ice.CONSENT_INTERVAL", 0.1)
    monkeypatch.setattr("aioice.ice.CONSENT_FAILURES", 6)
    async with client("whip") as speaker:
        await speaker.connect(http, "r")
        [transport] = speaker.pc._RTCPeerConnection__iceTransports  # type: ignore[attr-defined]
        connection = transport._connection
        connection._query_consent_task.cancel()
        connection.request_received = lambda message, addr, protocol: None
        leg = publisher(edge)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(leg.until_closed(), 6)


async def test_a_publisher_that_is_killed_frees_the_call(
    http: Http, edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge.config = CONFIG.model_copy(
        update={"webrtc": CONFIG.webrtc.model_copy(update={"ping_timeout_seconds": 0.5})}
    )
    async with client("whip") as speaker:
        await speaker.connect(http, "r")
        [transport] = speaker.pc._RTCPeerConnection__iceTransports  # type: ignore[attr-defined]
        for protocol in transport._connection._protocols:
            protocol.transport.abort()
        await until(lambda: not edge.legs)
        assert (await http.post("/whep/r", data=await offered("whep"), headers=SDP)).status == 409


async def test_video_is_answered_inactive_and_the_call_is_held(http: Http, edge: Edge) -> None:
    async with client("whip") as speaker:
        speaker.pc.addTransceiver("video", direction="sendonly")
        answer = await speaker.connect(http, "r")
        audio, video = answer.split("m=")[1:]
        assert "a=recvonly" in audio
        assert not video.startswith("video 0 ")  # not refused (RFC 9725 §4.4)
        assert "a=inactive" in video
        await until(lambda: publisher(edge).statistics().packets_received > 10)


@pytest.mark.parametrize("codec", ["AV1", "H265", "VP9"])
async def test_the_codec_of_the_video_does_not_matter(http: Http, edge: Edge, codec: str) -> None:
    """mediamtx's page offers AV1 alone unless told otherwise; OBS offers what it encodes with."""
    async with client("whip") as speaker:
        speaker.pc.addTransceiver("video", direction="sendonly")
        offer = await speaker.offer()
    for known in ("VP8", "H264"):
        offer = offer.replace(f" {known}/90000", f" {codec}/90000")
    response = await http.post("/whip/r", data=offer, headers=SDP)
    assert response.status == 201
    _, video = (await response.text()).split("m=")[1:]
    payload_type = video.split()[3]
    assert f"a=rtpmap:{payload_type} {codec}/90000" in video
    assert f"a=rtpmap:{payload_type} {codec}/90000" in offer
    assert "a=inactive" in video


async def test_retransmission_of_audio_is_not_answered(
    http: Http, edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GStreamer's whepclientsrc offers it."""
    async with client("whip") as speaker:
        offer = await speaker.offer()
        [opus] = re.findall(r"a=rtpmap:(\d+) opus/48000/2\r\n", offer)
        line = f"a=rtpmap:{opus} opus/48000/2\r\n"
        rtx = f"a=rtpmap:120 rtx/48000/2\r\na=fmtp:120 apt={opus}\r\n"
        offer = offer.replace(f"SAVPF {opus}", f"SAVPF {opus} 120").replace(line, line + rtx)

        async def changed() -> str:
            return offer

        monkeypatch.setattr(speaker, "offer", changed)
        assert "rtx" not in await speaker.connect(http, "r")
        await until(lambda: publisher(edge).statistics().packets_received > 10)


async def test_a_player_may_open_data_channels(http: Http, edge: Edge) -> None:
    """mediamtx's does. What it sends there means nothing."""
    async with client("whip") as speaker, client("whep") as player:
        await speaker.connect(http, "r")
        channel = player.pc.createDataChannel("")
        answer = await player.connect(http, "r")
        assert "m=application " in answer
        await until(lambda: channel.readyState == "open")
        channel.send("ping")
        channel.send("{}")
        answered: list[Any] = []
        channel.on("message", answered.append)
        player.heard.clear()
        await until(lambda: len(player.heard) > 20)
        assert answered == []
        assert publisher(edge).closed is None


async def test_a_sessions_url_is_its_key(http: Http, edge: Edge) -> None:
    """mediamtx's pages send theirs with POST alone, and a token may expire during the call."""
    edge.config = Config.model_validate({"server": {"api_key": "sesame", "origins": [ORIGIN]}})
    key = {"Authorization": "Bearer sesame"}
    response = await http.post("/whip/r", data=await offered(), headers={**SDP, **key})
    location = response.headers["Location"]
    headers = {**FRAGMENT, "If-Match": "*"}
    body = fragment("x", UDP).split("\r\n", 2)[2]
    assert (await http.patch(location, data=body, headers=headers)).status == 204
    foreign = {**headers, "Origin": "https://evil.example"}
    assert (await http.patch(location, data=body, headers=foreign)).status == 403
    assert (await http.patch("/whip/r/guessed", data=body, headers=headers)).status == 404
    expired = {"Authorization": "Bearer offhook_expired"}
    assert (await http.delete(location, headers=expired)).status == 200


@pytest_asyncio.fixture(loop_scope="module")
async def one_port(edge: Edge) -> AsyncIterator[IcePort]:
    """All calls of the edge on one port, for the length of a test."""
    edge.browsers.port = IcePort(free_port())
    await edge.browsers.port.open()
    yield edge.browsers.port
    assert len(edge.browsers.port.demultiplexer) == 0
    await edge.browsers.port.close()
    edge.browsers.port = None


@pytest.mark.slow
async def test_ffmpeg_publishes_on_one_port(
    one_port: IcePort, http: Http, edge: Edge, tmp_path: Path
) -> None:
    """Its checks have no PRIORITY, and it takes the first candidate alone."""
    await test_ffmpeg_publishes(http, edge, False, tmp_path)


@pytest.mark.parametrize("video", [pytest.param(False, marks=pytest.mark.slow), True])
async def test_ffmpeg_publishes(http: Http, edge: Edge, video: bool, tmp_path: Path) -> None:
    """It is DTLS server, sends no candidates, and sends video whatever the answer says."""
    edge.config = Config.model_validate({"server": {"api_key": "sesame"}, "log": {"words": True}})
    turns: list[str] = []
    sink = logger.add(
        lambda m: turns.append(m.record["extra"]["text"]),
        filter=lambda record: record["extra"].get("event") == "caller_turn",
    )
    synthesizer = open_synthesizer()
    await synthesizer.start()
    question = await spoken(synthesizer, "What are your opening hours?")
    await synthesizer.close()
    quiet = np.zeros(RATE_OUT, np.int16)
    speech = np.concatenate((quiet, question))
    file = tmp_path / "speech.raw"
    file.write_bytes(soxr.resample(speech, RATE_OUT, RATE).tobytes())
    publishing = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.web.edge.ffmpeg_publisher"),
        *(str(http.make_url("/whip/ffmpeg")), str(file), *(["video"] if video else [])),
        stdin=asyncio.subprocess.PIPE,
    )
    assert publishing.stdin is not None
    try:
        await until(lambda: turns or publishing.returncode is not None)
        leg = publisher(edge)
        reception = leg._rtcp.reception
        assert reception is not None
        assert reception.received > 50
        publishing.stdin.close()
        assert await asyncio.wait_for(publishing.wait(), HANGS_S) == 0
    finally:
        logger.remove(sink)
        if publishing.returncode is None:
            publishing.kill()
            await publishing.wait()
    assert "hours" in turns[0]
    await until(lambda: not edge.legs)
    assert leg.closed == "the caller hung up"


OBS = """\
v=0
o=rtc 3405692318 0 IN IP4 127.0.0.1
s=-
t=0 0
a=group:BUNDLE 0 1
a=group:LS 0 1
a=msid-semantic:WMS *
a=ice-options:ice2,trickle
a=fingerprint:sha-256 {fingerprint}
m=audio 9 UDP/TLS/RTP/SAVPF 111
c=IN IP4 0.0.0.0
a=mid:0
a=sendonly
a=ssrc:1646 cname:k
a=ssrc:1646 msid:s s-audio
a=msid:s s-audio
a=rtcp-mux
a=rtpmap:111 opus/48000/2
a=fmtp:111 minptime=10;maxaveragebitrate=96000;stereo=1;sprop-stereo=1;useinbandfec=1
a=setup:actpass
a=ice-ufrag:obsu
a=ice-pwd:0123456789abcdefghijkl
m=video 9 UDP/TLS/RTP/SAVPF 96
c=IN IP4 0.0.0.0
a=mid:1
a=sendonly
a=ssrc:1647 cname:k
a=ssrc:1647 msid:s s-video
a=msid:s s-video
a=rtcp-mux
a=rtpmap:96 H264/90000
a=rtcp-fb:96 nack
a=rtcp-fb:96 nack pli
a=rtcp-fb:96 goog-remb
a=fmtp:96 profile-level-id=42e01f;packetization-mode=1;level-asymmetry-allowed=1
a=setup:actpass
a=ice-ufrag:obsu
a=ice-pwd:0123456789abcdefghijkl
"""
"""An offer as libdatachannel writes it for OBS: without candidates, with a picture."""


async def test_what_obs_needs(http: Http, edge: Edge) -> None:
    """Exactly 201 with a body, a path as Location, and 200 to DELETE."""
    offer = OBS.format(fingerprint=":".join(["AB"] * 32)).replace("\n", "\r\n")
    response = await http.post("/whip/obs", data=offer, headers=SDP)
    answer = await response.text()
    assert response.status == 201
    assert response.headers["Location"].startswith("/")
    assert "a=group:BUNDLE 0 1" in answer
    assert answer.count("m=") == 2
    assert "m=video 0 " not in answer
    assert (await http.delete(response.headers["Location"])).status == 200


# --- the HTTP matrix ---


async def test_a_session_is_created_with_its_url_and_tag(http: Http, edge: Edge) -> None:
    response = await opened(http)
    assert response.headers["Content-Type"] == "application/sdp"
    assert response.headers["Location"].startswith("/whip/r/")
    assert response.headers["ETag"].startswith('"')
    assert response.headers["Accept-Patch"] == "application/trickle-ice-sdpfrag"
    answer = await response.text()
    assert "a=candidate:" in answer
    assert "a=end-of-candidates" in answer
    for method in ("GET", "HEAD"):
        for path in ("/whip/r", response.headers["Location"]):
            looked = await http.request(method, path)
            assert (looked.status, await looked.read()) == (204, b"")


async def test_ice_servers_are_links(http: Http, edge: Edge) -> None:
    turn = {"urls": ["turn:t.example?transport=udp"], "username": "u", "credential": "c"}
    servers = [{"urls": "stun:127.0.0.1:9"}, turn]
    edge.config = Config.model_validate({"webrtc": {"ice_servers": servers}})
    links = [
        '<stun:127.0.0.1:9>; rel="ice-server"',
        '<turn:t.example?transport=udp>; rel="ice-server"; username="u"; credential="c"; '
        'credential-type="password"',
    ]
    asked = await http.options("/whip/r")
    assert asked.status == 204
    assert asked.headers.getall("Link") == links
    assert asked.headers["Accept-Post"] == "application/sdp"


@pytest.mark.parametrize("kind", ["whip", "whep"])
@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        ("v=0", {"Content-Type": "application/json"}, 415),
        ("v=0", {"Content-Type": "text/plain"}, 415),
        ("", SDP, 400),
        ("v=0", SDP, 400),
        ("\x00" * 1000, SDP, 400),
        (b"\xff\xfe", SDP, 400),
        ("v=0\r\n" + "a=x\r\n" * 2000, SDP, 400),
        ("x" * 300_000, SDP, 413),
    ],
)
async def test_what_is_no_offer_is_refused(
    http: Http, edge: Edge, kind: str, body: str | bytes, headers: dict[str, str], status: int
) -> None:
    response = await http.post(f"/{kind}/r", data=body, headers=headers)
    assert response.status == status
    assert (await response.json())["error"]
    assert not list(edge.whip.sessions)
    assert not edge.legs


async def test_an_offer_in_the_wrong_direction_is_422(http: Http, edge: Edge) -> None:
    response = await http.post("/whip/r", data=await offered("whep"), headers=SDP)
    assert response.status == 422
    await opened(http)
    response = await http.post("/whep/r", data=await offered("whip"), headers=SDP)
    assert response.status == 422


async def test_a_broken_description_leaves_nothing(http: Http, edge: Edge) -> None:
    """Well-formed to us, but not to those who have to negotiate it."""
    offer = (await offered()).replace("a=setup:actpass", "a=setup:nonsense")
    offer = offer.replace("a=rtcp-mux", "a=x")
    assert (await http.post("/whip/r", data=offer, headers=SDP)).status == 400
    await until(lambda: not list(edge.whip.sessions))
    await opened(http)


async def test_a_room_has_one_publisher_and_no_player_without(http: Http, edge: Edge) -> None:
    response = await http.post("/whep/r", data=await offered("whep"), headers=SDP)
    assert response.status == 409
    assert int(response.headers["Retry-After"]) > 0
    await opened(http)
    response = await http.post("/whip/r", data=await offered(), headers=SDP)
    assert response.status == 409
    await opened(http, room="other")
    for room in ("a/b", "", "a" * 65, "a%20b"):
        assert (await http.post(f"/whip/{room}", data="v=0", headers=SDP)).status in (404, 405, 415)


def fragment(ufrag: str, candidate: str = "") -> str:
    text = f"a=ice-ufrag:{ufrag}\r\na=ice-pwd:{'p' * 24}\r\nm=audio 9 UDP/TLS/RTP/SAVPF 0\r\n"
    return f"{text}a=mid:0\r\n" + (f"a={candidate}\r\n" if candidate else "")


UDP = "candidate:1 1 udp 2130706431 192.0.2.7 3478 typ host"


@pytest.mark.parametrize("kind", ["whip", "whep"])
@pytest.mark.parametrize(
    ("ufrag", "if_match", "status"),
    [
        ("same", "right", 204),
        ("same", "*", 204),
        ("same", None, 204),
        ("same", '"stale"', 412),
        ("anew", "*", 200),
        ("anew", "right", 200),
        ("anew", None, 428),
        ("anew", '"stale"', 412),
    ],
)
async def test_candidates_trickle_in(
    http: Http, edge: Edge, kind: str, ufrag: str, if_match: str | None, status: int
) -> None:
    await opened(http)
    offer = await offered(kind)
    offer = "".join(line for line in offer.splitlines(keepends=True) if "candidate" not in line)
    remote = offer.split("a=ice-ufrag:")[1].split()[0]
    if kind == "whip":
        [session] = edge.whip.sessions
        await http.delete(session.path)
    response = await http.post(f"/{kind}/r", data=offer, headers=SDP)
    assert response.status == 201
    location, etag = response.headers["Location"], response.headers["ETag"]
    headers = {**FRAGMENT}
    if if_match is not None:
        headers["If-Match"] = etag if if_match == "right" else if_match
    body = fragment(remote if ufrag == "same" else ufrag, UDP)
    patched = await http.patch(location, data=body, headers=headers)
    assert patched.status == status
    if status == 204:
        assert (await patched.read(), "ETag" in patched.headers) == (b"", False)
    found = edge.whip.sessions.find(location)
    assert found is not None
    assert found.leg.closed is None
    [transceiver] = found.leg._pc.getTransceivers()
    remote_candidates = transceiver.receiver.transport.transport._connection.remote_candidates
    accepted = ["192.0.2.7"] if status in (200, 204) else []
    assert [c.host for c in remote_candidates] == accepted
    if status == 200:
        assert patched.headers["Content-Type"] == "application/trickle-ice-sdpfrag"
        assert patched.headers["ETag"] not in (etag, "")
        ours = parse_fragment(await patched.text())
        answered = await response.text()
        assert ours.ufrag not in answered
        assert ours.candidates
        late = {**FRAGMENT, "If-Match": etag}
        assert (await http.patch(location, data=fragment(remote), headers=late)).status == 412


async def test_a_restart_that_fails_keeps_the_session(http: Http, edge: Edge) -> None:
    response = await opened(http)
    location = response.headers["Location"]
    headers = {**FRAGMENT, "If-Match": "*"}
    for body, status in (
        (fragment("anew", "candidate:broken 1 udp x"), 422),
        ("a=ice-ufrag:anew\r\n", 400),
    ):
        assert (await http.patch(location, data=body, headers=headers)).status == status
    trickled = fragment("x", UDP).split("\r\n", 2)[2]
    headers["If-Match"] = response.headers["ETag"]
    assert (await http.patch(location, data=trickled, headers=headers)).status == 204


async def test_what_is_no_fragment_is_refused_and_the_session_stays(http: Http, edge: Edge) -> None:
    response = await opened(http)
    location = response.headers["Location"]
    for body, headers, status in (
        ("{}", {"Content-Type": "application/json"}, 415),
        (await offered(), SDP, 415),
        ("nonsense", FRAGMENT, 400),
        (fragment("same", "candidate:broken 1 udp"), FRAGMENT, 428),
    ):
        assert (await http.patch(location, data=body, headers=headers)).status == status
    broken = fragment("x", "candidate:broken 1 udp").split("\r\n", 2)[2]
    assert (await http.patch(location, data=broken, headers=FRAGMENT)).status == 400
    tcp = UDP.replace("udp", "tcp") + " tcptype active"
    body = fragment("x", tcp).split("\r\n", 2)[2]
    assert (await http.patch(location, data=body, headers=FRAGMENT)).status == 204
    assert (await http.get(location)).status == 204


async def test_an_ended_session_answers_delete_alone(http: Http, edge: Edge) -> None:
    response = await opened(http)
    location, etag = response.headers["Location"], response.headers["ETag"]
    gone = await http.delete(location, headers={"If-Match": '"whatever"'})
    assert gone.status == 200
    assert (await http.delete(location)).status == 200
    headers = {**FRAGMENT, "If-Match": etag}
    assert (await http.patch(location, data=fragment("x"), headers=headers)).status == 404
    assert (await http.get(location)).status == 404
    assert (await http.delete("/whip/r/guessed")).status == 404
    assert (await http.delete(location.replace("/r/", "/s/"))).status == 404
    assert (await http.delete(location.replace("whip", "whep"))).status == 404


async def test_a_key_opens_every_method_and_a_preflight_needs_none(http: Http, edge: Edge) -> None:
    server = {"api_key": "sesame", "origins": [ORIGIN]}
    servers = [{"urls": "turn:t.example", "username": "u", "credential": "secret"}]
    edge.config = Config.model_validate({"server": server, "webrtc": {"ice_servers": servers}})
    key = {"Authorization": "Bearer sesame"}
    for method in ("POST", "GET", "OPTIONS"):
        refused = await http.request(method, "/whip/r", data="v=0", headers=SDP)
        assert (refused.status, refused.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert "Link" not in refused.headers
    asked = await http.options("/whip/r/x")
    assert "Link" not in asked.headers
    allowed = await http.options("/whip/r", headers=key)
    assert allowed.status == 204
    assert "secret" in allowed.headers["Link"]

    asking = {
        "Origin": ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    for path in ("/whip/r", "/whip/r/x", "/whep/r", "/whep/r/x"):
        preflight = await http.options(path, headers=asking)
        assert preflight.status == 204
        assert preflight.headers["Access-Control-Allow-Origin"] == ORIGIN
        assert "authorization" in preflight.headers["Access-Control-Allow-Headers"]
        # OPTIONS too: pages ask with it for the ICE servers.
        assert {"PATCH", "DELETE", "POST", "OPTIONS"} <= set(
            preflight.headers["Access-Control-Allow-Methods"].split(", ")
        )
        assert "Link" not in preflight.headers
    foreign = {**asking, "Origin": "https://evil.example"}
    assert (await http.options("/whip/r", headers=foreign)).status == 403


async def test_pages_of_other_sites_may_read_what_they_need(http: Http, edge: Edge) -> None:
    edge.config = Config.model_validate({"server": {"origins": [ORIGIN]}})
    headers = {**SDP, "Origin": ORIGIN}
    response = await http.post("/whip/r", data=await offered(), headers=headers)
    assert response.status == 201
    exposed = response.headers["Access-Control-Expose-Headers"]
    assert {"Location", "ETag", "Link", "Accept-Patch"} <= set(exposed.split(", "))


async def test_a_server_that_drains_takes_no_publisher_but_the_players_of_its_calls(
    http: Http, edge: Edge
) -> None:
    await opened(http)
    edge.draining = True
    response = await http.post("/whip/other", data=await offered(), headers=SDP)
    assert response.status == 503
    assert int(response.headers["Retry-After"]) > 0
    await opened(http, "whep")
    edge.draining = False
