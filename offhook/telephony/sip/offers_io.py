"""Offers in an established call (RFC 3261 §14): ours, one at a time, and the answers to theirs."""

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Literal, Protocol

from loguru import logger

from offhook.media.leg import Leg, LegError
from offhook.telephony.sip.media.leg_io import SipLeg
from offhook.telephony.sip.media.media_plan import NotAcceptable
from offhook.telephony.sip.media.offer_answer import is_hold
from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.sessions.session import Session
from offhook.telephony.sip.siprec.recorded_leg_io import RecordedLeg

SdpLeg = SipLeg | RecordedLeg
"""Legs whose descriptions are exchanged here."""

OFFER_TIMEOUT_S = 10.0
"""Time limit in s for the far end to answer a re-INVITE; then holding or resuming has failed, and a
call of another server is not continued."""
ANSWER_TIMEOUT_S = 20.0
"""Time limit in s for a browser's leg to answer an offer, ICE gathering included; then the call is
refused with 500, and a re-INVITE with 488."""


class WebRtcLeg(Protocol):
    """A leg with WebRTC media, created by the edge. All raise ValueError for what cannot be
    used."""

    async def answer(self, sdp: str) -> str: ...
    async def offer_audio(self, codecs: Sequence[str]) -> str: ...
    async def accept(self, sdp: str) -> None: ...


class OurOffers:
    """Our offers in one call: each is open until the far end has answered or refused it."""

    def __init__(self) -> None:
        self.direction: Literal["sendrecv", "sendonly"] = "sendrecv"
        """Of the offers: we send only while the far end is on hold."""
        self._answer: asyncio.Future[None] | None = None

    @property
    def open(self) -> bool:
        return self._answer is not None

    async def exchange(self, send: Callable[[], None]) -> None:
        """Send an offer and wait for the answer. Raises LegError if it is refused, TimeoutError."""
        self._answer = asyncio.get_running_loop().create_future()
        try:
            send()
            async with asyncio.timeout(OFFER_TIMEOUT_S):
                await self._answer
        finally:
            self._answer = None

    def accepted(self) -> None:
        """The far end has answered."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None)

    def refused(self, reason: str) -> None:
        """The far end has refused the offer, or the call is over."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(LegError(reason))


def answer_offer(
    session: Session,
    leg: SdpLeg,
    direction: Literal["sendrecv", "sendonly"],
    sdp: str | None,
) -> bool:
    """Answer an offer of the far end, or make one if it asks for ours. Returns whether the media
    have changed."""
    try:
        if sdp is None or isinstance(leg, RecordedLeg):
            answer = leg.offer(direction)
        else:
            answer = leg.answer(sdp)
        session.answer_offer(answer, monotonic())
    except NotAcceptable as error:
        session.refuse_offer(error.status, monotonic())
    except SipError:
        session.refuse_offer(400, monotonic())
    else:
        return True
    return False


async def answer_recorded_offer(session: Session, leg: RecordedLeg, sdp: str) -> None:
    """Answer an offer of a recording client, whose streams may have come or gone."""
    try:
        session.answer_offer(await leg.answer(sdp), monotonic())
    except (NotAcceptable, SipError) as error:
        status = error.status if isinstance(error, NotAcceptable) else 400
        session.refuse_offer(status, monotonic())


async def answer_webrtc_offer(session: Session, leg: Leg, sdp: str | None) -> None:
    """The same, of a leg with WebRTC media."""
    try:
        if sdp is None:
            raise ValueError("a WebRTC leg cannot make an offer")
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            answer = await webrtc(leg).answer(sdp)
        session.answer_offer(answer, monotonic())
        leg.set_held(is_hold(sdp))
    except (ValueError, TimeoutError):
        session.refuse_offer(488, monotonic())
    except Exception:
        logger.exception("{}: failed to answer an offer", leg.call_id)
        session.refuse_offer(500, monotonic())


def webrtc(leg: Leg) -> WebRtcLeg:
    """Return a leg that is no SipLeg: it has WebRTC media."""
    return leg  # type: ignore[return-value]
