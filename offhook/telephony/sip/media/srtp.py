"""SRTP with keys from SDP (RFC 3711, RFC 4568, RFC 7714), through libsrtp."""

from pylibsrtp import Error, Policy, Session

from offhook.media.rtp.srtp import Protector, compiled
from offhook.telephony.sip.media.sdes import SUITES

MAX_SSRCS = 64
"""SSRCs a far end may use under one key; packets of further ones are dropped and counted. libsrtp
keeps state for each and searches it linearly; a call has one, and another after a transfer."""

_PROFILES = {
    "AES_CM_128_HMAC_SHA1_80": Policy.SRTP_PROFILE_AES128_CM_SHA1_80,
    "AES_CM_128_HMAC_SHA1_32": Policy.SRTP_PROFILE_AES128_CM_SHA1_32,
    "AEAD_AES_128_GCM": Policy.SRTP_PROFILE_AEAD_AES_128_GCM,
    "AEAD_AES_256_GCM": Policy.SRTP_PROFILE_AEAD_AES_256_GCM,
}


class SrtpError(ValueError):
    """A packet is not authentic, is replayed or too long, or a key does not fit its suite."""


def _session(suite: str, key: bytes, direction: int) -> Session:
    if suite not in _PROFILES:
        raise SrtpError(f"SRTP suite {suite} is not supported")
    if len(key) != SUITES[suite]:
        raise SrtpError(f"{suite} takes a key and salt of {SUITES[suite]} bytes, not {len(key)}")
    return Session(Policy(key=key, ssrc_type=direction, srtp_profile=_PROFILES[suite]))


class SdesSrtp:
    """SRTP in both directions of one call: our key for sending, the other for receiving."""

    def __init__(self, suite: str, local_key: bytes, remote_key: bytes) -> None:
        """The keys are master key and salt, as in `a=crypto`. Raises SrtpError."""
        self.suite = suite
        self._local_key, self._remote_key = local_key, remote_key
        self._out = Protector(_session(suite, local_key, Policy.SSRC_ANY_OUTBOUND))
        self._in = _session(suite, remote_key, Policy.SSRC_ANY_INBOUND)
        self.compiled = compiled(self._in)
        """Undoes on the compiled path what `unprotect` does, for the SSRCs in `_sources`."""
        self._sources: set[bytes] = set()

    def renewed(self, suite: str, local_key: bytes, remote_key: bytes) -> "SdesSrtp":
        """Return the same call's SRTP under keys of which one or both are new. A direction that
        keeps its key continues: restarted, it would reuse a keystream and accept replays (RFC 3711
        §9.1, §3.3.2). Raises SrtpError."""
        renewed = SdesSrtp(suite, local_key, remote_key)
        if suite == self.suite and local_key == self._local_key:
            renewed._out = self._out
        if suite == self.suite and remote_key == self._remote_key:
            renewed._in, renewed._sources = self._in, self._sources
            renewed.compiled = self.compiled
        return renewed

    def protect(self, packet: bytes) -> bytes:
        """Encrypt an RTP packet. Raises SrtpError."""
        try:
            return self._out.protect(packet)
        except (Error, ValueError) as error:  # ValueError: over libsrtp's 1500 bytes
            raise SrtpError(str(error)) from error

    def protect_rtcp(self, packet: bytes) -> bytes:
        """Encrypt an RTCP datagram. Raises SrtpError."""
        try:
            return self._out.protect_rtcp(packet)
        except (Error, ValueError) as error:
            raise SrtpError(str(error)) from error

    def unprotect(self, packet: bytes) -> bytes:
        """Authenticate and decrypt an RTP packet. Raises SrtpError."""
        self._check_source(ssrc := packet[8:12])
        try:
            plain = self._in.unprotect(packet)
        except (Error, ValueError) as error:
            raise SrtpError(str(error)) from error
        self._sources.add(ssrc)
        return plain

    def unprotect_rtcp(self, packet: bytes) -> bytes:
        """Authenticate and decrypt an RTCP datagram. Raises SrtpError."""
        self._check_source(ssrc := packet[4:8])
        try:
            plain = self._in.unprotect_rtcp(packet)
        except (Error, ValueError) as error:
            raise SrtpError(str(error)) from error
        self._sources.add(ssrc)
        return plain

    def _check_source(self, ssrc: bytes) -> None:
        if ssrc not in self._sources and len(self._sources) >= MAX_SSRCS:
            raise SrtpError(f"more than {MAX_SSRCS} SSRCs under one key")
