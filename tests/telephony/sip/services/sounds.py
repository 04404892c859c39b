"""Sound with keys: a far end's SRTP by SDES, and its ICE-lite with DTLS."""

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from aioice import stun

from offhook.media.rtp.rtp import RtpPacket
from offhook.telephony.sip.media.dtls_io import DtlsSrtp, local_fingerprint
from offhook.telephony.sip.media.srtp import SdesSrtp, SrtpError
from offhook.telephony.sip.messages.sdp import parse
from tests.telephony.sip.ends import crypto, key_in
from tests.telephony.sip.scripted_sound import HOST, Sound

SUITE = "AES_CM_128_HMAC_SHA1_80"
ROLE_CONFLICT = (487, "Role Conflict")


class SecureSound(Sound):
    """Says nothing in clear, and drops what is."""

    srtp: SdesSrtp | None = None

    def _read(self) -> None:
        data, source = self.sock.recvfrom(2048)
        self._receive(data, source)

    def _receive(self, data: bytes, source: tuple[str, int]) -> None:
        if self.srtp is None:
            return
        try:
            if 192 <= data[1] <= 223:
                self.rtcp.append((self.srtp.unprotect_rtcp(data), source[1]))
            else:
                packet = RtpPacket.parse(self.srtp.unprotect(data))
                self.received.append((monotonic(), packet))
        except SrtpError:
            return

    def send(self, packet: RtpPacket) -> None:
        if self.srtp is not None:
            self.sock.sendto(self.srtp.protect(packet.serialize()), self.remote)


class SdesSound(SecureSound):
    """Keys in SDP (RFC 4568), of one suite."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.key = secrets.token_bytes(30)

    def crypto_line(self, tag: int = 1, rest: str = "|2^31") -> str:
        return crypto(SUITE, self.key, tag).strip() + rest

    def aim(self, sdp: str) -> None:
        super().aim(sdp)
        self.srtp = SdesSrtp(SUITE, self.key, key_in(sdp))


class LiteSound(SecureSound):
    """ICE-lite (RFC 8445 §2.5) on one port, and DTLS, in whichever role we leave to it."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.ufrag, self.password = secrets.token_hex(8), secrets.token_hex(12)
        self.setup = "actpass"
        self.checks: list[str] = []
        """Of our connectivity checks, the role that each claims."""
        self.nominated = asyncio.Event()
        self.keyed = asyncio.Event()
        self.failed = ""
        self._dtls: DtlsSrtp | None = None

    def media_lines(self) -> tuple[str, ...]:
        """Of its m-line, for `sdp`."""
        return (
            "a=rtcp:9 IN IP4 0.0.0.0",
            f"a=candidate:1775469887 1 udp 2122260223 {HOST} {self.port} typ host generation 0",
            f"a=ice-ufrag:{self.ufrag}",
            f"a=ice-pwd:{self.password}",
            f"a=fingerprint:{local_fingerprint()}",
            f"a=setup:{self.setup}",
            "a=msid:632a909f WhatsAppTrack1",
            "a=rtcp-mux",
        )

    def aim(self, sdp: str) -> None:
        """At a far end that has sent this; checks and DTLS are awaited from now on."""
        [media] = parse(sdp).resolved()
        active = self.setup == "active" or media.setup == "passive"
        self._active = active
        self._fingerprints = media.fingerprints
        if not active:
            self._begin()

    def _begin(self) -> None:
        role = "client" if self._active else "server"
        self._dtls = DtlsSrtp(role, self._fingerprints, self._out, self._has_keys, self._fails)

    def _out(self, data: bytes) -> None:
        self.sock.sendto(data, self.remote)

    def _has_keys(self, keys: SdesSrtp) -> None:
        self.srtp = keys
        self.keyed.set()

    def _fails(self, reason: str) -> None:
        self.failed = reason

    def _receive(self, data: bytes, source: tuple[str, int]) -> None:
        if data[0] < 2:
            self._receive_check(data, source)
        elif 20 <= data[0] < 64:
            if self._dtls is not None:
                self._dtls.receive(data)
        else:
            super()._receive(data, source)

    def _receive_check(self, data: bytes, source: tuple[str, int]) -> None:
        request = stun.parse_message(data)
        mine = request.attributes.get("USERNAME", "").partition(":")[0] == self.ufrag
        if not mine or not request.check_message_integrity(self.password.encode()):
            return
        controls = "ICE-CONTROLLING" in request.attributes
        self.checks.append("controlling" if controls else "controlled")
        kind = stun.Class.RESPONSE if controls else stun.Class.ERROR
        response = stun.Message(stun.Method.BINDING, kind, request.transaction_id)
        if controls:
            response.attributes["XOR-MAPPED-ADDRESS"] = source
        else:  # a lite agent is always controlled
            response.attributes["ERROR-CODE"] = ROLE_CONFLICT
        response.add_message_integrity(self.password.encode())
        self.sock.sendto(bytes(response), source)
        if controls and "USE-CANDIDATE" in request.attributes:
            self.remote = source
            first = not self.nominated.is_set()
            self.nominated.set()
            if first and self._active:
                self._begin()

    def close(self) -> None:
        if self._dtls is not None:
            self._dtls.close()
        super().close()


@contextmanager
def sdes_sound(codec: str, payload_type: int) -> Iterator[SdesSound]:
    line = SdesSound(codec, payload_type)
    try:
        yield line
    finally:
        line.close()


@contextmanager
def lite_sound(payload_type: int = 111) -> Iterator[LiteSound]:
    line = LiteSound("opus", payload_type)
    try:
        yield line
    finally:
        line.close()
