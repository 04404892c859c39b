"""WhatsApp Business Calling by SIP, by hand, with the rules of Meta's "SIP Configuration Guide" and
its FAQ (developers.facebook.com/documentation/business-messaging/whatsapp/calling/sip)."""

import secrets

from offhook.telephony.sip.auth.credentials import Credentials, expected_response
from offhook.telephony.sip.messages.message import Request, sdp_of
from offhook.telephony.sip.messages.sdp import parse
from tests.telephony.sip.scripted_peer import Header
from tests.telephony.sip.services.service import Caller, Service
from tests.telephony.sip.services.sounds import LiteSound, SdesSound

SERVER = "wa.meta.test"
OURS = "voip.example.test"
"""The SIP server that the number is set to."""
NUMBER = "17125550259"
PASSWORD = "made by Meta"
CONSUMER = "+12195550714"
REALM = "wa.meta.vc"
OPUS_PARAMETERS = (
    "maxaveragebitrate=20000;maxplaybackrate=16000;minptime=20;"
    "sprop-maxcapturerate=16000;useinbandfec=1"
)


class WhatsApp(Service):
    """Wants digest by the number, our server's name in From, Opus, and keys as the number is set
    to: DTLS with ICE, or SDES. Any re-INVITE is an error, and it wants no REGISTER."""

    asks_for_certificates = False
    allow = "INVITE, ACK, BYE, CANCEL, NOTIFY, OPTIONS"
    keys = "DTLS"
    busy = False

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._nonce = secrets.token_hex(8)

    def judge(self, request: Request, names: list[str]) -> tuple[int, str, list[Header]] | None:
        if request.method == "OPTIONS":
            return None
        if request.method != "INVITE":
            return 403, "Forbidden", []
        if self.busy:
            return 503, "Service Unavailable", []
        challenge = (
            f'Digest realm="{REALM}",nonce="{self._nonce}",opaque="440badfc05072367",'
            'algorithm=MD5,qop="auth"'
        )
        given = request.headers.get("Proxy-Authorization")
        if given is None:
            headers = [("Proxy-Authenticate", challenge)]
            return 407, "Proxy Authentication Required", headers
        credentials = Credentials.parse(given)
        expected = expected_response(credentials, "INVITE", PASSWORD)
        from_ = request.from_.uri
        if from_.host != OURS:
            said = f"SIP server {from_.host} from INVITE does not match any SIP server configured"
            return 403, said, []
        if credentials.username != NUMBER or from_.user != f"+{NUMBER}":
            return 403, "Username does not match the business phone number", []
        if credentials.uri.partition(";")[0] != str(request.to.uri).partition(";")[0]:
            return 403, 'Proxy auth uri does not match SIP "to" uri', []
        if credentials.response != expected:
            return 403, "Wrong password", []
        if (fault := self._fault(sdp_of(request))) is not None:
            return 488, fault, []
        return None

    def _fault(self, sdp: str | None) -> str | None:
        if sdp is None:
            return "No SDP Offer"
        media = parse(sdp).resolved()
        if len(media) != 1:
            return "More Than One Stream"
        [audio] = media
        if not any(rtpmap.name.lower() == "opus" for rtpmap in audio.payloads.values()):
            return "No Opus"
        if self.keys == "SDES":
            return None if audio.attribute("crypto") else "No SDES"
        webrtc = audio.attribute("ice-ufrag") and audio.fingerprints and audio.rtcp_mux
        return None if webrtc else "No ICE With DTLS"

    def new_call(self) -> Caller:
        peer = super().new_call()
        peer.uri = f"sip:{CONSUMER}@{SERVER}"
        peer.contact = f"<sip:{CONSUMER}@{SERVER}:{self.port};transport=tls;ob>;isfocus"
        return peer

    def answer_routes(self) -> list[Header]:
        """Of a 200, which comes through two proxies."""
        return [
            ("Record-Route", "<sip:onevc-sip-proxy.meta.test:8191;transport=tls;lr>"),
            ("Record-Route", f"<sip:{SERVER}:{self.port};transport=tls;lr>"),
            ("Allow", self.allow),
            ("Supported", "timer"),
            ("X-FB-External-Domain", REALM),
        ]

    def calls(self, port: int) -> Caller:
        """A call that the service makes, from a consumer to the number."""
        peer = self.new_call()
        peer.call_id = f"outgoing:wacid.{secrets.token_hex(12)}"
        peer.to = f"sip:+{NUMBER}@{OURS}"
        peer.target = f"sip:+{NUMBER}@{OURS}:{port};transport=tls"
        peer.routes = ["<sip:onevc-sip-proxy.meta.test:8191;transport=tls;lr>"]
        return peer


def headers() -> tuple[Header, ...]:
    """More of an INVITE of WhatsApp."""
    return (
        ("User-Agent", "Facebook SipGateway"),
        ("Allow", WhatsApp.allow),
        ("X-FB-External-Domain", REALM),
        ("x-wa-meta-wacid", "wacid.HBgLMTIxOTU1NTA3MTQ"),
        ("x-wa-meta-cta-payload", "order=17"),
    )


def _formats(opus: int, events: int) -> tuple[str, ...]:
    return (
        f"a=rtpmap:{opus} opus/48000/2",
        f"a=fmtp:{opus} {OPUS_PARAMETERS}",
        f"a=rtpmap:{events} telephone-event/8000",
        "a=maxptime:20",
        "a=ptime:20",
    )


def webrtc_sdp(line: LiteSound, opus: int = 111, events: int = 126) -> str:
    """Its offer where the number is set to DTLS."""
    lines = (*line.media_lines(), "a=mid:audio", *_formats(opus, events))
    sdp = line.sdp(f"{opus} {events}", *lines, protocol="UDP/TLS/RTP/SAVPF")
    session = "a=group:BUNDLE audio\r\na=msid-semantic: WMS 632a909f\r\na=ice-lite\r\nm=audio"
    return sdp.replace("m=audio", session, 1)


def numbers_of(offer: str) -> tuple[int, int]:
    """Payload types of Opus and of telephone events at 8 kHz in an offer of ours."""
    [media] = parse(offer).resolved()
    named = {(m.name.lower(), m.clock_rate): number for number, m in media.payloads.items()}
    return named["opus", 48_000], named["telephone-event", 8_000]


def webrtc_answer(offer: str, line: LiteSound) -> str:
    """Its answer to ours: it leaves it to us to begin with DTLS, and names the m-line as always."""
    opus, events = numbers_of(offer)
    line.use("opus", opus)
    line.setup = "passive"
    return webrtc_sdp(line, opus, events)


def sdes_sdp(line: SdesSound, opus: int = 111, events: int = 126) -> str:
    """Its offer or answer where the number is set to SDES."""
    lines = ("a=mid:audio", "a=rtcp-mux", line.crypto_line(1, ""), *_formats(opus, events))
    return line.sdp(f"{opus} {events}", *lines, protocol="RTP/SAVP")
