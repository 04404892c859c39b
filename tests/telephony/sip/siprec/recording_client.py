"""A recording client by hand (RFC 7866): a PBX that sends a call of two people to be recorded."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager

from offhook.media.codecs.resample import Resampler
from offhook.media.pcm import RATE_IN, Pcm
from offhook.media.rtp.rtp import RtpPacket
from offhook.telephony.sip.endpoint_io import SipEndpoint
from offhook.telephony.sip.messages.message import Request, sdp_of
from offhook.telephony.sip.messages.sdp import parse
from tests.telephony.sip.scripted_peer import HOST, Peer, udp_peer
from tests.telephony.sip.scripted_sound import Sound, sound

XMLNS = "urn:ietf:params:xml:ns:recording:1"
BOUNDARY = "recording"
SIPREC = ("Require", "siprec")
CALLER, CALLED = ("ann", "+4930111", "Ann"), ("bob", "+4930222", "Bob Müller")


def metadata(
    *people: tuple[str, str, str], labels: Sequence[str] = ("1", "2"), mode: str = "complete"
) -> str:
    """Of these people: id, number and name, each of whom sends the stream with that label."""
    parts = [f'<recording xmlns="{XMLNS}"><datamode>{mode}</datamode>']
    parts.append('<session session_id="s1"><sipSessionID>ab30</sipSessionID></session>')
    for (who, number, name), label in zip(people, labels, strict=False):
        parts.append(
            f'<participant participant_id="{who}"><nameID aor="sip:{number}@pbx.example">'
            f"<name>{name}</name></nameID></participant>"
            f'<stream stream_id="of-{who}" session_id="s1"><label>{label}</label></stream>'
            f'<participantstreamassoc participant_id="{who}"><send>of-{who}</send>'
            "</participantstreamassoc>"
        )
    return "".join(parts) + "</recording>"


def multipart(*parts: tuple[str, str | bytes]) -> tuple[str, bytes]:
    """The type and the body of these parts, each with its type."""
    body = b""
    for kind, text in parts:
        data = text if isinstance(text, bytes) else text.encode()
        body += f"--{BOUNDARY}\r\nContent-Type: {kind}\r\n\r\n".encode() + data + b"\r\n"
    return f'multipart/mixed;boundary="{BOUNDARY}"', body + f"--{BOUNDARY}--\r\n".encode()


def described(
    *streams: tuple[int, str, str],
    formats: str = "0",
    lines: Sequence[str] = (),
    kind: str = "audio",
) -> str:
    """An offer of these streams: port, label and direction of each."""
    text = ["v=0", f"o=src 7 1 IN IP4 {HOST}", "s=-", f"c=IN IP4 {HOST}", "t=0 0"]
    for port, label, direction in streams:
        text += [f"m={kind} {port} RTP/AVP {formats}", *lines, f"a={direction}"]
        text += [f"a=label:{label}"] if label else []
    return "\r\n".join(text) + "\r\n"


class RecordingClient:
    """One recording session with our endpoint."""

    def __init__(self, peer: Peer, lines: Sequence[Sound]) -> None:
        self.peer, self.lines = peer, lines

    def offer(self, *directions: str) -> str:
        """An offer of the streams, each with its direction, or "ended"."""
        streams = []
        for number, (line, direction) in enumerate(zip(self.lines, directions, strict=False), 1):
            ended = direction == "ended"
            port, way = (0, "inactive") if ended else (line.port, direction)
            streams.append((port, str(number), way))
        return described(*streams, formats=str(self.lines[0].payload_type))

    def ask(self, method: str, body: tuple[str, bytes], *headers: tuple[str, str]) -> Request:
        """Send a request with this body."""
        request = self.peer.request(method, *headers)
        request.headers.set("Content-Type", body[0])
        request = Request(method, request.uri, request.headers, body[1])
        if method == "INVITE":
            self.peer._invite = request
        self.peer.send(request)
        return request

    async def changes(
        self, offer: str, *people: tuple[str, str, str], mode: str = "complete"
    ) -> str:
        """Re-INVITE; returns the answer."""
        parts = [("application/sdp", offer)]
        if people:
            parts.append(("application/rs-metadata+xml", metadata(*people, mode=mode)))
        request = self.ask("INVITE", multipart(*parts), SIPREC)
        response = await self.peer.accepted(request)
        self.peer.ack(response)
        return sdp_of(response) or ""

    async def begins(self, xml: str | None = None, offer: str | None = None) -> str:
        """Begin the session; returns the answer, at which the streams are aimed."""
        parts: list[tuple[str, str]] = [
            ("application/sdp", offer or self.offer("sendonly", "sendonly"))
        ]
        parts.append(("application/rs-metadata+xml", xml or metadata(CALLER, CALLED)))
        self.ask("INVITE", multipart(*parts), SIPREC)
        response = await self.peer.response(200)
        self.peer.ack(response)
        self.contact = response.headers.get("Contact") or ""
        answer = sdp_of(response) or ""
        self.aim(answer)
        return answer

    def aim(self, answer: str) -> None:
        for line, media in zip(self.lines, parse(answer).media, strict=False):
            if media.port:
                line.remote = HOST, media.port

    async def say(self, number: int, pcm: Pcm) -> None:
        """Send speech, 16 kHz, in one stream at its pace."""
        line = self.lines[number]
        narrow = Resampler(RATE_IN, 24_000).process(pcm[: len(pcm) // 320 * 320])
        packets = []
        for start in range(0, len(narrow) - 479, 480):
            payload = line._encoder.encode(narrow[start : start + 480])
            line.number, line.timestamp = line.number + 1, line.timestamp + 160
            number = line.number & 0xFFFF
            packets.append(RtpPacket(line.payload_type, number, line.timestamp, line.ssrc, payload))
        await line.sends(packets)

    async def say_both(self, first: Pcm, second: Pcm) -> None:
        await asyncio.gather(self.say(0, first), self.say(1, second))


@asynccontextmanager
async def recording_client(
    sip: SipEndpoint, streams: int = 2, codec: str = "g722", payload_type: int = 9
) -> AsyncIterator[RecordingClient]:
    """One that has not begun."""
    async with udp_peer(sip) as peer:
        with ExitStack() as stack:
            lines = [stack.enter_context(sound(codec, payload_type)) for _ in range(streams)]
            yield RecordingClient(peer, lines)
