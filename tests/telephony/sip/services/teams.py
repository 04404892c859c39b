"""Microsoft Teams Direct Routing by hand, with the rules of "Direct Routing - SIP protocol" and
"Direct Routing - media protocols" (learn.microsoft.com/microsoftteams)."""

import re

from offhook.telephony.sip.messages.message import Request, sdp_of
from tests.telephony.sip.scripted_peer import HOST, Header
from tests.telephony.sip.services.service import Caller, Service
from tests.telephony.sip.services.sounds import SUITE, SdesSound

NAMES = ("sip.pstnhub.test", "sip2.pstnhub.test", "sip3.pstnhub.test")
IN_DIALOG = "sip-du-a-eu.pstnhub.test"
SBC = "sbc.example.test"
"""Our name."""
USER_AGENT = "Microsoft.PSTNHub.SIPProxy v.2026.10.1.1 i.EUWE.3"
FORMATS = "104 9 103 111 18 0 8 97 101 13 118"
RTPMAPS = (
    "a=rtpmap:104 SILK/16000",
    "a=rtpmap:9 G722/8000",
    "a=rtpmap:103 SILK/8000",
    "a=rtpmap:111 SIREN/16000",
    "a=rtpmap:18 G729/8000",
    "a=rtpmap:0 PCMU/8000",
    "a=rtpmap:8 PCMA/8000",
    "a=rtpmap:97 RED/8000",
    "a=rtpmap:101 telephone-event/8000",
    "a=fmtp:101 0-16",
    "a=rtpmap:13 CN/8000",
    "a=rtpmap:118 CN/16000",
    "a=ptime:20",
)


class Teams(Service):
    """Wants a certificate with the name in Contact, no Replaces that it has not asked for, an offer
    in each INVITE, and SDES of the one suite. It does not list REFER."""

    busy = False
    declines = False
    replaceable = ""
    """The call that it has asked us to replace."""

    def judge(self, request: Request, names: list[str]) -> tuple[int, str, list[Header]] | None:
        host = request.contacts[0].uri.host if request.contacts else ""
        allow = [("Allow", self.allow)]
        if not any(_covers(name, host) for name in names):
            return 403, "Forbidden", allow
        if request.method == "OPTIONS":
            return None
        if request.method != "INVITE":
            return 405, "Method Not Allowed", allow
        to_a_user = request.uri.parameter("x-m") is not None  # a transfer's target
        if not ((request.uri.user or "").startswith("+") or to_a_user):
            return 404, "Not Found", allow
        if request.headers.get("Replaces") not in (None, self.replaceable):
            return 400, "Bad Request", allow
        if self.busy:
            return 503, "Service Unavailable", [("Retry-After", "1")]
        if self.declines:
            return 603, "Decline", allow
        sdp = sdp_of(request)
        if sdp is None:
            return 488, "Delayed Offer", allow
        media = re.search(r"m=audio \d+ (\S+)", sdp)
        if media is None or "SAVP" not in media[1] or f" {SUITE} inline:" not in sdp:
            return 488, "Not Acceptable Here", allow
        return None

    def new_call(self) -> Caller:
        peer = super().new_call()
        peer.uri = f"sip:+14255550100@{NAMES[0]}:5061;user=phone"
        # Requests within a call go to the proxy, and its Contact is no place for SIP.
        peer.contact = "<sip:api-du-a-euwe.pstnhub.test:443;x-i=b712d12c;x-c=a35ae5/s/1/4b30e77>"
        peer.record_routes = [f"<sip:{IN_DIALOG}:{self.port};transport=tls;lr>"]
        return peer

    def calls(self, port: int, number: str = "+4930123456", sbc: str = SBC) -> Caller:
        """A call that the service makes, from a Teams user to a number here."""
        peer = self.new_call()
        peer.to = f"sip:{number}@{sbc}:{port};user=phone;transport=tls"
        peer.target = peer.to
        return peer


def headers() -> tuple[Header, ...]:
    """More of an INVITE of Teams."""
    return (
        ("User-Agent", USER_AGENT),
        ("Allow", Teams.allow),
        ("Min-SE", "300"),
        ("Supported", "histinfo,timer"),
        ("Session-Expires", "3600"),
        ("X-MS-TenantId", "2d88cb42-f810-417a-a0fc-80244a7fdd61"),
        ("X-MS-UserLocation", "external"),
    )


def sdp(line: SdesSound, version: int = 1, direction: str = "sendrecv", host: str = HOST) -> str:
    """An offer of its media processor, and a later one."""
    lines = (f"a=rtcp:{line.port + 1}", line.crypto_line(), *RTPMAPS)
    return line.sdp(
        FORMATS, *lines, protocol="RTP/SAVP", version=version, direction=direction, host=host
    )


def answer(line: SdesSound) -> str:
    """An answer, with a line of keys that we cannot use before the one that we can."""
    with_mki = line.crypto_line(2, "|2^31|1:1")
    lines = (f"a=rtcp:{line.port + 1}", with_mki, line.crypto_line(3), *RTPMAPS[-5:])
    rtpmaps = ("a=rtpmap:9 G722/8000",)
    return line.sdp("9 101 13", *rtpmaps, *lines, protocol="RTP/SAVP")


def _covers(pattern: str, host: str) -> bool:
    wildcard = pattern.startswith("*.") and pattern[1:] == host[host.find(".") :]
    return pattern == host or wildcard
