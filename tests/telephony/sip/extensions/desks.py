"""Phones by hand that are registered as extensions, each with a sound of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from offhook.telephony.sip.auth.digest import DigestClient
from offhook.telephony.sip.endpoint_io import SipEndpoint
from offhook.telephony.sip.messages.message import Request, Response, sdp_of
from offhook.telephony.sip.trunks.extension import Extension
from tests.support.waiting import HANGS_S, until
from tests.telephony.sip.phones import ToneHost, endpoint
from tests.telephony.sip.scripted_peer import HOST, Peer, numbers, tcp_peer, udp_peer
from tests.telephony.sip.scripted_sound import Sound, sound

EXTENSIONS = {
    "101": Extension(password="pass-101", name="Ann"),
    "102": Extension(password="pass-102", name="Bob"),
    "103": Extension(password="pass-103", name="Cleo"),
}
TONES = {"101": 440, "102": 620, "103": 740}


class Desk:
    """One phone of an extension."""

    def __init__(self, sip: SipEndpoint, far: Peer, line: Sound, number: str) -> None:
        self.sip, self.far, self.line, self.number = sip, far, line, number
        self.hz = TONES[number]
        self.digest = DigestClient(number, f"pass-{number}")
        far.uri = f"sip:{number}@{far.host}:{far.port}"
        way = "" if far.transport == "UDP" else f";transport={far.transport.lower()}"
        far.contact = f"<{far.uri}{way}>"
        self.aor = ("To", f"<sip:{number}@{HOST}>")

    async def proves(self, request: Request) -> None:
        """Send a request again, with the password."""
        challenge = await self.far.response(401)
        if request.method == "INVITE":
            self.far.ack_refusal(challenge)
        again = self.digest.authorize(challenge, request)
        assert again is not None
        via = f"SIP/2.0/{self.far.transport} {self.far.host}:{self.far.port}"
        again.headers.prepend("Via", f"{via};branch=z9hG4bKfar{next(numbers)};rport")
        self.far.cseq = again.cseq.number
        self.far._invite = again
        self.far.send(again)

    async def register(self, expires: int = 120) -> Response:
        self.far.target = f"sip:{HOST}"
        self.far.call_id, self.far.their_tag = f"register-{self.far.port}", ""
        await self.proves(self.far.ask("REGISTER", self.aor, ("Expires", str(expires))))
        return await self.far.response(200, "REGISTER")

    async def begins_to_call(self, number: str, *headers: tuple[str, str]) -> None:
        self.far.target = f"sip:{number}@{HOST}"
        self.far.call_id, self.far.their_tag = f"call-{next(numbers)}", ""
        keys = "a=rtpmap:101 telephone-event/8000"
        await self.proves(self.far.invite(self.line.sdp("0 101", keys), *headers))

    async def is_answered(self) -> Response:
        answer = await self.far.response(200, "INVITE")
        self.far.ack(answer)
        self.line.aim(sdp_of(answer) or "")
        return answer

    def presses(self, key: int) -> None:
        self.line.key(key, 101)

    async def answers(self) -> Request:
        """Whoever calls."""
        invite = await self.rings()
        self.far.reply(invite, 200, sdp=self.line.sdp())
        await self.far.asked("ACK")
        return invite

    async def rings(self) -> Request:
        """Refuses media that it has not, as phones without encryption do."""
        while True:
            invite = await self.far.asked("INVITE")
            self.far.learn(invite)
            offer = sdp_of(invite) or ""
            if "RTP/AVP " in offer:
                self.line.aim(offer)
                self.far.reply(invite, 180)
                return invite
            self.far.reply(invite, 488)
            await self.far.asked("ACK")

    async def talks_with(self, other: "Desk") -> None:
        """Each hears the other's tone."""

        def both() -> bool:
            return self.line.hears(other.hz) and other.line.hears(self.hz)

        self.line.received.clear()
        other.line.received.clear()
        async with asyncio.timeout(HANGS_S):
            while not both():
                await self.line.says(0.1, self.hz)
                await other.line.says(0.1, other.hz)


@asynccontextmanager
async def desks(
    *wanted: str, host: ToneHost | None = None, **settings: object
) -> AsyncIterator[tuple[SipEndpoint, ToneHost, list[Desk]]]:
    """An endpoint with registered phones: "101", or "101 tcp"."""
    chosen = {"trunks": (), "extensions": EXTENSIONS, **settings}
    if host is None:
        host = ToneHost()
    async with endpoint(host, **chosen) as (sip, host), AsyncExitStack() as open_:
        found = []
        for each in wanted:
            number, _, way = each.partition(" ")
            peer = tcp_peer(sip) if way == "tcp" else udp_peer(sip)
            far = await open_.enter_async_context(peer)
            desk = Desk(sip, far, open_.enter_context(sound()), number)
            await desk.register()
            found.append(desk)
        yield sip, host, found
        for desk in found:
            assert 500 not in desk.far.came


async def all_over(sip: SipEndpoint) -> None:
    await until(lambda: not sip.calls)
    await until(lambda: sip.user_agent.sessions == 0)
