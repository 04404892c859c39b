"""A SIP phone that places the scripted caller's one call.

SIP carries only the call, so the agent's activity is detected from its audio, and its transcripts
are unknown here.
"""

import asyncio
from time import monotonic

from offhook.media.clock_io import PacketClock
from offhook.media.codecs.opus import OpusSettings
from offhook.media.leg import Claim, Leg, LegError
from offhook.media.pcm import Pcm, dbfs
from offhook.telephony.call_progress_io import DialError
from offhook.telephony.call_record import CallRecord
from offhook.telephony.sip.endpoint_io import SipEndpoint
from offhook.telephony.sip.media.leg_io import SipLeg
from offhook.telephony.sip.media.media_plan import MediaSettings
from offhook.telephony.sip.media.rtp_ports_io import RtpPorts
from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.outgoing_calls_io import Dial
from offhook.telephony.sip.trunks.trunks import CODECS, SipSettings, Trunk
from offhook.web.app.callers.caller_leg import AUDIBLE_DBFS, ScriptedCallerLeg
from offhook.web.app.callers.impaired_leg_io import ImpairedLeg
from offhook.web.http.access import LOOPBACK_NAMES

QUIET_S = 0.9
"""Silence in s after which the agent has finished; pauses between sentences are shorter."""


def is_sip(url: str) -> bool:
    return url.lower().startswith(("sip:", "sips:"))


class AgentByEar:
    """Detects from its audio whether the agent is speaking."""

    def __init__(self, speaks: asyncio.Event, silent: asyncio.Event) -> None:
        self._speaks, self._silent = speaks, silent
        self._speaking = False
        self._sounded_at = 0.0

    def tick(self, heard: Pcm, said: Pcm | None, now: float) -> None:
        if dbfs(heard) > AUDIBLE_DBFS:
            self._sounded_at = now
            if not self._speaking:
                self._speaking = True
                self._silent.clear()
                self._speaks.set()
        elif self._speaking and now - self._sounded_at > QUIET_S:
            self._speaking = False
            self._silent.set()

    def forget(self) -> None:
        """Discards the audio heard so far."""
        self._speaking = False
        self._speaks.clear()
        self._silent.set()


class SipCallerLeg(ScriptedCallerLeg, ImpairedLeg, SipLeg):
    def use_address(self, address: str) -> None:
        """Sets our address in the offer."""
        self._transport.address = address


class SipCaller:
    """A phone for one call to a SIP URI; implements the endpoint's Host."""

    def __init__(self, url: str, clock: PacketClock, codecs: tuple[str, ...] = CODECS) -> None:
        """Raises SipError for an invalid URL."""
        uri = Uri.parse(url)
        secure = uri.scheme == "sips" or (uri.parameter("transport") or "").lower() == "tls"
        host = "::" if ":" in uri.host else "0.0.0.0"
        if uri.host in LOOPBACK_NAMES:
            host = "::1" if ":" in uri.host else "127.0.0.1"
        settings = SipSettings(host=host, udp=0, tcp=None, trunks=(Trunk("callee", server=url),))
        media = MediaSettings(codecs=codecs, srtp="optional" if secure else "off", dtls=secure)
        self.clock = clock
        self.opus = OpusSettings()
        self.leg = SipCallerLeg(
            "caller", media, RtpPorts(host, *settings.rtp_ports), host, self.opus
        )
        self.setup_ms: float | None = None
        """Time in ms from the INVITE to the answer."""
        self._url = url
        self._phone = SipEndpoint(settings, self)
        self._phone.hooks.new_leg = self._use_leg

    def _use_leg(self, call_id: str, trunk: Trunk | None, flow: Flow) -> SipLeg:
        self.leg.use_address(self._phone.stack.address_of(flow)[0])
        return self.leg

    async def call(self) -> None:
        """Returns once the call is answered. Raises DialError, OSError."""
        await self._phone.start()
        began = monotonic()
        call = self._phone.dial(Dial(self._url, caller="offhook-call"))
        async for progress in call.events():
            if progress.state == "answered":
                self.setup_ms = (monotonic() - began) * 1000
                return
            if progress.state == "ended":
                raise DialError(progress.status, progress.reason)

    async def close(self) -> None:
        await self._phone.close()

    # --- for the endpoint (Host) ---

    def admit(self) -> None:
        """Never called: this phone only makes calls."""

    def admit_stranger(self, address: str) -> Claim:
        """Never called either."""
        raise LegError("this phone only makes calls")

    async def run_call(self, leg: Leg, agent: str) -> None:
        await leg.until_closed()

    def webrtc_leg(self, call_id: str) -> Leg:
        raise LegError("this phone has no WebRTC")

    def record(self, record: CallRecord) -> None:
        """Ignores the record."""
